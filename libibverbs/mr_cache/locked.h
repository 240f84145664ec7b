// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The cache for the holder of its mutex: how an entry begins and ends.
 *
 *          allocate()          publish()         close()          bury()
 *	FREE --------> MAKING ----------> OPEN ---------> DYING --------> FREE
 *	  ^               |                                |  ^
 *	  '---------------'                   deregistering|  |bequeath(): its PD or its owner
 *	   free(): the registrar              failed       v  |goes, it is tried once more
 *	   failed                                        PARKED
 *
 * retire() takes an OPEN one out of the catalog, DOOMED, and closes it; if it has users it stays
 * OPEN, and the last of them closes it. evict() is the same of an idle one. A closed one goes to
 * the dead of this `locked` (bequeath()), which deregisters them when the mutex is free: bury(), or
 * end() for the last user, which has it still if that fails. When a context is closed, entries with
 * users get no owner (disown()), and end without the registrar.
 *
 * Rules that hold whenever the mutex is free:
 *   an entry may be found (is in the catalog) if and only if it is OPEN and not DOOMED;
 *   a word is closed, doomed, catalogued and uncatalogued under the mutex only;
 *   an entry that is not FREE is in the lists of its owner and of its PD;
 *   a MAKING or DYING one belongs to one thread, which is inside the registrar, and
 *   which its owner and its PD count as busy.
 * So under the mutex, an entry of the catalog is open, and a reference taken to it is one. The
 * registrar is called without the mutex; a thread that comes back from it looks at everything
 * again.
 *
 * The last user of an entry is told by its owner's record whose the registration is: one
 * without a name is of a context that was closed, and is forgotten and not deregistered.
 */
#ifndef MR_CACHE_LOCKED_H
#define MR_CACHE_LOCKED_H

#include "arena.h"

namespace mr_cache {

template <class Env> class locked {
public:
	/* Has the mutex while it lives, and the dead: closed entries to be deregistered. */
	locked(arena<Env> &in, Env &with) : a(in), env(with) { a.mutex.lock(); }
	/* For a caller that has the mutex already. */
	struct already {};
	locked(arena<Env> &in, Env &with, already) : a(in), env(with) {}
	~locked()
	{
		bury();
		a.mutex.unlock();
	}
	locked(const locked &) = delete;
	locked &operator=(const locked &) = delete;

	arena<Env> &a;
	Env &env;

	entry<Env> &at(uint32_t i) { return a.entries[i]; }
	/* OPEN and without users: the kernel or evict() may have it. A closed one is not idle. */
	bool is_idle(uint32_t i) { return entry_word<Env>::idle(at(i).word.peek_relaxed()); }
	bool is_nested() const { return a.inside.is_nested(); }
	bool has_dead() const { return dead; }

	/* Lets go of the mutex until a thread has come back from the registrar. */
	void wait() { a.inside.wait(a.mutex); }
	bool wait_briefly(uint64_t *until) { return a.inside.wait_briefly(a.mutex, until); }

	/* The same for a moment, FEW times: references taken in vain are given back soon. */
	void let_others_run()
	{
		a.mutex.unlock();
		env.yield();
		a.mutex.lock();
	}

	void be_busy(uint32_t i, int by)
	{
		a.owner[at(i).owner].busy += static_cast<uint32_t>(by);
		a.pd[at(i).pd].busy += static_cast<uint32_t>(by);
	}

	/* Gives back a reference taken in vain. */
	void untake(uint32_t i)
	{
		if (!entry_word<Env>::used(at(i).word.untake_release()))
			at(i).word.restore_relaxed();
		if (entry_word<Env>::over(at(i).word.peek_relaxed()))
			retire(i);
	}

	/*
	 * A closed entry without owner, or 0. The doubtful last: beside a child that has the file
	 * of a context which was closed here, no other MR may have their words.
	 */
	uint32_t allocate()
	{
		uint32_t i = a.hot.high.load(std::memory_order_relaxed);

		if (a.free_entry)
			return pop(&a.free_entry);
		if (i < Env::entries && a.commit_entry(i)) {
			at(i).word.free_fresh_relaxed();
			a.hot.high.store(i + 1, std::memory_order_relaxed);
			return i;
		}
		i = pop(&a.doubtful);
		if (i)
			at(i).word.clean_relaxed();
		return i;
	}

	/* of_kernel: the kernel may have its word. */
	void free(uint32_t i, bool of_kernel = false)
	{
		a.owner.remove(at(i).owner, a.entries, i);
		a.pd.remove(at(i).pd, a.entries, i);
		at(i).forget();
		at(i).state = state::FREE;
		at(i).word.free_relaxed();
		push(of_kernel ? &a.doubtful : &a.free_entry, i);
	}

	/* Undoes allocate(). */
	void unallocate(uint32_t i) { push(&a.free_entry, i); }

	/* Its context is about to go; its user has the registration until then. */
	void disown(uint32_t i)
	{
		a.owner.remove(at(i).owner, a.entries, i);
		a.pd.remove(at(i).pd, a.entries, i);
		at(i).owner = a.owner.NAMELESS;
		at(i).pd = a.pd.NAMELESS;
		a.owner.add(at(i).owner, a.entries, i, at(i).size());
		a.pd.add(at(i).pd, a.entries, i);
	}

	/* Out of the catalog; torn down now if idle, by its last user if not. OPEN entries only. */
	void retire(uint32_t i)
	{
		uncatalog(i);
		at(i).word.doom_relaxed();
		close(i);
	}

	/* If it has no references but these, the caller's. */
	bool close(uint32_t i, uint64_t references = 0)
	{
		uint64_t seen;

		if (!at(i).word.close_acquire(references, &seen))
			return false;
		a.owner[at(i).owner].counted.hits += entry_word<Env>::uses(seen);
		a.owner[at(i).owner].counted.suspensions += entry_word<Env>::suspended(seen);
		bequeath(i);
		return true;
	}

	/* A closed entry, to the dead. */
	void bequeath(uint32_t i)
	{
		at(i).state = state::DYING;
		be_busy(i, 1);
		a.burying++;
		at(i).link = dead;
		dead = i;
	}

	/*
	 * One idle entry of an owner less; its index, or 0. All are looked at before that, if
	 * that is asked for, or as often as it is not dear (victims.h).
	 */
	uint32_t evict(uint32_t o, bool all = false)
	{
		owner_record<Env> &of = a.owner[o];

		/* A reader may take it just then. */
		while (uint32_t i = of.oldest.next(of.list, a.entries, all))
			if (evict_this(i))
				return i;
		return 0;
	}

	/* Of any owner, in turns. */
	uint32_t evict_any()
	{
		for (uint32_t n = a.owner.size(); n; n--) {
			if (++a.turn >= a.owner.size())
				a.turn = 0;
			if (uint32_t i = evict(a.turn))
				return i;
		}
		return 0;
	}

	uint32_t evict_all(uint32_t o)
	{
		uint32_t evicted = 0;
		auto &list = a.owner[o].list;

		for (uint32_t i = list.begin(); i; i = list.after(a.entries, i))
			if (is_idle(i))
				evicted += evict_this(i);
		return evicted;
	}

	/*
	 * Entries in use beyond the limits stay with their users, and end with the last one. PARKED
	 * ones stay in any case.
	 */
	void retire_excess(uint32_t o)
	{
		owner_record<Env> &of = a.owner[o];
		uint64_t bytes = of.counted.bytes, entries = of.counted.entries;

		for (uint32_t i = of.list.begin();
		     i && (bytes > of.limits.bytes || entries > of.limits.entries);
		     i = of.list.after(a.entries, i)) {
			if (at(i).state == state::PARKED)
				continue;
			bytes -= at(i).size();
			entries--;
			if (at(i).state == state::OPEN && !evict_this(i))
				retire(i);
		}
	}

	/*
	 * Deregisters the dead with the mutex free, some at a time. One that cannot be is
	 * PARKED; but if it is `held`, its user has it still.
	 */
	int bury(uint32_t held = 0) { return dead ? bury_all(held) : 0; }

	/*
	 * Deregisters an entry that was closed for its last user. On an error the user has it
	 * still, and the kernel may have suspended it meanwhile.
	 */
	int end(uint32_t i)
	{
		int error = bury(i);

		if (error && entry_word<Env>::suspended(at(i).word.peek_relaxed()))
			settle(i);
		return error;
	}

	/*
	 * Asks the kernel about an entry of which the caller has a reference; lets go of the mutex.
	 * An entry that cannot be settled is not used.
	 */
	void settle(uint32_t i)
	{
		operation mine;
		entry<Env> &e = at(i);
		bool suspended = e.word.suspended(e.word.peek_relaxed());

		a.inside.enter(&mine, nullptr, i);
		be_busy(i, 1);
		a.mutex.unlock();

		int error = env.settle(e.registration());

		a.mutex.lock();
		be_busy(i, -1);
		a.inside.leave(&mine);
		if (error) {
			retire(i);
			return;
		}

		mr_cache_statistics &counted = a.owner[e.owner].counted;
		bool valid = !(e.word.peek_relaxed() & e.word.INVALID);

		counted.suspensions += suspended;
		counted.restorations += suspended && valid;
		counted.suspects_settled += !suspended && valid;
	}

	/*
	 * An entry of the catalog that serves, with a reference taken; or 0. May let go of the
	 * mutex to settle; then the answer is as of afterwards. *plain: one that would serve is
	 * left alone. It is suspended, and little of it is wanted (not asked if plain is NULL); or
	 * another thread settles it and is not done soon:
	 *
	 *   A                              B
	 *                                  settles; a page is missing, and the program's
	 *                                  pager takes the program's lock for each
	 *   has that lock; wants a
	 *   part of the same: waits        waits for a page, so for the lock
	 */
	uint32_t find_valid(const wish &want, bool *plain = nullptr)
	{
		uint64_t until = 0;

		for (int patience = SETTLE_ATTEMPTS;;) {
			uint32_t i = a.index.search(want, a.entries);

			if (!i)
				return 0;

			entry<Env> &e = at(i);
			uint64_t seen = e.word.take_acquire();

			if (e.word.usable(seen))
				return i;

			bool left = false;

			if (seen & e.word.INVALID)
				retire(i);
			else if (e.word.suspended(seen) && plain && wants_little(e, want))
				left = true;
			else if (seen & (e.word.SUSPECT | e.word.SUSPENDED) &&
				 a.inside.is_settled(i))
				left = is_nested() || !wait_briefly(&until);
			else if (seen & (e.word.SUSPECT | e.word.SUSPENDED) && patience--)
				settle(i);
			else if (e.word.fold_relaxed())
				a.owner[e.owner].counted.hits += e.word.uses(e.word.FOLD);
			else
				retire(i); // FULL, an unknown bit, no end of suspicion
			untake(i);
			if (left) {
				if (plain)
					*plain = true;
				return 0;
			}
		}
	}

	/* Until what other threads are just giving back is gone; not nested, and not for long. */
	void await_buried()
	{
		const uint64_t all = a.buried + a.burying;
		uint64_t until = 0;

		while (!is_nested() && a.burying && a.buried < all && wait_briefly(&until))
			;
	}

	/*
	 * A command lacks something that idle registrations may hold: evicts some of all that is
	 * idle at first, then all. Returns how many registrations ended, those that other threads
	 * are just giving back too. A nested thread does not wait, and no thread for long.
	 */
	uint64_t give_way(uint32_t stage, bool nested, uint64_t *until)
	{
		uint64_t buried = a.buried;

		if (stage)
			for (uint32_t o = 0; o < a.owner.size(); o++)
				evict_all(o);
		else
			for (uint64_t n = a.entry_count / 16 + 1; n && evict_any(); n--)
				;
		bury();
		while (!nested && a.buried == buried && a.burying && wait_briefly(until))
			;
		return a.buried - buried;
	}

	/* A suspended entry of more than that is restored if so much of it is wanted. */
	static constexpr uint64_t MUCH = 256 << 10;
	static constexpr uint64_t GOOD_PART = 8;
	static constexpr int SETTLE_ATTEMPTS = 16;
	static constexpr uint32_t FEW = 64;

private:
	/*
	 * Is that little of a suspended entry? To restore it pins all of it, and swaps it in. Small
	 * wishes add up: so a part that is used again and again costs about twice as much as if it
	 * had been restored at once, at most.
	 */
	static bool wants_little(entry<Env> &e, const wish &want)
	{
		const uint64_t mask = Env::page_mask(), in_page = want.addr & mask;

		e.wanted += (in_page + want.length + mask) & ~mask;
		if (e.size() >= MUCH && e.wanted < e.size() / GOOD_PART)
			return true;
		e.wanted = 0;
		return false;
	}

	void push(uint32_t *list, uint32_t i)
	{
		at(i).link = *list;
		*list = i;
	}

	uint32_t pop(uint32_t *list)
	{
		const uint32_t i = *list;

		if (i)
			*list = at(i).link;
		return i;
	}

	void uncatalog(uint32_t i)
	{
		uint64_t seen = at(i).word.peek_relaxed();

		if (seen & entry_word<Env>::DOOMED)
			return;
		if (seen & entry_word<Env>::INVALID)
			a.owner[at(i).owner].counted.invalidations++;
		erase(i);
	}

	void erase(uint32_t i)
	{
		a.index.erase(i, a.entries);
		a.hint.drop(a.hint_bits(), i, a.entries);
		a.entry_count--;
		a.views -= at(i).views;
	}

	bool evict_this(uint32_t i)
	{
		uint64_t seen = at(i).word.peek_relaxed();

		if (!close(i))
			return false;
		/* No other thread can have doomed it: that needs the mutex. */
		if (seen & entry_word<Env>::DOOMED)
			return true;
		erase(i);
		if (seen & entry_word<Env>::INVALID)
			a.owner[at(i).owner].counted.invalidations++;
		else
			a.owner[at(i).owner].counted.evictions++;
		return true;
	}

	[[gnu::noinline]] int bury_all(uint32_t held)
	{
		int error = 0;

		while (dead) {
			uint32_t batch[BURIED_AT_ONCE];
			int bad[BURIED_AT_ONCE];
			uint32_t count = 0;
			operation mine;

			for (; count < BURIED_AT_ONCE && dead; count++) {
				batch[count] = dead;
				dead = at(dead).link;
				/* Its context is gone, and the registration with it. */
				bad[count] = a.owner[at(batch[count]).owner].is_gone() ? GONE : 0;
			}
			a.inside.enter(&mine, nullptr);
			a.mutex.unlock();
			for (uint32_t n = 0; n < count; n++)
				if (bad[n] != GONE)
					bad[n] = env.dereg(at(batch[n]).registration());
			a.mutex.lock();
			for (uint32_t n = 0; n < count; n++) {
				if (bad[n] && bad[n] != GONE)
					error = bad[n];
				was_buried(batch[n], bad[n], batch[n] == held);
			}
			a.inside.leave(&mine);
		}
		return error;
	}

	void was_buried(uint32_t i, int bad, bool held)
	{
		a.burying--;
		be_busy(i, -1);
		if (!bad || bad == GONE) {
			a.buried++;
			free(i, bad == GONE);
		} else if (held) {
			at(i).state = state::OPEN;
			at(i).word.doom_relaxed();
			at(i).word.open_release(1);
		} else {
			at(i).state = state::PARKED;
		}
	}

	static constexpr uint32_t BURIED_AT_ONCE = 32;
	static constexpr int GONE = -1;

	uint32_t dead = 0; // linked by entry.link
};

} // namespace mr_cache

#endif // MR_CACHE_LOCKED_H
