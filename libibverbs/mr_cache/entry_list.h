// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A circular list of entries, linked by index, in the order in which they came: those of
 * an owner, and those of a PD. All bytes 0 is the empty list. It has the hand of a clock for
 * looks that go on where the last one stopped. The cache's mutex guards it.
 */
#ifndef MR_CACHE_ENTRY_LIST_H
#define MR_CACHE_ENTRY_LIST_H

#include "entry.h"

namespace mr_cache {

template <class Env, links entry<Env>::*LINKS> class entry_list {
public:
	uint32_t size() const { return count; }

	/* for (i = begin(), n = size(); n; i = after(i), n--) comes to each once. */
	uint32_t begin() const { return first; }
	static uint32_t after(const entry<Env> *entries, uint32_t i)
	{
		return (entries[i].*LINKS).next;
	}

	/* The one at the hand, which moves on; 0 if there is none. */
	uint32_t turn(const entry<Env> *entries)
	{
		uint32_t i = hand;

		if (i)
			hand = after(entries, i);
		return i;
	}

	void add(entry<Env> *entries, uint32_t i)
	{
		links &mine = entries[i].*LINKS;

		if (!first) {
			first = hand = i;
			mine = {i, i};
		} else {
			links &head = entries[first].*LINKS;

			mine = {first, head.prev};
			(entries[head.prev].*LINKS).next = i;
			head.prev = i;
		}
		count++;
	}

	void remove(entry<Env> *entries, uint32_t i)
	{
		links &mine = entries[i].*LINKS;

		if (first == i)
			first = mine.next;
		if (hand == i)
			hand = mine.next;
		if (!--count)
			first = hand = 0;
		(entries[mine.prev].*LINKS).next = mine.next;
		(entries[mine.next].*LINKS).prev = mine.prev;
	}

private:
	uint32_t first;
	uint32_t hand;
	uint32_t count;
};

} // namespace mr_cache

#endif // MR_CACHE_ENTRY_LIST_H
