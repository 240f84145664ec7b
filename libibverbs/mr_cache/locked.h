// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The work under the mutex of the cache. An entry changes its state as follows:
 *
 *	      allocate()          publish()        close()                dereg_pending()
 *	FREE -----------> MAKING ----------> OPEN ---------> DEREGISTERING --------------> FREE
 *	  ^                 |                     deregistering |      ^
 *	  '-----------------'                     failed        v      | queue_dereg(): its PD or
 *	  free(): the registrar failed                 DEREG_FAILED ---' its owner ends
 *
 * retire() removes an OPEN entry from the catalog (UNLINKED). If the entry has no users, retire()
 * closes the entry, otherwise the last user does. When a context is closed, entries with users
 * become orphans, which end without a call of the registrar.
 *
 * Whenever the mutex is free, the catalog has exactly the entries that are OPEN and not UNLINKED,
 * and the list of an owner has all its entries that are not FREE. A MAKING or DEREGISTERING entry
 * belongs to one thread. This thread is in the registrar, and checks everything again afterwards.
 *
 * If a signal handler interrupts a thread that has the mutex, or is about to take it, the handler
 * gets no lock (operator bool), and works without the cache. If the handler forks and returns in
 * the child, the interrupted thread continues in an arena of zeros. There all loops of the thread
 * end, and all indexes are valid. When this thread unlocks the mutex, it clears the arena again. If
 * this thread then tries to lock the mutex, it sees another generation, gets no lock, and returns.
 */
#ifndef MR_CACHE_LOCKED_H
#define MR_CACHE_LOCKED_H

#include "arena.h"

namespace mr_cache {

template <class Env> class locked {
public:
	/* Tries to lock the mutex `tries` times. If `tries` is 0, waits for the mutex. */
	locked(arena<Env> &in, Env &with, uint32_t tries = 0)
	    : a(in), env(with), generation(a.generation())
	{
		if (!Env::thread().locks)
			lock(tries);
	}
	~locked()
	{
		if (pending)
			dereg_pending();
		if (held)
			unlock();
	}
	locked(const locked &) = delete;
	locked &operator=(const locked &) = delete;

	/* Check this again after each call that unlocks the mutex. */
	explicit operator bool() const { return held; }

	arena<Env> &a;
	Env &env;
	const uint32_t generation;

	entry<Env> &at(uint32_t i) { return a.entries[i]; }
	bool is_idle(uint32_t i) { return entry_word<Env>::idle(at(i).word.peek_relaxed()); }
	static bool is_nested() { return Env::thread().inside; }
	bool has_pending() const { return pending; }

	/* Unlocks the mutex until a thread leaves the registrar. Returns false at the deadline. */
	bool wait(uint64_t until = 0)
	{
		const auto seen = a.making.progress.ticket();

		unlock();

		const bool in_time = is_child() || a.making.progress.wait(seen, until);

		lock();
		return in_time;
	}

	/* Waits some milliseconds for an event. *until is the earliest deadline of all threads that
	 * wait for the event. At this deadline all threads stop waiting, even if the thread that
	 * set the deadline gets no CPU. */
	bool await(uint64_t *until)
	{
		if (!deadline)
			deadline = Env::deadline();
		if (!*until || deadline < *until)
			*until = deadline;
		if (wait(*until))
			return true;
		if (held) {
			*until = LATE;
			a.making.progress.broadcast();
		}
		return false;
	}

	/* Waits briefly, until a.deregistered is `all` or no thread is deregistering. */
	void await_deregs(uint64_t all)
	{
		while (held && a.deregistering && a.deregistered < all && a.until != LATE)
			await(&a.until);
	}

	/* Lets readers drop unused references. A reader may sleep, so the last waits are longer. */
	void let_others_run(uint32_t left)
	{
		unlock();
		if (left > FEW / 2)
			env.yield();
		else
			env.nap();
		lock();
	}

	void put_unused(uint32_t i)
	{
		if (at(i).word.put_unused_release())
			retire(i);
	}

	/* Returns a closed entry without an owner, or 0. Uses entries of `kernel_words` last. Their
	 * words can't be armed while a child has the closed context's file open. */
	uint32_t allocate()
	{
		uint32_t i = a.high();

		if (a.free_entry)
			return pop(&a.free_entry);
		if (i < Env::entries && a.is_ready(i)) {
			at(i).word.free_fresh_relaxed();
			at(i).word.clean_relaxed(); // in a child the kernel may have set bits
			a.hot.high.store(i + 1, std::memory_order_relaxed);
			return i;
		}
		i = pop(&a.kernel_words);
		if (i)
			at(i).word.clean_relaxed();
		return i;
	}

	/* `of_kernel` means that the kernel may still write the word of the entry. */
	void free(uint32_t i, bool of_kernel = false)
	{
		a.owner.remove(at(i).owner, a.entries, i);
		at(i).forget();
		at(i).state = state::FREE;
		at(i).word.free_relaxed();
		push(of_kernel ? &a.kernel_words : &a.free_entry, i);
	}

	/* Removes owner and PD of an entry, because a later PD may have the same address. */
	void orphan(uint32_t i)
	{
		a.owner.remove(at(i).owner, a.entries, i);
		at(i).forget();
		at(i).owner = a.owner.NAMELESS;
		a.owner.add(at(i).owner, a.entries, i);
	}

	/* Ends the entries of a context. Closing the context ends their registrations. */
	void abandon(uint32_t o)
	{
		auto &list = a.owner[o].list;

		for (uint32_t i = list.begin(), next; i; i = next) {
			uint64_t seen;

			next = list.after(a.entries, i);
			if (at(i).state == state::DEREG_FAILED)
				free(i, true);
			if (at(i).state != state::OPEN)
				continue;
			unlink(i);
			if (at(i).word.close_acquire(&seen))
				free(i, true);
			else if (!at(i).settles)
				orphan(i);
		}
		a.owner.forget(o);
	}

	/*
	 * Ends all entries of an owner, or of a PD if `who` is NULL, before the owner or PD ends.
	 * Waits for threads that call the registrar for such an entry, because these threads use
	 * the context. Waits a few iterations for readers, which drop unused references. Does not
	 * wait for users, which may leak references. The last user of an entry ends the entry.
	 */
	int drain(const void *who, const void *pd)
	{
		uint32_t patience = FEW;
		bool failed_too = true;
		int error = 0;

		while (held) {
			const uint32_t o = a.owner.find(who);
			const uint32_t high = a.high();
			uint32_t used = 0;
			bool busy = false;

			for (uint32_t i = 1; i < high; i++) {
				entry<Env> &e = at(i);

				if (who ? e.state == state::FREE || e.owner != o
					: e.own_range().pd() != pd)
					continue;
				if (e.state == state::OPEN) {
					busy |= e.settles;
					retire(i);
					used += e.state == state::OPEN;
				} else if (e.state != state::DEREG_FAILED) {
					busy = true;
				} else if (failed_too) {
					queue_dereg(i);
				}
			}
			failed_too = false;
			if (pending) {
				if (const int bad = dereg_pending())
					error = bad;
				continue;
			}
			if (busy && !is_nested()) {
				wait();
				continue;
			}
			/* If many entries are used, most have real users, so iterate less. */
			const uint32_t cost = 1 + used / 16;

			if (!used || is_nested() || patience < cost)
				break;
			let_others_run(patience);
			patience -= cost;
		}

		const uint32_t o = a.owner.find(who);

		/* Without a lock, mark the owner. The next holder of the mutex ends its entries. */
		if (o != a.owner.NONE && held)
			abandon(o);
		else if (o != a.owner.NONE)
			a.owner.end(o);
		return error;
	}

	/* The entry must be OPEN. */
	void retire(uint32_t i)
	{
		unlink(i);
		close(i);
	}

	/* Returns false if the entry has references. */
	bool close(uint32_t i)
	{
		uint64_t seen;

		if (!at(i).word.close_acquire(&seen))
			return false;
		a.owner[at(i).owner].counted.hits += entry_word<Env>::uses(seen);
		a.owner[at(i).owner].counted.suspensions += entry_word<Env>::suspended(seen);
		queue_dereg(i);
		return true;
	}

	void queue_dereg(uint32_t i)
	{
		at(i).state = state::DEREGISTERING;
		a.deregistering++;
		push(&pending, i);
	}

	/* Evicts an idle entry of an owner and returns it, or 0. Checks at most `most` entries. */
	uint32_t evict(uint32_t o, uint32_t most = LOOKS)
	{
		/* If a reader takes a reference first, try the next entry. */
		while (uint32_t i = a.owner[o].list.oldest_idle(a.entries, most))
			if (evict_this(i))
				return i;
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

	/* Returns the idle bytes of an owner. Stops counting at `enough`. */
	uint64_t idle_bytes(uint32_t o, uint64_t enough = UINT64_MAX)
	{
		uint64_t bytes = 0;
		auto &list = a.owner[o].list;

		for (uint32_t i = list.begin(); i && bytes < enough; i = list.after(a.entries, i))
			bytes += is_idle(i) ? at(i).size() : 0;
		return bytes;
	}

	ibv_mr_cache_stats count(uint32_t o)
	{
		ibv_mr_cache_stats all = a.owner[o].counted;
		auto &list = a.owner[o].list;

		for (uint32_t i = list.begin(); i; i = list.after(a.entries, i)) {
			const uint64_t seen = at(i).word.peek_relaxed();

			if (at(i).state == state::OPEN) {
				all.hits += entry_word<Env>::uses(seen);
				all.suspensions += entry_word<Env>::suspended(seen);
			}
		}
		return all;
	}

	/* Retires entries beyond the limits. Entries in use end with their last user. */
	void retire_excess(uint32_t o)
	{
		owner_record<Env> &of = a.owner[o];
		uint64_t bytes = of.counted.bytes, entries = of.counted.entries;

		for (uint32_t i = of.list.begin();
		     i && (bytes > of.limits.max_bytes || entries > of.limits.max_entries);
		     i = of.list.after(a.entries, i)) {
			if (at(i).state == state::DEREG_FAILED)
				continue;
			bytes -= at(i).size();
			entries--;
			if (at(i).state == state::OPEN && !evict_this(i))
				retire(i);
		}
	}

	/* Deregisters pending entries unlocked. If entry `keeps` fails, it stays in use. */
	[[gnu::noinline]] int dereg_pending(uint32_t keeps = 0)
	{
		int error = 0;

		while (held && pending) {
			const uint32_t i = pop(&pending);
			void *const mr = at(i).registration();
			bool gone = false;
			int bad = 0;

			outside([&] {
				gone = a.owner[at(i).owner].is_gone();
				bad = gone ? 0 : env.dereg(mr);
			});
			if (!held)
				return 0;
			a.deregistering--;
			a.until = 0;
			error = bad ? bad : error;
			if (!bad) {
				a.deregistered++;
				free(i, gone);
			} else if (i == keeps) {
				at(i).state = state::OPEN;
				at(i).word.mark_unlinked_relaxed();
				at(i).word.open_release(1);
			} else {
				at(i).state = state::DEREG_FAILED;
			}
		}
		return error;
	}

	/* Settles the entry unlocked. The caller has a reference. On failure retires the entry. */
	void settle(uint32_t i)
	{
		entry<Env> &e = at(i);
		bool suspended = e.word.suspended(e.word.peek_relaxed());
		void *const mr = e.registration();
		int error = 0;

		e.settles = true;
		e.until = 0;
		outside([&] { error = env.settle(mr); });
		if (!held)
			return;
		e.settles = false;
		if (error) {
			retire(i);
			return;
		}

		ibv_mr_cache_stats &counted = a.owner[e.owner].counted;
		bool valid = !(e.word.peek_relaxed() & e.word.INVALID);

		counted.suspensions += suspended;
		counted.restorations += suspended && valid;
		counted.suspects += !suspended && valid;
	}

	/* Takes a reference to an entry that serves the request, and returns the entry. Returns 0
	 * if there is none. May unlock the mutex. Sets *plain if another thread takes too long to
	 * settle such an entry (miss.h). */
	uint32_t find_valid(const request &want, bool *plain)
	{
		for (int patience = SETTLE_ATTEMPTS;;) {
			uint32_t i = a.index.search(want, a.entries);

			if (!i)
				return 0;

			entry<Env> &e = at(i);
			uint64_t seen = e.word.get_acquire();

			if (e.word.usable(seen))
				return i;

			if (seen & e.word.INVALID || (e.word.suspended(seen) && is_little(want, e)))
				retire(i);
			else if (seen & (e.word.SUSPECT | e.word.SUSPENDED) && e.settles)
				*plain = is_nested() || e.until == LATE || !await(&e.until);
			else if (seen & (e.word.SUSPECT | e.word.SUSPENDED) && patience--)
				settle(i);
			else if (e.word.fold_relaxed())
				a.owner[e.owner].counted.hits += e.word.uses(e.word.FOLD);
			else
				retire(i); // FULL, an unknown bit, or SUSPECT too often
			if (!held)
				return 0;
			put_unused(i);
			if (*plain)
				return 0;
		}
	}

	/*
	 * Stage 0 evicts up to a sixteenth of all entries. Later stages evict all idle entries.
	 * Returns how many registrations ended in all threads. Calls of the registrar may be
	 * nested, and the command that lacks room has the depth `inside`. At this depth the thread
	 * waits for other threads. An allocator's hook is at another depth, and must not wait.
	 */
	uint64_t shrink(uint32_t stage, uint32_t inside)
	{
		const uint64_t deregistered = a.deregistered;

		for (uint32_t o = 0; o < a.owner.size(); o++)
			if (stage)
				evict_all(o);
			else
				for (uint32_t n = a.owner[o].list.size() / 16 + 1; n && evict(o);)
					n--;
		dereg_pending();
		if (Env::thread().inside == inside)
			await_deregs(deregistered + 1);
		return held ? a.deregistered - deregistered : 0;
	}

	/* Calls `call` unlocked. calloc() may be a cancellation point, so disables cancellation. */
	template <class Call> void outside(const Call &call)
	{
		const int cancel = Env::disable_cancel();

		Env::thread().inside++;
		unlock();
		if (!is_child())
			call();
		lock();
		Env::thread().inside--;
		if (held)
			a.making.progress.broadcast();
		Env::restore_cancel(cancel);
	}

	/* Was this process forked after the object was made, or is its arena still all zeros? */
	bool is_child() const { return !generation || a.generation() != generation; }

	static constexpr int SETTLE_ATTEMPTS = 16;
	static constexpr uint32_t FEW = 64;
	static constexpr uint32_t LOOKS = 64, ALL = UINT32_MAX;

private:
	/* Sets `locks` first, so a signal handler that forks does not initialize the arena. */
	void lock(uint32_t tries = 0)
	{
		bool &locks = Env::thread().locks;

		locks = true;
		std::atomic_signal_fence(std::memory_order_seq_cst);
		held = !is_child() && take_mutex(tries);
		std::atomic_signal_fence(std::memory_order_seq_cst);
		locks = held;
		if (held && a.owner.some_ended()) [[unlikely]]
			abandon_ended();
	}

	/* Ends the entries of contexts that signal handlers closed without the mutex. */
	[[gnu::noinline]] void abandon_ended()
	{
		a.owner.see_ended();
		for (uint32_t o = 0; o < a.owner.size(); o++)
			if (a.owner[o].is_gone())
				abandon(o);
	}

	bool take_mutex(uint32_t tries)
	{
		if (!tries) {
			a.mutex.lock();
			return true;
		}
		while (!a.mutex.try_lock()) {
			if (!--tries)
				return false;
			env.yield();
		}
		return true;
	}

	void unlock()
	{
		held = false;
		if (is_child())
			env.clear(&a, sizeof(a));
		else
			a.mutex.unlock();
		std::atomic_signal_fence(std::memory_order_seq_cst);
		Env::thread().locks = false;
		/* If a signal handler has just closed a context, lock() ends its entries. */
		if (a.owner.some_ended()) [[unlikely]] {
			lock();
			if (held)
				unlock();
		}
	}

	/* Is the request smaller than 1/8 of a large entry? A restore would pin the whole entry. */
	static bool is_little(const request &want, const entry<Env> &of)
	{
		return of.size() >= 256 << 10 && want.length < of.size() / 8;
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

	/* `seen` is the word of the entry while the entry was open. */
	void uncatalog(uint32_t i, uint64_t seen, bool evicted = false)
	{
		ibv_mr_cache_stats &counted = a.owner[at(i).owner].counted;

		if (seen & entry_word<Env>::UNLINKED)
			return;
		if (seen & entry_word<Env>::INVALID)
			counted.invalidations++;
		else
			counted.evictions += evicted;
		a.index.erase(i, a.entries);
		a.hint.drop(a.last_hint(), i, a.entries);
		a.views.store(a.views.load(std::memory_order_relaxed) - at(i).views,
			      std::memory_order_relaxed);
	}

	void unlink(uint32_t i)
	{
		uncatalog(i, at(i).word.peek_relaxed());
		at(i).word.mark_unlinked_relaxed();
	}

	bool evict_this(uint32_t i)
	{
		const uint64_t seen = at(i).word.peek_relaxed();

		if (!close(i))
			return false;
		uncatalog(i, seen, true);
		return true;
	}

	uint32_t pending = 0;  // a list of entries to deregister, linked by entry.link
	uint64_t deadline = 0; // the deadline of all short waits of this object; 0 before the first
	bool held = false;
};

} // namespace mr_cache

#endif // MR_CACHE_LOCKED_H
