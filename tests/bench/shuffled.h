// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * How hits are measured, for all that is compared: the buffers are taken in a random
 * order that is made before, and all were used once before the clock starts.
 */
#ifndef BENCH_SHUFFLED_H
#define BENCH_SHUFFLED_H

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

/* range(0) buffers, `apart` bytes apart; another order for each thread. */
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
