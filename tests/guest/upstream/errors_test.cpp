// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Requests and packets that can't be executed or sent. The tests check the status of each
 * completion, and afterwards the state of the queue pair and of the connection manager. Other tests
 * check the limits of MRs and MWs.
 */
#include "catch.h"

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>
#include <unistd.h>

#include <arpa/inet.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "child.h"
#include "loopback.h"
#include "raw_peer.h"
#include "port_counter.h"
#include "post.h"
#include "qp_setup.h"
#include "raw_uverbs.h"
#include "skip.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t key_of_all = 0x11111111;

bool run(const char *commands)
{
	return std::system(commands) == 0;
}

/*
 * While this object exists, the qdisc at the end of the cable holds one packet, and drops all later
 * packets. iproute2 6.1 accepts no delay above 274 s.
 */
class full_qdisc {
public:
	full_qdisc()
	{
		REQUIRE(run("modprobe sch_netem 2>/dev/null;"
			    " tc qdisc replace dev odp0 root netem limit 1 delay 200s"));
	}
	full_qdisc(const full_qdisc &) = delete;
	full_qdisc &operator=(const full_qdisc &) = delete;
	~full_qdisc() { remove(); }

	void remove()
	{
		if (full_)
			REQUIRE(run("tc qdisc delete dev odp0 root"));
		full_ = false;
	}

private:
	bool full_ = true;
};

uint64_t dropped(const device &on)
{
	return port_counter(on, "send_err").value_or(0);
}

/* A queue pair of any type, and the completions of its requests. */
class end {
public:
	end(const device &on, ibv_qp_type type)
	    : on_(on), cq_(ibv_create_cq(on.context(), 16, nullptr, nullptr, 0))
	{
		ibv_qp_init_attr init{};

		REQUIRE(cq_);
		init.send_cq = init.recv_cq = cq_.get();
		init.qp_type = type;
		init.cap = {4, 4, 1, 1, 0};
		qp_.reset(ibv_create_qp(on.pd(), &init));
		REQUIRE(qp_);
	}

	/* Makes the queue pair ready to send to queue pair @number at @gid. */
	void connect(uint32_t number, const ibv_gid &gid)
	{
		ibv_qp_attr attr = attributes_to(address_of(qp_.get()), gid, number);

		attr.qkey = key_of_all;
		other_ = number;
		if (is_datagram()) {
			ah_.reset(ibv_create_ah(on_.pd(), &attr.ah_attr));
			REQUIRE(ah_);
		}
		for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
			check_verb(enter(qp_.get(), state, attr), "ibv_modify_qp");
	}
	void connect(const end &other) { connect(other.qp()->qp_num, address_of(other.qp()).gid); }

	/* The only transition out of SQE. */
	void go_on()
	{
		ibv_qp_attr attr{};

		attr.qp_state = IBV_QPS_RTS;
		attr.cur_qp_state = IBV_QPS_SQE;
		check_verb(ibv_modify_qp(qp_.get(), &attr, IBV_QP_STATE | IBV_QP_CUR_STATE),
			   "ibv_modify_qp");
	}

	void send(const piece &from)
	{
		std::vector<ibv_sge> list = elements({from});
		ibv_send_wr wr{};

		wr.opcode = IBV_WR_SEND;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.sg_list = list.data();
		wr.num_sge = 1;
		if (is_datagram()) {
			wr.wr.ud.ah = ah_.get();
			wr.wr.ud.remote_qpn = other_;
			wr.wr.ud.remote_qkey = key_of_all;
		}
		post(qp_.get(), wr);
	}

	/* The status of the next request or receive that completes. */
	ibv_wc_status ended() const
	{
		ibv_wc wc{};

		REQUIRE(happens([&] { return ibv_poll_cq(cq_.get(), 1, &wc) == 1; }));
		return wc.status;
	}

	ibv_qp_state state() const
	{
		ibv_qp_attr attr{};
		ibv_qp_init_attr init{};

		check_verb(ibv_query_qp(qp_.get(), &attr, IBV_QP_STATE, &init), "ibv_query_qp");
		return attr.qp_state;
	}

	ibv_qp *qp() const { return qp_.get(); }

private:
	bool is_datagram() const { return qp_->qp_type == IBV_QPT_UD; }

	const device &on_;
	owned<ibv_cq> cq_;
	owned<ibv_ah> ah_;
	owned<ibv_qp> qp_;
	uint32_t other_ = 0;
};

/* The connection manager of soft-RoCE at 10.0.9.1, the end of the cable. */
class manager {
public:
	manager() : events_(rdma_create_event_channel()) { REQUIRE(events_); }

	/* Sends a connection request to 10.0.9.@last. */
	void ask(uint8_t last, uint16_t port)
	{
		sockaddr_in to = address(last, port);
		rdma_conn_param param{};

		ids_.push_back(make_id());
		rdma_cm_id *const id = ids_.back().get();
		REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr *>(&to), 2000) ==
			0);
		REQUIRE(next() == RDMA_CM_EVENT_ADDR_RESOLVED);
		REQUIRE(rdma_resolve_route(id, 2000) == 0);
		REQUIRE(next() == RDMA_CM_EVENT_ROUTE_RESOLVED);
		make_qp(id);
		if (before_asking_)
			REQUIRE(run(before_asking_));
		REQUIRE(rdma_connect(id, &param) == 0);
	}
	void run_before_asking(const char *commands) { before_asking_ = commands; }

	/* Returns whether a connection to itself can be established. */
	bool works()
	{
		sockaddr_in at = address(1, 0);
		rdma_conn_param param{};
		int established = 0;

		ids_.push_back(make_id());
		rdma_cm_id *const listener = ids_.back().get();
		REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr *>(&at)) == 0);
		REQUIRE(rdma_listen(listener, 1) == 0);
		ask(1, ntohs(rdma_get_src_port(listener)));
		while (established < 2) {
			switch (next()) {
			case RDMA_CM_EVENT_CONNECT_REQUEST:
				ids_.emplace_back(new_id_);
				make_qp(new_id_);
				REQUIRE(rdma_accept(new_id_, &param) == 0);
				break;
			case RDMA_CM_EVENT_ESTABLISHED:
				established++;
				break;
			default:
				return false;
			}
		}
		return true;
	}

	rdma_cm_event_type next()
	{
		pollfd ready{events_->fd, POLLIN, 0};
		rdma_cm_event *found = nullptr;

		REQUIRE(poll(&ready, 1, static_cast<int>(time_limit / 1ms)) == 1);
		REQUIRE(rdma_get_cm_event(events_.get(), &found) == 0);
		const rdma_cm_event_type type = found->event;
		new_id_ = found->id;
		rdma_ack_cm_event(found);
		return type;
	}

private:
	struct closer {
		void operator()(rdma_event_channel *p) const { rdma_destroy_event_channel(p); }
		void operator()(rdma_cm_id *p) const
		{
			if (p->qp)
				rdma_destroy_qp(p);
			rdma_destroy_id(p);
		}
	};
	using id_ptr = std::unique_ptr<rdma_cm_id, closer>;

	static sockaddr_in address(uint8_t last, uint16_t port)
	{
		sockaddr_in one{};

		one.sin_family = AF_INET;
		one.sin_port = htons(port);
		one.sin_addr.s_addr = htonl(0x0a000900U | last);
		return one;
	}
	id_ptr make_id() const
	{
		rdma_cm_id *id = nullptr;

		REQUIRE(rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_TCP) == 0);
		return id_ptr(id);
	}
	static void make_qp(rdma_cm_id *id)
	{
		ibv_qp_init_attr init{};

		init.qp_type = IBV_QPT_RC;
		init.cap = {1, 1, 1, 1, 0};
		REQUIRE(rdma_create_qp(id, nullptr, &init) == 0);
	}

	std::unique_ptr<rdma_event_channel, closer> events_;
	std::vector<id_ptr> ids_;
	rdma_cm_id *new_id_ = nullptr;
	const char *before_asking_ = nullptr;
};

/* Memory of this length, which consists of the pages of one small file, mapped many times. */
memory repeated(std::size_t length)
{
	constexpr std::size_t part = 2 << 20;
	const int fd = memfd_create("repeated", 0);
	void *const all = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fd < 0 || ftruncate(fd, part) || all == MAP_FAILED)
		fail("mmap");
	const range whole{static_cast<std::byte *>(all), length};
	for (std::size_t at = 0; at < length; at += part)
		if (mmap(whole.addr + at, std::min(part, length - at), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
			fail("mmap");
	return memory(whole, fd);
}

/*
 * In User Mode Linux each page is a mapping of the host, and a process of the host has at most
 * 65,530 mappings.
 */
bool has_few_mappings()
{
	std::ifstream file("/proc/cpuinfo");
	const std::string text{std::istreambuf_iterator<char>(file), {}};

	return text.find("User Mode Linux") != text.npos;
}

constexpr std::size_t gib = std::size_t{1} << 30;

} // namespace

TEST_CASE("errors: a reliable queue pair sends again what a full qdisc drops", "[veth]")
{
	const cable wire;
	const memory m = anonymous(2 * mtu);
	const auto mr = wire.on().register_memory(m.registered());
	const raw_peer peer(wire);
	full_qdisc qdisc;
	const uint64_t before = dropped(wire.on());

	peer.allow_requests(7, 14);
	post(peer.qp(), {IBV_WR_RDMA_WRITE, {{m.registered(), mr->lkey}}});
	REQUIRE(happens([&] { return dropped(wire.on()) > before; }));
	CHECK_FALSE(peer.completed(10ms));
	qdisc.remove();
	/* No packet of the first try arrived. */
	for (const uint8_t opcode : {0x06, 0x08}) {
		const auto packet = peer.next(time_limit);
		REQUIRE(packet);
		CHECK(packet->opcode == opcode);
	}
	peer.acknowledge(1);
	const auto done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_SUCCESS);
}

TEST_CASE("errors: an unreliable queue pair continues when a full qdisc drops its packets",
	  "[veth]")
{
	const cable wire;
	const ibv_qp_type type = GENERATE(IBV_QPT_UC, IBV_QPT_UD);
	const memory m = anonymous(mtu);
	const auto mr = wire.on().register_memory(m.registered());
	end one(wire.on(), type);
	ibv_gid gid = address_of(one.qp()).gid;
	full_qdisc qdisc;
	const uint64_t before = dropped(wire.on());

	INFO("type " << type);
	gid.raw[15] = 2;
	one.connect(0x123456, gid);
	for (int i = 0; i < 3; i++) {
		one.send({m.registered(), mr->lkey});
		CHECK(one.ended() == IBV_WC_SUCCESS);
	}
	CHECK(happens([&] { return dropped(wire.on()) >= before + 2; }));
	CHECK(one.state() == IBV_QPS_RTS);
}

TEST_CASE("connecting: with a full qdisc", "[.]")
{
	const device on("rxe_odp");
	manager cm;
	manager later;

	{
		const full_qdisc qdisc;
		const uint64_t before = dropped(on);

		cm.ask(2, 7471);
		cm.ask(3, 7471);
		REQUIRE(happens([&] { return dropped(on) > before; }));
	}
	CHECK(later.works());
}

/* Without the interface soft-RoCE has no route, because its route look-up names the interface. */
TEST_CASE("connecting: while the interface is down", "[.]")
{
	manager cm;
	manager later;

	cm.run_before_asking("ip link set odp0 down");
	cm.ask(3, 7471);
	CHECK(cm.next() == RDMA_CM_EVENT_UNREACHABLE);
	REQUIRE(run("ip link set odp0 up"));
	CHECK(later.works());
}

/*
 * RDMA CM uses one queue pair for all connections. The client is a child, because librdmacm keeps
 * the device open until its process ends.
 */
TEST_CASE("errors: connecting continues after a MAD that can't be sent", "[veth]")
{
	const cable wire;
	const std::string how = GENERATE("with a full qdisc", "while the interface is down");

	INFO(how);
	CHECK(run_child("connecting: " + how, {}).status == 0);
}

TEST_CASE("errors: an MR of the method REG_MR is good for a transfer", "[roce]")
{
	const device on;
	const memory m = anonymous(page_size());
	const raw_uverbs raw(on.context());
	const auto room = on.register_memory(m.registered());
	const auto mr = raw.register_by_method(on.pd(), m.registered().addr, page_size());

	SKIP_IF(mr.error == EPROTONOSUPPORT, "the kernel has no method REG_MR");
	REQUIRE(mr.error == 0);

	end one(on, IBV_QPT_UC);
	end other(on, IBV_QPT_UC);

	one.connect(other);
	other.connect(one);
	post_receive(other.qp(), {{{m.registered().addr, 64}, room->lkey}});
	one.send({{m.registered().addr, 64}, mr.lkey});
	CHECK(one.ended() == IBV_WC_SUCCESS);
	CHECK(other.ended() == IBV_WC_SUCCESS);
	CHECK(raw.deregister(mr.handle) == 0);
}

/* IBA's state SQE. */
TEST_CASE("errors: after a send error UC and UD still receive, and can return from SQE", "[roce]")
{
	const device on;
	const ibv_qp_type type = GENERATE(IBV_QPT_UC, IBV_QPT_UD);
	const memory m = anonymous(page_size());
	const auto mr = on.register_memory(m.registered());
	const piece good{{m.registered().addr, 64}, mr->lkey};
	const piece bad{good.where, 0};
	const piece room{m.registered(), mr->lkey};
	end one(on, type);
	end other(on, type);

	INFO("type " << type);
	one.connect(other);
	other.connect(one);
	for (int times = 0; times < 6; times++) { /* more than the queue has entries */
		post_receive(one.qp(), {room});
		post_receive(other.qp(), {room});
		one.send(bad);
		one.send(good);
		const ibv_wc_status first = one.ended();
		CHECK(first != IBV_WC_SUCCESS);
		CHECK(first != IBV_WC_WR_FLUSH_ERR);
		CHECK(one.ended() == IBV_WC_WR_FLUSH_ERR);
		CHECK(one.state() == IBV_QPS_SQE);
		one.send(good);
		CHECK(one.ended() == IBV_WC_WR_FLUSH_ERR);
		other.send(good);
		CHECK(other.ended() == IBV_WC_SUCCESS);
		CHECK(one.ended() == IBV_WC_SUCCESS);
		one.go_on();
		one.send(good);
		CHECK(one.ended() == IBV_WC_SUCCESS);
		CHECK(other.ended() == IBV_WC_SUCCESS);
		CHECK(one.state() == IBV_QPS_RTS);
	}
}

TEST_CASE("errors: an lkey that does not cover the memory is a protection error", "[roce]")
{
	const device on;
	const ibv_wr_opcode opcode = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ);
	const memory m = anonymous(2 * page_size());
	const range half{m.registered().addr, page_size()};
	const auto all = on.register_memory(m.registered());
	owned<ibv_mr> mr = on.register_memory(half);
	const uint32_t lkey = mr->lkey;
	loopback link(on);
	range from = half;

	INFO("opcode " << opcode);
	post_receive(link.far_end(), {{m.registered(), all->lkey}});
	SECTION("deregistered")
	{
		mr.reset();
	}
	SECTION("too short")
	{
		from = {half.addr + 1, half.length};
	}
	post(link.near_end(), {opcode, {{from, lkey}}, number(m.registered().addr), all->rkey});
	CHECK(link.wait().status == IBV_WC_LOC_PROT_ERR);
}

/* The MRs are at both ends of the address space, and in the middle. */
TEST_CASE("errors: an MW lies within its MR", "[roce]")
{
	struct row {
		const char *what;
		uint64_t of, length; /* the address and length of the MR */
		uint64_t at, size;   /* the address and length of the MW */
		bool fits;
	};
	constexpr uint64_t low = 0x100000, last = ~uint64_t{0xfff};
	const row one = GENERATE_COPY(
		row{"all", low, 0x4000, low, 0x4000, true},
		row{"a byte more", low, 0x4000, low, 0x4001, false},
		row{"a byte before", low, 0x4000, low - 1, 2, false},
		row{"nearly everything", low, 0x4000, low + 0x1000, -uint64_t{0x2000}, false},
		row{"all of the last page", last, 0x1000, last, 0x1000, true},
		row{"the beginning of the last page", last, 0x1000, last, 0x400, true},
		row{"the middle of the last page", last, 0x1000, last + 0x400, 0x400, true},
		row{"beyond the last page", last, 0x1000, last + 0x400, 0x1000, false});
	const device on;
	const memory m = anonymous(one.length);
	const owned<ibv_mr> mr(ibv_reg_mr_iova(on.pd(), m.registered().addr, one.length, one.of,
					       device::all_rights | IBV_ACCESS_MW_BIND));
	const owned<ibv_mw> mw(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_2));
	REQUIRE(mr);
	REQUIRE(mw);
	loopback link(on);

	INFO(one.what);
	post_bind(link.near_end(), mw.get(), {mr.get(), one.at, one.size, IBV_ACCESS_REMOTE_READ});
	CHECK(link.wait().status == (one.fits ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR));
}

TEST_CASE("errors: an MR may have more than 1 GiB")
{
	SKIP_IF(has_few_mappings(), "User Mode Linux has 65,530 mappings");
	const device on;
	const memory m = repeated(gib + (2 << 20));
	const range end_of_it{m.registered().end() - 8, 8};
	const auto mr = on.register_memory(m.registered());
	const memory other = anonymous(page_size());
	const auto to = on.register_memory(other.registered());
	loopback link(on);

	std::memset(end_of_it.addr, 0x5a, end_of_it.length);
	REQUIRE(link.write(mr.get(), end_of_it, other.registered().addr, to->rkey) ==
		IBV_WC_SUCCESS);
	CHECK(!std::memcmp(other.registered().addr, end_of_it.addr, end_of_it.length));
}

TEST_CASE("errors: the longest read of pinned memory is answered", "[veth]")
{
	const cable wire;
	SKIP_IF(has_few_mappings(), "User Mode Linux has 65,530 mappings");
	const memory m = repeated(2 * gib);
	const auto mr = wire.on().register_memory(m.registered());
	const raw_peer peer(wire);

	peer.read(0, m.registered().addr, mr->rkey, 2 * gib);
	const auto answer = peer.next(time_limit);
	REQUIRE(answer);
	CHECK(answer->opcode == 0x0d);
	CHECK(answer->data.size() == mtu);
}
