// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Requests that overlap idle registrations, on a fake kernel. The tests check when registrations
 * are merged, and when not.
 */
#include <algorithm>
#include <random>
#include <vector>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000;
constexpr uint32_t LOCAL = MR_CACHE_LOCAL_WRITE;
constexpr uint64_t WIDE = 16, IDLE = 7; // pages of a window; windows before a union

/* An environment with room for many hints. Tests can read its arena. */
struct seen_env : fake_env {
	static constexpr uint32_t most_hint_bits = 8;

	void *arena = nullptr;

	uint64_t most = UINT64_MAX;

	void *map(size_t bytes) { return arena = fake_env::map(bytes); }
	uint64_t max_merge(void *) const { return most; }
};

struct fixture {
	fake_kernel kernel;
	mr_cache::cache<seen_env> cache;
	char pds[2][64] = {};
	void *const owner = this;

	fixture()
	{
		cache.env.kernel = &kernel;
		cache.env.shrink = [this](uint32_t stage) { return cache.shrink(stage, true); };
		REQUIRE(cache.start() == 0);
	}
	~fixture()
	{
		CHECK(cache.drain(owner, nullptr) == 0);
		CHECK(kernel.live.empty());
		CHECK(kernel.bytes == 0);
		CHECK(kernel.complaint == "");
	}

	void *pd(int n) { return &pds[n]; }
	mr_cache_ref get(uint64_t page, uint64_t pages = WIDE, uint32_t access = LOCAL, int of = 0)
	{
		mr_cache_ref ref = {};

		REQUIRE(acquire(cache, pd(of), owner, BASE + page * PAGE, pages * PAGE, access,
				&ref) == 0);
		CHECK(mr_of(ref).live);
		CHECK(mr_of(ref).what.start <= BASE + page * PAGE);
		CHECK(mr_of(ref).what.start + mr_of(ref).what.size >= BASE + (page + pages) * PAGE);
		return ref;
	}
	void put(const mr_cache_ref &ref) { CHECK(cache.release(ref.index, ref.generation) == 0); }
	/* Uses a window; returns the number of pages of its registration. */
	uint64_t use(uint64_t page, uint64_t pages = WIDE, uint32_t access = LOCAL, int of = 0)
	{
		mr_cache_ref ref = get(page, pages, access, of);

		put(ref);
		return mr_of(ref).what.size / PAGE;
	}
	bool has(uint64_t page, uint64_t pages = WIDE)
	{
		return cache.covers(pd(0), BASE + page * PAGE, pages * PAGE, LOCAL);
	}
	/* Takes windows that are in use at the same time, so each has its own registration. */
	std::vector<mr_cache_ref> hold(uint64_t first, uint64_t count)
	{
		std::vector<mr_cache_ref> held;

		for (uint64_t n = 0; n < count; n++)
			held.push_back(get(first + n));
		return held;
	}
	void leave(const std::vector<mr_cache_ref> &held)
	{
		for (const mr_cache_ref &ref : held)
			put(ref);
	}
	ibv_mr_cache_stats count()
	{
		ibv_mr_cache_stats s{};

		CHECK(cache.query(owner, &s) == 0);
		return s;
	}
	void limit(uint64_t bytes)
	{
		ibv_mr_cache_limits to = {bytes, UINT64_MAX};

		CHECK(cache.limits(owner, &to, nullptr) == 0);
	}
	uint64_t registered() const
	{
		uint64_t bytes = 0;

		for (const fake_kernel::mr &one : kernel.all)
			bytes += one.what.size;
		return bytes;
	}
};

} // namespace

TEST_CASE_METHOD(fixture, "windows that slide pin at most twice what they cover")
{
	const uint64_t wide = GENERATE(3, 8, 16, 64), windows = 60 * std::min<uint64_t>(wide, 10);
	const bool back = GENERATE(false, true);
	const auto slide = [&] {
		for (uint64_t n = 0; n < windows; n++) {
			use(back ? windows - n : n, wide);
			/* 9 * wide: the windows that no union contains yet */
			CHECK(kernel.bytes <= (2 * (n + wide) + 9 * wide) * PAGE);
		}
	};

	slide();
	CHECK(kernel.bytes <= 2 * (windows + wide) * PAGE);
	CHECK(kernel.reg_calls == windows);
	CHECK(registered() <= windows * wide * PAGE * (wide < 64 ? 33 : 27) / 25);
	CHECK(count().misses == windows);
	CHECK(count().evictions == 0);
	CHECK(count().bytes == kernel.bytes);
}

TEST_CASE_METHOD(fixture, "windows that slid are all served afterwards")
{
	for (uint64_t n = 0; n < 200; n++)
		use(n);
	for (uint64_t n = 0; n < 200; n++)
		use(n);
	CHECK(kernel.reg_calls == 200);
	CHECK(count().hits == 200);
}

TEST_CASE_METHOD(fixture, "the hints grow with the windows that a union serves")
{
	for (uint64_t n = 0; n < 200; n++)
		use(n);
	CHECK(count().entries < 20);
	CHECK(static_cast<mr_cache::arena<seen_env> *>(cache.env.arena)->last_hint() == 255);
}

TEST_CASE_METHOD(fixture, "a union takes the place of the idle ones within it")
{
	leave(hold(0, IDLE));

	mr_cache_ref ref = get(IDLE);

	CHECK(mr_of(ref).what.start == BASE);
	CHECK(mr_of(ref).what.size == (WIDE + IDLE) * PAGE);
	CHECK(mr_of(ref).what.addr == BASE);
	CHECK(mr_of(ref).what.length == (WIDE + IDLE) * PAGE);
	CHECK(kernel.live.size() == 1);
	put(ref);
	CHECK(count().entries == 1);
	CHECK(count().misses == IDLE + 1);
	CHECK(count().evictions == 0);
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "no union is larger than the device takes")
{
	const uint64_t wide = GENERATE(8, 16, 40), most = GENERATE(12, 16, 30);

	kernel.most_size = (wide > most ? wide : most) * PAGE;
	cache.env.most = most * PAGE;
	for (uint64_t n = 0; n < 200; n++)
		CHECK(use(n, wide) <= (wide > most ? wide : most));
	CHECK(kernel.refused == 0);
	/* If the cache has room for the windows, there are still some unions. */
	if (most >= wide + IDLE)
		CHECK(count().entries < 60);
}

TEST_CASE_METHOD(fixture, "an odd range is united by its pages")
{
	mr_cache_ref ref;

	leave(hold(0, IDLE));
	REQUIRE(acquire(cache, pd(0), owner, BASE + IDLE * PAGE + 5, WIDE * PAGE - 10, LOCAL,
			&ref) == 0);
	CHECK(mr_of(ref).what.start == BASE);
	CHECK(mr_of(ref).what.size == (WIDE + IDLE) * PAGE);
	put(ref);

	/* A request that contains all windows needs no view, because its MR has its own range. */
	CHECK(cache.clean(owner, 0) == 0);
	leave(hold(0, IDLE));
	REQUIRE(acquire(cache, pd(0), owner, BASE + 5, (WIDE + IDLE) * PAGE - 10, LOCAL, &ref) ==
		0);
	CHECK(mr_of(ref).what.addr == BASE + 5);
	CHECK(mr_of(ref).what.length == (WIDE + IDLE) * PAGE - 10);
	put(ref);
}

TEST_CASE_METHOD(fixture, "what is in use is not united")
{
	auto held = hold(0, IDLE);

	for (const mr_cache_ref &ref : held)
		CHECK(mr_of(ref).what.size == WIDE * PAGE);
	CHECK(use(IDLE) == WIDE);
	CHECK(kernel.live.size() == IDLE + 1);
	leave(held);
}

TEST_CASE_METHOD(fixture, "what is in use within a union stays with its users")
{
	leave(hold(0, IDLE));

	mr_cache_ref first = get(0), inner = get(IDLE / 2);

	CHECK(use(IDLE) == WIDE + IDLE - 1);
	CHECK(mr_of(first).live);
	CHECK(mr_of(inner).live);
	put(first);
	put(inner);
	CHECK(!mr_of(inner).live);
	CHECK(has(0));
	CHECK(has(IDLE / 2));
	CHECK(kernel.live.size() == 2);
}

TEST_CASE_METHOD(fixture, "only what has its pages is united")
{
	const uint64_t end = BASE + PAGE * (WIDE + IDLE);

	leave(hold(0, IDLE));
	SECTION("suspended")
	{
		kernel.suspend();
	}
	SECTION("suspect")
	{
		kernel.suspect(BASE, end, false);
	}
	SECTION("invalid")
	{
		kernel.invalidate(BASE, end);
	}
	CHECK(use(IDLE) == WIDE);
	CHECK(kernel.settle_calls == 0);
}

TEST_CASE_METHOD(fixture, "rights, ordering and PDs are not united with others")
{
	leave(hold(0, IDLE));
	CHECK(use(IDLE, WIDE, LOCAL | MR_CACHE_RELAXED_ORDERING) == WIDE);
	CHECK(use(IDLE, WIDE, LOCAL | MR_CACHE_REMOTE_READ) == WIDE);
	CHECK(use(IDLE, WIDE, 0) == WIDE);
	CHECK(use(IDLE, WIDE, LOCAL, 1) == WIDE);
}

TEST_CASE_METHOD(fixture, "what a peer may reach is not united")
{
	for (uint32_t access : {LOCAL | MR_CACHE_REMOTE_WRITE, uint32_t{MR_CACHE_REMOTE_READ},
				LOCAL | MR_CACHE_REMOTE_READ | MR_CACHE_EXACT})
		for (uint64_t n = 0; n < 10; n++)
			CHECK(use(100 * access + n, WIDE, access) == WIDE);
}

TEST_CASE_METHOD(fixture, "buffers that lie side by side are not united")
{
	for (uint64_t n = 0; n < 20; n++)
		CHECK(use(n * WIDE) == WIDE);
	leave(hold(30 * WIDE, IDLE));
	CHECK(use(30 * WIDE + IDLE - 1 + WIDE) == WIDE);
	CHECK(use(29 * WIDE) == WIDE);
}

TEST_CASE_METHOD(fixture, "a small request is not united with much")
{
	leave(hold(0, IDLE));
	CHECK(use(IDLE + WIDE - 3, 3) == 3);
}

TEST_CASE_METHOD(fixture, "a union that fails leaves all as it was")
{
	const int error = GENERATE(EFAULT, ENOMEM, EOPNOTSUPP);

	leave(hold(0, IDLE));
	kernel.fail_reg = error;
	kernel.fail_times = 1;
	CHECK(use(IDLE) == WIDE);
	CHECK(kernel.reg_calls == IDLE + 2);
	CHECK(kernel.live.size() == IDLE + 1);
	CHECK(count().evictions == 0);
	CHECK(count().misses == IDLE + 1);
	for (uint64_t n = 0; n < IDLE; n++)
		CHECK(has(n));

	/* The cache tries no union for a while, and then tries again. */
	for (uint64_t n = 1; n < 20; n++)
		CHECK(use(IDLE + n) == WIDE);
	CHECK(kernel.reg_calls == IDLE + 21);
	for (uint64_t n = 20; n < 120; n++)
		use(IDLE + n);
	CHECK(kernel.bytes < 4 * (IDLE + 120 + WIDE) * PAGE);
}

TEST_CASE_METHOD(fixture, "a union that the limits have no room for is none")
{
	leave(hold(0, IDLE));
	limit((IDLE * WIDE + WIDE + 2) * PAGE);
	CHECK(use(IDLE) == WIDE);
	CHECK(kernel.live.size() == IDLE + 1);
	limit((2 * IDLE * WIDE) * PAGE);
	CHECK(use(IDLE + 1) > WIDE);
	CHECK(count().evictions == 0);
}

TEST_CASE_METHOD(fixture, "memory next to a request is unmapped while their union is registered")
{
	leave(hold(0, IDLE));
	kernel.after_reg = [&] { kernel.invalidate(BASE, BASE + PAGE); };

	mr_cache_ref ref = get(IDLE);

	kernel.after_reg = nullptr;
	put(ref);
	CHECK(!has(0));
	CHECK(kernel.complaint == "");
}

/* With random requests, each registered page was requested before, and unions are bounded. */
TEST_CASE_METHOD(fixture, "no page is registered that was never asked for")
{
	std::mt19937 random(GENERATE(1, 2, 3, 4));
	std::vector<bool> asked(400);
	std::vector<mr_cache_ref> held;
	uint64_t wanted = 0, unions = 0;

	for (int n = 0; n < 4000; n++) {
		const uint64_t pages = 1 + random() % 24, page = random() % (400 - pages);
		const auto calls = kernel.reg_calls;

		std::fill_n(asked.begin() + static_cast<std::ptrdiff_t>(page), pages, true);

		mr_cache_ref ref = get(page, pages);
		const mr_cache_request &what = mr_of(ref).what;

		if (kernel.reg_calls != calls) {
			const uint64_t first = (what.start - BASE) / PAGE;

			for (uint64_t i = 0; i < what.size / PAGE; i++)
				REQUIRE(asked[first + i]);
			REQUIRE(what.size <= 4 * pages * PAGE);
			unions += what.size > pages * PAGE;
			wanted += pages * PAGE;
		}
		held.push_back(ref);
		while (held.size() > random() % 4) {
			put(held.back());
			held.pop_back();
		}
		if (random() % 40 == 0)
			kernel.invalidate(BASE + page * PAGE, BASE + (page + 1) * PAGE);
		if (random() % 200 == 0) {
			std::fill(asked.begin(), asked.end(), false);
			leave(held);
			held.clear();
			REQUIRE(cache.clean(owner, 0) == 0);
		}
	}
	leave(held);
	CHECK(unions > 20);
	CHECK(registered() <= 2 * wanted);
}
