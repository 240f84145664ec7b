// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Compares the bytes of on-demand paging with a model. Operations, offsets, lengths, packet sizes,
 * kinds of registration and memory windows are random. At the same time other threads unmap, drop,
 * move, protect and fork (odp/arena.h).
 *
 * RUN_SECONDS sets the time (default 3). RUN_SEED sets the seed. The last line has the counts.
 */
#include "catch.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "odp/arena.h"
#include "run_time.h"

using namespace mr_notify;
using namespace odp;

TEST_CASE("every byte is where the model has it", "[odp]")
{
	const device on;
	const char *const seed = std::getenv("RUN_SEED");
	arena in(on, seed ? std::strtoul(seed, nullptr, 10) : std::random_device()());
	const run_time time;

	in.start();
	/* requires at least 100 transfers, even on a slow machine */
	while (time.goes_on(in.count().transfers >= 100 && in.count().kept_out) &&
	       !in.count().failed)
		std::this_thread::sleep_for(std::chrono::milliseconds(10));
	in.stop();
	in.print("oracle");
	CHECK(in.count().wrong == 0);
	CHECK(in.count().failed == 0);
	CHECK(in.count().kept_out > 0);
	CHECK(pinned_bytes() == 0);
}
