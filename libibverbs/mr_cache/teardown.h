// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: the state, and how an entry ends: retired, evicted, buried.
 * Rules that hold whenever the mutex is free:
 *   an entry may be found (is in the catalog) if and only if it is OPEN and not DOOMED;
 *   a word is closed, doomed, catalogued and uncatalogued under the mutex only;
 *   an entry that is not FREE is in the lists of its owner and of its PD;
 *   what is MAKING or DYING belongs to one thread, which is inside the registrar, and
 *   which its owner and its PD count as busy.
 * So under the mutex, what the catalog gives is open, and a reference taken from it
 * is one. The registrar is called without the mutex; whoever comes back from it
 * looks at everything again.
 *
 * An owner or a PD must not go while somebody is inside the registrar for it. Who loses,
 * if a flush ended what it found, and no more:
 *
 *   a thread of another owner      ibv_close_device()
 *   evicts an entry, closes it
 *                                  flush: no open entry
 *                                  frees the context
 *   deregisters in that context
 *
 * So a flush waits until nobody is busy. It cannot wait for references: a user may have
 * forgotten his. But a reader who took one in vain, on the strength of an old hint, gives
 * it back in a moment; the flush gives way to such a one for some time, and then leaves
 * the entry to its last user. Who that is, is told by the owner's record: one without a
 * name is of a context that was closed, and is forgotten and not deregistered.
 */
#ifndef MR_CACHE_TEARDOWN_H
#define MR_CACHE_TEARDOWN_H

#include <cerrno>

#include "arena.h"

namespace mr_cache {

template <class Env> class teardown {
public:
	Env env{};

protected:
	/* Set once; all that was written before is seen by whoever sees it. */
	class arena_pointer {
	public:
		arena<Env> *get() const { return p.load(std::memory_order_acquire); }
		arena<Env> *operator->() const { return get(); }
		explicit operator bool() const { return get(); }
		bool publish(arena<Env> *to)
		{
			arena<Env> *nothing = nullptr;

			return p.compare_exchange_strong(nothing, to, std::memory_order_acq_rel,
							 std::memory_order_acquire);
		}

	private:
		std::atomic<arena<Env> *> p{nullptr};
	};

	using operation = typename arena<Env>::operation;

	arena_pointer a;
	std::atomic<uint32_t> generations{0};

	/* The mutex, and the dead: closed entries to be deregistered when it is free. */
	struct holder {
		explicit holder(teardown &c_) : c(c_) { c.a->mutex.lock(); }
		~holder()
		{
			c.bury_all(*this);
			c.a->mutex.unlock();
		}
		holder(const holder &) = delete;
		holder &operator=(const holder &) = delete;

		teardown &c;
		uint32_t dead = 0;
	};

	entry<Env> &at(uint32_t i) { return a->entries[i]; }
	bool is_idle(uint32_t i) { return entry_word<Env>::idle(at(i).word.peek_relaxed()); }

	/* A wrong epoch or sequence makes eviction choose worse, no more. */
	uint64_t now() { return now(*a.get()); }
	static uint64_t now(const arena<Env> &in)
	{
		return in.hot.epoch.load(std::memory_order_relaxed) << 24 |
		       (Env::tick() & 0xffffff);
	}

	static void refer(const entry<Env> &e, uint32_t i, uint32_t generation, mr_cache_ref *ref)
	{
		ref->mr = e.registration();
		ref->addr = e.shown_addr();
		ref->length = e.shown_length();
		ref->index = i;
		ref->generation = generation;
	}

	uint32_t generation() { return a->hot.generation.load(std::memory_order_acquire); }

	/* The arena is all zeros: of a new process, before anybody else sees it, or of a child. */
	bool begin(arena<Env> &in)
	{
		if (!in.commit_hints(in.hint.LEAST) || !in.commit_entry(0))
			return false;
		in.mutex.init();
		in.progress.init();
		in.hot.high.store(1, std::memory_order_relaxed);
		in.hot.hint_bits.store(in.hint.LEAST, std::memory_order_relaxed);
		in.hot.epoch.store(1, std::memory_order_relaxed);
		/* Pairs with the acquire loads of generation. */
		in.hot.generation.store(generations.fetch_add(1, std::memory_order_relaxed) + 1,
					std::memory_order_release);
		return true;
	}

	/* False: there is no cache. */
	bool ready()
	{
		if (!a)
			return false;
		if (generation()) [[likely]]
			return true;

		uint32_t nobody = 0;

		if (a->hot.birth.compare_exchange_strong(nobody, 1, std::memory_order_relaxed,
							 std::memory_order_relaxed))
			(void)begin(*a.get()); // all of it has been accessible before the fork
		while (!generation())
			Env::yield();
		return true;
	}

	/* What tells threads apart; 0 in an Env that has nobody come here from the registrar. */
	static uintptr_t self()
	{
		if constexpr (requires { Env::self(); })
			return Env::self();
		else
			return 0;
	}

	/* Is this thread inside the registrar already? Then it waits for nobody. */
	bool is_nested()
	{
		for (operation *o = a->operations; o; o = o->next)
			if (o->thread && o->thread == self())
				return true;
		return false;
	}

	void enter(operation *mine, const wish *makes)
	{
		*mine = {self(), makes, a->operations};
		a->operations = mine;
	}

	void leave(operation *mine)
	{
		for (operation **o = &a->operations; *o; o = &(*o)->next) {
			if (*o == mine) {
				*o = mine->next;
				break;
			}
		}
		if (a->waiting)
			a->progress.broadcast();
	}

	/* Lets go of the mutex until an operation ends. */
	void wait()
	{
		a->waiting++;
		a->progress.wait(a->mutex);
		a->waiting--;
	}

	void be_busy(uint32_t i, int by)
	{
		a->owner[at(i).owner].busy += static_cast<uint32_t>(by);
		a->pd[at(i).pd].busy += static_cast<uint32_t>(by);
	}

	/* Gives back what was taken in vain; the mutex is free. */
	void untake(uint32_t i)
	{
		uint64_t seen = at(i).word.untake_release();

		if (!entry_word<Env>::used(seen)) {
			at(i).word.restore_relaxed();
		} else if (entry_word<Env>::over(seen - entry_word<Env>::REF -
						 entry_word<Env>::USE)) {
			holder lock(*this);

			if (entry_word<Env>::over(at(i).word.peek_relaxed()))
				retire(lock, i);
		}
	}

	/* The same under the mutex. */
	void untake(holder &lock, uint32_t i)
	{
		if (!entry_word<Env>::used(at(i).word.untake_release()))
			at(i).word.restore_relaxed();
		if (entry_word<Env>::over(at(i).word.peek_relaxed()))
			retire(lock, i);
	}

	/* A closed entry of nobody's, or 0. */
	uint32_t allocate()
	{
		uint32_t i = a->free_entry;

		if (i) {
			a->free_entry = at(i).link;
			return i;
		}
		i = a->hot.high.load(std::memory_order_relaxed);
		if (i == Env::entries || !a->commit_entry(i))
			return 0;
		at(i).word.close_fresh_relaxed();
		a->hot.high.store(i + 1, std::memory_order_relaxed);
		return i;
	}

	void free(uint32_t i)
	{
		a->owner.remove(at(i).owner, a->entries, i);
		a->pd.remove(at(i).pd, a->entries, i);
		at(i).forget();
		at(i).state = state::FREE;
		at(i).word.clean_relaxed();
		at(i).link = a->free_entry;
		a->free_entry = i;
	}

	/* Out of the catalog; torn down now if idle, by its last user if not. OPEN entries only. */
	void retire(holder &lock, uint32_t i)
	{
		uncatalog(i);
		at(i).word.doom_relaxed();
		close(lock, i);
	}

	void uncatalog(uint32_t i)
	{
		uint64_t seen = at(i).word.peek_relaxed();

		if (seen & entry_word<Env>::DOOMED)
			return;
		if (seen & entry_word<Env>::INVALID)
			a->owner[at(i).owner].counted.invalidations++;
		erase(i);
	}

	void erase(uint32_t i)
	{
		a->index.erase(i, a->entries);
		a->hint.drop(a->hot.hint_bits.load(std::memory_order_relaxed), i, a->entries);
		a->entry_count--;
	}

	/* If nobody has it but the caller, so often. */
	bool close(holder &lock, uint32_t i, uint64_t references = 0)
	{
		uint64_t seen;

		if (!at(i).word.close_acquire(references, &seen))
			return false;
		a->owner[at(i).owner].counted.hits += entry_word<Env>::uses(seen);
		a->owner[at(i).owner].counted.suspensions += entry_word<Env>::suspended(seen);
		bequeath(lock, i);
		return true;
	}

	/* A closed entry, to the dead. */
	void bequeath(holder &lock, uint32_t i)
	{
		at(i).state = state::DYING;
		be_busy(i, 1);
		a->burying++;
		at(i).link = lock.dead;
		lock.dead = i;
	}

	/* One idle entry of an owner less; its index, or 0. */
	uint32_t evict(holder &lock, uint32_t o)
	{
		for (int collected = 0; collected < 2; collected++) {
			owner_record<Env> &of = a->owner[o];

			if (collected)
				of.oldest.collect(of.list, a->entries);
			while (uint32_t i = of.oldest.next(o, a->entries))
				if (evict_this(lock, i))
					return i;
		}
		return 0;
	}

	/* Of any owner, in turns. */
	uint32_t evict_any(holder &lock)
	{
		for (uint32_t n = a->owner.size(); n; n--) {
			if (++a->turn >= a->owner.size())
				a->turn = 0;
			if (uint32_t i = evict(lock, a->turn))
				return i;
		}
		return 0;
	}

	bool evict_this(holder &lock, uint32_t i)
	{
		uint64_t seen = at(i).word.peek_relaxed();

		if (!close(lock, i))
			return false;
		/* Nobody else can have doomed it: that needs the mutex. */
		if (seen & entry_word<Env>::DOOMED)
			return true;
		erase(i);
		if (seen & entry_word<Env>::INVALID)
			a->owner[at(i).owner].counted.invalidations++;
		else
			a->owner[at(i).owner].counted.evictions++;
		return true;
	}

	uint32_t evict_all(holder &lock, uint32_t o)
	{
		uint32_t evicted = 0;
		auto &list = a->owner[o].list;

		for (uint32_t i = list.begin(), n = list.size(); n;
		     i = list.after(a->entries, i), n--)
			if (is_idle(i))
				evicted += evict_this(lock, i);
		return evicted;
	}

	/*
	 * Deregisters the dead with the mutex free, some at a time. One that cannot be is
	 * PARKED; but if it is `held`, its user has it still.
	 */
	int bury_all(holder &lock, uint32_t held = 0) { return lock.dead ? bury(lock, held) : 0; }

	[[gnu::noinline]] int bury(holder &lock, uint32_t held)
	{
		int error = 0;

		while (lock.dead) {
			uint32_t batch[BURIED_AT_ONCE];
			int bad[BURIED_AT_ONCE];
			uint32_t count = 0;
			operation mine;

			for (; count < BURIED_AT_ONCE && lock.dead; count++) {
				batch[count] = lock.dead;
				lock.dead = at(lock.dead).link;
				/* Its context is gone, and the registration with it. */
				bad[count] = a->owner[at(batch[count]).owner].is_gone() ? GONE : 0;
			}
			enter(&mine, nullptr);
			a->mutex.unlock();
			for (uint32_t n = 0; n < count; n++)
				if (bad[n] != GONE)
					bad[n] = env.dereg(at(batch[n]).registration());
			a->mutex.lock();
			for (uint32_t n = 0; n < count; n++) {
				if (bad[n] && bad[n] != GONE)
					error = bad[n];
				was_buried(batch[n], bad[n] && bad[n] != GONE, batch[n] == held);
			}
			leave(&mine);
		}
		return error;
	}

	void was_buried(uint32_t i, bool failed, bool held)
	{
		a->burying--;
		be_busy(i, -1);
		if (!failed) {
			a->buried++;
			free(i);
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
};

} // namespace mr_cache

#endif // MR_CACHE_TEARDOWN_H
