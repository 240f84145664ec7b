// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What is fetched before it is used: what the same thread used later in an order that came
 * twice, and nothing else.
 *
 * Broken on purpose, each of these was seen to fail here:
 *   an order that came once is sure, or what is sure stays so
 *   the registration not part of what is compared, or the wrong half of the hash kept
 *   one of the four lines not fetched
 *   the next one instead of a later one, the last uses not noted, or those of all threads
 *   beside few others, too
 *   a way to a hit that does not note the use: find() of all of an entry, with fewer rights, of
 *   a part; acquire()
 */
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"

namespace {

using mr_cache::wish;

/* Hints in so many lines that they differ. */
struct watched_env : fake_env {
	static constexpr uint32_t most_hint_bits = 10;
	static constexpr uint32_t trail_bits = 9;
	static inline thread_local std::set<uintptr_t> fetched;

	static void fetch(uintptr_t line) { fetched.insert(line / 64); }
};

using trail = mr_cache::trail<watched_env>;

struct world {
	/* As malloc() aligns. */
	struct alignas(16) registration {
		char bytes[56];
	};
	using lines = std::set<uintptr_t>;

	const std::unique_ptr<mr_cache::arena<watched_env>> a{new mr_cache::arena<watched_env>()};
	std::vector<registration> made{watched_env::entries};
	std::vector<uint32_t> order;

	explicit world(uint32_t bits = watched_env::trail_bits)
	{
		a->hot.hint_bits.store(bits);
		for (uint32_t i = 1; i < watched_env::entries; i++) {
			a->entries[i].describe(range_of(i));
			a->entries[i].register_as(&made[i]);
			order.push_back(i);
		}
		shuffle(1);
		/* What was used before, in another test, precedes entry 1. */
		for (uint32_t n = 0; n < trail::AHEAD; n++)
			use(1);
	}

	static wish range_of(uint32_t i) { return {&watched_env::fetched, i * 4096, 4096, 1}; }
	void shuffle(uint64_t seed)
	{
		std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
	}

	/* What a use of one fetches. */
	lines use(uint32_t i)
	{
		watched_env::fetched.clear();
		CHECK(trail::use(*a, i, range_of(i)) == a->entries[i].registration());
		return watched_env::fetched;
	}
	/* How many of a round had something fetched. */
	size_t use_all()
	{
		size_t with = 0;

		for (uint32_t i : order)
			with += !use(i).empty();
		return with;
	}
	/* The lines that a hit of one reads, and the one behind its registration's first. */
	lines needed_by(uint32_t i) const
	{
		const uint64_t hash = a->hint.hash_of(range_of(i));
		const auto its = line_of(a->entries[i].registration());

		return {line_of(&a->entries[i]), its, its + 1,
			line_of(a->hint.bucket_of(static_cast<uint32_t>(hash >> 32),
						  a->hint_bits()))};
	}
	static uintptr_t line_of(const void *p) { return reinterpret_cast<uintptr_t>(p) / 64; }
};

/* The same for a whole cache, with room for all hints. */
struct roomy_env : watched_env {
	static constexpr uint32_t least_hint_bits = most_hint_bits;
};

struct whole_cache {
	static constexpr uint64_t PAGE = 4096, BASE = PAGE << 8, SIZE = 2 * PAGE;
	static constexpr uint32_t RIGHTS = MR_CACHE_LOCAL_WRITE | MR_CACHE_REMOTE_WRITE;

	fake_kernel kernel;
	mr_cache::cache<roomy_env> cache;
	void *const pd = &kernel;
	std::vector<mr_cache_ref> refs{60};

	whole_cache()
	{
		cache.env.kernel = &kernel;
		REQUIRE(cache.start() == 0);
		for (size_t n = 0; n < refs.size(); n++) {
			REQUIRE(cache.acquire(pd, pd, addr_of(n), SIZE, RIGHTS, &refs[n]) == 0);
			release(n);
		}
	}
	~whole_cache() { CHECK(cache.flush_owner(pd) == 0); }

	static uint64_t addr_of(size_t n) { return BASE + n * SIZE; }
	void release(size_t n) { CHECK(cache.release(refs[n].index, refs[n].generation) == 0); }
	/* What find() says of the n-th; a part has a reference, too. */
	void find(size_t n, uint64_t length, uint32_t rights)
	{
		const void *found = cache.find(pd, addr_of(n), length, rights,
					       [](void *, uint64_t, uint64_t, uint32_t,
						  mr_cache_part part) { return part.mr; });

		CHECK(found == refs[n].mr);
		release(n);
	}
	/* How many fetch something, once they have been used in this order. */
	template <class Use> size_t use_all(Use use)
	{
		size_t with = 0;

		for (int round = 0; round < 4; round++) {
			with = 0;
			for (size_t n = 0; n < refs.size(); n++) {
				watched_env::fetched.clear();
				use(n);
				with += !watched_env::fetched.empty();
			}
		}
		return with;
	}
};

} // namespace

TEST_CASE("in an order that came twice each hit fetches what comes later")
{
	world w;

	CHECK(w.use_all() == 0);
	w.use_all();
	for (int round = 0; round < 3; round++)
		for (size_t n = 0; n < w.order.size(); n++) {
			const uint32_t later = w.order[(n + trail::AHEAD) % w.order.size()];

			INFO("round " << round << ", use " << n);
			CHECK(w.use(w.order[n]) == w.needed_by(later));
		}
}

TEST_CASE("beside few others nothing is fetched")
{
	world w(watched_env::trail_bits - 1);

	for (int round = 0; round < 5; round++)
		CHECK(w.use_all() == 0);
}

TEST_CASE("without an order nothing is fetched")
{
	world w;

	for (uint64_t seed = 2; seed < 20; seed++) {
		w.shuffle(seed);
		/* Some come after the same one twice. */
		CHECK(w.use_all() < w.order.size() / 4);
	}
}

TEST_CASE("an order that ends is forgotten")
{
	world w;

	for (int round = 0; round < 4; round++)
		w.use_all();
	w.shuffle(2);
	w.use_all();
	CHECK(w.use_all() < trail::AHEAD);
	w.use_all();
	CHECK(w.use_all() == w.order.size());
}

TEST_CASE("another thread's uses are not of the order")
{
	world w;

	for (int round = 0; round < 3; round++)
		for (size_t n = 0; n + 1 < w.order.size(); n++) {
			w.use(w.order[n]);
			std::thread([&] { w.use(w.order.back()); }).join();
		}
	w.order.pop_back();
	CHECK(w.use_all() == w.order.size());
}

TEST_CASE("an entry that is another registration by now has that one fetched")
{
	world w;
	world::registration other;

	for (int round = 0; round < 3; round++)
		w.use_all();
	w.a->entries[w.order[10]].register_as(&other);
	w.use_all();
	w.use_all();
	CHECK(w.use(w.order[10 - trail::AHEAD]) == w.needed_by(w.order[10]));
}

TEST_CASE_METHOD(whole_cache, "whichever way it is asked for, a hit fetches what comes later")
{
	SECTION("acquire()")
	{
		CHECK(use_all([&](size_t n) {
			      mr_cache_ref ref;

			      REQUIRE(cache.acquire(pd, pd, addr_of(n), SIZE, RIGHTS, &ref) == 0);
			      CHECK(ref.mr == refs[n].mr);
			      release(n);
		      }) == refs.size());
	}
	SECTION("find() of all of it")
	{
		CHECK(use_all([&](size_t n) { find(n, SIZE, RIGHTS); }) == refs.size());
	}
	SECTION("find() with fewer rights")
	{
		const auto use = [&](size_t n) { find(n, SIZE, MR_CACHE_LOCAL_WRITE); };

		CHECK(use_all([&](size_t n) {
			      mr_cache_ref ref;

			      /* The hint of these rights, then find() by it. */
			      REQUIRE(cache.acquire(pd, pd, addr_of(n), SIZE, MR_CACHE_LOCAL_WRITE,
						    &ref) == 0);
			      release(n);
			      watched_env::fetched.clear();
			      use(n);
		      }) == refs.size());
	}
	SECTION("find() of a part")
	{
		CHECK(use_all([&](size_t n) { find(n, PAGE, RIGHTS); }) == refs.size());
	}
}
