// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Which entries may be found: those that serve any part of their range, and those that serve
 * exactly it. The mutex of the cache guards all changes; search() may run beside them without it.
 * It may miss an entry and find one that has gone. Neither matters: a found entry is verified by
 * taking a reference, and a reader that found none takes the mutex and asks again, unless version()
 * tells that nothing has changed since:
 *
 *   reader                         holder of the mutex
 *   n = version()
 *                                  inserts, erases
 *   search(): a false miss
 *                                  version becomes n + 1
 *   takes the mutex: it is not n any more, asks again
 *
 * [Required: version is stored after the change (release), and read before the
 * search (acquire): so the search sees all changes up to n, and a later one is
 * over, and counted, when the reader has the mutex.]
 */
#ifndef MR_CACHE_CATALOG_H
#define MR_CACHE_CATALOG_H

#include "range_index.h"

namespace mr_cache {

/*
 * The authoritative answer to "which entry is a registration of exactly this range, with exactly
 * these rights?": a hash table, chained through the entries.
 */
template <class Env> class exact_index {
public:
	uint32_t search(const request &want, const entry<Env> *entries) const
	{
		uint32_t i = get(heads[bucket(want.key, want.addr, want.length)]);

		for (int steps = 0; i && steps < STEPS; steps++) {
			if (entries[i].fits(want))
				return i;
			i = get(entries[i].chained);
		}
		return 0;
	}

	void touch(const request &want)
	{
		heads[bucket(want.key, want.addr, want.length)].fetch_or(0,
									 std::memory_order_relaxed);
	}

	void insert(uint32_t i, entry<Env> *entries)
	{
		link &head = heads[bucket_of(entries[i])];

		set(entries[i].chained, get(head));
		set(head, i);
	}

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

template <class Env> class catalog {
public:
	static constexpr uint64_t UNKNOWN = ~0ULL; // no version

	/* Of all that may be found: another one whenever one came or went. */
	uint64_t version() const { return changes.load(std::memory_order_acquire); }

	/* An entry to verify, or 0. Under the mutex it may be found, and 0 means none may. */
	uint32_t search(const request &want, const entry<Env> *entries) const
	{
		if (want.exact())
			return exact.search(want, entries);
		return ranges.search(pd.trees_of(want), want, entries);
	}

	/* Before an entry for that is inserted: its place gets its page. */
	void touch(const request &want)
	{
		if (want.exact())
			exact.touch(want);
	}

	/* Under the mutex: range_index::beside(). */
	neighbours beside(const request &want, uint64_t addr) const
	{
		return ranges.beside(pd.trees_of(want).roots[want.access & RIGHTS], addr);
	}

	/*
	 * Under the mutex. Calls retire(i), which erases it, for each entry i that serves nothing
	 * that the new one, rounded, does not. Has it pages in common with one of the same rights?
	 */
	template <class Retire> bool insert(uint32_t i, entry<Env> *entries, const Retire &retire)
	{
		const entry<Env> &e = entries[i];
		bool overlaps = false;

		if (e.exact())
			exact.insert(i, entries);
		else
			overlaps = ranges.insert(pd.trees_of(e.pd, e.own_range().access), i,
						 entries, retire);
		changed();
		return overlaps;
	}

	/* Under the mutex. */
	void erase(uint32_t i, entry<Env> *entries)
	{
		const entry<Env> &e = entries[i];

		if (e.exact())
			exact.erase(i, entries);
		else
			ranges.erase(pd.trees_of(e.pd, e.own_range().access), i, e.rights());
		changed();
	}

private:
	void changed()
	{
		changes.store(changes.load(std::memory_order_relaxed) + 1,
			      std::memory_order_release);
	}

	typename Env::template atomic<uint64_t> changes;
	exact_index<Env> exact;

public:
	pds<Env> pd;
	range_index<Env> ranges; // the last: its nodes are
};

} // namespace mr_cache

#endif // MR_CACHE_CATALOG_H
