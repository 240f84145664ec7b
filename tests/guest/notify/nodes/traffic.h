/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Writes and reads that this node keeps posting to memory of the other node, several at a time. */
#ifndef GUEST_NODES_TRAFFIC_H
#define GUEST_NODES_TRAFFIC_H

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "iwarp.h"
#include "reliable.h"
#include "remote.h"

namespace nodes {

/* Memory of the other node. */
struct target {
	uint64_t addr = 0;
	uint32_t rkey = 0;
	std::size_t length = 0;
};

/* A queue pair with its own completion queue, connected to a process on the other node. */
class connection {
public:
	/*
	 * The first PSN is such that PSNs soon wrap. Over iWARP, TCP has its own sequence numbers
	 * and timeouts.
	 */
	connection(const mr_notify::device &on, remote &owner, const mr_notify::patience &waits);

	/* @flags are added to IBV_SEND_SIGNALED. */
	void post(ibv_wr_opcode opcode, const ibv_mr *mr, mr_notify::range local, const target &to,
		  std::size_t offset, unsigned int flags = 0, uint64_t added = 0);
	/* Waits for a completion; throws if none comes, because the queue pair hangs. */
	ibv_wc wait();

private:
	mr_notify::owned<ibv_cq> cq_;
	mr_notify::owned<ibv_qp> qp_;
	std::optional<mr_notify::iwarp_caller> caller_; /* over iWARP */
};

class traffic {
public:
	/*
	 * @only_writes: for a wire that is cut. Over iWARP an end that only waits for a read
	 * response would not notice the cut.
	 */
	traffic(const mr_notify::device &on, remote &owner, const target &to,
		const mr_notify::patience &waits, bool only_writes = false);
	traffic(const traffic &) = delete;
	traffic &operator=(const traffic &) = delete;
	~traffic() { stop_ = true; }

	/* Waits until this many more transfers have succeeded. */
	void go_on(unsigned int more) const;
	/* Describes how the transfers ended after a failure. Each posted request has completed. */
	struct end {
		ibv_wc_status first;  /* the status of the first failed request */
		unsigned int flushed; /* the number of later requests with IBV_WC_WR_FLUSH_ERR */
		unsigned int others;  /* the number of later requests with another status, which is
					 wrong */
		std::chrono::milliseconds duration; /* since the last successful completion */
	};
	/*
	 * Throws if the transfers continue. Only requests that are already in progress may succeed.
	 */
	end wait_for_end();

	static constexpr std::byte byte{0x77}; /* the byte that is written */

private:
	void work();

	const bool iwarp_;
	const bool only_writes_;
	const target to_;
	mr_notify::memory memory_;
	mr_notify::owned<ibv_mr> mr_;
	connection link_;
	std::atomic<unsigned int> done_{0};
	std::atomic<bool> stop_{false};
	std::atomic<bool> over_{false};
	std::optional<end> end_;
	std::exception_ptr problem_;
	std::jthread thread_; /* the last member, because it uses the others */
};

} // namespace nodes

#endif
