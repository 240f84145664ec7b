// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Threads that disturb each other: arm, disarm, settle, dereg, unmap, fork. RUN_SECONDS sets how
 * long each test runs (default 3).
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "device.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 8 * 4096;

/* Memory at a fixed address, whose pages are replaced again and again. */
class shifting_memory {
public:
	shifting_memory() : memory_(anonymous(length)) {}

	range where() const { return memory_.registered(); }

	/* The count is odd during a change. Each change adds two. */
	uint64_t generation() const { return generation_.load(); }

	void change()
	{
		const range r = where();

		/* Never leaves a hole, which another thread's mmap could use. */
		generation_++;
		map_over(r, PROT_NONE);
		map_over(r, PROT_READ | PROT_WRITE);
		*r.addr = std::byte{1};
		generation_++;
	}

	/* Returns whether a change has begun and been completed since the count was `since`. */
	bool changed(uint64_t since) const { return generation() >= (since + 1) / 2 * 2 + 2; }

private:
	static void map_over(range r, int protection)
	{
		if (mmap(r.addr, r.length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			 0) != r.addr)
			std::abort();
	}

	memory memory_;
	std::atomic<uint64_t> generation_ = 0;
};

} // namespace

TEST_CASE("race: the word is never late")
{
	const device on;
	const run_time time;
	shifting_memory shifting;
	std::atomic<bool> stop = false;
	std::atomic<uint64_t> late = 0;
	std::atomic<uint64_t> told = 0;

	const auto watch = [&](int access) {
		while (!stop) {
			const range r = shifting.where();
			word w;
			owned<ibv_mr> mr(ibv_reg_mr(on.pd(), r.addr, r.length, access));
			if (!mr)
				continue; /* the page was being replaced */
			const uint64_t pinned_at = shifting.generation();
			if (ibv_reg_mr_notify(mr.get(), w.address()))
				std::abort();
			for (;;) {
				const bool changed = shifting.changed(pinned_at);
				const uint64_t value = w.value();
				if (value == IBV_MR_NOTIFY_INVALID) {
					told++;
					break;
				}
				if (changed && value == 0)
					late++;
				if (value && ibv_settle_mr_notify(mr.get()))
					std::abort();
				if (stop || (changed && value == 0))
					break;
			}
		}
	};
	std::thread tracked(watch, IBV_ACCESS_LOCAL_WRITE | 1 << 28);
	std::thread untracked(watch, IBV_ACCESS_LOCAL_WRITE);
	uint64_t changes = 0;
	while (time.goes_on(told)) {
		shifting.change();
		changes++;
		if (changes % 64 == 0)
			usleep(2000);
	}
	stop = true;
	tracked.join();
	untracked.join();
	INFO(changes << " changes");
	CHECK(late == 0);
	CHECK(told > 0);
}

TEST_CASE("race: arm, disarm, settle, dereg and unmap of one MR")
{
	const device on;
	const run_time time;
	ibv_device_attr attr{};
	REQUIRE(ibv_query_device(on.context(), &attr) == 0);
	const raw_uverbs raw(on.context());
	std::atomic<uint32_t> handle = UINT32_MAX;
	std::atomic<bool> stop = false;
	std::atomic<uint64_t> armed = 0;
	std::atomic<uint64_t> strange = 0;
	shifting_memory shifting;

	const auto expect = [&](int error, std::initializer_list<int> allowed) {
		for (const int one : allowed)
			if (error == one)
				return;
		strange++;
		WARN("errno " << error);
	};
	const auto arming = [&] {
		word w;
		while (!stop) {
			const int error = raw.arm(handle, w.address());
			armed += error == 0;
			expect(error, {0, EBUSY, ENOENT, EINVAL});
		}
		/* The kernel must not write the word after the thread has ended. */
		raw.disarm(handle);
	};
	std::thread threads[] = {
		std::thread(arming),
		std::thread([&] {
			while (!stop)
				expect(raw.disarm(handle), {0, EINVAL, EBUSY, ENOENT});
		}),
		std::thread([&] {
			while (!stop)
				expect(raw.settle(handle), {0, EINVAL, EBUSY, ENOENT});
		}),
		std::thread([&] {
			while (!stop)
				shifting.change();
		}),
		std::thread([&] {
			while (!stop) {
				const pid_t child = fork();
				if (child == 0)
					_exit(0);
				waitpid(child, nullptr, 0);
				usleep(10000);
			}
		}),
	};
	uint64_t rounds = 0;
	while (time.goes_on(armed && rounds)) {
		const range r = shifting.where();
		const int access = IBV_ACCESS_LOCAL_WRITE | (rounds % 2 ? 1 << 28 : 0);
		ibv_mr *mr = ibv_reg_mr(on.pd(), r.addr, r.length, access);
		if (!mr)
			continue;
		handle = mr->handle;
		usleep(rounds % 7 * 50);
		while (ibv_dereg_mr(mr) == EBUSY) /* a method is using the MR */
			;
		rounds++;
	}
	stop = true;
	for (std::thread &thread : threads)
		thread.join();
	CHECK(strange == 0);
	CHECK(armed > 0);
	CHECK(rounds > 0);
}

TEST_CASE("race: settling never wipes out an invalidation")
{
	const device on;
	const run_time time;
	uint64_t wiped = 0;
	uint64_t rounds = 0;

	while (time.goes_on()) {
		watched it(on, shared_file(length));
		const range r = it.m.registered();
		std::atomic<bool> stop = false;

		std::thread settling([&] {
			while (!stop)
				ibv_settle_mr_notify(it.mr.get());
		});
		/* some harmless events, and then a real change */
		for (uint64_t i = 0; i < rounds % 5 + 1; i++)
			madvise(r.addr, r.length, MADV_DONTNEED);
		REQUIRE(madvise(r.addr, page_size(), MADV_REMOVE) == 0);
		wiped += it.w.value() == 0;
		stop = true;
		settling.join();
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		wiped += it.w.value() != IBV_MR_NOTIFY_INVALID;
		rounds++;
	}
	INFO(rounds << " rounds");
	CHECK(wiped == 0);
}

TEST_CASE("race: a word is in the page that its address maps")
{
	const device on;
	const run_time time;
	const std::size_t before = pinned_bytes();
	const memory words = anonymous(page_size());
	std::atomic<uint64_t> generation = 0; /* odd while the page is replaced */
	std::atomic<bool> stop = false;
	std::atomic<uint64_t> told = 0;
	std::atomic<uint64_t> lost = 0;

	const auto arming = [&](std::size_t at) {
		auto *const earlier = reinterpret_cast<uint64_t *>(words.registered().addr) + at;
		auto *const address = earlier + 1;
		const std::atomic_ref<uint64_t> value(*address);
		while (!stop) {
			memory m = anonymous(page_size());
			const auto first = on.register_memory(m.registered());
			const auto second = on.register_memory(m.registered());
			/*
			 * The first call may find the page being replaced, the second call the new
			 * page.
			 */
			if (ibv_reg_mr_notify(first.get(), earlier))
				std::abort();
			const uint64_t now = generation;
			value = 0;
			if (ibv_reg_mr_notify(second.get(), address) ||
			    ibv_unreg_mr_notify(first.get()))
				std::abort();
			unmap_all(m);
			const uint64_t seen = value;
			if (now % 2 == 0 && generation == now)
				(seen == IBV_MR_NOTIFY_INVALID ? told : lost)++;
		}
	};
	std::thread one(arming, 0);
	std::thread other(arming, 2);
	while (time.goes_on(told)) {
		const range r = words.registered();

		generation++;
		if (mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != r.addr)
			std::abort();
		generation++;
		usleep(200);
	}
	stop = true;
	one.join();
	other.join();
	INFO(told << " words told");
	CHECK(lost == 0);
	CHECK(told > 0);
	CHECK(wait_for_pinned(before) == before);
}

/*
 * When the word says INVALID, the device must have lost its access. The order of disarming and
 * unmapping must not matter.
 */
TEST_CASE("race: disarming during an unmap", "[revoke]")
{
	const device on;
	const run_time time;
	const memory m = anonymous(page_size());
	const range r = m.registered();
	const std::size_t before = pinned_bytes();
	std::atomic<unsigned int> begun = 0;
	std::atomic<unsigned int> unmapped = 0;
	std::atomic<int> head_start = 0; /* negative: the unmapper waits */
	std::atomic<bool> stop = false;
	uint64_t invalid = 0;
	uint64_t strange = 0;
	uint64_t kept = 0;

	const auto wait = [](int turns) {
		for (int i = 0; i < turns; i++)
			std::atomic_signal_fence(std::memory_order_seq_cst);
	};
	std::thread unmapper([&] {
		for (unsigned int round = 1; !stop; round++) {
			while (begun != round && !stop)
				;
			wait(-head_start);
			if (mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != r.addr)
				std::abort();
			unmapped = round;
		}
	});
	for (unsigned int round = 1; time.goes_on(invalid); round++) {
		const auto mr = on.register_memory(r);
		word w;

		if (ibv_reg_mr_notify(mr.get(), w.address()))
			std::abort();
		begun = round;
		wait(head_start);
		if (ibv_unreg_mr_notify(mr.get()))
			std::abort();
		while (unmapped != round)
			;
		const int step = 1 + std::abs(head_start) / 16 + static_cast<int>(round * 7 % 97);
		if (w.value() == IBV_MR_NOTIFY_INVALID) {
			invalid++;
			kept += pinned_bytes() != before;
			head_start -= step;
		} else {
			strange += w.value() != 0;
			head_start += step;
		}
	}
	stop = true;
	unmapper.join();
	INFO(invalid << " of them INVALID");
	CHECK(strange == 0);
	CHECK(kept == 0);
	CHECK(invalid > 0);
}

namespace {

/* Has huge pages. Another thread drops the last huge page again and again. */
class dropped_beside {
public:
	explicit dropped_beside(memory pages) : pages_(std::move(pages)) {}

	[[nodiscard]] const memory &pages() const { return pages_; }
	[[nodiscard]] range first() const { return {pages_.registered().addr, huge_page_size()}; }

	/* Arms a registration of the first page, drops this page, and settles. */
	[[nodiscard]] auto settle_dropped(const device &on, word &w) const
	{
		*first().addr = std::byte{1};
		auto mr = on.register_memory({first().addr, page_size()});
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		REQUIRE(madvise(first().addr, huge_page_size(), MADV_DONTNEED) == 0);
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
		return mr;
	}

private:
	memory pages_;
	std::jthread thread_{
		[last = pages_.registered().end() - huge_page_size()](const std::stop_token &stop) {
			while (!stop.stop_requested())
				if (madvise(last, huge_page_size(), MADV_DONTNEED))
					std::abort();
		}};
};

} // namespace

/*
 * If another thread holds a mapping's lock, and the mapping does not map the page, hugetlbfs
 * removes the page from the file without an event to this mapping.
 */
TEST_CASE("race: a hole in shared huge pages while another page is dropped")
{
	const device on;
	const run_time time;
	std::optional<dropped_beside> huge;
	uint64_t intact = 0;
	uint64_t stale = 0;

	try {
		huge.emplace(shared_hugetlb(4 * huge_page_size()));
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
	while (time.goes_on(intact > 50)) {
		word w;
		const auto mr = huge->settle_dropped(on, w);

		if (w.value())
			continue;
		intact++;
		punch(huge->pages().fd(), huge->first(), huge->pages().registered());
		stale += !w.value();
	}
	INFO(intact << " times intact");
	CHECK(stale == 0);
	CHECK(intact > 0);
}

/* A thread that drops huge pages holds the mapping's lock, and waits for the file's lock. */
TEST_CASE("race: private huge pages are dropped while another is settled")
{
	const device on;
	const run_time time;
	std::optional<dropped_beside> huge;
	uint64_t dropped = 0;
	uint64_t missed = 0;

	try {
		huge.emplace(private_hugetlb(4 * huge_page_size()));
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
	while (time.goes_on(dropped > 200)) {
		word w;
		const auto mr = huge->settle_dropped(on, w);

		dropped++;
		missed += !(w.value() & IBV_MR_NOTIFY_INVALID);
	}
	INFO(dropped << " times dropped");
	CHECK(missed == 0);
}

TEST_CASE("race: the first words of a page are charged once")
{
	const device on;
	const run_time time;
	memory m = anonymous(2 * page_size());
	const range r = m.registered();
	const auto one = on.register_memory({r.addr, page_size()});
	const auto other = on.register_memory({r.addr + page_size(), page_size()});
	const std::size_t before = pinned_bytes();
	uint64_t twice = 0;

	while (time.goes_on()) {
		/* The page was not touched before, so pinning it takes longer. */
		void *const page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(page != MAP_FAILED);
		const memory words({static_cast<std::byte *>(page), page_size()});
		auto *const address = static_cast<uint64_t *>(page);
		std::atomic<int> ready = 0;
		const auto arm = [&](ibv_mr *mr, uint64_t *w) {
			ready++;
			while (ready < 2)
				;
			if (ibv_reg_mr_notify(mr, w))
				std::abort();
		};
		std::thread thread([&] { arm(other.get(), address + 1); });
		arm(one.get(), address);
		thread.join();
		twice += pinned_bytes() != before + page_size();
		REQUIRE(ibv_unreg_mr_notify(one.get()) == 0);
		REQUIRE(ibv_unreg_mr_notify(other.get()) == 0);
	}
	CHECK(twice == 0);
	CHECK(pinned_bytes() == before);
}

TEST_CASE("race: one of two threads gets the word")
{
	const device on;
	const run_time time;
	memory m = anonymous(2 * page_size());
	const range r = m.registered();
	const auto one = on.register_memory({r.addr, page_size()});
	const auto other = on.register_memory({r.addr + page_size(), page_size()});
	const memory twice = shared_file(page_size());
	void *const again =
		mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, twice.fd(), 0);
	REQUIRE(again != MAP_FAILED);
	const memory beside({static_cast<std::byte *>(again), page_size()});
	uint64_t rounds = 0;
	uint64_t strange = 0;

	while (time.goes_on()) {
		std::atomic<int> ready = 0;
		int errors[2] = {};
		const auto arm = [&](ibv_mr *mr, void *w, int &error) {
			ready++;
			while (ready < 2)
				;
			error = ibv_reg_mr_notify(mr, static_cast<uint64_t *>(w));
		};
		/* Maps the memory once at the same address, and once at another address. */
		std::thread thread([&] {
			arm(other.get(), rounds % 2 ? again : twice.registered().addr, errors[1]);
		});
		arm(one.get(), twice.registered().addr, errors[0]);
		thread.join();
		strange += !(errors[0] == 0 && errors[1] == EBUSY) &&
			   !(errors[0] == EBUSY && errors[1] == 0);
		ibv_unreg_mr_notify(one.get());
		ibv_unreg_mr_notify(other.get());
		rounds++;
	}
	INFO(rounds << " rounds");
	CHECK(strange == 0);
}
