// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A test runs for RUN_SECONDS (default 3). Then it continues until it has seen the events that it
 * needs, also on a slow machine. If RUN_COUNT is set, run_limit instead ends the test when it has
 * done something RUN_COUNT times.
 */
#ifndef RUN_TIME_H
#define RUN_TIME_H

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>

class run_time {
public:
	run_time() : run_time(std::chrono::seconds(from_environment())) {}
	explicit run_time(std::chrono::seconds length)
	    : end_(clock::now() + length), last_(end_ + std::chrono::minutes(20))
	{
	}

	/* If @seen never becomes true, the test ends some minutes later. */
	bool goes_on(bool seen = true) const { return clock::now() < (seen ? end_ : last_); }

private:
	using clock = std::chrono::steady_clock;

	static int from_environment()
	{
		const char *const text = std::getenv("RUN_SECONDS");

		return text ? std::max(1, std::atoi(text)) : 3;
	}

	clock::time_point end_;
	clock::time_point last_;
};

struct run_limit {
	uint64_t count = UINT64_MAX;
	run_time time{};

	bool goes_on(uint64_t done, bool seen = true) const
	{
		return done < count && time.goes_on(seen);
	}

	static run_limit environment()
	{
		const char *const text = std::getenv("RUN_COUNT");

		return text ? run_limit{std::strtoull(text, nullptr, 0),
					run_time(std::chrono::hours(10000))}
			    : run_limit{};
	}
};

#endif
