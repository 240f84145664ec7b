// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Where a request was found the last time: a hash table of entry indices. A
 * hint promises nothing; the entry is verified. So it is written without a lock
 * by whoever found something, and never cleaned.
 *
 * A bucket is one 64-bit word of two hints, each a tag of 12 bits and an index of
 * 20: a tag that differs saves a look at the (cold) entry. With a bucket
 * for each entry, buffers at equal distances nearly all keep their hint; of as many
 * random pages one in eight goes to the index each time.
 * The table uses the low buckets of its memory only, more of them as the entries
 * become more (grow()): 1,000 entries then cost 16 KiB of cache and not 1 MiB.
 */
#ifndef MR_CACHE_HINTS_H
#define MR_CACHE_HINTS_H

#include "entry.h"

namespace mr_cache {

template <class Env> class hints {
public:
	static constexpr uint32_t LEAST = Env::least_hint_bits;
	static constexpr uint32_t MOST = Env::most_hint_bits;
	static constexpr uint32_t INDEX = (1 << 20) - 1;

	/* An entry to verify, or 0. bits: log2 of the buckets in use. */
	uint32_t look(const wish &want, uint32_t bits) const
	{
		uint64_t hash = mix(want);
		uint64_t both = table[hash >> (64 - bits)].load(std::memory_order_relaxed);
		uint32_t first = static_cast<uint32_t>(both) ^ tag_of(hash);

		if (first <= INDEX && first) [[likely]]
			return first;
		first = static_cast<uint32_t>(both >> 32) ^ tag_of(hash);
		return first <= INDEX ? first : 0;
	}

	void learn(const wish &want, uint32_t bits, uint32_t index)
	{
		uint64_t hash = mix(want);
		auto &slot = table[hash >> (64 - bits)];
		uint64_t both = slot.load(std::memory_order_relaxed);
		uint32_t hint = index | tag_of(hash);

		/* Two who learn at once: one hint is lost. */
		if (static_cast<uint32_t>(both) != hint)
			slot.store(both << 32 | hint, std::memory_order_relaxed);
	}

	/* The bits that so many entries need. */
	static uint32_t grow(uint32_t bits, uint64_t entries)
	{
		return entries > 1ULL << bits && bits < MOST ? bits + 1 : bits;
	}

private:
	static uint64_t mix(const wish &want)
	{
		constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;
		uint64_t seed = (want.key ^ want.access) * 0xff51afd7ed558ccd;

		return ((want.addr >> 12) + seed) * GOLDEN;
	}

	/* Bits that do not choose the bucket. */
	static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 8) & ~INDEX; }

	typename Env::template atomic<uint64_t> table[1 << MOST];
};

} // namespace mr_cache

#endif // MR_CACHE_HINTS_H
