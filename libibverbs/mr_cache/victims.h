// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Whom to evict: the idle entries with the oldest stamps. Readers keep no list in
 * order, so one scan of the table collects a batch, a sixteenth of the owner's
 * entries (at least one: few entries are evicted in exactly the order of use), and
 * evictions take from it until it is empty. A victim that was used since the scan
 * is passed over. Invalid ones come first, whatever their age: they serve nobody.
 *
 * The cache's mutex guards it; that an entry is idle is only a guess until its
 * word was closed.
 */
#ifndef MR_CACHE_VICTIMS_H
#define MR_CACHE_VICTIMS_H

#include "entry.h"

namespace mr_cache {

template <class Env> class victims {
public:
	static constexpr uint32_t MOST = 1024;
	static constexpr uint32_t ANY = ~0U; // owner

	static uint64_t age(const entry<Env> &e)
	{
		return e.word.peek_relaxed() & (e.word.INVALID | e.word.DOOMED) ? 0 : e.last_use();
	}

	/* The next of the batch that is still as idle as it was, or 0. */
	uint32_t next(uint32_t owner, const entry<Env> *entries)
	{
		if (owner != of)
			return 0;
		while (taken < count) {
			victim v = batch[taken++];
			const entry<Env> &e = entries[v.index];

			if (v.stamp == age(e) && e.word.idle(e.word.peek_relaxed()) &&
			    (owner == ANY || e.owner == owner))
				return v.index;
		}
		return 0;
	}

	/* Collects the oldest of those with an index below high: at most `most`. */
	void collect(uint32_t owner, const entry<Env> *entries, uint32_t high, uint64_t most)
	{
		uint32_t room = most < 1 ? 1 : most > MOST ? MOST : static_cast<uint32_t>(most);

		of = owner;
		taken = 0;
		count = 0;
		for (uint32_t i = 1; i < high; i++) {
			const entry<Env> &e = entries[i];

			if (!e.word.idle(e.word.peek_relaxed()) ||
			    (owner != ANY && e.owner != owner))
				continue;

			victim v = {age(e), i};

			if (count < room) {
				batch[count] = v;
				up(count++);
			} else if (v.stamp < batch[0].stamp) {
				batch[0] = v;
				down(count);
			}
		}
		/* The heap's root is the youngest: sorted, the oldest comes first. */
		for (uint32_t n = count; n > 1; n--) {
			swap(batch[0], batch[n - 1]);
			down(n - 1);
		}
	}

private:
	struct victim {
		uint64_t stamp;
		uint32_t index;
	};

	static void swap(victim &a, victim &b)
	{
		victim was = a;

		a = b;
		b = was;
	}

	void up(uint32_t i)
	{
		for (; i && batch[(i - 1) / 2].stamp < batch[i].stamp; i = (i - 1) / 2)
			swap(batch[(i - 1) / 2], batch[i]);
	}

	void down(uint32_t n)
	{
		for (uint32_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
			if (child + 1 < n && batch[child].stamp < batch[child + 1].stamp)
				child++;
			if (batch[child].stamp <= batch[i].stamp)
				return;
			swap(batch[child], batch[i]);
		}
	}

	uint32_t of;
	uint32_t taken;
	uint32_t count;
	victim batch[MOST];
};

} // namespace mr_cache

#endif // MR_CACHE_VICTIMS_H
