// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A queue pair shares its rings with its owner. The owner may write to a request at any time:
 * before the kernel reads the request, during its execution, while it waits for the response, and
 * when it is sent again. RUN_SECONDS sets how long random words are written (default 3). RUN_SEED
 * sets the seed.
 */
#include "catch.h"

#include <netinet/in.h> /* before the kernel's */

#include <rdma/rdma_user_rxe.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "loopback.h"
#include "mapped.h"
#include "odp.h"
#include "raw_peer.h"
#include "slow_memory.h"
#include "raw_uverbs.h"
#include "run_time.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;
using part = raw_peer::part;

namespace {

constexpr std::array<uint32_t, 4> values{0, 1, 7U << 24, UINT32_MAX};
constexpr std::array wild{7U << 24, UINT32_MAX};
constexpr uint8_t write_only = 0x0a, read_request = 0x0c;
constexpr uint64_t name = 0x1122334455667788;

/* A ring of soft-RoCE. Its layout is read once, before anything is written to it. */
class ring {
public:
	explicit ring(range where)
	    : head_(reinterpret_cast<rxe_queue_buf *>(where.addr)),
	      words_(std::size_t{1} << (head_->log2_elem_size - 2)), mask_(head_->index_mask)
	{
	}

	std::size_t words() const { return words_; }
	volatile uint32_t *last() const
	{
		const uint32_t index = (head_->producer_index - 1) & mask_;

		return reinterpret_cast<volatile uint32_t *>(head_->data) + index * words_;
	}
	/* Changes all words of the last request, or one word. */
	void change_last(uint32_t value) const { std::fill_n(last(), words_, value); }
	void change_last(std::size_t word, uint32_t value) const { last()[word] = value; }
	volatile uint32_t &producer() const { return head_->producer_index; }

private:
	rxe_queue_buf *head_;
	std::size_t words_;
	uint32_t mask_;
};

/*
 * Returns whether only the kernel uses this word. A write of the owner to such a word has no
 * effect.
 */
template <class Wqe> bool is_progress(std::size_t word)
{
	const std::size_t dma = word * 4 - offsetof(Wqe, dma);

	return dma == offsetof(rxe_dma_info, resid) || dma == offsetof(rxe_dma_info, cur_sge) ||
	       dma == offsetof(rxe_dma_info, sge_offset);
}

bool is_kernels(std::size_t word)
{
	constexpr std::array<std::size_t, 8> fields{
		offsetof(rxe_send_wqe, status),	  offsetof(rxe_send_wqe, state),
		offsetof(rxe_send_wqe, mask),	  offsetof(rxe_send_wqe, first_psn),
		offsetof(rxe_send_wqe, last_psn), offsetof(rxe_send_wqe, ack_length),
		offsetof(rxe_send_wqe, ssn),	  offsetof(rxe_send_wqe, has_rd_atomic)};

	return is_progress<rxe_send_wqe>(word) ||
	       std::find(fields.begin(), fields.end(), word * 4) != fields.end();
}

/* A queue pair of soft-RoCE, its rings, its memory, and a raw peer. */
struct scene {
	const mr_notify::device &on;
	std::vector<range> before = mapped_rings();
	owned<ibv_srq> srq; /* its shared receive queue, or NULL */
	raw_peer peer;
	std::vector<range> rings = mapped_since(before);
	ring sends{rings.at(srq ? 2 : 1)};
	ring receives{rings.at(srq ? 0 : 2)};
	memory m = anonymous(4 * mtu);
	range here = m.registered();
	owned<ibv_mr> mr = on.register_memory(here, IBV_ACCESS_LOCAL_WRITE);

	explicit scene(const cable &wire, bool shared = false)
	    : on(wire.on()), srq(shared ? shared_queue(on, 1) : nullptr),
	      peer(wire, IBV_QPT_RC, 4, srq.get())
	{
		for (std::size_t i = 0; i < here.length; i++)
			here.addr[i] = static_cast<std::byte>(i % 251);
	}

	range first(std::size_t length) const { return {here.addr, length}; }

	void ask(ibv_wr_opcode opcode, range local, uint32_t lkey) const
	{
		ibv_sge sge{reinterpret_cast<uintptr_t>(local.addr),
			    static_cast<uint32_t>(local.length), lkey};
		ibv_send_wr wr{};

		wr.wr_id = name;
		wr.opcode = opcode;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.sg_list = &sge;
		wr.num_sge = 1;
		post(peer.qp(), wr);
	}
	void ask(ibv_wr_opcode opcode, std::size_t length) const
	{
		ask(opcode, first(length), mr->lkey);
	}
	void receive(std::size_t length) const
	{
		const std::vector<piece> into{{first(length), mr->lkey}};

		if (srq)
			post_receive(srq.get(), into, name);
		else
			post_receive(peer.qp(), into, name);
	}
	/* The next packet, which must come. */
	raw_peer::packet packet() const
	{
		auto found = peer.next(time_limit);

		REQUIRE(found);
		return std::move(*found);
	}
	std::optional<ibv_wc_status> ended() const
	{
		const auto wc = peer.completed(time_limit);

		if (!wc || wc->wr_id != name)
			return std::nullopt;
		return wc->status;
	}
	/* Starts again, without requests, packets or completions of earlier steps. */
	void restart() const
	{
		peer.reset();
		while (peer.next(0ms) || peer.completed(0ms))
			;
		peer.allow_requests(7);
	}
	bool works() const
	{
		restart();
		ask(IBV_WR_RDMA_WRITE, mtu);
		const auto sent = packet();
		peer.acknowledge(0);
		return sent.opcode == write_only && ended() == IBV_WC_SUCCESS;
	}
};

/*
 * Does the packet end with these bytes? In a packet without an address the first bytes are
 * unknown.
 */
bool carries(const raw_peer::packet &sent, const std::byte *what)
{
	constexpr std::ptrdiff_t known = mtu - 4;

	return static_cast<std::ptrdiff_t>(sent.data.size()) >= known &&
	       std::equal(sent.data.end() - known, sent.data.end(), what + 4);
}

/* Is this packet the write, and does the write complete when it is acknowledged? */
bool is_write(const scene &on, const std::optional<raw_peer::packet> &sent)
{
	if (!sent || sent->opcode != write_only || sent->psn != 0 || !carries(*sent, on.here.addr))
		return false;
	on.peer.acknowledge(0);
	return on.ended() == IBV_WC_SUCCESS;
}

uint64_t first_seed()
{
	const char *const text = std::getenv("RUN_SEED");

	return text ? std::strtoull(text, nullptr, 10) : std::random_device()();
}

} // namespace

TEST_CASE("wqe_ring: a write into a request before its turn fails the request at most",
	  "[roce][veth]")
{
	const cable wire;
	const scene on(wire);

	on.restart();
	for (std::size_t word = 0; word < on.sends.words(); word++)
		for (const uint32_t value : values) {
			std::optional<raw_peer::packet> sent;
			std::optional<ibv_wc> failed;

			REQUIRE(on.peer.become(IBV_QPS_SQD));
			REQUIRE(happens([&] { return on.peer.drained(); }));
			on.ask(IBV_WR_RDMA_WRITE, mtu);
			on.sends.change_last(word, value);
			REQUIRE(on.peer.become(IBV_QPS_RTS));
			INFO("byte " << word * 4 << ": " << value);
			REQUIRE(happens([&] {
				sent = on.peer.next(1ms);
				if (!sent)
					failed = on.peer.completed(0ms);
				return sent || failed;
			}));
			if (is_kernels(word))
				CHECK(is_write(on, sent));
			on.restart();
		}
	CHECK(on.works());
}

TEST_CASE("wqe_ring: a queue pair that may not send yet leaves its ring alone", "[roce][veth]")
{
	const cable wire;
	const owned<ibv_cq> cq(ibv_create_cq(wire.on().context(), 4, nullptr, nullptr, 0));
	const std::vector<range> before = mapped_rings();
	ibv_qp_init_attr init{};

	init.send_cq = init.recv_cq = cq.get();
	init.cap = {2, 1, 1, 1, 0};
	init.qp_type = IBV_QPT_RC;
	owned<ibv_qp> qp(ibv_create_qp(wire.on().pd(), &init));
	REQUIRE(qp);
	const ring sends(mapped_since(before).at(0));
	sends.producer() = sends.producer() + 1;
	raw_uverbs(wire.on().context()).ring(qp->handle);
	qp.reset();
	CHECK(scene(wire).works());
}

TEST_CASE("wqe_ring: the kernel ignores a write into a request that it has taken", "[roce][veth]")
{
	const cable wire;
	const scene on(wire);
	const auto with_each = [&](auto ask, auto answer) {
		for (std::size_t word = 0; word <= on.sends.words(); word++)
			for (const uint32_t value : wild) {
				on.restart();
				ask();
				if (word < on.sends.words())
					on.sends.change_last(word, value);
				else
					on.sends.change_last(value);
				INFO("byte " << word * 4 << ": " << value);
				answer();
			}
	};

	SECTION("while a read is awaited")
	{
		with_each(
			[&] {
				std::memset(on.here.addr, 0, 3 * mtu);
				on.ask(IBV_WR_RDMA_READ, 3 * mtu);
				CHECK(on.packet().opcode == read_request);
			},
			[&] {
				const std::array parts{part::first, part::middle, part::last};

				for (uint32_t psn = 0; psn < 3; psn++)
					on.peer.read_answer(parts.at(psn), psn,
							    std::vector(mtu, std::byte{0x5a}));
				CHECK(on.ended() == IBV_WC_SUCCESS);
				CHECK(std::count(on.here.addr, on.here.addr + 3 * mtu,
						 std::byte{0x5a}) == 3 * mtu);
			});
	}
	SECTION("while an atomic operation is awaited")
	{
		with_each(
			[&] {
				on.ask(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
				on.packet();
			},
			[&] {
				on.peer.atomic_answer(0, 0x0123456789abcdef);
				CHECK(on.ended() == IBV_WC_SUCCESS);
				CHECK(on.here.addr[0] == std::byte{0xef});
			});
	}
	SECTION("before it is sent again")
	{
		with_each(
			[&] {
				on.ask(IBV_WR_RDMA_WRITE, 3 * mtu);
				for (uint32_t psn = 0; psn < 3; psn++)
					CHECK(on.packet().psn == psn);
			},
			[&] {
				on.peer.acknowledge(1, raw_peer::out_of_order);
				for (uint32_t psn = 1; psn < 3; psn++) {
					const auto again = on.packet();

					CHECK(again.psn == psn);
					CHECK(carries(again, on.here.addr + psn * mtu));
				}
				on.peer.acknowledge(2);
				CHECK(on.ended() == IBV_WC_SUCCESS);
			});
	}
	SECTION("before it is flushed")
	{
		with_each(
			[&] {
				on.ask(IBV_WR_RDMA_WRITE, mtu);
				on.packet();
			},
			[&] {
				REQUIRE(on.peer.become(IBV_QPS_ERR));
				CHECK(on.ended() == IBV_WC_WR_FLUSH_ERR);
			});
	}
	CHECK(on.works());
}

/* The request waits for a page when half of it has been sent. */
TEST_CASE("wqe_ring: the kernel ignores a write into a request that is half sent",
	  "[roce][veth odp][userfaultfd]")
{
	const cable wire;
	const scene on(wire);
	const std::size_t page = page_size();
	const auto packets = static_cast<uint32_t>(page / mtu);

	for (std::size_t word = 0; word <= on.sends.words(); word++) {
		const std::unique_ptr<slow_memory> slow = slow_memory::make(2 * page);
		const owned<ibv_mr> mr =
			wire.on().register_memory(slow->bytes(), IBV_ACCESS_ON_DEMAND);
		const auto value = static_cast<uint32_t>(word % 2 ? 7U << 24 : UINT32_MAX);

		on.restart();
		slow->fill(std::byte{1}, page);
		on.ask(IBV_WR_RDMA_WRITE, slow->bytes(), mr->lkey);
		for (uint32_t psn = 0; psn < packets; psn++)
			CHECK(on.packet().psn == psn);
		REQUIRE(slow->faulted());
		if (word < on.sends.words())
			on.sends.change_last(word, value);
		else
			on.sends.change_last(value);
		INFO("byte " << word * 4 << ": " << value);
		slow->answer(std::byte{2});
		for (uint32_t psn = packets; psn < 2 * packets; psn++) {
			const auto rest = on.packet();

			CHECK(rest.psn == psn);
			CHECK(carries(rest, slow->bytes().addr + psn * mtu));
		}
		on.peer.acknowledge(2 * packets - 1);
		CHECK(on.ended() == IBV_WC_SUCCESS);
	}
	CHECK(on.works());
}

TEST_CASE("wqe_ring: a write into a receive before its turn fails the receive at most",
	  "[roce][veth]")
{
	const cable wire;
	const bool shared = GENERATE(false, true);
	const scene on(wire, shared);
	const auto receive_one = [&](auto change) {
		on.restart();
		std::memset(on.here.addr, 0, mtu);
		on.receive(mtu);
		change();
		on.peer.message(0, std::vector(mtu, std::byte{0x5a}));
		return on.packet();
	};
	const auto is_received = [&] {
		return on.ended() == IBV_WC_SUCCESS &&
		       std::count(on.here.addr, on.here.addr + mtu, std::byte{0x5a}) == mtu;
	};

	INFO("shared: " << shared);
	for (std::size_t word = 0; word < on.receives.words(); word++)
		for (const uint32_t value : values) {
			uint32_t was = 0;
			const auto answer = receive_one([&] {
				was = on.receives.last()[word];
				on.receives.change_last(word, value);
			});

			INFO("byte " << word * 4 << ": " << value);
			CHECK(answer.is_ack());
			if (is_progress<rxe_recv_wqe>(word)) {
				CHECK_FALSE(answer.is_error());
				CHECK(is_received());
			}
			/*
			 * The queue pair refuses the receive WQE, which stays in the shared queue.
			 */
			if (shared && answer.is_error()) {
				on.receives.change_last(word, was);
				on.restart();
				on.peer.message(0, std::vector(mtu, std::byte{0x5a}));
				on.packet();
			}
		}
	CHECK_FALSE(receive_one([] {}).is_error());
	CHECK(is_received());
}

TEST_CASE("wqe_ring: the kernel ignores a write into a receive that it has taken", "[roce][veth]")
{
	const cable wire;
	const bool shared = GENERATE(false, true);
	const scene on(wire, shared);

	INFO("shared: " << shared);
	for (std::size_t word = 0; word <= on.receives.words(); word++)
		for (const uint32_t value : wild) {
			on.restart();
			std::memset(on.here.addr, 0, 2 * mtu);
			on.receive(2 * mtu);
			on.peer.begin_message(0);
			on.packet();
			if (word < on.receives.words())
				on.receives.change_last(word, value);
			else
				on.receives.change_last(value);
			on.peer.end_message(1, std::vector(mtu, std::byte{0x5a}));
			INFO("byte " << word * 4 << ": " << value);
			CHECK_FALSE(on.packet().is_error());
			CHECK(on.ended() == IBV_WC_SUCCESS);
			CHECK(std::count(on.here.addr + mtu, on.here.addr + 2 * mtu,
					 std::byte{0x5a}) == mtu);
		}
}

/* A ring of four entries has no entry with these indices. */
TEST_CASE("wqe_ring: a request is sent again and flushed with any index of its queue",
	  "[roce][veth]")
{
	const cable wire;
	const scene on(wire);

	for (const uint32_t beyond : {1U << 20, 1U << 31}) {
		on.restart();
		on.ask(IBV_WR_RDMA_WRITE, mtu);
		CHECK(on.packet().psn == 0);
		const uint32_t was = on.sends.producer();
		on.sends.producer() = was + beyond;
		on.peer.acknowledge(0, raw_peer::out_of_order);
		CHECK(is_write(on, on.packet()));
		on.sends.producer() = was;
	}
	for (const uint32_t index : {1U << 20, UINT32_MAX, 2U}) {
		on.restart();
		const uint32_t was = on.sends.producer();
		const uint32_t received = on.receives.producer();

		on.sends.producer() = index;
		on.receives.producer() = index;
		REQUIRE(on.peer.become(IBV_QPS_RESET));
		on.sends.producer() = was;
		on.receives.producer() = received;
		on.peer.reset();
	}
}

/*
 * Writes during long requests. The test calls no function of the library that would read the ring.
 */
TEST_CASE("wqe_ring: anything is written anywhere at any time")
{
	constexpr std::size_t length = 100 << 10;
	constexpr std::array opcodes{IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND};
	const device on;
	const memory m = anonymous(2 * length);
	const range here = m.registered();
	const owned<ibv_mr> mr = on.register_memory(
		here, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	const raw_uverbs kernel(on.context());
	const uint64_t seed = first_seed();
	uint64_t turn = seed;

	INFO("RUN_SEED=" << seed);
	for (const run_time time; time.goes_on(); turn++) {
		const std::vector<range> before = mapped_rings();
		loopback link(on);
		const std::vector<range> rings = mapped_since(before);
		std::atomic<bool> go = false;
		std::atomic<bool> stop = false;
		std::thread writing([&, random = std::minstd_rand(turn)]() mutable {
			while (!go)
				std::this_thread::yield();
			while (!stop) {
				const range &ring = rings[random() % rings.size()];
				const std::size_t at = random() % (ring.length / 4);
				const uint32_t value = random() % 2
							       ? values.at(random() % values.size())
							       : static_cast<uint32_t>(random());

				reinterpret_cast<volatile uint32_t *>(ring.addr)[at] = value;
			}
		});

		for (std::size_t i = 0; i < 12; i++) {
			post_receive(link.far_end(), {{{here.addr, length}, mr->lkey}});
			link.start(opcodes.at(i % opcodes.size()), mr.get(), {here.addr, length},
				   here.addr + length, mr->rkey);
		}
		go = true;
		for (int i = 0; i < 20; i++) {
			kernel.ring(link.near_end()->handle);
			kernel.ring(link.far_end()->handle);
			std::this_thread::yield();
		}
		stop = true;
		writing.join();
	}
	loopback link(on);
	CHECK(link.write(mr.get(), {here.addr, 100}, here.addr + 1000, mr->rkey) == IBV_WC_SUCCESS);
}

/*
 * A queue with three completions. The test calls the kernel directly, because in the library one
 * thread waits for the other.
 */
TEST_CASE("wqe_ring: threads resize one completion queue", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);
	const raw_uverbs uverbs(wire.on().context());
	const uint32_t cq = peer.qp()->send_cq->handle;
	std::atomic<bool> stop = false;
	std::atomic<int> grown = 0, shrunk = 0, refused = 0;
	std::vector<std::thread> threads;

	peer.allow_requests(7);
	for (int i = 0; i < 3; i++)
		post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{nullptr, 0}, 0}}, 0, 0});
	REQUIRE(peer.become(IBV_QPS_ERR));
	/* When all three completions are in the queue, it can't shrink to two. */
	REQUIRE(happens([&] { return uverbs.resize(cq, 2) == EINVAL; }));
	threads.emplace_back([&] {
		while (!stop)
			(uverbs.resize(cq, 10) == 0 ? grown : refused)++;
	});
	for (int i = 0; i < 2; i++)
		threads.emplace_back([&] {
			while (!stop)
				shrunk += uverbs.resize(cq, 1) != EINVAL;
		});
	for (const run_time time; time.goes_on();)
		std::this_thread::sleep_for(10ms);
	stop = true;
	for (auto &one : threads)
		one.join();
	CHECK(grown > 0);
	CHECK(refused == 0);
	CHECK(shrunk == 0);
}
