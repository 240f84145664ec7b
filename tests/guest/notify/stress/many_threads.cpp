// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "many_threads.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <thread>

namespace stress {

using namespace mr_notify;

namespace {

/* A slot, and the lock to replace it. */
struct place {
	std::shared_mutex life;
	std::unique_ptr<slot> now;
};

struct many_threads {
	device on;
	tally count;
	std::array<place, 6> places;

	void replace(place &where, generator &random)
	{
		if (where.now)
			where.now->finish(random);
		where.now.reset();
		try {
			const auto &what = rows()[random() % rows().size()];
			where.now = std::make_unique<slot>(on, what, random, count);
		} catch (const unsupported &) {
			/*
			 * There is no free huge page at the moment; a later attempt may find one.
			 */
		}
	}

	void work(uint64_t seed, instant end)
	{
		generator random(seed);
		peer from(on);

		while (std::chrono::steady_clock::now() < end) {
			place &where = places[random() % places.size()];

			if (random() % 32 == 0) {
				const std::unique_lock hold(where.life, std::try_to_lock);
				if (hold)
					replace(where, random);
			} else {
				const std::shared_lock hold(where.life);
				if (where.now)
					where.now->act(random, from);
			}
		}
	}
};

} // namespace

uint64_t run_threads(uint64_t seed, int threads, instant end)
{
	many_threads all;
	std::vector<std::thread> running;
	generator random(seed);
	const tally &count = all.count;

	all.count.seed = seed;
	for (place &where : all.places)
		all.replace(where, random);
	for (int i = 0; i < threads; i++)
		running.emplace_back([&all, end, mine = random()] { all.work(mine, end); });
	for (std::thread &thread : running)
		thread.join();
	for (place &where : all.places)
		if (where.now)
			where.now->finish(random);

	std::fprintf(stderr,
		     "seed %" PRIu64 ": %" PRIu64 " actions on %" PRIu64 " registrations, %" PRIu64
		     " invalidated, %" PRIu64 " accesses refused, seen suspended %" PRIu64
		     " times, %" PRIu64 " wrong\n",
		     seed, count.actions.load(), count.slots.load(), count.invalidated.load(),
		     count.refused.load(), count.suspended.load(), count.wrong.load());
	return count.wrong;
}

} // namespace stress
