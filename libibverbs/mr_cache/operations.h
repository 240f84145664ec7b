// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The newest registrations under way, for requests of the same ranges, and the threads that wait
 * until another one has come back from the registrar. The mutex guards everything here.
 *
 * A thread that is inside the registrar waits for no other one, which might wait for it: an
 * allocator's hook may come to the cache again in the middle of a call. One that is not inside may
 * have a lock that the other one needs: of an allocator, or of a pager of user space. So it waits
 * for some milliseconds, and when that was too short no thread waits for the same any more
 * (await()). Without bound waits only the end of a PD or a context (locked::drain()), which must
 * not go before.
 *
 * A range whose registration is not among the newest is registered once more, by itself: so a miss
 * costs no more beside thousands of them.
 */
#ifndef MR_CACHE_OPERATIONS_H
#define MR_CACHE_OPERATIONS_H

#include "entry.h"

namespace mr_cache {

template <class Env> class operations {
public:
	typename Env::condition progress; // a thread has come back

	/* An entry that is described, until it is removed. */
	void add(uint32_t i)
	{
		if (count < NEWEST)
			newest[count++] = i;
		else
			newest[++last % NEWEST] = i;
	}

	void remove(uint32_t i)
	{
		for (uint32_t n = 0; n < count; n++)
			if (newest[n] == i)
				newest[n] = newest[--count];
	}

	/* One that will serve the request and is not late, or 0. */
	uint32_t find(const request &want, const entry<Env> *entries) const
	{
		for (uint32_t n = 0; n < count; n++)
			if (!entries[newest[n]].late && entries[newest[n]].fits(want))
				return newest[n];
		return 0;
	}

private:
	static constexpr uint32_t NEWEST = 16;

	uint32_t newest[NEWEST];
	uint32_t count;
	uint32_t last; // that took another one's place
};

} // namespace mr_cache

#endif // MR_CACHE_OPERATIONS_H
