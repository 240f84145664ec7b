// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache with real threads, built three times: plain, with ThreadSanitizer and with
 * AddressSanitizer. One thread also compares the cache with a simple model.
 */
#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000, PAGES = 40, LONG = 8;

struct world {
	fake_kernel kernel;
	mr_cache::cache<fake_env> cache;
	void *const owner = this;
	void *const pds[2] = {&kernel, &cache};

	world()
	{
		cache.env.kernel = &kernel;
		cache.env.defaults = {60 * PAGE, 40};
		REQUIRE(cache.start() == 0);
	}
	~world()
	{
		CHECK(cache.drain(owner, nullptr) == 0);
		CHECK(kernel.live.empty());
		CHECK(kernel.complaint == "");
	}
};

} // namespace

TEST_CASE("threads share a cache while a kernel invalidates")
{
	/* Random ranges, or sliding windows that are merged. */
	const bool slides = GENERATE(false, true);
	world w;
	const ibv_mr_cache_limits wide = {400 * PAGE, 60};
	std::atomic<bool> stop{false};
	std::atomic<uint64_t> failures{0}, uses{0};

	if (slides)
		REQUIRE(w.cache.limits(w.owner, &wide, nullptr) == 0);

	auto user = [&](unsigned int seed) {
		std::minstd_rand random(seed);
		/*
		 * Each thread has its own counters, because shared counters would order the cache's
		 * accesses.
		 */
		uint64_t failed = 0, used = 0;

		for (int n = 0; n < 20000; n++) {
			uint64_t first = random() % PAGES, count = 1 + random() % 4;
			void *pd = w.pds[random() % 2];
			mr_cache_ref ref;

			if (slides) {
				first = (static_cast<uint64_t>(n) + seed * 7) % (PAGES - LONG);
				count = LONG;
			}
			if (acquire(w.cache, pd, w.owner, BASE + first * PAGE, count * PAGE, 1,
				    &ref))
				continue;

			fake_kernel::mr &mr = mr_of(ref);

			used++;
			failed += mr.what.pd != pd || mr.what.start > BASE + first * PAGE ||
				  mr.what.start + mr.what.size < BASE + (first + count) * PAGE;
			if (!(random() % 8))
				std::this_thread::yield();
			failed += !mr.live || mr.suspended || !mr.is_registered;
			failed += w.cache.release(ref.index, ref.generation) != 0;
		}
		failures += failed;
		uses += used;
	};
	auto meddler = [&] {
		std::minstd_rand random(7);

		while (!stop) {
			uint64_t start = BASE + random() % PAGES * PAGE;

			switch (random() % 5) {
			case 4: {
				std::lock_guard hold(w.kernel.big_lock);

				w.kernel.suspend();
				break;
			}
			case 0:
				(void)w.cache.drain(nullptr, w.pds[random() % 2]);
				break;
			case 1:
				(void)w.cache.clean(w.owner, 10 * PAGE);
				break;
			default:
				std::lock_guard hold(w.kernel.big_lock);

				if (random() % 2)
					w.kernel.invalidate(start, start + PAGE);
				else
					w.kernel.suspect(start, start + PAGE, false);
			}
			std::this_thread::yield();
		}
	};
	std::vector<std::thread> users;
	std::thread other(meddler);

	for (unsigned int n = 1; n <= 4; n++)
		users.emplace_back(user, n);
	for (auto &one : users)
		one.join();
	stop = true;
	other.join();
	CHECK(failures == 0);
	CHECK(uses > 10000);
	/* Some thousand merges. Random ranges are merged a few times, or never. */
	if (slides)
		CHECK(std::any_of(w.kernel.all.begin(), w.kernel.all.end(),
				  [](const auto &one) { return one.what.size > LONG * PAGE; }));
}

TEST_CASE("random operations act as a naive model does")
{
	const char *only = getenv("RUN_SEED");
	uint64_t seeds = only ? 1 : 40;

	for (uint64_t n = 0; n < seeds; n++) {
		uint64_t seed = only ? strtoull(only, nullptr, 0) : n + 1;
		std::mt19937 random(static_cast<unsigned int>(seed));
		std::vector<std::pair<mr_cache_ref, fake_kernel::mr *>> held;
		world w;
		auto &kernel = w.kernel;

		INFO("RUN_SEED=" << seed);
		for (int step = 0; step < 1500; step++) {
			uint64_t first = random() % PAGES, count = 1 + random() % 5;
			uint64_t start = BASE + first * PAGE, end = start + count * PAGE;
			uint32_t access = random() % 4;
			void *pd = w.pds[random() % 2];
			uint32_t what = random() % 16;

			if (what < 8) {
				/*
				 * The request must be a hit if, and only if, the model has a valid
				 * entry with the range.
				 */
				bool model = false,
				     seen = w.cache.covers(pd, start, end - start, access);
				unsigned int calls = kernel.reg_calls;
				mr_cache_ref ref;

				for (auto *m : kernel.live)
					model |= m->what.pd == pd && m->what.start <= start &&
						 end <= m->what.start + m->what.size &&
						 !(access & ~m->what.access) && !m->invalid;
				/* A used entry that left the index is still registered. */
				if (seen)
					REQUIRE(model);
				else if (model)
					REQUIRE(!held.empty());
				if (acquire(w.cache, pd, w.owner, start, end - start, access, &ref))
					continue;
				REQUIRE((kernel.reg_calls == calls) == seen);
				REQUIRE(mr_of(ref).live);
				REQUIRE(!mr_of(ref).invalid);
				REQUIRE(mr_of(ref).what.pd == pd);
				REQUIRE(mr_of(ref).what.start <= start);
				REQUIRE(end <= mr_of(ref).what.start + mr_of(ref).what.size);
				held.emplace_back(ref, &mr_of(ref));
			} else if (what < 14 && !held.empty()) {
				size_t which = random() % held.size();

				REQUIRE(held[which].second->live);
				REQUIRE(w.cache.release(held[which].first.index,
							held[which].first.generation) == 0);
				held[which] = held.back();
				held.pop_back();
			} else if (what == 14) {
				kernel.invalidate(start, end);
			} else if (uint32_t event = random() % 3; event == 0) {
				kernel.suspect(start, end, random() % 2);
			} else if (event == 1) {
				kernel.suspend();
			} else {
				REQUIRE(w.cache.clean(w.owner, random() % 20 * PAGE) == 0);
			}

			ibv_mr_cache_stats s{};

			REQUIRE(w.cache.query(w.owner, &s) == 0);
			REQUIRE(s.entries == kernel.live.size());
			REQUIRE(s.bytes == kernel.bytes);
			REQUIRE(s.bytes <= 60 * PAGE);
			REQUIRE(s.entries <= 40);
			for (auto &one : held)
				REQUIRE((one.second->live && !one.second->suspended));
		}
		for (auto &one : held)
			REQUIRE(w.cache.release(one.first.index, one.first.generation) == 0);
	}
}
