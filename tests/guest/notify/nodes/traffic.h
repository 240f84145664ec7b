/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Writes and reads of this node, several at a time, that go on in memory of the other one. */
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

/* A queue pair, with its own completion queue, that a process of the other node is connected to. */
class connection {
public:
	/*
	 * The first packet's number is so that they begin again at 0 soon. Over iWARP TCP has the
	 * numbers and the patience.
	 */
	connection(const mr_notify::device &on, remote &owner, const mr_notify::patience &waits);

	/* Flags: beside IBV_SEND_SIGNALED. */
	void post(ibv_wr_opcode opcode, const ibv_mr *mr, mr_notify::range local, const target &to,
		  std::size_t offset, unsigned int flags = 0, uint64_t added = 0);
	/* Waits; throws if none comes: the queue pair hangs. */
	ibv_wc wait();

private:
	mr_notify::owned<ibv_cq> cq_;
	mr_notify::owned<ibv_qp> qp_;
	std::optional<mr_notify::iwarp_caller> caller_; /* over iWARP */
};

class traffic {
public:
	/*
	 * @only_writes: over iWARP an end that only waits for the answer of a read does not notice
	 * that the wire is cut.
	 */
	traffic(const mr_notify::device &on, remote &owner, const target &to,
		const mr_notify::patience &waits, bool only_writes = false);
	traffic(const traffic &) = delete;
	traffic &operator=(const traffic &) = delete;
	~traffic() { stop_ = true; }

	/* So many more have succeeded. */
	void go_on(unsigned int more) const;
	/* How the transfers ended after a failure, when each posted request has its completion. */
	struct end {
		ibv_wc_status first;		    /* that was not successful */
		unsigned int flushed;		    /* later ones, as IBV_WC_WR_FLUSH_ERR */
		unsigned int others;		    /* … otherwise, which is wrong */
		std::chrono::milliseconds duration; /* since the last successful completion */
	};
	/* Throws if they go on: when it is called, no more than are under way may succeed. */
	end wait_for_end();

	static constexpr std::byte byte{0x77}; /* which is written */

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
	std::jthread thread_; /* the last: it uses the others */
};

} // namespace nodes

#endif
