// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The owners of registrations (a verbs context each): limits, statistics, entries. A record lives
 * until its owner was flushed; entries in use even then go to one without a name. The mutex guards
 * everything here. Hits are in the entries' words while those live.
 */
#ifndef MR_CACHE_OWNERS_H
#define MR_CACHE_OWNERS_H

#include "mr_cache_core.h"
#include "entry_list.h"

namespace mr_cache {

template <class Env> struct owner_record {
	/* NULL: flushed, or free. A signal handler may see, and end it, that interrupted the rest.
	 */
	typename Env::template atomic<void *> name;
	bool in_use; // has a name, or entries
	ibv_mr_cache_limits limits;
	uint64_t max_merge;	    // bytes of one registration
	ibv_mr_cache_stats counted; // bytes and entries are exact, hits those of entries torn down
	entry_list<Env> list;
	/* So many misses more look for a union, and so many that would do not (miss.h). */
	uint32_t merge_looks, merge_backoff;

	bool has_room(uint64_t size) const
	{
		return counted.entries < limits.max_entries && counted.bytes <= limits.max_bytes &&
		       size <= limits.max_bytes - counted.bytes;
	}
	bool is_over() const
	{
		return counted.entries > limits.max_entries || counted.bytes > limits.max_bytes;
	}
	void begin(void *who, const Env &env)
	{
		name.store(who, std::memory_order_relaxed);
		in_use = true;
		merge_looks = merge_backoff = 0;
		limits = env.default_limits(who);
		max_merge = env.max_merge(who);
		counted = {};
		list = {};
	}
	void *who() const { return name.load(std::memory_order_relaxed); }
	/* Gone for good: its entries that are left are of a context that was closed. */
	bool is_gone() const { return !who(); }
};

template <class Env> class owners {
public:
	static constexpr uint32_t NONE = ~0U;
	static constexpr uint32_t NAMELESS = Env::owners; // of those that are gone

	owner_record<Env> &operator[](uint32_t i) { return records[i]; }
	uint32_t size() const { return high; }

	uint32_t find(const void *who) const
	{
		for (uint32_t i = 0; i < high; i++)
			if (who && records[i].who() == who)
				return i;
		return NONE;
	}

	/* NONE if there are too many. */
	uint32_t find_or_add(void *who, const Env &env)
	{
		uint32_t i = find(who);

		if (i != NONE || !who)
			return i;
		for (i = 0; i < high && records[i].in_use; i++)
			;
		if (i == Env::owners)
			return NONE;
		if (i == high)
			high++;
		records[i].begin(who, env);
		return i;
	}

	void add(uint32_t o, entry<Env> *entries, uint32_t i)
	{
		records[o].list.add(entries, i);
		records[o].counted.bytes += entries[i].size();
		records[o].counted.entries++;
	}

	void remove(uint32_t o, entry<Env> *entries, uint32_t i)
	{
		records[o].list.remove(entries, i);
		records[o].counted.bytes -= entries[i].size();
		records[o].counted.entries--;
		if (records[o].is_gone() && !records[o].counted.entries)
			records[o].in_use = false;
	}

	void forget(uint32_t o)
	{
		records[o].name.store(nullptr, std::memory_order_relaxed);
		records[o].in_use = records[o].counted.entries;
	}

	/* By a signal handler, which has no mutex. */
	void end(const void *who)
	{
		const uint32_t o = find(who);

		if (o == NONE)
			return;
		records[o].name.store(nullptr, std::memory_order_relaxed);
		ended.store(true, std::memory_order_relaxed);
	}
	bool some_ended() const { return ended.load(std::memory_order_relaxed); }
	void see_ended() { ended.store(false, std::memory_order_relaxed); }

private:
	uint32_t high;
	typename Env::template atomic<bool> ended;
	owner_record<Env> records[Env::owners + 1];
};

} // namespace mr_cache

#endif // MR_CACHE_OWNERS_H
