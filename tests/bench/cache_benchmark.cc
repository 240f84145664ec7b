// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures the cache's core through its C interface, with a registrar that costs nothing. The
 * benchmark uses only mr_cache_core.h of the core, so that tests/bench/run --before can compile it
 * with the core of another checkout. Each row has the nanoseconds of one operation:
 *  hit/LAYOUT/N        acquire and release one of N buffers (layouts.h), in a random order that is
 *                      repeated
 *  hit/unordered/N     like hit, in an order that is never repeated
 *  hit/part/N          like hit, with 32 KiB at a random place in each buffer of 64 KiB
 *  hit/same/N          like hit, but all threads use the same buffers
 *  miss                an acquire that registers, and its release; 1,000 entries at most
 *  evict/OWNERS/N      misses of OWNERS owners in turns; each owner has N entries, which is its
 *                      limit
 *  full/N              an acquire that is refused, because the limit is N entries, and N are in use
 *  flush_pd/N          flush a PD without entries, after there were N entries
 *  query/N             query an owner without entries, after there were N entries
 * These rows are lower limits for a hit:
 *  atomics             two atomic operations on one word
 *  atomics_same/N      two atomic operations on one of N words, by all threads
 *  search/N            two atomic operations on one of N words, found by binary search
 */
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "layouts.h"
#include "mr_cache_core.h"

namespace {

using layouts::buffer;

constexpr uint64_t BASE = 0x7f0000000000, LENGTH = layouts::usual, MANY = 100000, MOST = 1000000;
constexpr int MOST_THREADS = 16;
/*
 * With only local rights, each policy may round the range of a request and serve parts of a range.
 */
constexpr uint32_t ACCESS = MR_CACHE_LOCAL_WRITE;

/* The core uses addresses to name PDs and owners. PDs are at least four bytes apart. */
struct party {
	uint32_t pd;
	char owner;
} parties[2], others;

std::atomic<uint64_t> made{0}, gone{0};

/*
 * Like struct verbs_mr, this struct stores the cache's reference. Both structs have the same size.
 */
struct registration {
	void *owner;
	uint32_t index;
	uint32_t generation;
	char rest[40];
};

} // namespace

int mr_cache_reg_entry(const mr_cache_request *what, uint64_t *, void **mr)
{
	auto *const one = static_cast<registration *>(std::calloc(1, sizeof(registration)));

	if (!one)
		return ENOMEM;
	one->owner = what->owner;
	one->index = what->index;
	one->generation = what->generation;
	*mr = one;
	made++;
	return 0;
}

int mr_cache_settle_entry(void *)
{
	return 0;
}

int mr_cache_dereg_entry(void *mr)
{
	std::free(mr);
	gone++;
	return 0;
}

ibv_mr_cache_limits mr_cache_first_limits(void *)
{
	return {UINT64_MAX, 1 << 20};
}

uint64_t mr_cache_max_merge(void *)
{
	return UINT64_MAX;
}

namespace {

/* Returns NULL if the cache refuses. */
registration *find(party &by, const buffer &of)
{
	return static_cast<registration *>(mr_cache_find(&by.pd, of.addr, of.length, ACCESS));
}

registration *acquire(party &by, const buffer &of)
{
	registration *const found = find(by, of);

	if (!found) [[unlikely]]
		std::abort();
	return found;
}

void release(const registration *one)
{
	if (mr_cache_release(one->index, one->generation)) [[unlikely]]
		std::abort();
}

void use(party &by, const buffer &of)
{
	release(acquire(by, of));
}

void set_limit(party &of, uint64_t entries)
{
	const ibv_mr_cache_limits bounds{UINT64_MAX >> 1, entries};

	if (mr_cache_limits(&of.owner, &bounds, nullptr))
		std::abort();
}

void empty()
{
	for (party &one : parties) {
		if (mr_cache_drain(&one.owner, nullptr))
			std::abort();
		set_limit(one, 1 << 20);
	}
	if (made != gone)
		std::abort();
}

using make_layout = layouts::layout (*)(uint64_t base, uint64_t count);

/* The registered buffers, which are made once for all repetitions of a benchmark. */
struct {
	make_layout make = nullptr;
	uint64_t count = 0;
	layouts::layout of;
	bool asked[MOST_THREADS] = {}; /* this thread has used all buffers of its order */
} populated;

void populate(make_layout make, uint64_t count)
{
	if (populated.make == make && populated.count == count)
		return;
	empty();
	populated = {make, count, make(BASE, count), {}};
	for (const buffer &one : populated.of.before)
		use(parties[0], one);
	for (const buffer &one : populated.of.buffers)
		use(parties[0], one);
}

void forget_populated()
{
	populated = {};
	empty();
}

/* Does each thread have its own buffers? */
enum class shares { own, same };

template <make_layout Make, shares Who> void setup(const benchmark::State &state)
{
	const auto count = static_cast<uint64_t>(state.range(0));

	populate(Make, Who == shares::own ? count * static_cast<uint64_t>(state.threads()) : count);
}

void setup_alone(const benchmark::State &)
{
	forget_populated();
}

/* The buffers of a thread, in the order of its requests. */
std::vector<buffer> order(const benchmark::State &state, shares who)
{
	const auto count = static_cast<uint64_t>(state.range(0));
	const auto thread = static_cast<uint64_t>(state.thread_index());
	const uint64_t first = who == shares::own ? thread * count : 0;
	std::vector<buffer> asked(std::max<uint64_t>(count, 4096));

	for (uint64_t i = 0; i < asked.size(); i++)
		asked[i] = populated.of.buffers[first + i % count];
	std::shuffle(asked.begin(), asked.end(), std::mt19937_64(42 + thread));
	return asked;
}

void ask(benchmark::State &state, const std::vector<buffer> &asked)
{
	const uint64_t before = made;
	size_t i = 0;

	/* The warm-up rounds let the cache learn its hints from hits. */
	if (!std::exchange(populated.asked[state.thread_index()], true))
		for (const buffer &one : asked)
			use(parties[0], one);
	for (auto _ : state) {
		use(parties[0], asked[i]);
		i = i + 1 == asked.size() ? 0 : i + 1;
	}
	if (made != before)
		state.SkipWithError("not all were hits");
}

template <shares Who> void hit(benchmark::State &state)
{
	ask(state, order(state, Who));
}

void unordered(benchmark::State &state)
{
	const std::vector<buffer> asked = order(state, shares::own);
	uint64_t random = 1;

	for (auto _ : state) {
		random = random * 6364136223846793005 + 1442695040888963407;
		use(parties[0], asked[(random >> 32) * asked.size() >> 32]);
	}
}

void part(benchmark::State &state)
{
	std::vector<buffer> asked = order(state, shares::own);
	std::mt19937_64 random(1);

	for (buffer &one : asked)
		one = {one.addr + random() % (one.length / 2), one.length / 2};
	ask(state, asked);
}

/* Lines are as far apart as entries of the cache. */
struct alignas(128) line {
	std::atomic<uint64_t> word;
};

void use_word(line &one)
{
	benchmark::DoNotOptimize(one.word.fetch_add(1, std::memory_order_acquire));
	benchmark::DoNotOptimize(one.word.fetch_sub(1, std::memory_order_release));
}

void atomics(benchmark::State &state)
{
	std::vector<line> one(1);

	for (auto _ : state)
		use_word(one[0]);
}

std::vector<line> shared_lines(1000);

/*
 * The lower limit for threads that use the same buffers, whose cache lines may be on the other CPU.
 */
void atomics_same(benchmark::State &state)
{
	const std::vector<buffer> asked = order(state, shares::same);
	size_t i = 0;

	for (auto _ : state) {
		use_word(shared_lines[(asked[i].addr - BASE) / LENGTH]);
		i = i + 1 == asked.size() ? 0 : i + 1;
	}
}

void search(benchmark::State &state)
{
	const std::vector<buffer> asked = order(state, shares::own);
	std::vector<uint64_t> sorted;
	size_t i = 0;

	for (const buffer &one : populated.of.buffers)
		sorted.push_back(one.addr);
	std::sort(sorted.begin(), sorted.end());
	std::vector<line> words(sorted.size());

	for (auto _ : state) {
		auto found = std::upper_bound(sorted.begin(), sorted.end(), asked[i].addr) - 1;

		use_word(words[static_cast<size_t>(found - sorted.begin())]);
		i = i + 1 == asked.size() ? 0 : i + 1;
	}
}

void miss(benchmark::State &state)
{
	const std::vector<buffer> fresh = layouts::apart(BASE, 1000).buffers;
	size_t i = 0;

	for (auto _ : state) {
		use(parties[0], fresh[i]);
		if (++i == fresh.size()) {
			state.PauseTiming();
			empty();
			i = 0;
			state.ResumeTiming();
		}
	}
}

void evict(benchmark::State &state)
{
	const auto owners = static_cast<size_t>(state.range(0));
	const auto limit = static_cast<uint64_t>(state.range(1));
	const std::vector<buffer> turns = layouts::apart(BASE, 2 * limit).buffers;
	uint64_t i = 0;

	for (size_t one = 0; one < owners; one++) {
		set_limit(parties[one], limit);
		for (uint64_t k = limit; k < 2 * limit; k++)
			use(parties[one], turns[k]);
	}
	const uint64_t before = made;
	for (auto _ : state) {
		use(parties[i % owners], turns[i / owners % turns.size()]);
		i++;
	}
	if (made - before != i)
		state.SkipWithError("not all were misses");
}

void full(benchmark::State &state)
{
	const auto limit = static_cast<uint64_t>(state.range(0));
	const std::vector<buffer> buffers = layouts::apart(BASE, limit + 1).buffers;
	std::vector<registration *> held;
	registration *refused = nullptr;

	set_limit(parties[0], limit);
	for (uint64_t i = 0; i < limit; i++)
		held.push_back(acquire(parties[0], buffers[i]));
	for (auto _ : state) {
		refused = find(parties[0], buffers[limit]);
		if (refused) [[unlikely]]
			break;
	}
	if (refused)
		state.SkipWithError("more than the limit");
	for (const registration *one : held)
		release(one);
}

/* Fills the cache with range(0) entries, and one entry of another owner. Then releases all of
 * them. */
void leave_behind(const benchmark::State &state)
{
	use(others, {BASE, LENGTH});
	if (mr_cache_drain(nullptr, &others.pd))
		std::abort();
	populate(layouts::apart, static_cast<uint64_t>(state.range(0)));
	forget_populated();
}

void flush_pd(benchmark::State &state)
{
	for (auto _ : state)
		if (mr_cache_drain(nullptr, &others.pd))
			std::abort();
}

void query(benchmark::State &state)
{
	ibv_mr_cache_stats statistics;

	for (auto _ : state) {
		if (mr_cache_query(&others.owner, &statistics))
			std::abort();
		benchmark::DoNotOptimize(statistics);
	}
}

using work = void (*)(benchmark::State &);
using benchmark::internal::Benchmark;

Benchmark *add(const std::string &name, work body, void (*before)(const benchmark::State &))
{
	return benchmark::RegisterBenchmark(name.c_str(), body)->Setup(before)->UseRealTime();
}

template <make_layout Make> Benchmark *add_hit(const std::string &name, work body)
{
	return add("hit/" + name, body, setup<Make, shares::own>);
}

void add_all()
{
	/*
	 * The large numbers come last, because a cache that once held many entries may stay slower.
	 */
	add("flush_pd", flush_pd, leave_behind)->Arg(1)->Iterations(100);
	add("query", query, leave_behind)->Arg(1)->Iterations(100);
	add("miss", miss, setup_alone);
	for (const int64_t limit : {1000, 50000}) {
		add("evict", evict, setup_alone)->Args({1, limit})->Args({2, limit});
		add("full", full, setup_alone)->Arg(limit);
	}

	for (Benchmark *one : {add_hit<layouts::apart>("apart", hit<shares::own>),
			       add_hit<layouts::guarded>("guarded", hit<shares::own>),
			       add_hit<layouts::random>("random", hit<shares::own>),
			       add_hit<layouts::heap>("heap", hit<shares::own>),
			       add_hit<layouts::inside>("inside", hit<shares::own>),
			       add_hit<layouts::apart>("unordered", unordered),
			       add_hit<layouts::apart>("part", part)})
		one->RangeMultiplier(10)->Range(1, MOST)->Arg(20000)->Threads(1);
	const auto own = [] {
		return std::array{add_hit<layouts::apart>("apart", hit<shares::own>),
				  add_hit<layouts::guarded>("guarded", hit<shares::own>),
				  add_hit<layouts::apart>("part", part)};
	};
	for (Benchmark *one : own())
		one->Arg(1)->Arg(1000)->Arg(MANY)->Threads(2);
	/* Each owner has fewer than MANY entries, because a cache has room for only a million. */
	for (Benchmark *one : own())
		one->Arg(1)->Arg(1000)->Threads(MOST_THREADS);
	add("hit/same", hit<shares::same>, setup<layouts::apart, shares::same>)
		->Arg(1)
		->Arg(1000)
		->Arg(MANY)
		->Threads(2)
		->Threads(MOST_THREADS);

	add("flush_pd", flush_pd, leave_behind)->Arg(MOST)->Iterations(100);
	add("query", query, leave_behind)->Arg(MOST)->Iterations(100);

	add("atomics", atomics, setup_alone)->ThreadRange(1, 2);
	add("atomics_same", atomics_same, setup<layouts::apart, shares::same>)
		->Arg(1000)
		->Threads(2);
	add("search", search, setup<layouts::apart, shares::own>)
		->RangeMultiplier(10)
		->Range(1, MOST)
		->Threads(1);
}

} // namespace

/*
 * Returns the mr of the whole registration. For a part, libibverbs would make a view.
 */
extern "C" void *mr_cache_on_miss(void *pd, uint64_t addr, uint64_t length, uint32_t access,
				  mr_cache_ref part)
{
	mr_cache_ref ref;

	if (part.mr) [[likely]]
		return part.mr;
	if (mr_cache_acquire(pd, &static_cast<party *>(pd)->owner, addr, length, access, &ref))
		return nullptr;
	return ref.mr;
}

int main(int argc, char **argv)
{
	if (const int error = mr_cache_init()) {
		std::fprintf(stderr, "mr_cache_init: %d\n", error);
		return 1;
	}
	benchmark::Initialize(&argc, argv);
	add_all();
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
