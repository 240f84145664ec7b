/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Sends messages from several buffers in turn. Each buffer is registered before its message is
 * sent, and deregistered afterwards, as a communication library does for a program with several
 * large buffers. The parameter Sender registers and sends:
 *
 *   void start(std::byte *addr, std::size_t length)   register, post a write
 *   void finish()                                     wait for the oldest write, deregister
 *
 * One iteration is a round of all buffers. The first round with a size is not timed, so the time
 * includes only the second and later uses of a buffer.
 */
#ifndef BENCH_ROTATION_H
#define BENCH_ROTATION_H

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rotation {

constexpr std::size_t buffers = 8;
constexpr std::size_t largest = std::size_t{16} << 20;
constexpr std::size_t area = buffers * largest;

/* Returns new memory whose pages are present. The memory is never freed. */
inline std::byte *memory(std::size_t length)
{
	void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (addr == MAP_FAILED) {
		std::perror("mmap");
		std::exit(1);
	}
	return static_cast<std::byte *>(addr);
}

/* The memory of the buffers. All compared ways use the same pages. */
inline std::byte *the_area()
{
	static std::byte *const addr = memory(area);

	return addr;
}

/* Sends a message from each buffer, with at most `outstanding` messages at a time. */
template <class Sender> void round(Sender &sender, std::size_t length, std::size_t outstanding)
{
	for (std::size_t i = 0; i < buffers + outstanding; i++) {
		if (i >= outstanding)
			sender.finish();
		if (i < buffers)
			sender.start(the_area() + i * largest, length);
	}
}

/* `used` has the sizes that were sent before. */
template <class Sender>
void rounds(benchmark::State &state, Sender &sender, std::size_t outstanding,
	    std::set<std::size_t> &used)
{
	const auto length = static_cast<std::size_t>(state.range(0));

	if (used.insert(length).second)
		round(sender, length, outstanding);
	for (auto _ : state)
		round(sender, length, outstanding);
	state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(buffers));
}

/*
 * In the row turns/SIZE the ways take turns, so that changes of the machine's speed affect all
 * ways. A turn is a round with four messages at a time. The order of the ways changes each time.
 * Each way except the first has a counter, which is the median of its throughput divided by the
 * throughput of the first way.
 */
template <class Sender> void take_turns(const std::vector<std::pair<std::string, Sender *>> &ways)
{
	benchmark::RegisterBenchmark(
		"turns",
		[ways](benchmark::State &state) {
			const auto length = static_cast<std::size_t>(state.range(0));
			std::vector<std::vector<double>> took(ways.size());
			std::vector<std::size_t> order(ways.size());
			std::minstd_rand random;

			std::iota(order.begin(), order.end(), 0);
			for (const auto &way : ways)
				round(*way.second, length, 4);
			for (auto _ : state) {
				std::shuffle(order.begin(), order.end(), random);
				for (const std::size_t i : order) {
					const auto start = std::chrono::steady_clock::now();

					round(*ways[i].second, length, 4);
					took[i].push_back(
						std::chrono::duration<double>(
							std::chrono::steady_clock::now() - start)
							.count());
				}
			}
			for (std::size_t i = 1; i < ways.size(); i++) {
				for (std::size_t turn = 0; turn < took[i].size(); turn++)
					took[i][turn] = took[0][turn] / took[i][turn];
				const auto middle = took[i].begin() + took[i].size() / 2;
				std::nth_element(took[i].begin(), middle, took[i].end());
				state.counters[ways[i].first] = *middle;
			}
		})
		->RangeMultiplier(4)
		->Range(4096, largest)
		->UseRealTime();
}

/* The row NAME/latency/SIZE sends one message at a time, and NAME/bandwidth/SIZE sends four. */
template <class Sender> void add(const std::string &name, Sender &sender)
{
	const auto used = std::make_shared<std::set<std::size_t>>();

	for (const auto &[what, outstanding] : {std::pair{"latency", 1}, {"bandwidth", 4}})
		benchmark::RegisterBenchmark(
			(name + "/" + what).c_str(),
			[&sender, used](benchmark::State &state, std::size_t most) {
				rounds(state, sender, most, *used);
			},
			static_cast<std::size_t>(outstanding))
			->RangeMultiplier(4)
			->Range(4096, largest)
			->UseRealTime();
}

} // namespace rotation

#endif
