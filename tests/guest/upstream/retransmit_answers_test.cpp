// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A queue pair and the responses to its requests: duplicate and old responses, which any network
 * delivers, and responses that only a hostile peer sends.
 */
#include "catch.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "requester.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;
using part = raw_peer::part;

/*
 * If requests are sent again, their acknowledgements also come again, perhaps in the middle of a
 * later response.
 */
TEST_CASE("retransmit_answers: an old response doesn't end a read", "[veth]")
{
	const cable wire;
	const requester one(wire);
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

/* The NAK comes after some responses to the read, and has a PSN of the read. */
TEST_CASE("retransmit_answers: a read that is refused halfway fails", "[veth]")
{
	const cable wire;
	const requester one(wire);

	one.answer(part::first, 1);
	one.answer(part::middle, 2);
	one.peer.acknowledge(1, raw_peer::refused);
	CHECK(one.ended() == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("retransmit_answers: an invalid response is an error", "[veth]")
{
	const cable wire;
	const requester one(wire);

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

/*
 * The responder remembers only one request, because only one may be in progress. A FLUSH counts,
 * too.
 */
TEST_CASE(
	"retransmit_answers: a flush waits for the read before it, and the next read for the flush",
	"[veth]")
{
	const cable wire;
	const requester one(wire);

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

TEST_CASE("retransmit_answers: a flush or an atomic write is repeated if its response was lost",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 7);
	const bool flush = GENERATE(true, false);
	const uint8_t opcode = flush ? 0x1c : 0x1d;

	INFO("a flush: " << flush);
	one.read_all();
	if (flush)
		one.ask_for_flush();
	else
		one.ask_for_atomic_write();
	const raw_peer::packet before = one.request();
	REQUIRE(before.opcode == opcode);
	one.ask(IBV_WR_RDMA_WRITE, mtu);
	CHECK(one.request().opcode == 0x0a);
	one.peer.acknowledge(5);
	const raw_peer::packet again = one.request();
	CHECK(again.opcode == opcode);
	CHECK(again.psn == before.psn);
	CHECK(again.data == before.data);
	CHECK(one.request().opcode == 0x0a);
	one.peer.read_answer(part::only, 4, {});
	one.peer.acknowledge(5);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	one.ask(IBV_WR_RDMA_READ, mtu);
	CHECK(one.request().opcode == 0x0c);
}

/* The fenced request and requests after it may have been sent before. */
TEST_CASE("retransmit_answers: a fenced request that is sent again waits for earlier requests",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 7);
	const bool write = GENERATE(false, true);
	const uint32_t flush = write ? 5 : 4;

	one.read_all();
	if (write)
		one.ask(IBV_WR_RDMA_WRITE, mtu, IBV_SEND_FENCE);
	one.ask_for_flush(IBV_SEND_FENCE);
	for (int times = 0; times < 2; times++) {
		if (write)
			CHECK(one.request().opcode == 0x0a);
		CHECK(one.request().opcode == 0x1c);
		if (times == 0)
			one.peer.acknowledge(4, raw_peer::out_of_order);
	}
	if (write) {
		one.peer.acknowledge(4);
		CHECK(one.ended() == IBV_WC_SUCCESS);
	}
	one.peer.read_answer(part::only, flush, {});
	CHECK(one.ended() == IBV_WC_SUCCESS);
}

/* The response acknowledges an earlier write that was sent again. */
TEST_CASE("retransmit_answers: a response without a value doesn't end a read or an atomic",
	  "[veth]")
{
	const cable wire;
	const requester one(wire);
	const bool atomic = GENERATE(true, false);

	one.read_all();
	one.ask(IBV_WR_RDMA_WRITE, mtu);
	one.ask(atomic ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_READ, 8);
	CHECK(one.request().opcode == 0x0a);
	CHECK(one.request().opcode == (atomic ? 0x14 : 0x0c));
	one.peer.acknowledge(5);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK_FALSE(one.peer.completed(300ms));
	if (atomic)
		one.peer.atomic_answer(5, 0x4242424242424242);
	else
		one.peer.read_answer(part::only, 5, std::vector(8, std::byte{0x42}));
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(std::count(one.here.registered().addr, one.here.registered().addr + 8,
			 std::byte{0x42}) == 8);
}

TEST_CASE("retransmit_answers: an atomic write that was answered may be repeated as often again",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 1);

	one.read_all();
	for (uint32_t psn = 4; psn < 6; psn++) {
		one.ask_for_atomic_write();
		CHECK(one.request().opcode == 0x1d);
		one.peer.acknowledge(psn, raw_peer::out_of_order);
		CHECK(one.request().opcode == 0x1d);
		one.peer.read_answer(part::only, psn, {});
		CHECK(one.ended() == IBV_WC_SUCCESS);
	}
}

TEST_CASE("retransmit_answers: a window is bound once, even if an earlier request is sent again",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 7);
	const write_and_bind both(one);

	one.peer.acknowledge(4, raw_peer::out_of_order);
	CHECK(one.request().opcode == 0x0a);
	one.peer.acknowledge(4);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(one.ended() == IBV_WC_SUCCESS);
}
