// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Making room in a cache that is so large that one scan for victims sees only a part. The cache
 * must find idle registrations that come after all entries in use.
 */
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.h"

#include "cache.h"
#include "fake_registrar.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x100000000;
constexpr uint64_t USED = 2000, IDLE = 600;
constexpr uint64_t LOOKS = mr_cache::locked<counting_env>::LOOKS;

/* Some entries in use, then idle entries, each of one page. */
struct fixture {
	mr_cache::cache<counting_env> cache;
	void *const pd = reinterpret_cast<void *>(64);
	void *const owner = reinterpret_cast<void *>(128);
	std::vector<mr_cache_ref> used;

	fixture()
	{
		REQUIRE(cache.start() == 0);
		for (uint64_t n = 0; n < USED; n++) {
			used.emplace_back();
			REQUIRE(get(n, 1, &used.back()) == 0);
		}
		fill();
	}

	~fixture()
	{
		for (const mr_cache_ref &ref : used)
			CHECK(cache.release(ref.index, ref.generation) == 0);
		CHECK(cache.drain(owner, nullptr) == 0);
		CHECK(cache.env.live == 0);
	}

	int get(uint64_t nth, uint64_t pages, mr_cache_ref *ref)
	{
		return acquire(cache, pd, owner, BASE + 2 * nth * PAGE, pages * PAGE,
			       MR_CACHE_LOCAL_WRITE, ref);
	}
	/* Returns false if the cache refused. */
	bool use(uint64_t nth, uint64_t pages = 1)
	{
		mr_cache_ref ref;

		return !get(nth, pages, &ref) && !cache.release(ref.index, ref.generation);
	}
	void fill()
	{
		for (uint64_t n = 0; n < IDLE; n++)
			REQUIRE(use(USED + n));
	}
	/* Checks that requests are refused while no entry is idle. */
	void be_refused()
	{
		limit(USED * PAGE, UINT64_MAX);
		for (uint64_t n = 0; n < 3; n++)
			REQUIRE(!use(USED + n));
		limit(UINT64_MAX, UINT64_MAX);
	}
	uint64_t entries()
	{
		ibv_mr_cache_stats s{};

		CHECK(cache.query(owner, &s) == 0);
		return s.entries;
	}
	void limit(uint64_t bytes, uint64_t most)
	{
		ibv_mr_cache_limits to = {bytes, most};

		CHECK(cache.limits(owner, &to, nullptr) == 0);
	}
};

/* A mutex that counts the work done under it, and a registrar that does no work. */
struct frugal_env : counting_env {
	static inline bool held = false;
	static inline unsigned int calls = 0;
	static inline long faults = 0;

	static long count()
	{
#ifdef __SANITIZE_ADDRESS__
		return 0; // each new page of the arena needs a new page of the sanitizer's shadow
#else
		rusage usage{};

		getrusage(RUSAGE_THREAD, &usage);
		return usage.ru_minflt;
#endif
	}
	struct mutex : counting_env::mutex {
		void lock()
		{
			counting_env::mutex::lock();
			held = true;
			faults -= count();
		}
		void unlock()
		{
			faults += count();
			held = false;
			counting_env::mutex::unlock();
		}
	};
	static bool commit(void *start, size_t size, bool huge)
	{
		calls += held;
		return counting_env::commit(start, size, huge);
	}
};

} // namespace

TEST_CASE("the mutex is held through no page fault and no system call")
{
	using cache = mr_cache::cache<frugal_env>;
	static cache first, second;
	/*
	 * Two equal rounds. The page faults of code, stack and pages copied by fork() are in the
	 * first round.
	 */
	const auto use = [](cache &of) {
		frugal_env::faults = 0;
		frugal_env::calls = 0;
		for (uintptr_t n = 0; n < 5000; n++) {
			void *const pd = reinterpret_cast<void *>((1 + n % 300) * 64);
			void *const owner = reinterpret_cast<void *>((1 + n % 50) * 64);
			const uint32_t exact = n % 3 ? 0 : MR_CACHE_EXACT;
			mr_cache_ref ref;

			if (acquire(of, pd, owner, BASE + n * 7 * PAGE, PAGE,
				    MR_CACHE_LOCAL_WRITE | exact, &ref) ||
			    of.release(ref.index, ref.generation))
				return false;
		}
		return true;
	};

	REQUIRE(first.start() == 0);
	REQUIRE(second.start() == 0);
	CHECK(use(first));
	CHECK(use(second));
	CHECK(frugal_env::faults == 0);
	CHECK(frugal_env::calls == 0);

	/* In a child the cache is empty at first, and works again. */
	const pid_t child = fork();
	int status = -1;

	if (!child)
		_exit(!use(first) || !use(second) || frugal_env::faults || frugal_env::calls);
	waitpid(child, &status, 0);
	CHECK(status == 0);
}

TEST_CASE_METHOD(fixture, "cleaning finds idle registrations among many in use")
{
	CHECK(cache.clean(owner, IDLE / 2 * PAGE) == 0);
	CHECK(entries() == USED + IDLE / 2);
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(entries() == USED);

	/* clean() runs while misses search for an entry to evict, and find none. */
	be_refused();
	fill();
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(entries() == USED);
}

TEST_CASE_METHOD(fixture, "lower limits find idle registrations among many in use")
{
	limit(UINT64_MAX, USED + 1);
	CHECK(entries() == USED + 1);
	limit(USED * PAGE, UINT64_MAX);
	CHECK(entries() == USED);
	be_refused();
	fill();
	limit(UINT64_MAX, USED + 1);
	CHECK(entries() == USED + 1);
}

TEST_CASE_METHOD(fixture, "a miss finds idle registrations after many in use")
{
	uint64_t refused = 0;

	limit((USED + IDLE) * PAGE, UINT64_MAX);
	for (uint64_t n = 0; n < 4 * IDLE; n++)
		refused += !use(USED + IDLE + n);
	/* At most one refusal for each pass through the list. */
	CHECK(refused <= 5 * (USED / LOOKS + 1));
	CHECK(entries() == USED + IDLE);
}

TEST_CASE_METHOD(fixture, "a large request finds idle registrations after many in use")
{
	limit((USED + IDLE) * PAGE, UINT64_MAX);
	CHECK(use(0x10000, IDLE - 8));
	CHECK(!use(0x20000, IDLE + 1));
	CHECK(entries() <= USED + 1 + 8);
}
