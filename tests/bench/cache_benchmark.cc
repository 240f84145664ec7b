// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What a hit and its release cost, against what they must cost at least: two
 * bare atomics, and those with a binary search among the buffers. Buffers are
 * 64 KiB apart and taken in a random order that is made before.
 * Threads have buffers of their own, or all the same ones.
 */
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "cache.h"
#include "fake_registrar.h"

namespace {

constexpr uint64_t BASE = 0x7f0000000000, APART = 65536, LENGTH = 65536;
void *const PD = reinterpret_cast<void *>(0x1000);
void *const OWNER = reinterpret_cast<void *>(0x2000);
constexpr uint32_t ACCESS = MR_CACHE_LOCAL_WRITE | MR_CACHE_REMOTE_WRITE;

mr_cache::cache<counting_env> cache;

[[gnu::noipa]] int acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
			   mr_cache_ref *ref)
{
	return cache.acquire(pd, owner, addr, length, access, ref);
}

[[gnu::noipa]] int release(uint32_t index, uint32_t generation)
{
	return cache.release(index, generation);
}

/* A random order of the buffers of a thread: buffer i is at BASE + i * APART. */
std::vector<uint64_t> order(const benchmark::State &state, bool same)
{
	auto count = static_cast<uint64_t>(state.range(0));
	auto thread = static_cast<uint64_t>(state.thread_index());
	std::vector<uint64_t> addrs(std::max<uint64_t>(count, 4096));
	std::mt19937_64 random(42 + thread);

	for (uint64_t i = 0; i < addrs.size(); i++)
		addrs[i] = BASE + (i % count + (same ? 0 : thread * count)) * APART;
	std::shuffle(addrs.begin(), addrs.end(), random);
	return addrs;
}

void use(benchmark::State &state, bool same, uint64_t inset)
{
	std::vector<uint64_t> addrs = order(state, same);
	mr_cache_ref ref;
	size_t i = 0;

	for (uint64_t addr : addrs)
		if (acquire(PD, OWNER, addr, LENGTH, ACCESS, &ref) ||
		    release(ref.index, ref.generation))
			abort();
	uint64_t made = cache.env.made;
	std::mt19937_64 random(1);

	for (uint64_t &addr : addrs)
		addr += inset ? random() % inset : 0;
	for (auto _ : state) {
		if (acquire(PD, OWNER, addrs[i], LENGTH - inset, ACCESS, &ref) ||
		    release(ref.index, ref.generation)) [[unlikely]]
			abort();
		benchmark::DoNotOptimize(ref);
		i = i + 1 == addrs.size() ? 0 : i + 1;
	}
	if (state.threads() == 1 && cache.env.made != made)
		state.SkipWithError("not all were hits");
}

void fresh(const benchmark::State &)
{
	if (cache.flush_owner(OWNER) || cache.env.live)
		abort();
}

void own_buffers(benchmark::State &state)
{
	use(state, false, 0);
}
void same_buffers(benchmark::State &state)
{
	use(state, true, 0);
}
/* Another part of the buffer each time: hints know a page, the index a range. */
void parts_of_buffers(benchmark::State &state)
{
	use(state, false, LENGTH / 2);
}

/* As far apart as the cache's entries. */
struct alignas(128) line {
	std::atomic<uint64_t> word;
};

void two_atomics(benchmark::State &state)
{
	std::vector<line> one(1);

	for (auto _ : state) {
		benchmark::DoNotOptimize(one[0].word.fetch_add(1, std::memory_order_acquire));
		benchmark::DoNotOptimize(one[0].word.fetch_sub(1, std::memory_order_release));
	}
}

std::vector<line> shared_lines(1000);

/* What the same buffers cost two threads at least: a line that the other one may have. */
void two_atomics_same_lines(benchmark::State &state)
{
	std::vector<uint64_t> addrs = order(state, true);
	size_t i = 0;

	for (auto _ : state) {
		auto &word = shared_lines[(addrs[i] - BASE) / APART].word;

		benchmark::DoNotOptimize(word.fetch_add(1, std::memory_order_acquire));
		benchmark::DoNotOptimize(word.fetch_sub(1, std::memory_order_release));
		i = i + 1 == addrs.size() ? 0 : i + 1;
	}
}

void two_atomics_and_search(benchmark::State &state)
{
	std::vector<uint64_t> addrs = order(state, false), sorted = addrs;
	size_t i = 0;

	std::sort(sorted.begin(), sorted.end());
	sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
	std::vector<line> words(sorted.size());

	for (auto _ : state) {
		auto found = std::upper_bound(sorted.begin(), sorted.end(), addrs[i]) - 1;
		auto &word = words[static_cast<size_t>(found - sorted.begin())].word;

		benchmark::DoNotOptimize(word.fetch_add(1, std::memory_order_acquire));
		benchmark::DoNotOptimize(word.fetch_sub(1, std::memory_order_release));
		i = i + 1 == addrs.size() ? 0 : i + 1;
	}
}

void miss(benchmark::State &state)
{
	mr_cache_ref ref;
	uint64_t addr = BASE;

	for (auto _ : state) {
		if (acquire(PD, OWNER, addr, LENGTH, ACCESS, &ref) ||
		    release(ref.index, ref.generation))
			abort();
		if ((addr += APART) == BASE + 1000 * APART) {
			state.PauseTiming();
			fresh(state);
			addr = BASE;
			state.ResumeTiming();
		}
	}
}

/* Setup() runs once, before the threads start. */
void counts(benchmark::internal::Benchmark *of)
{
	of->Setup(fresh)->Arg(1)->Arg(1000)->Arg(100000)->UseRealTime();
}

BENCHMARK(own_buffers)->Apply(counts)->ThreadRange(1, 2);
BENCHMARK(same_buffers)->Apply(counts)->Threads(2);
BENCHMARK(parts_of_buffers)->Apply(counts)->ThreadRange(1, 2);
BENCHMARK(two_atomics_same_lines)->Arg(1000)->Threads(2)->UseRealTime();
BENCHMARK(two_atomics)->ThreadRange(1, 2)->UseRealTime();
BENCHMARK(two_atomics_and_search)->Arg(1)->Arg(1000)->Arg(100000)->UseRealTime();
BENCHMARK(miss)->Setup(fresh);

} // namespace

int main(int argc, char **argv)
{
	if (cache.start())
		return 1;
	benchmark::Initialize(&argc, argv);
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
