// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The authoritative answer to "which entry is a registration of exactly this range, with
 * exactly these rights?": a hash table, chained through the entries.
 *
 * As with range_index.h the mutex guards all changes, search() may run beside them without it, its
 * steps are limited, and a found entry is verified by taking a reference.
 */
#ifndef MR_CACHE_EXACT_INDEX_H
#define MR_CACHE_EXACT_INDEX_H

#include "entry.h"

namespace mr_cache {

template <class Env> class exact_index {
public:
	/* An entry to verify, or 0. Under the mutex it is in the index, and 0 means none is. */
	uint32_t search(const wish &want, const entry<Env> *entries) const
	{
		uint32_t i = get(heads[bucket(want.key, want.addr, want.length)]);

		for (int steps = 0; i && steps < STEPS; steps++) {
			if (entries[i].fits(want))
				return i;
			i = get(entries[i].chained);
		}
		return 0;
	}

	void touch(const wish &want)
	{
		heads[bucket(want.key, want.addr, want.length)].fetch_or(0,
									 std::memory_order_relaxed);
	}

	/* Under the mutex. */
	void insert(uint32_t i, entry<Env> *entries)
	{
		link &head = heads[bucket_of(entries[i])];

		set(entries[i].chained, get(head));
		set(head, i);
	}

	/* Under the mutex. */
	void erase(uint32_t i, entry<Env> *entries)
	{
		link *at = &heads[bucket_of(entries[i])];

		while (get(*at) && get(*at) != i)
			at = &entries[get(*at)].chained;
		if (get(*at))
			set(*at, get(entries[i].chained));
	}

private:
	using link = typename Env::template atomic<uint32_t>;

	static constexpr uint32_t HEADS = Env::entries < 1 << 16 ? 16 : 1 << 16;
	static constexpr int STEPS = 256;

	static uint32_t get(const link &l) { return l.load(std::memory_order_relaxed); }
	static void set(link &l, uint32_t n) { l.store(n, std::memory_order_relaxed); }

	static uint32_t bucket(uint64_t key, uint64_t addr, uint64_t length)
	{
		uint64_t hash = (key * 0xff51afd7ed558ccd ^ addr) * 0x9e3779b97f4a7c15;

		hash = (hash ^ hash >> 32 ^ length) * 0xc4ceb9fe1a85ec53;
		return static_cast<uint32_t>(hash >> 40) % HEADS;
	}

	static uint32_t bucket_of(const entry<Env> &e)
	{
		return bucket(e.pd_key(), e.shown_addr(), e.shown_length());
	}

	link heads[HEADS];
};

} // namespace mr_cache

#endif // MR_CACHE_EXACT_INDEX_H
