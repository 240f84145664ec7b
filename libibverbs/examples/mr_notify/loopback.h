/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A reliable connection from a device to itself: this process is its own peer,
 * so one program sees both ends of an RDMA operation.
 */
#ifndef MR_NOTIFY_LOOPBACK_H
#define MR_NOTIFY_LOOPBACK_H

#include <optional>

#include "iwarp.h"
#include "reliable.h"

namespace mr_notify {

class loopback {
public:
	using patience = mr_notify::patience;

	/* @srq: where the receives of both ends come from; @most: no larger packets */
	explicit loopback(const device &on, ibv_srq *srq = nullptr, ibv_mtu most = IBV_MTU_4096);
	loopback(const device &on, ibv_srq *srq, ibv_mtu most, const patience &ends);

	/*
	 * One RDMA operation of the near end on memory of the far end, waited
	 * for. After an error the connection is broken; make another.
	 *
	 * To iWARP a write is complete when TCP has it. So an empty read follows
	 * it there, which is answered when the bytes have arrived.
	 */
	ibv_wc_status write(const ibv_mr *from, range local, const void *remote, uint32_t rkey);
	ibv_wc_status read(const ibv_mr *into, range local, const void *remote, uint32_t rkey);

	/*
	 * Was the last operation refused because the far end's memory may not be
	 * accessed? InfiniBand and RoCE tell the near end so. iWARP ends the
	 * connection, and tells the far end in an event.
	 */
	bool refused(ibv_wc_status status) const;

	/*
	 * The same without waiting: poll() and wait() tell how it ends. A message with
	 * invalidation names the key as @rkey. @flags is
	 * IBV_SEND_SIGNALED or 0; a failure is told in any case, and so is the
	 * end of an iWARP write.
	 */
	void start(ibv_wr_opcode opcode, const ibv_mr *mr, range local, const void *remote,
		   uint32_t rkey, unsigned int flags = IBV_SEND_SIGNALED);
	std::optional<ibv_wc> poll();
	ibv_wc wait();

	ibv_qp *near_end() const { return near_.get(); }
	ibv_qp *far_end() const { return far_.get(); }

private:
	owned<ibv_cq> cq_;
	owned<ibv_qp> near_;
	owned<ibv_qp> far_;
	std::optional<iwarp_connection> iwarp_; /* ends before the queue pairs do */
};

} // namespace mr_notify

#endif
