// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The wire between two queue pairs of one device loses, doubles and swaps packets (lossy_wire.h).
 * Each request must complete. A request that completes with success must have done its work.
 * Several requests are in progress at a time, from both ends. PSNs wrap.
 *
 * There is a case for pinned memory and a case for memory on demand. RUN_SECONDS sets the time of
 * each case (default 3), or RUN_COUNT sets its number of transfers. RUN_SEED sets the seed. The
 * last line of each case has the counts.
 */
#include "catch.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lossy_wire.h"
#include "slow_memory.h"
#include "post.h"
#include "run_time.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr std::size_t slot_count = 6;
constexpr std::size_t word_bytes = sizeof(uint64_t);
constexpr uint32_t first_psn = 0xffff00; /* the last PSN is 0xffffff */
constexpr patience always{12, 7};	 /* timeout 16 ms, unlimited retries */

/*
 * Each transfer has a slot in the memory of both ends, and goes from one half of the slot to the
 * other half.
 */
std::size_t half()
{
	return 2 * page_size();
}

std::size_t slot_bytes()
{
	return 2 * half();
}

/* The memory of one end, and its expected content. */
class region {
public:
	region(const device &on, bool on_demand)
	    : slow_(on_demand ? slow_memory::make(slot_count * slot_bytes()) : nullptr),
	      pinned_(slow_ ? memory() : anonymous(slot_count * slot_bytes())),
	      bytes_(slow_ ? slow_->bytes() : pinned_.registered()),
	      mr_(on.register_memory(bytes_,
				     device::all_rights | (slow_ ? IBV_ACCESS_ON_DEMAND : 0))),
	      model_(bytes_.length)
	{
		if (slow_)
			answers_ = std::jthread([this](const auto &stop) { answer_on(stop); });
		else
			std::fill_n(at(0), bytes_.length, std::byte{});
	}

	region(const region &) = delete;
	region &operator=(const region &) = delete;

	ibv_mr *mr() const { return mr_.get(); }
	std::byte *at(std::size_t offset) const { return bytes_.addr + offset; }
	const std::byte *model(std::size_t offset) const { return model_.data() + offset; }
	uint64_t value(std::size_t offset) const
	{
		uint64_t found = 0;

		std::memcpy(&found, model(offset), word_bytes);
		return found;
	}
	/* Records the result of a transfer. */
	void expect(std::size_t offset, const void *what, std::size_t length)
	{
		std::memcpy(model_.data() + offset, what, length);
	}
	void fill(std::size_t offset, std::size_t length, std::mt19937 &random)
	{
		std::generate_n(model_.begin() + static_cast<ssize_t>(offset), length,
				[&] { return static_cast<std::byte>(random()); });
		std::memcpy(at(offset), model(offset), length);
	}
	/* With memory on demand, drops the page, which comes back slowly, full of zeros. */
	void drop(std::size_t offset)
	{
		if (!slow_)
			return;
		offset -= offset % page_size();
		if (madvise(at(offset), page_size(), MADV_DONTNEED))
			fail("MADV_DONTNEED");
		std::fill_n(model_.begin() + static_cast<ssize_t>(offset), page_size(),
			    std::byte{});
	}
	/* Compares the pages that contain the range. */
	bool matches(std::size_t offset, std::size_t length) const
	{
		const std::size_t begin = offset - offset % page_size();
		const std::size_t end =
			(offset + length + page_size() - 1) / page_size() * page_size();

		return std::memcmp(at(begin), model(begin), end - begin) == 0;
	}
	bool matches() const { return matches(0, bytes_.length); }

private:
	void answer_on(const std::stop_token &stop) const
	{
		std::minstd_rand random(1);

		while (!stop.stop_requested()) {
			if (!slow_->faulted(std::chrono::milliseconds(5)))
				continue;
			if (random() % 4 == 0)
				let_pass(std::chrono::milliseconds(random() % 40));
			slow_->answer(std::byte{});
		}
	}

	std::unique_ptr<slow_memory> slow_;
	memory pinned_;
	range bytes_;
	owned<ibv_mr> mr_;
	std::vector<std::byte> model_;
	std::jthread answers_; /* the last member, because it uses the memory */
};

struct transfer {
	ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
	std::size_t from = 0;  /* the end that posts the request */
	std::size_t local = 0; /* the offset in the region of this end, and of the other end */
	std::size_t remote = 0;
	std::size_t length = 0;
	int completions = 0; /* the number of completions that are still to come */

	bool is_atomic() const { return opcode >= IBV_WR_ATOMIC_CMP_AND_SWP; }
};

const char *name(ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
		return "write";
	case IBV_WR_RDMA_READ:
		return "read";
	case IBV_WR_SEND:
		return "send";
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return "compare and swap";
	default:
		return "fetch and add";
	}
}

struct end {
	end(const device &on, bool on_demand)
	    : bytes(on, on_demand), cq(ibv_create_cq(on.context(), 64, nullptr, nullptr, 0)),
	      qp(make_reliable(on, cq.get()))
	{
	}

	region bytes;
	owned<ibv_cq> cq;
	owned<ibv_qp> qp;
	std::deque<transfer *> asked, received; /* in the order of completion */
};

class traffic {
public:
	traffic(const device &on, bool on_demand, unsigned int seed)
	    : random_(seed), ends_{end(on, on_demand), end(on, on_demand)},
	      wire_(seed, lossy_wire::odds())
	{
		lossy_wire::connect(ends_[0].qp.get(), ends_[1].qp.get(), first_psn, always);
	}

	/* Runs until the limit, or until a transfer fails. */
	void run(const run_limit &until)
	{
		uint64_t begun = 0;

		do {
			for (std::size_t i = 0; i < slot_count; i++)
				if (!slots_[i].completions && !failed_ &&
				    until.goes_on(begun, has_seen_all())) {
					start(slots_[i], i * slot_bytes());
					begun++;
				}
		} while (under_way() && one_completes());
	}

	uint64_t done() const { return done_; }
	uint64_t wrong() const { return wrong_; }
	bool failed() const { return failed_; }
	bool all_matches() const { return ends_[0].bytes.matches() && ends_[1].bytes.matches(); }
	const lossy_wire::counts &on_wire() const { return wire_.count(); }

private:
	/* Returns whether there were enough transfers, and at least one fault of each kind. */
	bool has_seen_all() const
	{
		const lossy_wire::counts &seen = wire_.count();

		return done_ >= 100 && seen.lost && seen.doubled && seen.swapped;
	}
	bool under_way() const
	{
		return std::any_of(slots_.begin(), slots_.end(),
				   [](const transfer &one) { return one.completions; });
	}
	/* A short length, some packets, or many packets. */
	std::size_t any_length()
	{
		const std::array most{64UL, 3 * mtu, half()};

		return 1 + random_() % most[random_() % most.size()];
	}
	std::size_t place(std::size_t slot, const transfer &one)
	{
		const std::size_t offset = random_() % (half() - one.length + 1);

		return slot + (one.is_atomic() ? offset / word_bytes * word_bytes : offset);
	}
	/*
	 * Splits the range into at most `most` pieces. Receives of make_reliable() have two
	 * elements.
	 */
	std::vector<piece> pieces(const region &of, std::size_t offset, std::size_t length,
				  std::size_t most)
	{
		std::vector<piece> found;

		while (length) {
			const std::size_t part =
				found.size() + 1 == most ? length : 1 + random_() % length;

			found.push_back({{of.at(offset), part}, of.mr()->lkey});
			offset += part;
			length -= part;
		}
		return found;
	}

	void start(transfer &one, std::size_t slot)
	{
		constexpr std::array kinds{IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
					   IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
		one = {.opcode = kinds[random_() % kinds.size()], .from = random_() % 2};
		one.length = one.is_atomic() ? word_bytes : any_length();
		one.local = place(slot, one);
		one.remote = place(slot + half(), one);
		end &own = ends_[one.from], &far = ends_[1 - one.from];
		const bool brings = one.opcode == IBV_WR_RDMA_WRITE || one.opcode == IBV_WR_SEND;

		(brings ? own : far)
			.bytes.fill(brings ? one.local : one.remote, one.length, random_);
		for (end &each : ends_)
			for (auto pages = random_() % 4; pages; pages--)
				each.bytes.drop(slot + random_() % slot_bytes());
		ask(one, own, far);
	}

	void ask(transfer &one, end &own, end &far)
	{
		request what{
			.opcode = one.opcode,
			.local = pieces(own.bytes, one.local, one.length, one.is_atomic() ? 1 : 4),
			.remote = number(far.bytes.at(one.remote)),
			.rkey = far.bytes.mr()->rkey,
			.flags = random_() % 4 ? 0U : unsigned{IBV_SEND_FENCE}};

		if (one.is_atomic()) {
			expect_atomic(one, own.bytes, far.bytes, what);
		} else if (one.opcode == IBV_WR_RDMA_READ) {
			own.bytes.expect(one.local, far.bytes.model(one.remote), one.length);
		} else {
			far.bytes.expect(one.remote, own.bytes.model(one.local), one.length);
		}
		if (one.opcode == IBV_WR_SEND) {
			post_receive(far.qp.get(), pieces(far.bytes, one.remote, one.length, 2));
			far.received.push_back(&one);
			one.completions++;
		}
		post(own.qp.get(), what);
		own.asked.push_back(&one);
		one.completions++;
	}

	void expect_atomic(const transfer &one, region &own, region &far, request &what)
	{
		const uint64_t before = far.value(one.remote);
		uint64_t after = before;

		if (one.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			what.compare_add = random_();
			after += what.compare_add;
		} else {
			what.compare_add = before + random_() % 2;
			what.swap = random_();
			if (what.compare_add == before)
				after = what.swap;
		}
		own.expect(one.local, &before, word_bytes);
		far.expect(one.remote, &after, word_bytes);
	}

	/* Handles the next completion; returns false if none comes. */
	bool one_completes()
	{
		ibv_wc wc{};
		end *of = nullptr;

		if (!happens([&] {
			    of = std::find_if(ends_.begin(), ends_.end(), [&](const end &each) {
				    return ibv_poll_cq(each.cq.get(), 1, &wc) == 1;
			    });
			    return of != ends_.end();
		    })) {
			for (const transfer &one : slots_)
				if (one.completions)
					complain(one, "does not complete");
			failed_ = true;
			return false;
		}
		/* The completion of a failed request does not tell its opcode. */
		auto &queue = wc.opcode & IBV_WC_RECV ? of->received : of->asked;
		transfer &one = *queue.front();

		if (wc.status) {
			complain(one, ibv_wc_status_str(wc.status));
			failed_ = true;
			return false;
		}
		queue.pop_front();
		if (--one.completions == 0)
			check(one);
		return true;
	}

	void check(const transfer &one)
	{
		done_++;
		if (ends_[one.from].bytes.matches(one.local, one.length) &&
		    ends_[1 - one.from].bytes.matches(one.remote, one.length))
			return;
		if (!wrong_++)
			complain(one, "success, and wrong bytes");
	}

	void complain(const transfer &one, const char *what)
	{
		std::printf("transfer %" PRIu64 ", a %s of %zu bytes: %s\n", done_,
			    name(one.opcode), one.length, what);
		std::fflush(stdout);
	}

	std::mt19937 random_;
	std::array<end, 2> ends_;
	std::array<transfer, slot_count> slots_{};
	lossy_wire wire_;
	uint64_t done_ = 0;
	uint64_t wrong_ = 0;
	bool failed_ = false;
};

void run(bool on_demand)
{
	const cable ends;
	const char *const text = std::getenv("RUN_SEED");
	const auto seed = text ? static_cast<unsigned int>(std::strtoul(text, nullptr, 10))
			       : std::random_device()();
	traffic both(ends.on(), on_demand, seed);
	const lossy_wire::counts &seen = both.on_wire();

	std::printf("seed %u\n", seed);
	std::fflush(stdout); /* the next step may hang */
	both.run(run_limit::environment());
	std::printf("seed %u, %s: %" PRIu64 " transfers, %" PRIu64 " packets, %" PRIu64
		    " lost, %" PRIu64 " doubled, %" PRIu64 " swapped; %" PRIu64 " wrong\n",
		    seed, on_demand ? "on demand" : "pinned", both.done(), seen.packets.load(),
		    seen.lost.load(), seen.doubled.load(), seen.swapped.load(), both.wrong());
	CHECK(!both.failed());
	CHECK(both.wrong() == 0);
	CHECK(both.all_matches());
}

} // namespace

TEST_CASE("lossy: pinned memory has the bytes of each transfer that succeeds", "[veth]")
{
	run(false);
}

TEST_CASE("lossy: memory on demand has the bytes of each transfer that succeeds",
	  "[veth odp][userfaultfd]")
{
	run(true);
}
