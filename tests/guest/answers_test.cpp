// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What a queue pair makes of the answers to what it has asked: repeated and old ones, which any
 * network brings, and those that no honest peer sends.
 */
#include "catch.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "odp/raw_peer.h"
#include "skip.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;
using part = raw_peer::part;

namespace {

constexpr auto patience = 20s;

/*
 * A queue pair that has asked for a write, number 0, which was acknowledged, and for a read of
 * three packets, 1 to 3.
 */
struct asked {
	const cable &wire;
	memory here = anonymous(3 * mtu);
	memory there = anonymous(page_size()); /* of the peer: only its address is used */
	owned<ibv_mr> mr = wire.on().register_memory(here.registered(), IBV_ACCESS_LOCAL_WRITE);
	raw_peer peer{wire};

	explicit asked(const cable &on, uint8_t retries = 0) : wire(on)
	{
		peer.let_ask(retries);
		ask(IBV_WR_RDMA_WRITE, mtu);
		ask(IBV_WR_RDMA_READ, 3 * mtu);
		for (const uint8_t opcode : {0x0a, 0x0c}) {
			const auto request = peer.next(patience);
			REQUIRE(request);
			REQUIRE(request->opcode == opcode);
		}
		peer.acknowledge(0);
		REQUIRE(ended() == IBV_WC_SUCCESS);
	}

	void ask(ibv_wr_opcode opcode, uint32_t length) const
	{
		ibv_sge sge{reinterpret_cast<uintptr_t>(here.registered().addr), length, mr->lkey};
		ibv_send_wr wr{};
		ibv_send_wr *bad = nullptr;

		wr.opcode = opcode;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.sg_list = &sge;
		wr.num_sge = 1;
		wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(there.registered().addr);
		check_verb(ibv_post_send(peer.qp(), &wr, &bad), "ibv_post_send");
	}
	void ask_for_flush() const
	{
		ibv_qp_ex *qp = ibv_qp_to_qp_ex(peer.qp());

		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_flush(qp, 7, reinterpret_cast<uintptr_t>(there.registered().addr), mtu,
			     IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
		check_verb(ibv_wr_complete(qp), "ibv_wr_complete");
	}
	void answer(part which, uint32_t psn) const
	{
		peer.read_answer(which, psn, std::vector(mtu, static_cast<std::byte>(0x10 + psn)));
	}
	ibv_wc_status ended() const
	{
		const auto wc = peer.completed(patience);
		REQUIRE(wc);
		return wc->status;
	}
	void read_all() const
	{
		answer(part::first, 1);
		answer(part::middle, 2);
		answer(part::last, 3);
		CHECK(ended() == IBV_WC_SUCCESS);
	}
	/* The next that it asks for. */
	raw_peer::packet request() const
	{
		const auto found = peer.next(patience);
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

} // namespace

/* When requests are repeated, their acknowledgements are, too: in the middle of a later answer. */
TEST_CASE("answers: an old one does not end a read")
{
	const std::unique_ptr<cable> wire = cable::make();
	SKIP_IF(!wire, "no veth");
	const asked one(*wire);
	const auto syndrome = GENERATE(raw_peer::acknowledged, raw_peer::refused);

	INFO("the old answer: " << +syndrome);
	one.answer(part::first, 1);
	one.peer.acknowledge(0, syndrome);
	one.answer(part::middle, 2);
	one.peer.acknowledge(0, syndrome);
	one.answer(part::last, 3);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(one.has_read());
}

/* Its number is that of the read, of which a part has been answered. */
TEST_CASE("answers: a read that is refused halfway fails")
{
	const std::unique_ptr<cable> wire = cable::make();
	SKIP_IF(!wire, "no veth");
	const asked one(*wire);

	one.answer(part::first, 1);
	one.answer(part::middle, 2);
	one.peer.acknowledge(1, raw_peer::refused);
	CHECK(one.ended() == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("answers: one that makes no sense is an error")
{
	const std::unique_ptr<cable> wire = cable::make();
	SKIP_IF(!wire, "no veth");
	const asked one(*wire);

	SECTION("it begins in the middle")
	{
		one.answer(part::middle, 1);
	}
	SECTION("it begins twice")
	{
		one.answer(part::first, 1);
		one.answer(part::first, 2);
	}
	CHECK(one.ended() == IBV_WC_BAD_RESP_ERR);
}

/* The other end remembers as many as may be under way: one, a flush among them. */
TEST_CASE("answers: a flush waits for the read before it, and the next one for the flush")
{
	const std::unique_ptr<cable> wire = cable::make();
	SKIP_IF(!wire, "no veth");
	const asked one(*wire);

	one.ask_for_flush();
	CHECK_FALSE(one.peer.next(300ms));
	one.read_all();
	CHECK(one.request().opcode == 0x1c);
	one.ask(IBV_WR_RDMA_READ, mtu);
	CHECK_FALSE(one.peer.next(300ms));
	one.peer.read_answer(part::only, 4, {});
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(one.request().opcode == 0x0c);
}

TEST_CASE("answers: a flush whose answer was lost is repeated as it was")
{
	const std::unique_ptr<cable> wire = cable::make();
	SKIP_IF(!wire, "no veth");
	const asked one(*wire, 7);

	one.read_all();
	one.ask_for_flush();
	const raw_peer::packet flush = one.request();
	REQUIRE(flush.opcode == 0x1c);
	one.ask(IBV_WR_RDMA_WRITE, mtu);
	CHECK(one.request().opcode == 0x0a);
	one.peer.acknowledge(5);
	const raw_peer::packet again = one.request();
	CHECK(again.opcode == 0x1c);
	CHECK(again.psn == flush.psn);
	CHECK(again.data == flush.data);
	CHECK(one.request().opcode == 0x0a);
	one.peer.read_answer(part::only, 4, {});
	one.peer.acknowledge(5);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	one.ask(IBV_WR_RDMA_READ, mtu);
	CHECK(one.request().opcode == 0x0c);
}
