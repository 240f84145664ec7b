// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures cached registration through the verbs, on a real device in a guest:
 *  atomics      two atomic operations on one word: the lower limit for any such cache
 *  atomics/N    two atomic operations on one of N words 128 bytes apart, in a random order that is
 *               repeated: the limit if each registration has its own reference count, without a
 *               look-up
 *  found        two atomic operations on a word after a look-up: an address leads to a hint, the
 *               hint to an entry, the entry to a struct ibv_mr, and the struct back to the entry,
 *               without calls and checks. A cache that returns a pointer can't do less.
 *  hit/LAYOUT/N ibv_reg_mr + ibv_dereg_mr of one of N cached buffers, in a random order (in User
 *               Mode Linux at native speed). layouts.h has the layouts. Here they have smaller
 *               buffers: one page for apart and guarded, 256 MiB for inside. hit/part uses 32 KiB
 *               at a random place in each buffer of 64 KiB. This part has its own struct ibv_mr.
 *               hit/threads runs 2 or 16 threads in a guest with 2 CPUs, and measures the CPU time.
 *               Each thread has its own N buffers. Counters, in nanoseconds: low, median and high
 *               are the 10th, 50th and 90th percentile of 40 measurements of 262,144 hits each
 *  miss/SIZE    a cached ibv_reg_mr that has to register. Cached and uncached calls for the same
 *               buffer take turns, so both are measured under the same conditions. The cache has
 *               another registration, because a real cache is not empty at a miss. Counters: plain
 *               and miss are medians in nanoseconds, ratio is the ratio of these medians, and
 *               ratio_of_fast is the ratio of the 10th percentiles. A third call in turn is
 *               ibv_reg_notified_mr(). Its median is notified, and notified_by_miss is the ratio of
 *               notified to miss.
 *  renewed/WAY  a miss after the memory was mapped again (renewed.h). WAY is plain, cached or
 *               notified. The way notified is a cache above the verbs, which checks the word of an
 *               entry, and deregisters the MR if the word is INVALID.
 *  idle/...     the cost of an idle registration (idle.h), with the RDMAV_MR_CACHE of the
 *               environment
 */
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "device.h"
#include "idle.h"
#include "layouts.h"
#include "renewed.h"

using namespace mr_notify;

namespace {

constexpr int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

const device &the_device()
{
	static const device on;

	return on;
}

ibv_mr *register_or_die(range r, int access)
{
	ibv_mr *mr = ibv_reg_mr(the_device().pd(), r.addr, r.length, access);

	if (!mr)
		fail("ibv_reg_mr");
	return mr;
}

void use_cached(const layouts::buffer &of, int access)
{
	ibv_dereg_mr(register_or_die({reinterpret_cast<std::byte *>(of.addr), of.length},
				     access | IBV_ACCESS_CACHED));
}

/* Returns the same address for each length, so that all rows use the same memory. */
uint64_t base_of(uint64_t length)
{
	static memory m = anonymous(512 << 20);

	if (m.registered().length < length)
		m = anonymous(length);
	return reinterpret_cast<uint64_t>(m.registered().addr);
}

/* The largest limits that the guest allows. */
void widen_limits()
{
	ibv_mr_cache_limits wide{uint64_t{1} << 40, 1 << 20};

	check_verb(ibv_reg_mr_limits(the_device().context(), &wide, nullptr), "ibv_reg_mr_limits");
}

void atomics(benchmark::State &state)
{
	alignas(64) std::atomic<uint64_t> word{0};

	for (auto _ : state) {
		benchmark::DoNotOptimize(word.fetch_add(1, std::memory_order_acquire));
		benchmark::DoNotOptimize(word.fetch_sub(1, std::memory_order_release));
	}
}

void atomics_of_many(benchmark::State &state)
{
	struct alignas(128) line {
		std::atomic<uint64_t> word;
	};
	std::vector<line> lines(static_cast<std::size_t>(state.range(0)));
	std::vector<line *> order;
	std::size_t i = 0;

	for (line &one : lines)
		order.push_back(&one);
	std::shuffle(order.begin(), order.end(), std::mt19937_64(42));
	for (auto _ : state) {
		std::atomic<uint64_t> &word = order[i]->word;

		benchmark::DoNotOptimize(word.fetch_add(1, std::memory_order_acquire));
		benchmark::DoNotOptimize(word.fetch_sub(1, std::memory_order_release));
		i = i + 1 == order.size() ? 0 : i + 1;
	}
}

void found(benchmark::State &state)
{
	struct handed_out {
		uint32_t entry;
	};
	struct alignas(128) entry {
		std::atomic<uint64_t> word;
		handed_out *mr;
	};
	constexpr int bits = 11;
	const layouts::buffer asked{base_of(page_size()), page_size()};
	const auto bucket_of = [](uint64_t addr) {
		return (addr >> 12) * 0x9e3779b97f4a7c15 >> (64 - bits);
	};
	handed_out mr{1};
	std::vector<entry> entries(2);
	std::vector<uint32_t> hints(std::size_t{1} << bits);

	entries[1].mr = &mr;
	hints[bucket_of(asked.addr)] = 1;
	for (auto _ : state) {
		const layouts::buffer *next = &asked;

		benchmark::DoNotOptimize(next);
		entry &e = entries[hints[bucket_of(next->addr)]];

		benchmark::DoNotOptimize(e.word.fetch_add(1, std::memory_order_acquire));
		const handed_out *got = e.mr;

		benchmark::DoNotOptimize(got);
		benchmark::DoNotOptimize(
			entries[got->entry].word.fetch_sub(1, std::memory_order_release));
	}
}

double quantile(std::vector<double> &of, double part)
{
	const auto nth =
		of.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(of.size() - 1));

	std::nth_element(of.begin(), nth, of.end());
	return *nth;
}

/*
 * The measured time includes only the two verbs and the choice of the next buffer. The calls are
 * not checked, because they have succeeded before.
 */
auto in_turn(const std::vector<layouts::buffer> &asked, int access)
{
	return [pd = the_device().pd(), access = access | IBV_ACCESS_CACHED, first = asked.data(),
		last = asked.data() + asked.size(), next = asked.data()]() mutable {
		ibv_dereg_mr(
			ibv_reg_mr(pd, reinterpret_cast<void *>(next->addr), next->length, access));
		if (++next == last)
			next = first;
	};
}

/* Measures in parts, because hits with the same registrations may be slower for seconds. */
template <class Use> void time_parts(benchmark::State &state, Use use)
{
	constexpr int uses = 1 << 18;
	std::vector<double> parts(40);

	for (double &part : parts) {
		const auto begin = std::chrono::steady_clock::now();

		for (int n = 0; n < uses; n++)
			use();
		part = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() -
								begin)
			       .count() /
		       uses;
	}
	state.counters["low"] = quantile(parts, .1);
	state.counters["median"] = quantile(parts, .5);
	state.counters["high"] = quantile(parts, .9);
}

/* Uses the buffers in a random order. Three rounds before the clock starts train the hints. */
void use_all(benchmark::State &state, const layouts::layout &of, std::vector<layouts::buffer> asked,
	     int access)
{
	widen_limits();
	std::shuffle(asked.begin(), asked.end(), std::mt19937_64(42));
	for (const auto &buffers : {of.before, of.buffers})
		for (const layouts::buffer &one : buffers)
			use_cached(one, access);
	for (int n = 0; n < 3; n++)
		for (const layouts::buffer &one : asked)
			use_cached(one, access);
	auto use_next = in_turn(asked, access);
	for (auto _ : state)
		use_next();
	if (state.threads() == 1)
		time_parts(state, in_turn(asked, access));
	ibv_reg_mr_clean(the_device().context(), 0);
}

void hit(benchmark::State &state, const layouts::layout &of)
{
	use_all(state, of, of.buffers, access_flags);
}

uint64_t count_of(const benchmark::State &state)
{
	return static_cast<uint64_t>(state.range(0));
}

void apart(benchmark::State &state)
{
	const uint64_t each = count_of(state) * page_size();
	const uint64_t base = base_of(each * static_cast<uint64_t>(state.threads()));
	const uint64_t before = static_cast<uint64_t>(state.thread_index()) * each;

	hit(state, layouts::spaced(base + before, count_of(state), page_size(), page_size()));
}

void guarded(benchmark::State &state)
{
	const uint64_t base = base_of(count_of(state) * 2 * page_size());

	hit(state, layouts::spaced(base, count_of(state), page_size(), 2 * page_size()));
}

void random(benchmark::State &state)
{
	const layouts::buffer last = layouts::random(0, count_of(state)).buffers.back();

	hit(state, layouts::random(base_of(last.addr + last.length), count_of(state)));
}

void heap(benchmark::State &state)
{
	hit(state, layouts::heap(0, count_of(state)));
}

/* Measures hits on a part of a registration. Only registrations without remote rights serve
 * parts. */
void inside(benchmark::State &state)
{
	const uint64_t length = 256 << 20;
	const layouts::layout of = layouts::inside_of(length, base_of(length), count_of(state));

	use_all(state, of, of.buffers, IBV_ACCESS_LOCAL_WRITE);
}

void part(benchmark::State &state)
{
	const uint64_t base = base_of(count_of(state) * layouts::usual);
	const layouts::layout of = layouts::apart(base, count_of(state));
	std::vector<layouts::buffer> asked = of.buffers;
	std::mt19937_64 random(1);

	for (layouts::buffer &one : asked)
		one = {one.addr + random() % (one.length / 2), one.length / 2};
	use_all(state, of, asked, IBV_ACCESS_LOCAL_WRITE);
}

/*
 * All ways use the same pages, because huge or scattered pages change the times by a factor of 3.
 */
range the_buffer(std::size_t length)
{
	static const memory m = anonymous(64 << 20);

	return {m.registered().addr, length};
}

/*
 * Reads the CPU's time stamp. The guest's kernel reads its clock from a device, which takes longer
 * than the measured calls.
 */
uint64_t ticks()
{
	return __builtin_ia32_rdtsc();
}

/* Registers as a cache above the verbs does: by one call, with a word that counts users. */
ibv_mr *register_notified(range of, uint64_t *word, uint64_t *changes)
{
	ibv_mr_notify_attr attr{};

	attr.comp_mask =
		IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_IDLE_MS | IBV_MR_NOTIFY_ATTR_CHANGES;
	attr.word = word;
	attr.changes = changes;
	attr.in_use = ~uint64_t{IBV_MR_NOTIFY_KERNEL_MASK};
	attr.idle_ms = 1000;
	*word = 0x100;
	ibv_mr *mr = ibv_reg_notified_mr(the_device().pd(), of.addr, of.length,
					 reinterpret_cast<uintptr_t>(of.addr), access_flags, &attr);
	if (!mr)
		throw std::runtime_error("ibv_reg_notified_mr");
	return mr;
}

/* Acts as a cache above the verbs, which has an entry for each address. */
void use_notified(range of)
{
	struct entry {
		uint64_t *word = ibv_alloc_notify_word(the_device().context());
		ibv_mr *mr = nullptr;
	};
	static uint64_t *const changes = ibv_alloc_notify_word(the_device().context());
	static std::map<std::byte *, entry> entries;
	entry &e = entries[of.addr];

	if (e.mr &&
	    __atomic_fetch_add(e.word, 0x100, __ATOMIC_ACQUIRE) & IBV_MR_NOTIFY_KERNEL_MASK) {
		ibv_dereg_mr(e.mr);
		e.mr = nullptr;
	}
	if (!e.mr)
		e.mr = register_notified(of, e.word, changes);
	__atomic_fetch_sub(e.word, 0x100, __ATOMIC_RELEASE);
}

void miss(benchmark::State &state)
{
	const range buffer = the_buffer(static_cast<std::size_t>(state.range(0)));
	const memory another = anonymous(page_size());
	const owned<ibv_mr> kept(
		register_or_die(another.registered(), access_flags | IBV_ACCESS_CACHED));
	uint64_t *const first_word = ibv_alloc_notify_word(the_device().context());
	uint64_t *const word = ibv_alloc_notify_word(the_device().context());
	uint64_t *const changes = ibv_alloc_notify_word(the_device().context());
	std::vector<double> plain, missed, notified;
	const auto time_one = [&](std::vector<double> &times, auto register_it) {
		const uint64_t start = ticks();
		ibv_mr *mr = register_it();
		times.push_back(static_cast<double>(ticks() - start));
		ibv_dereg_mr(mr);
		ibv_reg_mr_clean(the_device().context(), 0);
	};
	/* A second registration exists during the measurement, as in a real cache. */
	const owned<ibv_mr> kept_notified(
		register_notified(another.registered(), first_word, changes));
	const auto begin = std::chrono::steady_clock::now();
	const uint64_t first_tick = ticks();

	for (auto _ : state) {
		time_one(plain, [&] { return register_or_die(buffer, access_flags); });
		time_one(missed,
			 [&] { return register_or_die(buffer, access_flags | IBV_ACCESS_CACHED); });
		time_one(notified, [&] { return register_notified(buffer, word, changes); });
	}

	const std::chrono::duration<double, std::nano> elapsed =
		std::chrono::steady_clock::now() - begin;
	const double nanoseconds = elapsed.count() / static_cast<double>(ticks() - first_tick);

	state.counters["plain"] = nanoseconds * quantile(plain, .5);
	state.counters["miss"] = nanoseconds * quantile(missed, .5);
	state.counters["notified"] = nanoseconds * quantile(notified, .5);
	state.counters["ratio"] = quantile(missed, .5) / quantile(plain, .5);
	state.counters["notified_by_miss"] = quantile(notified, .5) / quantile(missed, .5);
	state.counters["ratio_of_fast"] = quantile(missed, .1) / quantile(plain, .1);
}

BENCHMARK(atomics);
BENCHMARK(atomics_of_many)->Name("atomics")->Arg(1000)->Arg(50000)->Arg(100000);
BENCHMARK(found);
BENCHMARK(apart)->Name("hit/apart")->RangeMultiplier(10)->Range(1, 10000);
BENCHMARK(apart)->Name("hit/threads")->Arg(1)->Arg(1000)->Threads(2)->Threads(16)->UseRealTime();
BENCHMARK(guarded)->Name("hit/guarded")->Arg(1)->Arg(1000);
BENCHMARK(random)->Name("hit/random")->Arg(1)->Arg(1000);
BENCHMARK(heap)->Name("hit/heap")->Arg(1)->Arg(1000);
BENCHMARK(inside)->Name("hit/inside")->Arg(1)->Arg(1000)->Arg(50000);
BENCHMARK(part)->Name("hit/part")->Arg(1)->Arg(1000);
/* Registering so many buffers takes seconds, so each repetition registers them only once. */
BENCHMARK(apart)->Name("hit/apart")->Arg(50000)->Arg(100000)->Iterations(1 << 20);
BENCHMARK(guarded)->Name("hit/guarded")->Arg(50000)->Arg(100000)->Iterations(1 << 20);
BENCHMARK(random)->Name("hit/random")->Arg(100000)->Iterations(1 << 20);
BENCHMARK(heap)->Name("hit/heap")->Arg(100000)->Iterations(1 << 20);
BENCHMARK(miss)->RangeMultiplier(16)->Range(4 << 10, 64 << 20);

[[maybe_unused]] const bool has_idle =
	(idle::add([](std::byte *addr, std::size_t length) {
		 ibv_dereg_mr(register_or_die({addr, length}, IBV_ACCESS_LOCAL_WRITE));
	 }),
	 true);
[[maybe_unused]] const bool has_renewed = [] {
	const auto of = [](std::byte *addr, std::size_t length) { return range{addr, length}; };

	renewed::add("nothing", [](std::byte *, std::size_t) {});
	renewed::add("plain", [=](std::byte *addr, std::size_t length) {
		ibv_dereg_mr(register_or_die(of(addr, length), access_flags));
	});
	renewed::add("cached", [=](std::byte *addr, std::size_t length) {
		ibv_dereg_mr(register_or_die(of(addr, length), access_flags | IBV_ACCESS_CACHED));
	});
	renewed::add("notified",
		     [=](std::byte *addr, std::size_t length) { use_notified(of(addr, length)); });
	return true;
}();

} // namespace

BENCHMARK_MAIN();
