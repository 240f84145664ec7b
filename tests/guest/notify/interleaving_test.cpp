// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Events during tracking, pinning and comparing, which the core (umem_notify*.c) must handle. The
 * memory is very large, so each step takes long and the event happens in the middle.
 */
#include "catch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "loopback.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr std::size_t large = std::size_t{64} << 20;
constexpr std::size_t very_large = std::size_t{1} << 30; /* few events cover such a range */
constexpr int track = 1 << 28;

void sleep_for(clock_type::duration t)
{
	std::this_thread::sleep_for(t);
}

range last_pages(range r, std::size_t pages)
{
	return {r.end() - pages * page_size(), pages * page_size()};
}

void map_over(range r)
{
	if (mmap(r.addr, r.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0) != r.addr)
		std::abort();
	std::memset(r.addr, 1, r.length);
}

/*
 * Small pages, because huge pages are dropped too quickly. The first @touched bytes and the end
 * have pages.
 */
memory in_small_pages(std::size_t length, std::size_t touched)
{
	void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	REQUIRE(addr != MAP_FAILED);
	memory m({static_cast<std::byte *>(addr), length});
	madvise(addr, length, MADV_NOHUGEPAGE); /* fails on a kernel without huge pages */
	std::memset(addr, 1, touched);
	const range end = last_pages(m.registered(), 4);
	std::memset(end.addr, 1, end.length);
	return m;
}

/* Measures a settle that must compare every page. */
clock_type::duration time_to_settle(ibv_mr *mr, range r)
{
	REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
	const auto start = clock_type::now();
	REQUIRE(ibv_settle_mr_notify(mr) == 0);
	return clock_type::now() - start;
}

} // namespace

/* If settling did not check @suspects again, the SUSPECT of the second event would be lost. */
TEST_CASE("interleaving: a page changes after settling has looked at it")
{
	const device on;

	for (int round = 1; round <= 6; round++) {
		watched it(on, anonymous(large));
		const range r = it.m.registered();
		std::atomic<bool> started = false;

		const auto whole = time_to_settle(it.mr.get(), r);
		REQUIRE(it.w.value() == 0);

		REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0); /* SUSPECT, harmless */
		std::thread settling([&] {
			started = true;
			ibv_settle_mr_notify(it.mr.get());
		});
		while (!started)
			std::this_thread::yield();
		sleep_for(whole * round / 8);
		REQUIRE(madvise(r.addr, page_size(), MADV_DONTNEED) == 0);
		*r.addr = std::byte{1}; /* maps another page there */
		CHECK(it.w.value() != 0);
		settling.join();
		CHECK(it.w.value() != 0);
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
	}
}

/*
 * If a notifier is inserted during an invalidation, the kernel does not call it for this
 * invalidation. The pages at the end of the range are still mapped, and can be pinned.
 */
TEST_CASE("interleaving: registering while the memory is being dropped")
{
	const device on;
	const memory inbox = anonymous(4 * page_size());
	const range to = inbox.registered();
	const auto inbox_mr = on.register_memory(to);
	int stale = 0;
	int told = 0;

	for (int round = 0; round < 12; round++) {
		memory m = in_small_pages(round % 4 < 2 ? large : very_large, large);
		const range r = m.registered();
		const range end = last_pages(r, 4);
		std::atomic<bool> started = false;
		std::thread dropping([&] {
			started = true;
			if (madvise(r.addr, r.length, MADV_DONTNEED))
				std::abort();
		});
		while (!started)
			;
		sleep_for(std::chrono::microseconds(200 * (round % 6)));
		watched it(on, end, IBV_ACCESS_LOCAL_WRITE | (round % 2 ? 0 : track));
		dropping.join();
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		if (it.w.value()) {
			told++;
			continue;
		}
		/*
		 * The word says that the registration is valid, so the device must read the present
		 * bytes.
		 */
		std::memset(end.addr, 0x30 + round, end.length);
		loopback link(on);
		REQUIRE(link.write(it.mr.get(), end, to.addr, inbox_mr->rkey) == IBV_WC_SUCCESS);
		stale += std::memcmp(end.addr, to.addr, end.length) != 0;
	}
	INFO(told << " registrations were told");
	CHECK(stale == 0);
}

/*
 * If a page is replaced before it is pinned, the registration gets the new page. Then INVALID would
 * be wrong.
 */
TEST_CASE("interleaving: memory changes ahead of the pinning")
{
	const device on;
	const memory inbox = anonymous(page_size());
	const range to = inbox.registered();
	const auto inbox_mr =
		on.register_memory(to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	int ahead = 0;

	for (int round = 0; round < 40 && ahead < 5; round++) {
		const memory m = anonymous(large);
		const range r = m.registered();
		const range last = last_pages(r, 1);
		std::atomic<bool> started = false;

		std::memset(last.addr, 0x11, last.length);
		std::thread changing([&] {
			while (!started)
				;
			map_over(last);
		});
		word w;
		started = true;
		const auto mr = on.register_memory(r, IBV_ACCESS_LOCAL_WRITE | track);
		changing.join();
		loopback link(on);
		REQUIRE(link.write(mr.get(), last, to.addr, inbox_mr->rkey) == IBV_WC_SUCCESS);
		if (*to.addr == std::byte{0x11})
			continue; /* it was pinned before the change */
		ahead++;
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
		CHECK(w.value() == 0);
	}
	INFO(ahead << " changes came in time");
}
