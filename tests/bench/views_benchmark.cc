// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Views of one buffer are overlapping ranges of the buffer. Each view is registered with local
 * rights and deregistered, through the verbs, on a real device in a guest.
 *  views/WAY/N     N views of 256 KiB, spread over 1 GiB. An iteration uses all views once more, in
 *                  a random order. The counter first_ms is the time of the first use of all views.
 *  slide/WAY       4,000 windows of 256 KiB over 16 MiB. Each window begins one page after the
 *                  previous window. An iteration begins with an empty cache, uses all windows, and
 *                  ends all idle registrations
 *  neighbours/WAY  like slide, with 64 KiB and no page in common: misses near other entries
 * WAY is plain (without the cache) or cached. The counters registered and again are the numbers of
 * registrations in the first and in the second use. The counters pinned (in MiB) and entries are
 * read after all views are deregistered. In a guest with --count-instructions the times are
 * instructions:
 *  tests/lab/run --kernel debian --count-instructions --no-checks --memory 3G -- \
 *      build/tests/bench_views --benchmark_min_time=0.01
 * The guest needs 3 GiB of memory. RDMAV_MR_CACHE must not be set.
 */
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "device.h"

using namespace mr_notify;

namespace {

/* Suspensions are off, so that the pinned memory depends only on the views. */
[[maybe_unused]] const int without_idle_time = setenv("RDMAV_MR_CACHE_IDLE_MS", "0", 0);

constexpr std::size_t view = 256 << 10;
constexpr std::size_t buffer_size = std::size_t{1} << 30;
constexpr int windows = 4000;

const device &the_device()
{
	static const device on;

	return on;
}

std::byte *the_buffer()
{
	static const memory m = anonymous(buffer_size);

	return m.registered().addr;
}

ibv_mr_cache_stats stats()
{
	ibv_mr_cache_stats now{};

	check_verb(ibv_query_mr_cache(the_device().context(), &now), "ibv_query_mr_cache");
	return now;
}

void clean()
{
	check_verb(ibv_reg_mr_clean(the_device().context(), 0), "ibv_reg_mr_clean");
}

void use(const std::vector<std::byte *> &views, std::size_t length, int access)
{
	for (std::byte *addr : views) {
		ibv_mr *mr = ibv_reg_mr(the_device().pd(), addr, length, access);

		if (!mr)
			fail("ibv_reg_mr");
		ibv_dereg_mr(mr);
	}
}

std::vector<std::byte *> spaced(std::size_t count, std::size_t distance)
{
	std::vector<std::byte *> made;

	for (std::size_t i = 0; i < count; i++)
		made.push_back(the_buffer() + i * distance);
	return made;
}

/* All ways use the same buffer, device and limits. */
void prepare()
{
	ibv_mr_cache_limits wide{uint64_t{1} << 40, 1 << 20};

	check_verb(ibv_reg_mr_limits(the_device().context(), &wide, nullptr), "ibv_reg_mr_limits");
	use({the_buffer()}, buffer_size, IBV_ACCESS_LOCAL_WRITE);
	clean();
}

void count(benchmark::State &state, std::size_t before)
{
	state.counters["pinned"] =
		(static_cast<double>(pinned_bytes()) - static_cast<double>(before)) / (1 << 20);
	state.counters["entries"] = static_cast<double>(stats().entries);
}

double registrations(uint64_t before, std::size_t views, int access)
{
	return access & IBV_ACCESS_CACHED ? static_cast<double>(stats().misses - before)
					  : static_cast<double>(views);
}

void views(benchmark::State &state, int access)
{
	const auto number = static_cast<std::size_t>(state.range(0));
	const std::size_t step = (buffer_size - view) / (number - 1) & ~(page_size() - 1);
	std::vector<std::byte *> asked = spaced(number, step);
	uint64_t before = stats().misses;

	prepare();
	const std::size_t pinned = pinned_bytes();

	std::shuffle(asked.begin(), asked.end(), std::mt19937_64(42));
	const auto begin = std::chrono::steady_clock::now();

	use(asked, view, access);
	state.counters["first_ms"] =
		std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
			.count();
	state.counters["registered"] = registrations(before, number, access);
	before = stats().misses;
	use(asked, view, access);
	state.counters["again"] = registrations(before, number, access);
	count(state, pinned);
	for (auto _ : state)
		use(asked, view, access);
	clean();
}

void slide(benchmark::State &state, int access, std::size_t length, std::size_t distance)
{
	const std::vector<std::byte *> asked = spaced(windows, distance);

	prepare();
	const uint64_t before = stats().misses;
	const std::size_t pinned = pinned_bytes();

	use(asked, length, access);
	state.counters["registered"] = registrations(before, asked.size(), access);
	count(state, pinned);
	clean();
	for (auto _ : state) {
		use(asked, length, access);
		clean();
	}
}

constexpr int plain = IBV_ACCESS_LOCAL_WRITE;
constexpr int cached = plain | IBV_ACCESS_CACHED;
constexpr std::size_t page = 4096;

BENCHMARK_CAPTURE(views, plain, plain)->Arg(10000)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(views, cached, cached)->Arg(10000)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(views, plain, plain)->Arg(40000)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(views, cached, cached)->Arg(40000)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(slide, plain, plain, view, page)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(slide, cached, cached, view, page)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(slide, plain, plain, view / 4, view / 4)
	->Name("neighbours/plain")
	->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(slide, cached, cached, view / 4, view / 4)
	->Name("neighbours/cached")
	->Unit(benchmark::kMicrosecond);

} // namespace

BENCHMARK_MAIN();
