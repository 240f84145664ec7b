// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The protection domains that have entries. A record lives as long as its last entry. An entry that
 * could not be deregistered, or is still used, outlives its PD, and is then beside the entries of
 * the next PD with the same address: it is in no catalog, so it is not mistaken for one of them.
 * The mutex guards all changes; find() may run beside them without it (catalog.h).
 */
#ifndef MR_CACHE_PDS_H
#define MR_CACHE_PDS_H

#include "entry_list.h"

namespace mr_cache {

/* Entries that may be found, of one ordering: for each set of rights a tree (range_index.h). */
template <class Env> struct trees {
	using link = typename Env::template atomic<uint32_t>;

	link present; // which roots are not empty
	link roots[RIGHTS + 1];
};

template <class Env> struct pd_record {
	typename Env::template atomic<void *> pd;
	typename trees<Env>::link next; // in its bucket, or on the free list
	uint32_t busy; // entries that a thread registers, settles or deregisters just now
	trees<Env> ranges[2];
	entry_list<Env, &entry<Env>::of_pd> list;
};

template <class Env> class pds {
public:
	/* Of contexts that are gone; find() never gives it. */
	static constexpr uint32_t NAMELESS = 0;

	pd_record<Env> &operator[](uint32_t i) { return records[i]; }

	/* What the first one needs. */
	void touch_first()
	{
		Env::touch(this, sizeof(*this) - sizeof(records) + 2 * sizeof(*records));
	}

	/* 0 if it has no entry. */
	uint32_t find(const void *pd) const
	{
		uint32_t i = get(heads[bucket(pd)]);

		for (uint32_t steps = 0; i && steps < Env::domains; steps++) {
			if (records[i].pd.load(std::memory_order_relaxed) == pd)
				return i;
			i = get(records[i].next);
		}
		return 0;
	}

	/* None, if the PD has no entry. */
	const trees<Env> &trees_of(const request &want) const
	{
		return records[find(want.pd())].ranges[is_relaxed(want.access)];
	}
	trees<Env> &trees_of(uint32_t p, uint32_t access)
	{
		return records[p].ranges[is_relaxed(access)];
	}

	/* 0 if there are too many. */
	uint32_t find_or_add(void *pd)
	{
		uint32_t i = find(pd);

		if (i)
			return i;
		i = free;
		if (i)
			free = get(records[i].next);
		else if (count + 1 < Env::domains)
			i = ++count;
		else
			return 0;
		records[i].pd.store(pd, std::memory_order_relaxed);
		set(records[i].next, get(heads[bucket(pd)]));
		set(heads[bucket(pd)], i);
		return i;
	}

	void add(uint32_t p, entry<Env> *entries, uint32_t i) { records[p].list.add(entries, i); }

	void remove(uint32_t p, entry<Env> *entries, uint32_t i)
	{
		records[p].list.remove(entries, i);
		if (records[p].list.size() || p == NAMELESS)
			return;

		link *at = &heads[bucket(records[p].pd.load(std::memory_order_relaxed))];

		while (get(*at) && get(*at) != p)
			at = &records[get(*at)].next;
		set(*at, get(records[p].next));
		set(records[p].next, free);
		free = p;
	}

private:
	using link = typename trees<Env>::link;

	static constexpr uint32_t HEADS = 1024;

	static uint32_t get(const link &l) { return l.load(std::memory_order_relaxed); }
	static void set(link &l, uint32_t n) { l.store(n, std::memory_order_relaxed); }
	static bool is_relaxed(uint32_t access) { return access & MR_CACHE_RELAXED_ORDERING; }

	static uint32_t bucket(const void *pd)
	{
		return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pd) * 0x9e3779b97f4a7c15 >>
					     54) %
		       HEADS;
	}

	uint32_t count;
	uint32_t free;
	link heads[HEADS];
	pd_record<Env> records[Env::domains];
};

} // namespace mr_cache

#endif // MR_CACHE_PDS_H
