// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Whom to evict of an owner's entries: the idle ones with the oldest stamps. Readers
 * keep no list in order, so a look at the next EXAMINED of the owner's list collects a
 * batch, a sixteenth of them (at least one: few entries are evicted in exactly the
 * order of use), and evictions take from it until it is empty. A victim that was used
 * since is passed over. Invalid ones come first, whatever their age: they serve nobody.
 *
 * Where all of those are in use it goes on, to the end of the list: what has been in use since
 * the beginning lies together, and what comes and goes lies behind it. Such looks are owed:
 * victims pay, each as much as a look of its own would cost. Until then a look is not gone on
 * with, and after one in vain the next ones are shorter: so each registration that is
 * refused for want of room costs little.
 *
 * The cache's mutex guards it; that an entry is idle is only a guess until its
 * word was closed.
 */
#ifndef MR_CACHE_VICTIMS_H
#define MR_CACHE_VICTIMS_H

#include "entry_list.h"

namespace mr_cache {

template <class Env> class victims {
public:
	static constexpr uint32_t EXAMINED = 512;
	static constexpr uint32_t MOST = EXAMINED / 16;

	using list = entry_list<Env, &entry<Env>::of_owner>;

	static uint64_t age(const entry<Env> &e)
	{
		return e.word.peek_relaxed() & (e.word.INVALID | e.word.DOOMED) ? 0 : e.last_use();
	}

	/* The next of the batch that is still the owner's and as idle as it was, or 0. */
	uint32_t next(uint32_t owner, const entry<Env> *entries)
	{
		while (taken < count) {
			victim v = batch[taken++];
			const entry<Env> &e = entries[v.index];

			if (e.owner == owner && e.word.idle(e.word.peek_relaxed()) &&
			    (v.stamp == e.last_use() || !age(e))) {
				pay(EXAMINED);
				return v.index;
			}
		}
		return 0;
	}

	/* While nothing is owed a look may go on to the end of the list. */
	bool owes() const { return owed; }
	void owe(uint32_t looks, const list &of)
	{
		owed = owed + looks < of.size() ? owed + looks : of.size();
	}
	void pay(uint32_t looks) { owed -= looks < owed ? looks : owed; }

	/*
	 * Collects the oldest of the next entries of the list, which is the owner's; returns how
	 * many those are. If it may go on it looks at as many as ever.
	 */
	uint32_t collect(list &of, const entry<Env> *entries, bool may_go_on)
	{
		uint32_t shorter = may_go_on ? 0 : in_vain;
		uint32_t looks = of.size() < EXAMINED ? of.size() : EXAMINED >> shorter;
		uint32_t room = looks / 16 < 1 ? 1 : looks / 16;

		if (may_go_on)
			owe(looks, of);
		else
			pay(looks);
		taken = 0;
		count = 0;
		for (uint32_t n = looks; n; n--) {
			uint32_t i = of.turn(entries);

			if (entries[i].word.idle(entries[i].word.peek_relaxed()))
				offer({age(entries[i]), i}, room);
		}
		/* The heap's root is the youngest: sorted, the oldest comes first. */
		for (uint32_t n = count; n > 1; n--) {
			swap(batch[0], batch[n - 1]);
			down(n - 1);
		}
		/* From now on a stamp that differs is a use since. */
		for (uint32_t n = 0; n < count; n++)
			batch[n].stamp = entries[batch[n].index].last_use();
		in_vain = count ? 0 : in_vain < MOST_IN_VAIN ? in_vain + 1 : MOST_IN_VAIN;
		return looks;
	}

private:
	static constexpr uint32_t MOST_IN_VAIN = 4;

	struct victim {
		uint64_t stamp;
		uint32_t index;
	};

	void offer(victim v, uint32_t room)
	{
		if (count < room) {
			batch[count] = v;
			up(count++);
		} else if (v.stamp < batch[0].stamp) {
			batch[0] = v;
			down(count);
		}
	}

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

	uint32_t taken;
	uint32_t count;
	uint32_t in_vain; // looks in a row that found nothing
	uint32_t owed;	  // entries that were looked at on credit
	victim batch[MOST];
};

} // namespace mr_cache

#endif // MR_CACHE_VICTIMS_H
