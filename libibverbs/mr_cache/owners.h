// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Who registrations belong to (a verbs context each): limits and statistics. A
 * record lives until its owner was flushed and its last entry is gone. The cache's
 * mutex guards everything here. Hits are in the entries' words while those live.
 */
#ifndef MR_CACHE_OWNERS_H
#define MR_CACHE_OWNERS_H

#include "mr_cache_core.h"

namespace mr_cache {

struct owner_record {
	void *who;   // NULL: flushed, or free
	bool in_use; // has a name, or entries
	mr_cache_bounds limits;
	mr_cache_statistics counted; // bytes and entries are exact, hits those of entries torn down

	bool has_room(uint64_t size) const
	{
		return counted.entries < limits.entries && counted.bytes <= limits.bytes &&
		       size <= limits.bytes - counted.bytes;
	}
	bool is_over() const
	{
		return counted.entries > limits.entries || counted.bytes > limits.bytes;
	}
	void add(uint64_t size)
	{
		counted.bytes += size;
		counted.entries++;
	}
	void remove(uint64_t size)
	{
		counted.bytes -= size;
		counted.entries--;
		if (!who && !counted.entries)
			in_use = false;
	}
};

template <class Env> class owners {
public:
	static constexpr uint32_t NONE = ~0U;

	owner_record &operator[](uint32_t i) { return records[i]; }

	uint32_t find(const void *who) const
	{
		for (uint32_t i = 0; i < high; i++)
			if (who && records[i].who == who)
				return i;
		return NONE;
	}

	/* NONE if there are too many. */
	uint32_t find_or_add(void *who, const mr_cache_bounds &limits)
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
		records[i] = {who, true, limits, {}};
		return i;
	}

	void forget(uint32_t i)
	{
		records[i].who = nullptr;
		records[i].in_use = records[i].counted.entries;
	}

private:
	uint32_t high;
	owner_record records[Env::owners];
};

} // namespace mr_cache

#endif // MR_CACHE_OWNERS_H
