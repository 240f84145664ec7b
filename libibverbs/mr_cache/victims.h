// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Which of an owner's entries to evict: the idle one with the oldest stamp among the next EXAMINED
 * of the owner's list. Readers keep no list in order. Of no more than so many entries that is the
 * least recently used one. The next look begins behind the victim: the entries before it were used
 * later, and of the others the CPU has the lines. An invalid one comes first, at any age: it serves
 * no request.
 *
 * Where all of those are in use a look goes on to the end of the list: entries that have been
 * in use since the beginning lie together, and those that come and go lie behind them. Such a
 * look is owed, and victims pay, each as much as WORTH looks. While something is owed no look
 * goes on, so a registration that is refused for want of room costs little.
 *
 * The cache's mutex guards it; that an entry is idle is only a guess until its word was
 * closed.
 */
#ifndef MR_CACHE_VICTIMS_H
#define MR_CACHE_VICTIMS_H

#include "entry_list.h"

namespace mr_cache {

template <class Env> class victims {
public:
	static constexpr uint32_t EXAMINED = 32;
	static constexpr uint32_t WORTH = 512;

	using list = entry_list<Env, &entry<Env>::of_owner>;

	/* 0: none of those that were looked at is idle; these are all if `all`. */
	uint32_t next(list &of, const entry<Env> *entries, bool all)
	{
		const bool goes_on = all || !owed;
		const uint32_t least = of.size() < EXAMINED ? of.size() : EXAMINED;
		const uint32_t most = goes_on ? of.size() : least;
		uint32_t oldest = 0, looks = 0;
		uint64_t its_age = UINT64_MAX;

		for (; looks < most && !(oldest && looks >= least); looks++) {
			const uint32_t i = of.turn(entries);
			const uint64_t seen = entries[i].word.peek_relaxed();

			if (!entry_word<Env>::idle(seen))
				continue;

			const uint64_t age = is_over(seen) ? 0 : entries[i].last_use();

			if (age < its_age) {
				oldest = i;
				its_age = age;
			}
		}
		if (goes_on)
			owe(looks, of);
		else
			pay(looks);
		if (oldest) {
			of.turn_to(entries, oldest);
			pay(WORTH);
		}
		return oldest;
	}

	bool owes() const { return owed; }
	void owe(uint32_t looks, const list &of)
	{
		owed = owed + looks < of.size() ? owed + looks : of.size();
	}
	void pay(uint32_t looks) { owed -= looks < owed ? looks : owed; }

private:
	static bool is_over(uint64_t seen)
	{
		return seen & (entry_word<Env>::INVALID | entry_word<Env>::DOOMED);
	}

	uint32_t owed;
};

} // namespace mr_cache

#endif // MR_CACHE_VICTIMS_H
