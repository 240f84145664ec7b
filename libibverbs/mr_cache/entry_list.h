// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A list of entries, linked by index, in the order in which they came. Index 0 is no entry: all
 * bytes 0 is the empty list. It has the hand of a clock for looks that go on where the last one
 * stopped.
 */
#ifndef MR_CACHE_ENTRY_LIST_H
#define MR_CACHE_ENTRY_LIST_H

#include "entry.h"

namespace mr_cache {

template <class Env> class entry_list {
public:
	uint32_t size() const { return count; }

	/* 0: none, or no more. */
	uint32_t begin() const { return first; }
	static uint32_t after(const entry<Env> *entries, uint32_t i)
	{
		return entries[i].of_owner.next;
	}

	/* The one at the hand, which moves on, and from the last to the first; 0 if there is none.
	 */
	uint32_t turn(const entry<Env> *entries)
	{
		uint32_t i = hand ? hand : first;

		if (i)
			hand = after(entries, i);
		return i;
	}

	/*
	 * Of the next EXAMINED, the idle one with the oldest stamp, or an invalid one: that serves
	 * no request. Where all of those are in use the look goes on, at so many in all; 0: none is
	 * idle. The next look begins behind the one that was found: those before it were used
	 * later. That it is idle is a guess until its word was closed.
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
		const links mine = entries[i].of_owner;

		next_of(entries, mine.prev) = mine.next;
		prev_of(entries, mine.next) = mine.prev;
		if (hand == i)
			hand = mine.next;
		count -= count != 0; // a child's list may be zeros (locked.h)
	}

	static constexpr uint32_t EXAMINED = 32;

private:
	/* 0 is before the first and after the last. */
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
	uint32_t hand; // 0: at the first
	uint32_t count;
};

} // namespace mr_cache

#endif // MR_CACHE_ENTRY_LIST_H
