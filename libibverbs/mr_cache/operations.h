// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registrations under way, for requests of the same ranges, and the threads that wait until
 * another one has come back from the registrar. The mutex guards everything here.
 *
 * A thread that is inside the registrar waits for no other one, which might wait for it: an
 * allocator's hook may come to the cache again in the middle of a call. One that is not inside may
 * have a lock that the other one needs: of an allocator, or of a pager of user space. So it waits
 * for some milliseconds, and when that was too short no thread waits for the same any more
 * (await()). Without bound waits only the end of a PD or a context (drain.h), which must not go
 * before.
 *
 * A range is in the bucket of its block of memory, blocks of the least power of two that is not
 * smaller than the range. So it has an address only if it is in the block of that address or in the
 * one before, and a look-up costs two buckets for each size that is under way.
 */
#ifndef MR_CACHE_OPERATIONS_H
#define MR_CACHE_OPERATIONS_H

#include "entry.h"

namespace mr_cache {

template <class Env> class operations {
public:
	typename Env::condition progress; // a thread has come back

	void init() { progress.init(); }

	/* An entry that is described, until it is removed. */
	void add(entry<Env> *entries, uint32_t i)
	{
		const uint32_t size = size_of(entries[i]);
		uint32_t &head = heads[bucket(entries[i].start(), size)];

		entries[i].link = head;
		head = i;
		count[size]++;
		sizes |= 1ULL << size;
	}

	void remove(entry<Env> *entries, uint32_t i)
	{
		const uint32_t size = size_of(entries[i]);
		uint32_t *at = &heads[bucket(entries[i].start(), size)];

		while (*at && *at != i)
			at = &entries[*at].link;
		*at = entries[i].link;
		if (!--count[size])
			sizes &= ~(1ULL << size);
	}

	/* One that will serve the request and is not late, or 0. */
	uint32_t find(const request &want, const entry<Env> *entries) const
	{
		for (uint64_t more = sizes; more; more &= more - 1) {
			const auto size = static_cast<uint32_t>(__builtin_ctzll(more));

			for (uint64_t back = 0; back < 2; back++) {
				const uint64_t where = want.addr - (back << size);
				uint32_t i = heads[bucket(where, size)];

				for (; i; i = entries[i].link)
					if (!entries[i].late && entries[i].fits(want))
						return i;
			}
		}
		return 0;
	}

private:
	static constexpr uint32_t HEADS = Env::entries < 1 << 10 ? 4 : 1 << 10;

	static uint32_t size_of(const entry<Env> &e)
	{
		return (64 - static_cast<uint32_t>(__builtin_clzll((e.size() - 1) | 1))) & 63;
	}

	static uint32_t bucket(uint64_t where, uint32_t size)
	{
		return static_cast<uint32_t>((where >> size) * 0x9e3779b97f4a7c15 >> 40) % HEADS;
	}

	uint64_t sizes; // those that are not 0 of
	uint32_t count[64];
	uint32_t heads[HEADS];
};

} // namespace mr_cache

#endif // MR_CACHE_OPERATIONS_H
