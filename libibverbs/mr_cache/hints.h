// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Where a request was found the last time: a hash table of entry indices. A hint promises nothing;
 * the entry is verified. So a thread that found an entry writes its hint without a lock, and when
 * an entry goes only its likeliest hint is cleaned out.
 *
 * A bucket is one 64-bit word of two hints, each a tag of 12 bits and an index of
 * 20: a tag that differs saves a look at the (cold) entry. There is a bucket for each
 * entry. The product that chooses it spreads equal distances well or very badly; folding
 * the address before breaks that, so one in ten finds its bucket full, and one in five where they
 * lie worst: it ousts the older one, which moves to a second place, by another hash, if
 * it is a hint to an entry's own range.
 * The table uses the low buckets of its memory only, more of them as the entries
 * become more (grow()): 1,000 entries then cost 8 KiB of cache and not 8 MiB.
 *
 * Whose hint is it? That of the page where a request begins; if only exactly the range is served,
 * that of the range. Parts of a large entry would fill the table with a hint for each page, so they
 * share those of its 2 MiB blocks (coarse), and one use in 16 is learnt as the page's own: a page
 * that is used often gets one.
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

	static uint64_t hash_of(const wish &want) { return mix(want); }

	/* An entry to verify, or 0. bits: log2 of the buckets in use. */
	uint32_t look(const wish &want, uint32_t bits) const { return look(mix(want), bits); }
	uint32_t look(uint64_t hash, uint32_t bits) const
	{
		uint64_t both = table[place(hash, bits)].load(std::memory_order_relaxed);
		uint32_t first = static_cast<uint32_t>(both) ^ tag_of(hash);

		if (first <= INDEX && first) [[likely]]
			return first;
		first = static_cast<uint32_t>(both >> 32) ^ tag_of(hash);
		return first <= INDEX ? first : 0;
	}
	/* The same in the second place, or for a part of a large entry. hash: hash_of(want). */
	uint32_t look_further(const wish &want, uint64_t hash, uint32_t bits) const
	{
		uint32_t used = further.load(std::memory_order_relaxed);
		uint32_t i = used & SECOND ? look(again(hash), bits) : 0;

		return i || !(used & COARSE) ? i : look(mix_coarse(want), bits);
	}

	/* index: of an entry that serves the wish. */
	void learn(const wish &want, uint32_t bits, uint32_t index, const entry<Env> *entries)
	{
		if (is_part_of_large(want, entries[index])) {
			uses(COARSE);
			put_once(mix_coarse(want), bits, index, entries);
		} else {
			put_once(mix(want), bits, index, entries);
		}
	}

	/* Of a new entry, which was made for the wish and has no hint yet. */
	void learn_new(uint64_t hash, uint32_t bits, uint32_t index, const entry<Env> *entries)
	{
		put_first(hash, bits, index, entries);
	}

	/* After look_further() has found it. */
	void learn_again(const wish &want, uint32_t bits, uint32_t index, const entry<Env> *entries,
			 uint64_t now)
	{
		/*
		 * One in 16, also of a use that comes back after as many others each time; or
		 * it is no part of a large one any more, to which the hint led.
		 */
		if (static_cast<uint32_t>(now * GOLDEN >> 32) < 1U << 28 ||
		    !is_part_of_large(want, entries[index]))
			put_once(mix(want), bits, index, entries);
	}

	/* Of an entry that goes: a hint that leads nowhere costs two atomics for nothing. */
	void drop(uint32_t bits, uint32_t index, const entry<Env> *entries)
	{
		uint64_t hash = mix(entries[index].own_range());
		bucket &slot = table[place(hash, bits)];
		uint64_t both = slot.load(std::memory_order_relaxed);

		if (static_cast<uint32_t>(both) == (index | tag_of(hash)))
			slot.store(both >> 32, std::memory_order_relaxed);
	}

	/* The bits that so many entries need. */
	static uint32_t grow(uint32_t bits, uint64_t entries)
	{
		return entries > 1ULL << bits && bits < MOST ? bits + 1 : bits;
	}

	/* The memory that so many bits use, from the beginning. */
	static constexpr size_t bytes(uint32_t bits) { return ALIGN + (sizeof(bucket) << bits); }

private:
	static constexpr uint64_t LARGE = 2 << 20;
	static constexpr size_t ALIGN = 64;
	/* Where hints are that are not in the first place. */
	static constexpr uint32_t SECOND = 1, COARSE = 2;
	static constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

	using bucket = typename Env::template atomic<uint64_t>;

	/* No bits: of a child, which a signal handler forked. */
	static uint64_t place(uint64_t hash, uint32_t bits)
	{
		return bits ? hash >> (64 - bits) : 0;
	}

	static uint64_t mix(uint64_t where, const wish &want)
	{
		return (where + (want.key ^ want.access) * 0xff51afd7ed558ccd) * GOLDEN;
	}

	static uint64_t mix(const wish &want)
	{
		if (want.exact())
			return mix((want.addr ^ want.addr >> 15) + want.length * GOLDEN, want);
		return mix(want.addr >> 12 ^ want.addr >> 19, want);
	}

	static uint64_t mix_coarse(const wish &want)
	{
		return again(mix(~(want.addr >> 21), want));
	}

	static uint64_t again(uint64_t hash) { return (hash ^ hash >> 32) * 0xc4ceb9fe1a85ec53; }

	/* Bits that do not choose the bucket. */
	static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 8) & ~INDEX; }

	/*
	 * In place of one of the same tag, or of the older one, which is returned (0: none). When
	 * two threads do it at once, one hint is lost.
	 */
	uint32_t put(uint64_t hash, uint32_t bits, uint32_t index)
	{
		bucket &slot = table[place(hash, bits)];
		uint64_t both = slot.load(std::memory_order_relaxed);
		uint32_t tag = tag_of(hash), hint = index | tag;
		uint32_t newer = static_cast<uint32_t>(both);
		uint32_t older = static_cast<uint32_t>(both >> 32);

		if (older && (older & ~INDEX) == tag)
			older = 0;
		if (newer && (newer & ~INDEX) == tag) {
			newer = older;
			older = 0;
		}
		slot.store(static_cast<uint64_t>(newer) << 32 | hint, std::memory_order_relaxed);
		return older;
	}

	static bool is_part_of_large(const wish &want, const entry<Env> &e)
	{
		return e.size() >= LARGE && e.shown_addr() != want.addr;
	}

	/* If it is not there, or in the second place. */
	void put_once(uint64_t first, uint32_t bits, uint32_t index, const entry<Env> *entries)
	{
		if (look(first, bits) != index &&
		    !(further.load(std::memory_order_relaxed) & SECOND &&
		      look(again(first), bits) == index))
			put_first(first, bits, index, entries);
	}

	/* The ousted hint goes to its second place. */
	void put_first(uint64_t first, uint32_t bits, uint32_t index, const entry<Env> *entries)
	{
		uint32_t ousted = put(first, bits, index);

		if (!ousted)
			return;

		/* A hint of an entry whose range hashes elsewhere is old, and dropped. */
		uint64_t its = mix(entries[ousted & INDEX].own_range());

		if (place(its, bits) != place(first, bits) || tag_of(its) != (ousted & ~INDEX))
			return;
		uses(SECOND);
		put(again(its), bits, ousted & INDEX);
	}

	void uses(uint32_t which)
	{
		if (!(further.load(std::memory_order_relaxed) & which))
			further.fetch_or(which, std::memory_order_relaxed);
	}

	typename Env::template atomic<uint32_t> further;
	alignas(ALIGN) bucket table[1 << MOST];
};

} // namespace mr_cache

#endif // MR_CACHE_HINTS_H
