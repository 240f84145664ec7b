// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A hash table that maps the first page of a request, or an exact range, to the entry that served
 * such a request. The reader verifies the entry, so threads write hints without a lock.
 *
 * A bucket is a 64-bit word with two hints. A hint has a tag of 12 bits and an index of 20 bits. If
 * the tag differs, the reader ignores the entry. With two buckets for each entry, 1 in 30 new hints
 * finds a full bucket (1 in 12 in the worst layout of buffers). The part of the table in use grows
 * with the number of entries, so 1,000 entries use 16 KiB of CPU cache instead of 16 MiB.
 */
#ifndef MR_CACHE_HINTS_H
#define MR_CACHE_HINTS_H

#include "entry.h"

namespace mr_cache {

template <class Env> class hints {
public:
	/* The bounds of the index of the last bucket in use. */
	static constexpr uint32_t LEAST = (1 << Env::least_hint_bits) - 1;
	static constexpr uint32_t MOST = (1 << Env::most_hint_bits) - 1;
	static constexpr uint32_t INDEX = (1 << 20) - 1;

	static uint64_t hash_of(const request &want)
	{
		if (want.exact())
			return mix((want.addr >> 12 ^ want.addr << 42) + want.length * ODD, want);
		return mix(want.addr >> 12 ^ want.addr >> 19, want);
	}

	/* Returns an entry to verify, or 0. `last` is the last bucket in use. */
	uint32_t lookup(uint64_t hash, uint32_t last) const
	{
		uint64_t both = table[place(hash, last)].load(std::memory_order_relaxed);
		uint32_t first = static_cast<uint32_t>(both) ^ tag_of(hash);

		if (first <= INDEX && first) [[likely]]
			return first;
		first = static_cast<uint32_t>(both >> 32) ^ tag_of(hash);
		return first <= INDEX ? first : 0;
	}

	/* Replaces the hint with the same tag, or the older hint of the bucket. */
	void learn(uint64_t hash, uint32_t last, uint32_t index)
	{
		bucket &slot = table[place(hash, last)];
		uint64_t both = slot.load(std::memory_order_relaxed);
		uint32_t tag = tag_of(hash);
		uint32_t newer = static_cast<uint32_t>(both);

		if (newer && (newer & ~INDEX) == tag)
			newer = static_cast<uint32_t>(both >> 32);
		slot.store(static_cast<uint64_t>(newer) << 32 | index | tag,
			   std::memory_order_relaxed);
	}

	/* Like learn(), for a request that found its entry without a hint. Only 1 of 16 calls
	 * replaces the hint of another entry. A hash of the time chooses this call. */
	void learn_part(uint64_t hash, uint32_t last, uint32_t index, uint64_t now)
	{
		const uint64_t both = table[place(hash, last)].load(std::memory_order_relaxed);
		const auto older = static_cast<uint32_t>(both >> 32);
		const bool is_old = !((both ^ tag_of(hash)) & ~INDEX & UINT32_MAX) ||
				    !((older ^ tag_of(hash)) & ~INDEX);

		if (!older || is_old || static_cast<uint32_t>(now * ODD >> 32) < 1U << 28)
			learn(hash, last, index);
	}

	/* Deletes the likeliest hint of a removed entry. Reading a wrong hint costs two atomics. */
	void drop(uint32_t last, uint32_t index, const entry<Env> *entries)
	{
		uint64_t hash = hash_of(entries[index].own_range());
		bucket &slot = table[place(hash, last)];
		uint64_t both = slot.load(std::memory_order_relaxed);

		if (static_cast<uint32_t>(both) == (index | tag_of(hash)))
			slot.store(both >> 32, std::memory_order_relaxed);
	}

	/* Returns the last bucket for this many entries. Half of the hints keep their places. */
	static uint32_t grow(uint32_t last, uint64_t entries)
	{
		return entries > (last + 1) / 2 && last < MOST ? 2 * last + 1 : last;
	}

	static constexpr size_t bytes(uint32_t last) { return sizeof(bucket) * (last + 1ULL); }

private:
	static constexpr uint64_t ODD = 0x94d049bb133111eb;

	using bucket = typename Env::template atomic<uint64_t>;

	static uint64_t place(uint64_t hash, uint32_t last)
	{
		return hash >> (64 - Env::most_hint_bits) & last;
	}

	static uint64_t mix(uint64_t where, const request &want)
	{
		return (where + (want.key ^ want.access) * 0xff51afd7ed558ccd) * ODD;
	}

	/* Returns bits of the hash that do not select the bucket. */
	static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 8) & ~INDEX; }

	alignas(64) bucket table[MOST + 1];
};

} // namespace mr_cache

#endif // MR_CACHE_HINTS_H
