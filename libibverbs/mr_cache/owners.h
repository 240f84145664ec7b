// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The limits, statistics and entries of the owners of registrations. Each owner is a context. */
#ifndef MR_CACHE_OWNERS_H
#define MR_CACHE_OWNERS_H

#include "mr_cache_core.h"
#include "entry.h"

namespace mr_cache {

/* A list of entries in the order of add(). Indexes link the entries; 0 means no entry. */
template <class Env> class entry_list {
public:
	uint32_t size() const { return count; }

	/* The index 0 is the end of the list. */
	uint32_t begin() const { return first; }
	static uint32_t after(const entry<Env> *entries, uint32_t i)
	{
		return entries[i].of_owner.next;
	}

	/* Returns the entry at the hand, and advances the hand. Returns 0 if the list is empty. */
	uint32_t turn(const entry<Env> *entries)
	{
		uint32_t i = hand ? hand : first;

		if (i)
			hand = after(entries, i);
		return i;
	}

	/*
	 * Checks the next EXAMINED entries, and returns an invalid entry or the idle entry with the
	 * oldest stamp. If all are in use, checks up to `most` entries. Returns 0 if none is idle.
	 */
	uint32_t oldest_idle(const entry<Env> *entries, uint32_t most)
	{
		using word = entry_word<Env>;
		uint64_t least = UINT64_MAX;
		uint32_t oldest = 0;

		most = most < count ? most : count;
		for (uint32_t looks = 0; looks < most && !(oldest && looks >= EXAMINED); looks++) {
			const uint32_t i = turn(entries);
			const uint64_t seen = entries[i].word.peek_relaxed();
			const uint64_t age = word::over(seen) ? 0 : entries[i].last_use();

			if (word::idle(seen) && age < least) {
				oldest = i;
				least = age;
			}
		}
		if (oldest)
			hand = after(entries, oldest);
		return oldest;
	}

	void add(entry<Env> *entries, uint32_t i)
	{
		entries[i].of_owner = {0, last};
		next_of(entries, last) = i;
		last = i;
		count++;
	}

	void remove(entry<Env> *entries, uint32_t i)
	{
		const auto mine = entries[i].of_owner;

		next_of(entries, mine.prev) = mine.next;
		prev_of(entries, mine.next) = mine.prev;
		if (hand == i)
			hand = mine.next;
		count -= count != 0; // in a child the list may be zeros (locked.h)
	}

	static constexpr uint32_t EXAMINED = 32;

private:
	uint32_t &next_of(entry<Env> *entries, uint32_t i)
	{
		return i ? entries[i].of_owner.next : first;
	}
	uint32_t &prev_of(entry<Env> *entries, uint32_t i)
	{
		return i ? entries[i].of_owner.prev : last;
	}

	uint32_t first;
	uint32_t last;
	uint32_t hand; // where the next search starts, as the hand of a clock; 0 for `first`
	uint32_t count;
};

template <class Env> struct owner_record {
	/* NULL if the owner is closed or free. A signal handler may store NULL. */
	typename Env::template atomic<void *> name;
	bool in_use; // has a name, or still has entries
	ibv_mr_cache_limits limits;
	uint64_t max_merge;	    // the largest merged registration, in bytes
	ibv_mr_cache_stats counted; // without the hits of entries that are still open
	entry_list<Env> list;
	int32_t merge_looks; // n > 0: the next n misses try a merge; n < 0: the next -n don't

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
		merge_looks = 0;
		limits = env.default_limits(who);
		max_merge = env.max_merge(who);
		counted = {};
		list = {};
	}
	void *who() const { return name.load(std::memory_order_relaxed); }
	/* Was the context of this owner closed? The owner may still have entries. */
	bool is_gone() const { return !who(); }
};

template <class Env> class owners {
public:
	static constexpr uint32_t NONE = ~0U;
	static constexpr uint32_t NAMELESS = Env::owners; // the owner of orphans

	owner_record<Env> &operator[](uint32_t i) { return records[i]; }
	uint32_t size() const { return high; }

	uint32_t find(const void *who) const
	{
		for (uint32_t i = 0; i < high; i++)
			if (who && records[i].who() == who)
				return i;
		return NONE;
	}

	/* Returns NONE if there are too many owners. */
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

	/* A signal handler calls this without the mutex. */
	void end(uint32_t o)
	{
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
