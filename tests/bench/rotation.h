/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Messages from buffers that take turns, each registered before it is sent and
 * given back after: what a communication library does for a program that has
 * several large buffers. How it registers and sends is a parameter (Sender):
 *
 *   void start(std::byte *addr, std::size_t length)   register, post a write
 *   void finish()                                     wait for the oldest one, give it back
 *
 * One iteration is a round of all buffers. The first one of a size is not timed:
 * what is timed is the second and later use of a buffer.
 */
#ifndef BENCH_ROTATION_H
#define BENCH_ROTATION_H

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace rotation {

constexpr std::size_t buffers = 8;
constexpr std::size_t largest = std::size_t{16} << 20;
constexpr std::size_t area = buffers * largest;

/* Fresh memory with pages in it; the process keeps it to its end. */
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

/* The buffers: the same pages for all that is compared. */
inline std::byte *the_area()
{
	static std::byte *const addr = memory(area);

	return addr;
}

/* With that many messages on their way at most; `used`: sizes that were sent before. */
template <class Sender>
void rounds(benchmark::State &state, Sender &sender, std::size_t outstanding,
	    std::set<std::size_t> &used)
{
	const auto length = static_cast<std::size_t>(state.range(0));
	const auto round = [&] {
		for (std::size_t i = 0; i < buffers + outstanding; i++) {
			if (i >= outstanding)
				sender.finish();
			if (i < buffers)
				sender.start(the_area() + i * largest, length);
		}
	};

	if (used.insert(length).second)
		round();
	for (auto _ : state)
		round();
	state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(buffers));
}

/* NAME/latency/SIZE: one after the other; NAME/bandwidth/SIZE: four on their way. */
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
