/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The cost of a hit depends on the positions of a program's buffers. Each layout is a function that
 * returns N buffers, always at the same positions:
 *  apart     one after the other, 64 KiB each
 *  guarded   17 pages apart, because a guard page follows each buffer of 64 KiB
 *  random    1 byte to 256 KiB, at any address; several may be in one page
 *  heap      from malloc: nine buffers of 16 to 1,024 bytes, then one buffer of 4 to 256 KiB
 *  inside    random pages of one registration of 1 GiB
 */
#ifndef BENCH_LAYOUTS_H
#define BENCH_LAYOUTS_H

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace layouts {

struct buffer {
	uint64_t addr;
	uint64_t length;
};

/* The buffers that hits request, and other buffers that are registered earlier. */
struct layout {
	std::vector<buffer> buffers;
	std::vector<buffer> before;
	std::vector<std::unique_ptr<void, void (*)(void *)>> blocks; /* contain the buffers */
};

constexpr uint64_t page = 4096, usual = 64 << 10;

inline layout spaced(uint64_t base, uint64_t count, uint64_t length, uint64_t distance)
{
	layout made;

	for (uint64_t i = 0; i < count; i++)
		made.buffers.push_back({base + i * distance, length});
	return made;
}

inline layout apart(uint64_t base, uint64_t count)
{
	return spaced(base, count, usual, usual);
}

inline layout guarded(uint64_t base, uint64_t count)
{
	return spaced(base, count, usual, usual + page);
}

/* A random size; each order of magnitude is equally likely. */
inline uint64_t any_size(std::mt19937_64 &random, unsigned int least, unsigned int most)
{
	const uint64_t order = uint64_t{1} << (least + random() % (most - least));

	return order + random() % order;
}

inline layout random(uint64_t base, uint64_t count)
{
	std::mt19937_64 random(7);
	layout made;

	for (uint64_t addr = base; made.buffers.size() < count;) {
		const uint64_t length = any_size(random, 0, 18);

		addr += any_size(random, 0, 16);
		made.buffers.push_back({addr, length});
		addr += length;
	}
	return made;
}

inline layout heap(uint64_t, uint64_t count)
{
	std::mt19937_64 random(7);
	layout made;

	mallopt(M_MMAP_THRESHOLD, 1 << 25); /* otherwise large buffers get mappings of their own */
	for (uint64_t i = 0; i < count; i++) {
		const uint64_t length =
			i % 10 == 9 ? any_size(random, 12, 18) : any_size(random, 4, 10);

		made.blocks.emplace_back(std::malloc(length), std::free);
		if (!made.blocks.back())
			std::abort();
		made.buffers.push_back(
			{reinterpret_cast<uint64_t>(made.blocks.back().get()), length});
	}
	return made;
}

inline layout inside_of(uint64_t length, uint64_t base, uint64_t count)
{
	std::mt19937_64 random(7);
	layout made;

	made.before.push_back({base, length});
	for (uint64_t i = 0; i < count; i++)
		made.buffers.push_back({base + random() % (length / page) * page, page});
	return made;
}

inline layout inside(uint64_t base, uint64_t count)
{
	return inside_of(uint64_t{1} << 30, base, count);
}

} // namespace layouts

#endif // BENCH_LAYOUTS_H
