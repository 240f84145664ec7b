// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Random work requests, packets and verbs, some of them wrong, for couples of queue pairs. After a
 * failure a couple is reset and connected again, so most requests meet busy queue pairs. The wire
 * between the two ends of a couple loses, doubles and swaps packets, and adds altered copies
 * (lossy_wire.h). The kernel must not complain, and each couple must work at the end.
 *
 * RUN_SEED sets the seed. RUN_SECONDS sets the time (default 3). The last line has the counts.
 */
#include "catch.h"

#include <netinet/in.h> /* before the kernel's */

#include <rdma/rdma_user_rxe.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "mapped.h"
#include "lossy_wire.h"
#include "raw_peer.h"
#include "post.h"
#include "qp_setup.h"
#include "raw_uverbs.h"
#include "run_time.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr uint32_t key_of_all = 0x11111111;
constexpr std::size_t area = 64 << 10; /* of a couple, half for each end */
constexpr unsigned int wrong = 20;     /* one in this many requests is wrong */

struct counts {
	std::atomic<uint64_t> requests = 0, good = 0, bad = 0, flushed = 0, revived = 0;
	std::atomic<uint64_t> stuck = 0; /* couples that could not be revived */
};

class dice {
public:
	explicit dice(uint64_t seed) : random_(seed) {}

	uint64_t below(uint64_t limit) { return random_() % limit; }
	bool one_in(uint64_t many) { return below(many) == 0; }
	uint32_t word() { return static_cast<uint32_t>(random_()); }
	template <class Choices> auto of(const Choices &some) { return some[below(some.size())]; }

private:
	std::mt19937_64 random_;
};

/* The test finds a queue by the new mapping, so only one thread at a time makes queues. */
std::mutex making;

/* The send ring of a queue pair. Its layout is read once, before anything is written to it. */
class send_ring {
public:
	send_ring() = default;
	explicit send_ring(range where)
	    : head_(reinterpret_cast<rxe_queue_buf *>(where.addr)),
	      words_(std::size_t{1} << (head_->log2_elem_size - 2)), mask_(head_->index_mask)
	{
	}

	/* Adds a copy of the last request with some words changed. The kernel is not called. */
	void push_altered(dice &roll) const
	{
		const uint32_t at = head_->producer_index & mask_;
		volatile uint32_t *const one = words(at);

		if (((at + 1) & mask_) == (head_->consumer_index & mask_))
			return;
		std::copy_n(words(at - 1), words_, one);
		for (uint64_t many = roll.below(3); many; many--) {
			volatile uint32_t &word =
				one[roll.below(std::min<std::size_t>(words_, 64))];

			word = roll.one_in(2) ? roll.word() : word ^ 1U << roll.below(32);
		}
		std::atomic_thread_fence(std::memory_order_release);
		head_->producer_index = (at + 1) & mask_;
	}

private:
	volatile uint32_t *words(uint32_t index) const
	{
		return reinterpret_cast<volatile uint32_t *>(head_->data) +
		       (index & mask_) * words_;
	}

	rxe_queue_buf *head_ = nullptr;
	std::size_t words_ = 0;
	uint32_t mask_ = 0;
};

/* Two queue pairs of one type, connected by the wire, and memory that both use. */
class couple {
public:
	couple(const device &on, ibv_qp_type type, bool shared, uint64_t seed, counts &count)
	    : on_(on), kernel_(on.context()), type_(type), shared_(shared), roll_(seed),
	      count_(count), m_(anonymous(area))
	{
		for (end &one : ends_)
			make(one);
		for (owned<ibv_mr> &mr : mrs_)
			register_some(mr);
		address_ = address_of(ends_[0].qp.get());
		revive();
		careful_ = false;
	}

	/* One random step. */
	void step()
	{
		end &own = ends_[roll_.below(2)];

		switch (roll_.below(64)) {
		case 0:
			drain(own);
			break;
		case 1:
			change_attributes(own);
			break;
		case 2:
			register_some(mrs_[roll_.below(mrs_.size())]);
			break;
		case 3:
			own.ring.push_altered(roll_);
			kernel_.ring(own.qp->handle);
			break;
		case 4:
			bind(own);
			break;
		case 5:
			resize(own);
			break;
		case 6:
			end_life(own);
			break;
		default:
			receive(own);
			receive(other(own));
			ask(own);
		}
		collect();
	}

	/*
	 * Returns whether a message arrives. If packets of other couples displace the message on
	 * the wire, only a reliable queue pair sends it again.
	 */
	bool works()
	{
		careful_ = true;
		for (owned<ibv_mr> &mr : mrs_)
			register_some(mr);
		/* A shared queue still has old receives, whose keys are invalid. */
		for (end &one : ends_)
			if (shared_) {
				one.qp.reset();
				one.srq.reset();
				make(one);
			}
		if (!revive())
			return false;
		for (int tries = is_reliable() ? 1 : 3; tries; tries--)
			if (passes_a_message())
				return true;
		return false;
	}

private:
	bool passes_a_message()
	{
		bool sent = false, came = false;

		receive(ends_[1]);
		post_one(ends_[0], good(ends_[0], IBV_WR_SEND));
		return happens([&] {
			ibv_wc wc{};

			sent |= ibv_poll_cq(ends_[0].cq.get(), 1, &wc) == 1 && !wc.status;
			came |= ibv_poll_cq(ends_[1].cq.get(), 1, &wc) == 1 && !wc.status;
			return sent && came;
		});
	}

	struct end {
		owned<ibv_cq> cq;
		owned<ibv_srq> srq;
		owned<ibv_ah> ah;
		owned<ibv_qp> qp;
		owned<ibv_mw> window;
		send_ring ring;
	};

	bool is_wrong(uint64_t many) { return !careful_ && roll_.one_in(many); }
	bool is_datagram() const { return type_ == IBV_QPT_UD; }
	bool is_reliable() const { return type_ == IBV_QPT_RC; }
	end &other(const end &one) { return ends_[&one == ends_.data()]; }

	void make(end &one)
	{
		ibv_qp_init_attr init{};
		const std::lock_guard alone(making);

		if (!one.cq)
			one.cq.reset(ibv_create_cq(on_.context(), 128, nullptr, nullptr, 0));
		if (shared_ && !one.srq)
			one.srq = shared_queue(on_, 16, 2);
		const std::vector<range> before = mapped_rings();
		init.send_cq = init.recv_cq = one.cq.get();
		init.srq = one.srq.get();
		init.qp_type = type_;
		init.cap = {16, 16, 4, 2, static_cast<uint32_t>(roll_.below(2) * 64)};
		init.sq_sig_all = roll_.one_in(2);
		one.qp.reset(ibv_create_qp(on_.pd(), &init));
		if (!one.qp)
			fail("ibv_create_qp");
		one.ring = send_ring(mapped_since(before).at(0));
	}

	/* Registers all memory of the couple, or nearly all. */
	void register_some(owned<ibv_mr> &mr)
	{
		const range all = m_.registered();
		const std::size_t from = is_wrong(4) ? roll_.below(all.length / 2) : 0;

		mr.reset();
		mr.reset(ibv_reg_mr(on_.pd(), all.addr + from, all.length - from,
				    device::all_rights | IBV_ACCESS_MW_BIND));
		if (!mr)
			fail("ibv_reg_mr");
	}

	/*
	 * An old packet may still arrive, and move the queue pair to the error state right after
	 * its reset.
	 */
	bool revive()
	{
		bool done = false;

		for (int tries = 0; !done && tries < 20; tries++)
			done = reset();
		count_.revived++;
		count_.stuck += !done;
		return done;
	}

	/* Resets and connects both ends, with PSNs near the last PSN. */
	bool reset()
	{
		const std::array<uint32_t, 2> psn{
			static_cast<uint32_t>(0xffffff - roll_.below(64)),
			static_cast<uint32_t>(0xffffff - roll_.below(64))};
		bool done = true;

		for (end &one : ends_)
			done &= become(one, IBV_QPS_RESET);
		for (end &one : ends_) {
			ibv_wc wc{};

			while (ibv_poll_cq(one.cq.get(), 1, &wc) == 1)
				;
		}
		for (std::size_t i = 0; i < 2; i++)
			done &= connect(ends_[i], static_cast<uint8_t>(2 + i), psn[1 - i], psn[i]);
		return done;
	}

	static bool become(const end &one, ibv_qp_state state)
	{
		ibv_qp_attr attr{};

		attr.qp_state = state;
		return ibv_modify_qp(one.qp.get(), &attr, IBV_QP_STATE) == 0;
	}

	/* Connects to the other end, which has the address 10.0.9.@last on the wire. */
	bool connect(end &one, uint8_t last, uint32_t expected, uint32_t first)
	{
		ibv_gid gid = address_.gid;

		gid.raw[15] = last;
		ibv_qp_attr attr = attributes_to(address_, gid, other(one).qp->qp_num);
		attr.qkey = key_of_all;
		attr.rq_psn = expected;
		attr.sq_psn = first;
		attr.max_rd_atomic = attr.max_dest_rd_atomic =
			static_cast<uint8_t>(1U << roll_.below(4));
		attr.timeout = 12;
		attr.retry_cnt = 7;
		if (is_datagram())
			one.ah.reset(ibv_create_ah(on_.pd(), &attr.ah_attr));
		for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
			if (enter(one.qp.get(), state, attr))
				return false;
		return true;
	}

	range some(const end &of, std::size_t most)
	{
		const std::size_t length = 1 + roll_.below(most);
		const std::size_t half = &of == ends_.data() ? 0 : area / 2;

		return {m_.registered().addr + half + roll_.below(area / 2 - length), length};
	}

	request good(end &own, ibv_wr_opcode opcode)
	{
		constexpr std::array<std::size_t, 3> lengths{64, mtu, 12 * mtu};
		const bool is_atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
				       opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
		const range there = some(other(own), 64);
		request what;

		what.opcode = opcode;
		for (uint64_t pieces = is_atomic ? 1 : 1 + roll_.below(3); pieces; pieces--) {
			range here = some(own, is_datagram() ? 300 : roll_.of(lengths));

			if (is_atomic)
				here.length = sizeof(uint64_t);
			what.local.push_back({here, mrs_[roll_.below(mrs_.size())]->lkey});
		}
		what.remote = number(there.addr) & ~uint64_t{7};
		what.rkey = mrs_[roll_.below(mrs_.size())]->rkey;
		what.compare_add = roll_.below(4);
		what.swap = roll_.word();
		what.flags = roll_.one_in(4) ? unsigned{IBV_SEND_FENCE} : 0U;
		return what;
	}

	void ask(end &own)
	{
		static const std::vector<ibv_wr_opcode> of_ud{IBV_WR_SEND, IBV_WR_SEND_WITH_IMM};
		static const std::vector<ibv_wr_opcode> of_uc{IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
							      IBV_WR_RDMA_WRITE,
							      IBV_WR_RDMA_WRITE_WITH_IMM};
		static const std::vector<ibv_wr_opcode> of_rc{IBV_WR_SEND,
							      IBV_WR_SEND_WITH_IMM,
							      IBV_WR_RDMA_WRITE,
							      IBV_WR_RDMA_WRITE_WITH_IMM,
							      IBV_WR_RDMA_READ,
							      IBV_WR_RDMA_READ,
							      IBV_WR_ATOMIC_CMP_AND_SWP,
							      IBV_WR_ATOMIC_FETCH_AND_ADD};
		request what = good(own, roll_.of(is_datagram()	  ? of_ud
						  : is_reliable() ? of_rc
								  : of_uc));

		if (is_wrong(wrong))
			spoil(what);
		post_one(own, what);
	}

	void spoil(request &what)
	{
		piece &one = what.local[roll_.below(what.local.size())];

		switch (roll_.below(7)) {
		case 0:
			one.lkey ^= 1U << roll_.below(32);
			break;
		case 1:
			one.where.length = roll_.word();
			break;
		case 2:
			one.where.addr -= area;
			break;
		case 3:
			what.rkey ^= 1U << roll_.below(32);
			break;
		case 4:
			what.remote ^= uint64_t{1} << roll_.below(64);
			break;
		case 5:
			what.opcode = static_cast<ibv_wr_opcode>(roll_.below(16));
			break;
		default:
			what.flags |= IBV_SEND_INLINE;
		}
	}

	void post_one(end &own, const request &what)
	{
		std::vector<ibv_sge> list = elements(what.local);
		ibv_send_wr wr{};
		ibv_send_wr *bad = nullptr;

		/* The library reads these bytes. */
		if (what.flags & IBV_SEND_INLINE)
			for (ibv_sge &one : list)
				one = {number(m_.registered().addr), 20, one.lkey};
		wr.sg_list = list.data();
		wr.num_sge = static_cast<int>(list.size());
		wr.opcode = what.opcode;
		wr.send_flags = what.flags | (is_wrong(4) ? 0U : unsigned{IBV_SEND_SIGNALED});
		if (is_datagram()) {
			wr.wr.ud.ah = own.ah.get();
			wr.wr.ud.remote_qpn = other(own).qp->qp_num;
			wr.wr.ud.remote_qkey = is_wrong(wrong) ? 7 : key_of_all;
		} else if (what.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
			   what.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic = {what.remote, what.compare_add, what.swap, what.rkey};
		} else {
			wr.wr.rdma = {what.remote, what.rkey};
		}
		if (what.opcode != IBV_WR_BIND_MW && !ibv_post_send(own.qp.get(), &wr, &bad))
			count_.requests++;
	}

	void receive(end &own)
	{
		std::vector<ibv_sge> list =
			elements({{{m_.registered().addr, area / 2}, mrs_[0]->lkey},
				  {{m_.registered().addr, area / 4}, mrs_[1]->lkey}});
		ibv_recv_wr wr{};
		ibv_recv_wr *bad = nullptr;

		if (is_wrong(8 * wrong))
			list[0].lkey ^= 1U << roll_.below(32);
		wr.sg_list = list.data();
		wr.num_sge = static_cast<int>(list.size());
		/* The queue may be full. */
		if (own.srq)
			ibv_post_srq_recv(own.srq.get(), &wr, &bad);
		else
			ibv_post_recv(own.qp.get(), &wr, &bad);
	}

	static void drain(const end &own)
	{
		become(own, IBV_QPS_SQD);
		/* RTS is only allowed in a drained SQD. Otherwise the state does not change. */
		become(own, IBV_QPS_RTS);
	}

	void change_attributes(end &own)
	{
		ibv_qp_attr attr{};

		attr.qp_access_flags = device::all_rights;
		attr.min_rnr_timer = static_cast<uint8_t>(1 + roll_.below(4));
		attr.qkey = key_of_all;
		attr.max_dest_rd_atomic = static_cast<uint8_t>(roll_.below(16));
		ibv_modify_qp(own.qp.get(), &attr,
			      is_datagram()	? IBV_QP_QKEY
			      : !is_reliable()	? IBV_QP_ACCESS_FLAGS
			      : roll_.one_in(2) ? IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER
						: IBV_QP_MAX_DEST_RD_ATOMIC);
		if (own.srq) {
			ibv_srq_attr limit{};

			limit.srq_limit = static_cast<uint32_t>(roll_.below(20));
			ibv_modify_srq(own.srq.get(), &limit, IBV_SRQ_LIMIT);
		}
	}

	void bind(end &own)
	{
		if (!is_reliable())
			return;
		if (own.window && roll_.one_in(2)) {
			own.window.reset();
			return;
		}
		if (!own.window)
			own.window.reset(ibv_alloc_mw(on_.pd(), IBV_MW_TYPE_2));
		if (!own.window)
			return;
		const range where = some(own, area / 4);
		ibv_send_wr wr{};
		ibv_send_wr *bad = nullptr;

		wr.opcode = IBV_WR_BIND_MW;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.bind_mw = {own.window.get(),
			      ibv_inc_rkey(own.window->rkey),
			      {mrs_[roll_.below(mrs_.size())].get(), number(where.addr),
			       where.length, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE}};
		ibv_post_send(own.qp.get(), &wr, &bad);
	}

	void resize(end &own)
	{
		const std::lock_guard alone(making);

		ibv_resize_cq(own.cq.get(), static_cast<int>(64 + roll_.below(128)));
	}

	void end_life(end &own)
	{
		if (roll_.one_in(2)) {
			become(own, IBV_QPS_ERR);
			return;
		}
		make(own); /* the new queue pair exists before the old queue pair is destroyed */
		revive();
	}

	/* Takes all completions. Then failed queue pairs are revived. */
	void collect()
	{
		bool failed = false;

		for (end &one : ends_) {
			ibv_wc wc{};

			while (ibv_poll_cq(one.cq.get(), 1, &wc) == 1) {
				(wc.status == IBV_WC_SUCCESS	    ? count_.good
				 : wc.status == IBV_WC_WR_FLUSH_ERR ? count_.flushed
								    : count_.bad)++;
				failed |= wc.status != IBV_WC_SUCCESS;
			}
		}
		/* A queue pair that hangs because of a lost packet has no completion. */
		if (!failed && !roll_.one_in(256))
			return;
		if (!std::all_of(ends_.begin(), ends_.end(),
				 [&](end &one) { return goes_on(one); }))
			revive();
	}

	static bool goes_on(const end &one)
	{
		ibv_qp_attr attr{};
		ibv_qp_init_attr init{};

		if (ibv_query_qp(one.qp.get(), &attr, IBV_QP_STATE, &init))
			return false;
		if (attr.qp_state == IBV_QPS_SQE || attr.qp_state == IBV_QPS_SQD)
			become(one, IBV_QPS_RTS);
		return attr.qp_state == IBV_QPS_RTS || attr.qp_state == IBV_QPS_SQE ||
		       attr.qp_state == IBV_QPS_SQD;
	}

	const device &on_;
	const raw_uverbs kernel_;
	const ibv_qp_type type_;
	const bool shared_;
	dice roll_;
	counts &count_;
	bool careful_ = true; /* makes no wrong request */
	memory m_;
	std::array<owned<ibv_mr>, 2> mrs_;
	address address_;
	std::array<end, 2> ends_;
};

uint64_t first_seed()
{
	const char *const text = std::getenv("RUN_SEED");

	return text ? std::strtoull(text, nullptr, 10) : std::random_device()();
}

} // namespace

TEST_CASE("fuzz: queue pairs that fail are brought back, and work in the end", "[veth]")
{
	const cable ends;
	const uint64_t seed = first_seed();
	const device &on = ends.on();
	counts count;
	std::vector<std::vector<std::unique_ptr<couple>>> users(2);

	std::printf("seed %" PRIu64 "\n", seed);
	std::fflush(stdout); /* the next step may hang */
	for (std::size_t i = 0; i < users.size(); i++)
		for (const auto &[type, shared] : {std::pair{IBV_QPT_RC, false},
						   {IBV_QPT_RC, true},
						   {IBV_QPT_UC, false},
						   {IBV_QPT_UC, true},
						   {IBV_QPT_UD, false},
						   {IBV_QPT_UD, true}})
			users[i].push_back(std::make_unique<couple>(
				on, type, shared, seed * 97 + i * 7 + users[i].size(), count));
	lossy_wire::odds chances{1, 1, 1, 1};
	{
		lossy_wire wire(static_cast<unsigned int>(seed), chances);
		std::vector<std::jthread> threads;

		for (std::size_t i = 0; i < users.size(); i++)
			threads.emplace_back([&, i] {
				dice roll(seed * 31 + i);

				for (const run_time time; time.goes_on(count.good > 100);)
					users[i][roll.below(users[i].size())]->step();
			});
		threads.clear();
		std::printf("seed %" PRIu64 ": %" PRIu64 " requests, %" PRIu64 " packets, %" PRIu64
			    " altered; completed: %" PRIu64 " well, %" PRIu64 " with errors, "
			    "%" PRIu64 " flushed; %" PRIu64 " revivals\n",
			    seed, count.requests.load(), wire.count().packets.load(),
			    wire.count().altered.load(), count.good.load(), count.bad.load(),
			    count.flushed.load(), count.revived.load());
	}
	CHECK(count.stuck == 0);
	/* With more wrong requests, most requests would find a queue pair in the error state. */
	CHECK(count.good > count.bad);
	const lossy_wire wire(0, {0, 0, 0, 0});
	for (const auto &user : users)
		for (const auto &one : user)
			CHECK(one->works());
}
