/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A queue pair that sends requests, and a raw peer that answers. */
#ifndef GUEST_REQUESTER_H
#define GUEST_REQUESTER_H

#include "catch.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "raw_peer.h"
#include "post.h"
#include "system.h"

namespace odp {

/*
 * A queue pair that has sent a write with PSN 0, which was acknowledged, and a read of three
 * packets, PSN 1 to 3.
 */
struct requester {
	const cable &wire;
	mr_notify::memory here = mr_notify::anonymous(3 * mtu);
	mr_notify::memory there =
		mr_notify::anonymous(mr_notify::page_size()); /* in place of the peer's memory: only
								 the address is used */
	mr_notify::owned<ibv_mr> mr =
		wire.on().register_memory(here.registered(), IBV_ACCESS_LOCAL_WRITE);
	raw_peer peer{wire};

	explicit requester(const cable &on, uint8_t retries = 0) : wire(on)
	{
		peer.allow_requests(retries);
		ask(IBV_WR_RDMA_WRITE, mtu);
		ask(IBV_WR_RDMA_READ, 3 * mtu);
		for (const uint8_t opcode : {0x0a, 0x0c}) {
			const auto request = peer.next(mr_notify::time_limit);
			REQUIRE(request);
			REQUIRE(request->opcode == opcode);
		}
		peer.acknowledge(0);
		REQUIRE(ended() == IBV_WC_SUCCESS);
	}

	void ask(ibv_wr_opcode opcode, uint32_t length, unsigned int flags = 0) const
	{
		post(peer.qp(), {.opcode = opcode,
				 .local = {{{here.registered().addr, length}, mr->lkey}},
				 .remote = remote(),
				 .flags = flags});
	}
	uint64_t remote() const { return number(there.registered().addr); }
	void ask_for_atomic_write() const
	{
		ibv_qp_ex *qp = ibv_qp_to_qp_ex(peer.qp());

		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_atomic_write(qp, 7, remote(), "12345678");
		mr_notify::check_verb(ibv_wr_complete(qp), "ibv_wr_complete");
	}
	void ask_for_flush(unsigned int flags = 0) const
	{
		ibv_qp_ex *qp = ibv_qp_to_qp_ex(peer.qp());

		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED | flags;
		ibv_wr_flush(qp, 7, remote(), mtu, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
		mr_notify::check_verb(ibv_wr_complete(qp), "ibv_wr_complete");
	}
	void answer(raw_peer::part which, uint32_t psn) const
	{
		peer.read_answer(which, psn, std::vector(mtu, static_cast<std::byte>(0x10 + psn)));
	}
	ibv_wc_status ended() const
	{
		const auto wc = peer.completed(mr_notify::time_limit);
		REQUIRE(wc);
		return wc->status;
	}
	void read_all() const
	{
		answer(raw_peer::part::first, 1);
		answer(raw_peer::part::middle, 2);
		answer(raw_peer::part::last, 3);
		CHECK(ended() == IBV_WC_SUCCESS);
	}
	raw_peer::packet request() const
	{
		const auto found = peer.next(mr_notify::time_limit);
		REQUIRE(found);
		return *found;
	}
	bool has_read() const
	{
		const std::byte *at = here.registered().addr;

		for (uint32_t psn = 1; psn <= 3; psn++, at += mtu)
			if (std::count(at, at + mtu, static_cast<std::byte>(0x10 + psn)) != mtu)
				return false;
		return true;
	}
};

/* A write that waits for its acknowledgment, followed by the bind of a window. */
struct write_and_bind {
	explicit write_and_bind(const requester &by)
	    : mr(by.wire.on().register_memory(by.here.registered(),
					      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)),
	      window(ibv_alloc_mw(by.wire.on().pd(), IBV_MW_TYPE_2))
	{
		REQUIRE(window);
		by.read_all();
		by.ask(IBV_WR_RDMA_WRITE, mtu);
		post_bind(
			by.peer.qp(), window.get(),
			{mr.get(), number(by.here.registered().addr), mtu, IBV_ACCESS_REMOTE_READ});
		CHECK(by.request().opcode == 0x0a);
	}

	mr_notify::owned<ibv_mr> mr;
	mr_notify::owned<ibv_mw> window;
};

} // namespace odp

#endif
