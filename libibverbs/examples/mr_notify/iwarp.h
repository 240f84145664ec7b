/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Connects two queue pairs of this process by iWARP, which has no
 * addresses that a program could exchange by itself, only a connection manager.
 */
#ifndef MR_NOTIFY_IWARP_H
#define MR_NOTIFY_IWARP_H

#include <rdma/rdma_cma.h>

#include "device.h"

namespace mr_notify {

class iwarp_connection {
public:
	/* From @near_end to @far_end; the queue pairs outlive the connection. */
	iwarp_connection(const device &on, ibv_qp *near_end, ibv_qp *far_end);

private:
	struct closer {
		void operator()(rdma_event_channel *p) const { rdma_destroy_event_channel(p); }
		void operator()(rdma_cm_id *p) const { rdma_destroy_id(p); }
	};
	template <class T> using owned = std::unique_ptr<T, closer>;

	bool connect(const ibv_qp *near_end);
	owned<rdma_cm_id> make_id() const;
	void bind(const std::string &device);
	rdma_cm_id *next(rdma_cm_event_type expected) const;

	owned<rdma_event_channel> events_;
	owned<rdma_cm_id> listener_;
	owned<rdma_cm_id> near_;
	owned<rdma_cm_id> far_;
};

} // namespace mr_notify

#endif
