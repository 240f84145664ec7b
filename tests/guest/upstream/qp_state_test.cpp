// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Requests are in progress while a queue pair is drained, reset, or modified by two threads, or
 * while its peer is not ready. Other tests check the attributes that each state accepts.
 * RUN_SECONDS sets how long threads run (default 3).
 */
#include "catch.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "requester.h"
#include "odp.h"
#include "reliable.h"
#include "run_time.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;
using part = raw_peer::part;

namespace {

/* Does the queue pair's request complete soon? */
bool succeeded(const raw_peer &peer)
{
	const auto done = peer.completed(time_limit);

	return done && done->status == IBV_WC_SUCCESS;
}

/*
 * Sets the number of reads that the queue pair remembers (max_dest_rd_atomic); its send queue must
 * be drained.
 */
int remember(const raw_peer &peer, uint8_t reads)
{
	ibv_qp_attr attr{};

	attr.max_dest_rd_atomic = reads;
	return ibv_modify_qp(peer.qp(), &attr, IBV_QP_MAX_DEST_RD_ATOMIC);
}

ibv_qp_attr told(const raw_peer &peer)
{
	ibv_qp_attr attr{};
	ibv_qp_init_attr init{};

	check_verb(ibv_query_qp(peer.qp(), &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	return attr;
}

ibv_qp_state state_of(const raw_peer &peer)
{
	return told(peer).qp_state;
}

/* Resets the queue pair, and moves it to RTR with these attributes. */
int listen(const raw_peer &peer, const ibv_qp_attr &attr)
{
	REQUIRE(peer.become(IBV_QPS_RESET));
	check_verb(enter(peer.qp(), IBV_QPS_INIT, attr), "ibv_modify_qp to INIT");
	return enter(peer.qp(), IBV_QPS_RTR, attr);
}

} // namespace

TEST_CASE("qp_state: a queue pair that is reset in the middle of an answer starts from its first "
	  "state",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 7);

	one.answer(part::first, 1);
	one.peer.acknowledge(2, raw_peer::out_of_order);
	CHECK(one.request().opcode == 0x0c);
	one.peer.reset();
	one.peer.allow_requests(7);
	one.ask(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
	for (int times = 0; times < 2; times++) { /* the first packet is lost */
		const raw_peer::packet atomic = one.request();
		CHECK(atomic.opcode == 0x14);
		CHECK(atomic.psn == 0);
		if (times == 0)
			one.peer.acknowledge(0, raw_peer::out_of_order);
	}
	one.peer.atomic_answer(0, 7);
	CHECK(one.ended() == IBV_WC_SUCCESS);
	one.ask(IBV_WR_RDMA_WRITE, mtu);
	CHECK(one.request().opcode == 0x0a);
	one.peer.acknowledge(1);
	CHECK(one.ended() == IBV_WC_SUCCESS);
}

TEST_CASE("qp_state: requests posted in SQD are sent after the return to RTS", "[veth]")
{
	const cable wire;
	const requester one(wire, 7);

	one.read_all();
	for (uint32_t psn = 4; psn < 10; psn++) { /* more than the queue has entries */
		REQUIRE(one.peer.become(IBV_QPS_SQD));
		REQUIRE(happens([&] { return one.peer.drained(); }));
		one.ask(IBV_WR_RDMA_WRITE, mtu);
		CHECK_FALSE(one.peer.next(100ms));
		REQUIRE(one.peer.become(IBV_QPS_RTS));
		CHECK(one.request().opcode == 0x0a);
		one.peer.acknowledge(psn);
		CHECK(one.ended() == IBV_WC_SUCCESS);
	}
}

TEST_CASE("qp_state: a queue is drained when the started requests are complete, even after a retry",
	  "[veth]")
{
	const cable wire;
	const requester one(wire, 7);
	const bool ready = GENERATE(false, true);

	INFO("the peer is ready: " << ready);
	one.read_all();
	one.ask(IBV_WR_RDMA_WRITE, mtu);
	CHECK(one.request().opcode == 0x0a);
	REQUIRE(one.peer.become(IBV_QPS_SQD));
	one.ask(IBV_WR_RDMA_READ, mtu);
	for (int times = 0; times < (ready ? 1 : 2); times++) {
		one.peer.acknowledge(4, ready ? raw_peer::out_of_order : raw_peer::ready_soon);
		CHECK(one.request().opcode == 0x0a);
		CHECK_FALSE(one.peer.drained());
	}
	SECTION("it is complete")
	{
		one.peer.acknowledge(4);
		CHECK(one.ended() == IBV_WC_SUCCESS);
		CHECK(happens([&] { return one.peer.drained(); }));
		CHECK_FALSE(one.peer.next(100ms));
		REQUIRE(one.peer.become(IBV_QPS_RTS));
		CHECK(one.request().opcode == 0x0c);
	}
	SECTION("it never will be")
	{
		one.peer.reset();
		CHECK(one.peer.drained());
	}
}

/* A bind sends no packet. */
TEST_CASE("qp_state: a queue is drained when a bind after its last request is complete", "[veth]")
{
	const cable wire;
	const requester one(wire, 7);
	const write_and_bind both(one);

	CHECK_FALSE(one.peer.completed(100ms)); /* waits before SQD, which starts no new request */
	REQUIRE(one.peer.become(IBV_QPS_SQD));
	CHECK_FALSE(one.peer.completed(100ms));
	one.peer.acknowledge(4);
	for (int times = 0; times < 2; times++)
		CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(happens([&] { return one.peer.drained(); }));
}

/* The queue pair may end only because its peer sends nothing. */
TEST_CASE("qp_state: a reset stops the timers", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	const auto ask = [&] {
		post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{nullptr, 0}, 0}}, 0, 0});
		REQUIRE(peer.next(time_limit));
	};

	peer.allow_requests(7, 19); /* two seconds */
	ask();
	peer.reset();
	peer.allow_requests();
	ask();
	CHECK_FALSE(peer.completed(3s));
	peer.acknowledge(0);
	CHECK(succeeded(peer));
}

/*
 * The RNR NAKs come before the timeout expires, and each RNR NAK is an answer. The test depends on
 * the machine's pace, because the timer of an RNR NAK is at most 655 ms.
 */
TEST_CASE("qp_state: an RNR NAK consumes no retry", "[veth][pace]")
{
	const cable wire;
	const raw_peer peer(wire);

	peer.allow_requests(6, 17); /* half a second */
	post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{nullptr, 0}, 0}}, 0, 0});
	for (int times = 0; times < 9; times++) {
		REQUIRE(peer.next(time_limit));
		peer.acknowledge(0, raw_peer::ready_in_655_ms);
	}
	REQUIRE(peer.next(time_limit));
	peer.acknowledge(0);
	CHECK(succeeded(peer));
}

/* The completion reports the error before the queue pair is in the error state. */
TEST_CASE("qp_state: a queue pair can be reset immediately after an error", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page_size());
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE);
	const raw_peer peer(wire);
	int strange = 0;

	for (const run_time time(2s); time.goes_on();) {
		post_receive(peer.qp(), {{{m.registered().addr, 8}, mr->lkey}});
		peer.message(0, std::vector<std::byte>(16));
		const auto failed = peer.completed(time_limit);
		REQUIRE(failed);
		REQUIRE(failed->status != IBV_WC_SUCCESS);
		REQUIRE(peer.become(IBV_QPS_RESET));
		strange += state_of(peer) != IBV_QPS_RESET;
		peer.reset();
	}
	CHECK(strange == 0);
}

/* The event says that this queue gets no more completions, so the completion must be there. */
TEST_CASE("qp_state: a receive of a shared queue is flushed with the queue pair that uses it",
	  "[veth]")
{
	const cable wire;
	ibv_context *const context = wire.on().context();
	ibv_async_event event{};
	const owned<ibv_srq> srq = shared_queue(wire.on(), 1);
	const memory m = anonymous(page_size());
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE);
	const raw_peer peer(wire, IBV_QPT_RC, 4, srq.get());
	post_receive(srq.get(), {{m.registered(), mr->lkey}}, 7);
	peer.begin_message(0);
	REQUIRE(peer.next(time_limit));
	REQUIRE(peer.become(IBV_QPS_ERR));
	REQUIRE(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
	ibv_ack_async_event(&event);
	const auto flushed = peer.completed(0ms);
	REQUIRE(flushed);
	CHECK(flushed->wr_id == 7);
	CHECK(flushed->status == IBV_WC_WR_FLUSH_ERR);
}

/* The threads modify the limit of reads in progress while reads are in progress. */
TEST_CASE("qp_state: threads that modify one queue pair wait for each other", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page_size());
	const owned<ibv_mr> mr = wire.on().register_memory(
		m.registered(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	const raw_peer peer(wire, IBV_QPT_RC, 128);
	peer.allow_requests();
	REQUIRE(peer.become(IBV_QPS_SQD));
	std::atomic<bool> stop = false;
	std::atomic<int> refused = 0;
	std::vector<std::thread> threads;

	for (const uint8_t reads : {1, 128})
		threads.emplace_back([&, reads] {
			while (!stop)
				refused += remember(peer, reads) != 0;
		});
	uint32_t psn = 0;
	for (const run_time time; time.goes_on(); psn++) {
		peer.read(psn, m.registered().addr, mr->rkey, 8);
		peer.all(1);
	}
	stop = true;
	for (auto &one : threads)
		one.join();
	CHECK(refused == 0);
	peer.read(psn, m.registered().addr, mr->rkey, 8);
	CHECK(peer.all(1).size() == 1);
}

/* Without the fix these requests wait forever. */
TEST_CASE("qp_state: reads and atomics fail with max_rd_atomic 0", "[veth]")
{
	const cable wire;
	const memory here = anonymous(page_size());
	const auto mr = wire.on().register_memory(here.registered());
	const auto opcode = GENERATE(IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD);
	const raw_peer peer(wire);

	INFO("opcode " << opcode);
	peer.allow_requests(0, 0, 0);
	post(peer.qp(), {.opcode = opcode, .local = {{{here.registered().addr, 8}, mr->lkey}}});
	const auto done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_LOC_QP_OP_ERR);
}

TEST_CASE("qp_state: a path has a valid MTU", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	ibv_qp_attr attr = told(peer);

	for (int mtu = 0; mtu < 256; mtu++) {
		INFO("path_mtu " << mtu);
		attr.path_mtu = static_cast<ibv_mtu>(mtu);
		CHECK((listen(peer, attr) == 0) == (mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096));
	}
}

TEST_CASE("qp_state: max_dest_rd_atomic is at most the device's limit", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	ibv_qp_attr attr = told(peer);
	ibv_device_attr device{};

	check_verb(ibv_query_device(wire.on().context(), &device), "ibv_query_device");
	for (int reads = 0; reads < 256; reads++) {
		INFO("max_dest_rd_atomic " << reads);
		attr.max_dest_rd_atomic = static_cast<uint8_t>(reads);
		CHECK((listen(peer, attr) == 0) == (reads <= device.max_qp_rd_atom));
	}
}

/* A queue pair must not acknowledge PSNs before its first PSN. */
TEST_CASE("qp_state: a queue pair acknowledges only requests after its reset", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	ibv_qp_attr attr = told(peer);
	const uint32_t first = GENERATE(0U, 7U, 0x900000U);

	INFO("its first PSN is " << first);
	attr.rq_psn = first;
	REQUIRE(listen(peer, attr) == 0);
	peer.message((first - 16) & 0xffffff, std::vector<std::byte>(8));
	const auto answer = peer.next(time_limit);
	REQUIRE(answer);
	CHECK(answer->is_ack());
	CHECK(answer->psn == ((first - 1) & 0xffffff));
}

TEST_CASE("qp_state: a queue pair refuses a wrong cur_qp_state", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	const auto go_on = [&](ibv_qp_state from) {
		ibv_qp_attr attr{};

		attr.qp_state = IBV_QPS_RTS;
		attr.cur_qp_state = from;
		return ibv_modify_qp(peer.qp(), &attr,
				     IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_TIMEOUT |
					     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC);
	};

	CHECK(go_on(IBV_QPS_RTR) == 0);
	CHECK(go_on(IBV_QPS_RTR) == EINVAL);
	CHECK(state_of(peer) == IBV_QPS_RTS);
	REQUIRE(peer.become(IBV_QPS_ERR));
	CHECK(go_on(IBV_QPS_RTR) == EINVAL);
	CHECK(state_of(peer) == IBV_QPS_ERR);
}

/* Changes each attribute alone, without a state. */
TEST_CASE("qp_state: an attribute is changed in the states that allow it", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	ibv_qp_attr attr = told(peer);
	const auto change = [&](int mask) { return ibv_modify_qp(peer.qp(), &attr, mask); };

	for (const int one : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN,
			      IBV_QP_TIMEOUT, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN}) {
		INFO("attribute " << one);
		CHECK(change(one) == EINVAL);
	}
	peer.allow_requests();
	for (const int one : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN,
			      IBV_QP_TIMEOUT, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN}) {
		INFO("attribute " << one);
		CHECK(change(one) == EINVAL);
	}
	CHECK(change(IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(change(IBV_QP_ACCESS_FLAGS) == 0);
	REQUIRE(peer.become(IBV_QPS_SQD));
	for (const int one : {IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_DEST_QPN}) {
		INFO("attribute " << one);
		CHECK(change(one) == EINVAL);
	}
	for (const int one : {IBV_QP_AV, IBV_QP_TIMEOUT, IBV_QP_MAX_DEST_RD_ATOMIC}) {
		INFO("attribute " << one);
		CHECK(change(one) == 0);
	}
}
