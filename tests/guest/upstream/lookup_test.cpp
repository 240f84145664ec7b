// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Packets and work requests look up an object by its number while the object is destroyed. Other
 * packets have found the object before. To make collisions likely, probes slow the lookups down,
 * and this program takes the CPU from the kernel's workers during a lookup. KASAN reports a use
 * after free, so this test is for the debug kernel.
 */
#include "catch.h"

#include <sched.h>
#include <unistd.h>

#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>

#include "loopback.h"
#include "post.h"
#include "probe.h"
#include "reliable.h"
#include "run_time.h"

using namespace mr_notify;

namespace {

constexpr uint32_t qkey = 17;

/* Slows down each call of a function of the kernel. */
class slow_calls {
public:
	explicit slow_calls(const std::string &of, probe::at where)
	{
		for (int i = 0; i < 8; i++)
			probes_.emplace_back(of, where, "slow" + std::to_string(i)).slow_down();
	}

private:
	std::list<probe> probes_;
};

/* While this object exists, this thread runs before all others. */
class urgency {
public:
	urgency()
	{
		const sched_param first{1};

		REQUIRE(sched_setscheduler(0, SCHED_FIFO, &first) == 0);
	}

	~urgency()
	{
		const sched_param none{0};

		sched_setscheduler(0, SCHED_OTHER, &none);
	}
};

/* A queue pair that posts one work request at a time, which may fail. */
class poster {
public:
	poster(const device &on, ibv_qp_type type)
	    : cq_(ibv_create_cq(on.context(), 16, nullptr, nullptr, 0))
	{
		REQUIRE(cq_);
		qp_ = make(on, type);
		loopback ends(on);
		ibv_qp_init_attr unused{};
		REQUIRE(ibv_query_qp(ends.near_end(), &far_, IBV_QP_AV, &unused) == 0);
		far_.dest_qp_num = ends.far_end()->qp_num;
		start();
	}

	/* A poster that can receive datagrams. */
	poster(const device &on, const poster &like)
	    : cq_(ibv_create_cq(on.context(), 16, nullptr, nullptr, 0)), far_(like.far_)
	{
		REQUIRE(cq_);
		qp_ = make(on, IBV_QPT_UD);
		start();
	}

	uint32_t number() const { return qp_->qp_num; }

	/* A queue pair that only serves as the target of packets. */
	owned<ibv_qp> make(const device &on, ibv_qp_type type) const
	{
		ibv_qp_init_attr init{};

		init.send_cq = cq_.get();
		init.recv_cq = cq_.get();
		init.qp_type = type;
		init.cap = {4, 4, 1, 1, 0};
		owned<ibv_qp> qp(ibv_create_qp(on.pd(), &init));
		REQUIRE(qp);
		return qp;
	}

	ibv_ah_attr peer() const { return far_.ah_attr; }

	void post(ibv_send_wr &wr)
	{
		wr.send_flags = IBV_SEND_SIGNALED;
		::post(qp_.get(), wr);
	}

	/* Waits for the completion. After an error it makes the queue pair usable again. */
	void wait()
	{
		ibv_wc wc{};
		int polled = 0;

		while ((polled = ibv_poll_cq(cq_.get(), 1, &wc)) == 0)
			usleep(100);
		REQUIRE(polled == 1);
		if (wc.status == IBV_WC_SUCCESS)
			return;
		REQUIRE(enter(qp_.get(), IBV_QPS_RESET) == 0);
		start();
	}

private:
	void start()
	{
		ibv_qp_attr attr{};

		attr.port_num = 1;
		attr.qkey = qkey;
		attr.path_mtu = IBV_MTU_1024;
		attr.dest_qp_num = far_.dest_qp_num;
		attr.ah_attr = far_.ah_attr;
		for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
			REQUIRE(enter(qp_.get(), state, attr) == 0);
	}

	owned<ibv_cq> cq_;
	owned<ibv_qp> qp_;
	ibv_qp_attr far_{};
};

using address_handle = std::unique_ptr<ibv_ah, int (*)(ibv_ah *)>;

address_handle to_peer_of(const device &on, const poster &by)
{
	ibv_ah_attr where = by.peer();
	address_handle made(ibv_create_ah(on.pd(), &where), ibv_destroy_ah);

	REQUIRE(made);
	return made;
}

/* An object with a number, and a function that names it in a work request. */
using victim = std::shared_ptr<void>;
using maker = std::function<victim(ibv_send_wr &wr)>;

void destroy_what_is_looked_up(poster &by, const maker &make)
{
	const slow_calls slow("xa_load", probe::at::end);
	const urgency first;
	const run_time time;
	std::minstd_rand random;
	int rounds = 0;

	for (; time.goes_on(); rounds++) {
		ibv_send_wr wr{};
		victim named = make(wr);

		by.post(wr);
		usleep(random() % 3000);
		named.reset();
		by.wait();
	}
	CHECK(rounds > 0);
}

} // namespace

TEST_CASE("a packet looks a queue pair up that is being destroyed", "[roce][kprobes]")
{
	const device on;
	poster peer(on, IBV_QPT_UD);
	const address_handle ah = to_peer_of(on, peer);

	destroy_what_is_looked_up(peer, [&](ibv_send_wr &wr) {
		owned<ibv_qp> qp = peer.make(on, IBV_QPT_RC);

		wr.opcode = IBV_WR_SEND;
		wr.wr.ud = {ah.get(), qp->qp_num, qkey};
		return victim(std::move(qp));
	});
}

TEST_CASE("a work request looks an address handle up that is being destroyed", "[roce][kprobes]")
{
	const device on;
	poster by(on, IBV_QPT_UD);

	destroy_what_is_looked_up(by, [&](ibv_send_wr &wr) {
		ibv_ah_attr where = by.peer();
		victim ah(ibv_create_ah(on.pd(), &where), ibv_destroy_ah);

		REQUIRE(ah);
		wr.opcode = IBV_WR_SEND;
		wr.wr.ud = {static_cast<ibv_ah *>(ah.get()), 1 << 20, qkey};
		return ah;
	});
}

TEST_CASE("a work request looks a memory window up that is being destroyed", "[roce][kprobes]")
{
	const device on;
	poster by(on, IBV_QPT_UC);

	const memory m = anonymous(4096);
	const auto mr = on.register_memory(m.registered(), IBV_ACCESS_MW_BIND);

	destroy_what_is_looked_up(by, [&](ibv_send_wr &wr) {
		owned<ibv_mw> mw(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_2));

		REQUIRE(mw);
		wr.opcode = IBV_WR_BIND_MW;
		wr.bind_mw.mw = mw.get();
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = {mr.get(), reinterpret_cast<uintptr_t>(m.registered().addr),
					m.registered().length, IBV_ACCESS_REMOTE_READ};
		return victim(std::move(mw));
	});
}

TEST_CASE("a packet reaches a queue pair that is being destroyed", "[roce][kprobes]")
{
	const device on;
	poster peer(on, IBV_QPT_UD);
	const address_handle ah = to_peer_of(on, peer);

	/*
	 * The first packet starts the task. The task processes the other packets as soon as they
	 * arrive.
	 */
	const slow_calls slow("rxe_sched_task", probe::at::call);
	const run_time time;
	std::minstd_rand random;
	int rounds = 0;

	for (; time.goes_on(); rounds++) {
		auto named = std::make_unique<poster>(on, peer);
		ibv_send_wr wr{};

		wr.opcode = IBV_WR_SEND;
		wr.wr.ud = {ah.get(), named->number(), qkey};
		for (int i = 0; i < 4; i++)
			peer.post(wr);
		usleep(random() % 3000);
		named.reset();
		for (int i = 0; i < 4; i++)
			peer.wait();
	}
	CHECK(rounds > 0);
}
