// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: the state, and how an entry ends: retired, evicted, buried.
 * Rules that hold whenever the mutex is free:
 *   an entry is open and not DOOMED if and only if it is in the index;
 *   a word is closed, doomed, indexed and unindexed under the mutex only;
 *   what is closed and not on the free list belongs to one thread, which is
 *   registering or deregistering it.
 * So under the mutex, what the index gives is open, and a reference taken from it
 * is one. The registrar is called without the mutex; whoever comes back from it
 * looks at everything again.
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
	arena<Env> *a = nullptr;
	uint32_t generations = 0;

	static constexpr uint64_t seen_closed = entry_word<Env>::CLOSED;

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
	bool is_open(uint32_t i) { return !(at(i).word.peek_relaxed() & seen_closed); }
	bool is_idle(uint32_t i) { return entry_word<Env>::idle(at(i).word.peek_relaxed()); }

	/* A wrong epoch or sequence makes eviction choose worse, no more. */
	uint64_t now() { return now(*a); }
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

	/* The arena is all zeros: of a new process, or of a child. */
	void begin()
	{
		a->mutex.init();
		a->arrived.init();
		a->high = 1;
		a->hot.hint_bits.store(a->hint.LEAST, std::memory_order_relaxed);
		a->hot.epoch.store(1, std::memory_order_relaxed);
		/* Pairs with the acquire loads of generation. */
		a->hot.generation.store(++generations, std::memory_order_release);
	}

	bool ready()
	{
		if (generation()) [[likely]]
			return true;

		uint32_t nobody = 0;

		if (a->hot.birth.compare_exchange_strong(nobody, 1, std::memory_order_relaxed,
							 std::memory_order_relaxed))
			begin();
		while (!generation())
			Env::yield();
		return true;
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

	uint32_t allocate()
	{
		uint32_t i = a->free_entry;

		if (i) {
			a->free_entry = at(i).link;
		} else if (a->high < Env::entries) {
			i = a->high++;
			at(i).word.close_fresh_relaxed();
		}
		return i;
	}

	void free(uint32_t i)
	{
		at(i).forget();
		at(i).word.clean_relaxed();
		at(i).link = a->free_entry;
		a->free_entry = i;
	}

	/* Out of the index; torn down now if idle, by its last user if not. Open entries only. */
	void retire(holder &lock, uint32_t i)
	{
		entry<Env> &e = at(i);

		unindex(i);
		e.word.doom_relaxed();
		close(lock, i);
	}

	void unindex(uint32_t i)
	{
		entry<Env> &e = at(i);
		uint64_t seen = e.word.peek_relaxed();

		if (seen & entry_word<Env>::DOOMED)
			return;
		if (seen & entry_word<Env>::INVALID)
			a->owner[e.owner].counted.invalidations++;
		a->index.erase(i, e.pd_key(), e.rights());
		a->entry_count--;
	}

	bool close(holder &lock, uint32_t i)
	{
		entry<Env> &e = at(i);
		uint64_t seen;

		if (!e.word.close_acquire(&seen))
			return false;
		a->owner[e.owner].counted.hits += e.word.uses(seen);
		e.link = lock.dead;
		lock.dead = i;
		return true;
	}

	/* One idle entry less; its index, or 0. */
	uint32_t evict(holder &lock, uint32_t o)
	{
		for (int scans = 0; scans < 2;) {
			uint32_t i = a->batch.next(o, a->entries);

			if (!i) {
				uint64_t all = o == a->batch.ANY ? a->entry_count
								 : a->owner[o].counted.entries;

				a->batch.collect(o, a->entries, a->high, all / 16);
				scans++;
			} else if (evict_this(lock, i)) {
				return i;
			}
		}
		return 0;
	}

	bool evict_this(holder &lock, uint32_t i)
	{
		uint64_t seen = at(i).word.peek_relaxed();

		if (!close(lock, i))
			return false;
		/* Nobody else can have doomed it: that needs the mutex. */
		if (!(seen & entry_word<Env>::DOOMED)) {
			a->index.erase(i, at(i).pd_key(), at(i).rights());
			a->entry_count--;
		}
		a->owner[at(i).owner].counted.evictions++;
		return true;
	}

	uint32_t evict_all(holder &lock, uint32_t o)
	{
		uint32_t evicted = 0;

		for (uint32_t i = 1; i < a->high; i++)
			if (is_idle(i) && (o == a->batch.ANY || at(i).owner == o))
				evicted += evict_this(lock, i);
		return evicted;
	}

	/*
	 * Deregisters the dead with the mutex free. One that cannot be is opened again,
	 * doomed, so that a flush tries it again; with a reference if it is `held`, whose
	 * user then has it still.
	 */
	int bury_all(holder &lock, uint32_t held = 0) { return lock.dead ? bury(lock, held) : 0; }

	[[gnu::noinline]] int bury(holder &lock, uint32_t held)
	{
		int error = 0;

		while (lock.dead) {
			uint32_t list = lock.dead, failed = 0, done = 0;

			lock.dead = 0;
			a->mutex.unlock();
			while (list) {
				uint32_t i = list;
				int bad = env.dereg(at(i).registration());
				uint32_t &to = bad ? failed : done;

				if (bad)
					error = bad;
				list = at(i).link;
				at(i).link = to;
				to = i;
			}
			a->mutex.lock();
			while (done) {
				uint32_t i = done;

				done = at(i).link;
				a->owner[at(i).owner].remove(at(i).size());
				free(i);
			}
			while (failed) {
				uint32_t i = failed;

				failed = at(i).link;
				at(i).word.doom_relaxed();
				at(i).word.open_release(i == held);
			}
		}
		return error;
	}
};

} // namespace mr_cache

#endif // MR_CACHE_TEARDOWN_H
