/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A reliable connection from a device to itself. This process is its own peer,
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

	/* @srq is the receive queue of both ends, and @most is the largest MTU. */
	explicit loopback(const device &on, ibv_srq *srq = nullptr, ibv_mtu most = IBV_MTU_4096);
	loopback(const device &on, ibv_srq *srq, ibv_mtu most, const patience &ends);

	/*
	 * Does one RDMA operation of the near end on memory of the far end, and waits
	 * for its completion. An error breaks the connection, so the caller must make a
	 * new connection.
	 *
	 * For iWARP a write completes when TCP has the bytes. So write() adds an empty
	 * read. The response to the read comes after the bytes have arrived.
	 */
	ibv_wc_status write(const ibv_mr *from, range local, const void *remote, uint32_t rkey);
	ibv_wc_status read(const ibv_mr *into, range local, const void *remote, uint32_t rkey);

	/*
	 * Was the last operation refused because it had no access to the far end's
	 * memory? InfiniBand and RoCE report this in the near end's status. iWARP ends
	 * the connection, and the far end gets an event.
	 */
	bool refused(ibv_wc_status status) const;

	/*
	 * Starts an operation without waiting. poll() and wait() return the status. For
	 * IBV_WR_SEND_WITH_INV, @rkey is the key to invalidate. @flags is
	 * IBV_SEND_SIGNALED or 0. Failures and iWARP writes always have a completion.
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
	std::optional<iwarp_connection> iwarp_; /* destroyed before the queue pairs */
};

} // namespace mr_notify

#endif
