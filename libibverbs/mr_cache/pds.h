// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The protection domains that have entries. A record lives as long as its last entry. An entry that
 * could not be deregistered, or is still used, outlives its PD, and is then beside the entries of
 * the next PD with the same address: it is in no catalog, so it is not mistaken for one of them. An
 * entry in use when its context goes has no PD then, for its users may have forgotten it. The
 * cache's mutex guards everything here.
 */
#ifndef MR_CACHE_PDS_H
#define MR_CACHE_PDS_H

#include "entry_list.h"

namespace mr_cache {

template <class Env> struct pd_record {
	void *pd;
	uint32_t next; // in its bucket, or on the free list
	uint32_t busy; // entries that a thread registers, settles or deregisters just now
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
		uint32_t i = heads[bucket(pd)];

		while (i && records[i].pd != pd)
			i = records[i].next;
		return i;
	}

	/* 0 if there are too many. */
	uint32_t find_or_add(void *pd)
	{
		uint32_t i = find(pd);

		if (i)
			return i;
		i = free;
		if (i)
			free = records[i].next;
		else if (count + 1 < Env::domains)
			i = ++count;
		else
			return 0;
		records[i] = {pd, heads[bucket(pd)], 0, {}};
		heads[bucket(pd)] = i;
		return i;
	}

	void add(uint32_t p, entry<Env> *entries, uint32_t i) { records[p].list.add(entries, i); }

	void remove(uint32_t p, entry<Env> *entries, uint32_t i)
	{
		records[p].list.remove(entries, i);
		if (records[p].list.size() || p == NAMELESS)
			return;

		uint32_t *at = &heads[bucket(records[p].pd)];

		while (*at && *at != p)
			at = &records[*at].next;
		*at = records[p].next;
		records[p].next = free;
		free = p;
	}

private:
	static constexpr uint32_t HEADS = 1024;

	static uint32_t bucket(const void *pd)
	{
		return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pd) * 0x9e3779b97f4a7c15 >>
					     54) %
		       HEADS;
	}

	uint32_t count;
	uint32_t free;
	uint32_t heads[HEADS];
	pd_record<Env> records[Env::domains];
};

} // namespace mr_cache

#endif // MR_CACHE_PDS_H
