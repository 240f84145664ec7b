// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures the hits of each cache. The buffers are used in a random order. Before the clock starts,
 * the order is chosen, and each buffer is used once.
 */
#ifndef BENCH_SHUFFLED_H
#define BENCH_SHUFFLED_H

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

/*
 * Moves later allocations by BENCH_SHIFT pages. In User Mode Linux addresses are not random, so two
 * lines that conflict in a CPU cache conflict in each process. (On Zen, lines conflict if their
 * addresses hash to the same tag.) At four of 16,384 positions of a line, a hit is 7 to 44 ns
 * slower, with any library.
 */
inline void shift_layout()
{
	const char *pages = std::getenv("BENCH_SHIFT");
	const long size = pages ? std::strtol(pages, nullptr, 10) * 4096 : 0;

	if (!size)
		return;
	sbrk(size);
	mmap(nullptr, static_cast<std::size_t>(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	     0);
}

/* Uses range(0) buffers, `apart` bytes apart. Each thread has another order. */
template <class Use>
void use_shuffled(benchmark::State &state, std::byte *base, std::size_t apart, const Use &use)
{
	const auto count = static_cast<std::size_t>(state.range(0));
	std::vector<std::byte *> buffers;
	std::size_t i = 0;

	for (std::size_t n = 0; n < std::max<std::size_t>(count, 4096); n++)
		buffers.push_back(base + n % count * apart);
	std::shuffle(buffers.begin(), buffers.end(),
		     std::mt19937_64(42 + static_cast<unsigned>(state.thread_index())));
	for (std::byte *addr : buffers)
		use(addr);
	for (auto _ : state) {
		use(buffers[i]);
		i = i + 1 == buffers.size() ? 0 : i + 1;
	}
}

#endif // BENCH_SHUFFLED_H
