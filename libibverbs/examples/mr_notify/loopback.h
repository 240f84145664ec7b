/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A reliable connection from a device to itself: this process is its own peer,
 * so one program sees both ends of an RDMA operation.
 */
#ifndef MR_NOTIFY_LOOPBACK_H
#define MR_NOTIFY_LOOPBACK_H

#include "device.h"

namespace mr_notify {

class loopback {
public:
	explicit loopback(const device &on);

	/*
	 * One RDMA operation of the near end on memory of the far end, waited
	 * for. After an error the connection is broken; make another.
	 */
	ibv_wc_status write(const ibv_mr *from, range local, const void *remote, uint32_t rkey);
	ibv_wc_status read(const ibv_mr *into, range local, const void *remote, uint32_t rkey);

	ibv_qp *near_end() const { return near_.get(); }
	ibv_qp *far_end() const { return far_.get(); }
	ibv_wc wait();

private:
	ibv_wc_status post(ibv_wr_opcode opcode, const ibv_mr *mr, range local, const void *remote,
			   uint32_t rkey);

	owned<ibv_cq> cq_;
	owned<ibv_qp> near_;
	owned<ibv_qp> far_;
};

} // namespace mr_notify

#endif
