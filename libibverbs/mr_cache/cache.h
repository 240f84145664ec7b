// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The hit path of the registration cache, and the other functions of its interface. arena.h has the
 * state, locked.h has the work under the mutex, and miss.h has the registration. Env has all system
 * functions that the cache needs. Tests have their own Env, with a scheduler and without a kernel.
 *
 * A hit reads the cache line of arena.hot, a bucket of hints, and the line of the entry. The hit
 * writes the entry's line, first the reference, then the stamp. A release writes the line once.
 */
#ifndef MR_CACHE_CACHE_H
#define MR_CACHE_CACHE_H

#include <cerrno>

#include "miss.h"

namespace mr_cache {

template <class Env> class cache {
public:
	Env env{};

	[[nodiscard]] int start() { return memory.start(env); }
	bool is_started() const { return memory.get(); }

	/*
	 * If a registration has exactly this range and rights, returns the registration. Otherwise
	 * jumps to `on_miss`, with a registration that contains the range, or with NULL. All calls
	 * are tail calls, so a hit does not have to save registers.
	 */
	template <class OnMiss>
	[[gnu::always_inline]] void *find(void *pd, uint64_t addr, uint64_t length, uint32_t access,
					  OnMiss on_miss)
	{
		arena<Env> *const a = memory.get();
		const request want(pd, addr, length, access);
		/* In a new child lookup() returns 0, because all hints are 0 until a miss. */
		const uint32_t i = a ? a->hint.lookup(a->hint.hash_of(want), a->last_hint()) : 0;

		if (!i) [[unlikely]]
			return on_miss(pd, addr, length, access, mr_cache_ref{});

		entry<Env> &e = a->entries[i];

		/* Reading the word before get_acquire() would fetch the cache line twice. */
		if (!e.word.usable(e.word.get_acquire())) [[unlikely]]
			return find_nothing(pd, addr, length, access, on_miss, e);
		if (!e.is_for(want)) [[unlikely]]
			return find_part(pd, addr, length, access, on_miss, e);
		e.use(a->now());

		void *mr = e.registration();

		/* If a signal handler has just forked, mr is NULL in the child. */
		if (!mr) [[unlikely]]
			return on_miss(pd, addr, length, access, mr_cache_ref{});
		return mr;
	}

	[[nodiscard]] int acquire(void *pd, void *owner, uint64_t addr, uint64_t length,
				  uint32_t access, mr_cache_ref *ref)
	{
		const request want(pd, addr, length, access);
		arena<Env> *a = memory.ready();

		if (!a || !want.is_possible(Env::page_mask()))
			return EOPNOTSUPP;

		const uint64_t version = a->index.version();
		const uint32_t i = a->index.search(want, a->entries);

		if (i) {
			const uint32_t generation = a->generation();
			entry<Env> &e = a->entries[i];

			if (e.word.usable(e.word.get_acquire()) && e.fits(want)) {
				const int error = a->hit(i, generation, ref);

				a->hint.learn_part(a->hint.hash_of(want), a->last_hint(), i,
						   e.last_use());
				return error;
			}
			put_unused(*a, i);
		}
		a->prepare();
		return miss<Env>(*a, env, want, owner, i ? 0 : version).acquire(ref);
	}

	[[nodiscard, gnu::always_inline]] int release(uint32_t i, uint32_t generation)
	{
		arena<Env> *const a = memory.get();

		if (!a || a->generation() != generation || i >= a->high()) [[unlikely]]
			return release_foreign(generation);

		entry_word<Env> &w = a->entries[i].word;
		uint64_t seen = w.put_release();

		if (!w.simple(seen)) [[unlikely]]
			return release_last(i, seen, generation);
		return 0;
	}

	[[nodiscard]] int covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
	{
		const request want(pd, addr, length, access);

		if (!want.is_possible(Env::page_mask()))
			return 0;

		locked<Env> lock(*memory.ready(), env);
		bool plain = false;
		const uint32_t i = lock ? lock.find_valid(want, &plain) : 0;

		if (i)
			lock.put_unused(i);
		return i != 0;
	}

	[[nodiscard]] int limits(void *who, const ibv_mr_cache_limits *to,
				 ibv_mr_cache_limits *from)
	{
		locked<Env> lock(*memory.ready(), env);

		if (!lock)
			return EBUSY;

		uint32_t o = lock.a.owner.find_or_add(who, env);

		if (o == lock.a.owner.NONE)
			return ENOMEM;
		if (from)
			*from = lock.a.owner[o].limits;
		if (!to)
			return 0;
		lock.a.owner[o].limits = *to;
		/* Each iteration removes an entry, so the loop ends even if deregistering fails. */
		while (lock && lock.a.owner[o].is_over() && lock.evict(o, lock.ALL))
			lock.dereg_pending();
		if (lock)
			lock.retire_excess(o);
		return 0;
	}

	/* If a deregistration fails, more than `keep` bytes stay. */
	[[nodiscard]] int clean(void *who, uint64_t keep)
	{
		locked<Env> lock(*memory.ready(), env);

		if (!lock)
			return EBUSY;

		uint32_t o = lock.a.owner.find(who);

		if (o == lock.a.owner.NONE)
			return 0;

		uint64_t idle = lock.idle_bytes(o);

		while (idle > keep) {
			uint32_t i = lock.evict(o, lock.ALL);

			if (!i)
				break;
			idle -= idle < lock.at(i).size() ? idle : lock.at(i).size();
		}

		const int error = lock.dereg_pending();

		if (!lock.is_nested())
			lock.await_deregs(lock.a.deregistered + lock.a.deregistering);
		return error;
	}

	[[nodiscard]] int query(const void *who, ibv_mr_cache_stats *statistics)
	{
		locked<Env> lock(*memory.ready(), env);

		if (!lock)
			return EBUSY;

		const uint32_t o = lock.a.owner.find(who);

		*statistics = o == lock.a.owner.NONE ? ibv_mr_cache_stats{} : lock.count(o);
		return 0;
	}

	[[nodiscard]] uint64_t idle_bytes()
	{
		locked<Env> lock(*memory.ready(), env);
		uint64_t bytes = 0;

		for (uint32_t i = 1; lock && i < lock.a.high(); i++) {
			const uint64_t seen = lock.at(i).word.peek_relaxed();

			if ((lock.is_idle(i) && !entry_word<Env>::suspended(seen)) ||
			    lock.at(i).state == state::DEREGISTERING)
				bytes += lock.at(i).size();
		}
		return bytes;
	}

	[[nodiscard]] int drain(void *who, const void *pd)
	{
		return locked<Env>(*memory.ready(), env).drain(who, pd);
	}

	uint64_t shrink(uint32_t stage, bool by_cache = false)
	{
		locked<Env> lock(*memory.ready(), env);

		return lock ? lock.shrink(stage, by_cache) : 0;
	}

	int64_t visit(mr_cache_visitor *visitor, const void *by, bool at_end)
	{
		arena<Env> *const a = memory.get();

		/* A child that has not initialized the arena has no entries. */
		if (!a->generation())
			return 0;

		locked<Env> lock(*a, env, at_end ? locked<Env>::FEW : 0);
		int64_t evicted = 0;

		if (!lock)
			return -1;
		for (uint32_t o = 0; o < a->owner.size(); o++) {
			if (a->owner[o].is_gone())
				continue;

			const ibv_mr_cache_stats seen = lock.count(o);

			if (visitor(a->owner[o].who(), &seen, by))
				evicted += lock.evict_all(o);
		}
		return evicted;
	}

	/* Unlinks the entry first. From then on no reader keeps a new reference. */
	[[nodiscard]] int claim(uint32_t i, uint32_t theirs)
	{
		arena<Env> *const a = memory.ready();

		if (!a || a->generation() != theirs || !i || i >= a->high())
			return EINVAL;

		locked<Env> lock(*a, env);
		entry<Env> &e = lock.at(i);

		if (!lock)
			return EAGAIN;
		if (e.state != state::OPEN || lock.is_idle(i))
			return EINVAL;
		lock.retire(i);
		for (uint32_t n = lock.FEW; (e.word.peek_relaxed() & e.word.REFS) > e.word.REF;
		     n--) {
			if (!n || lock.is_nested())
				return EBUSY;
			lock.let_others_run(n);
			if (!lock)
				return EINVAL;
		}
		return 0;
	}

private:
	/* The parameter is the entry, because find() has no free register for an index. */
	template <class OnMiss>
	[[gnu::noinline]] void *find_part(void *pd, uint64_t addr, uint64_t length, uint32_t access,
					  OnMiss on_miss, entry<Env> &e)
	{
		arena<Env> *const a = memory.get();
		const request want(pd, addr, length, access);

		if (!e.fits(want)) [[unlikely]]
			return find_nothing(pd, addr, length, access, on_miss, e);
		e.use(a->now());

		/* Load generation first. If a fork follows this load, mr is NULL in the child. */
		const uint32_t generation = a->generation();
		void *const mr = e.registration();

		if (mr && e.shows(want))
			return mr;
		return on_miss(pd, addr, length, access,
			       mr_cache_ref{mr, a->index_of(e), generation});
	}

	template <class OnMiss>
	[[gnu::noinline]] void *find_nothing(void *pd, uint64_t addr, uint64_t length,
					     uint32_t access, OnMiss on_miss,
					     const entry<Env> &taken)
	{
		arena<Env> *const a = memory.get();

		put_unused(*a, a->index_of(taken));
		return on_miss(pd, addr, length, access, mr_cache_ref{});
	}

	/* Drops a reference to an entry that does not serve the request. Call without the mutex. */
	void put_unused(arena<Env> &a, uint32_t i)
	{
		if (!a.entries[i].word.put_unused_release())
			return;

		locked<Env> lock(a, env);

		if (lock && entry_word<Env>::over(a.entries[i].word.peek_relaxed()))
			lock.retire(i);
	}

	/* Returns 0 for a reference that an ancestor process took, otherwise EINVAL. */
	[[gnu::noinline, gnu::cold]] int release_foreign(uint32_t theirs)
	{
		const arena<Env> *a = memory.get();

		return a && theirs && theirs <= memory.latest() && theirs != a->generation()
			       ? 0
			       : EINVAL;
	}

	[[gnu::noinline, gnu::cold]] int release_last(uint32_t i, uint64_t seen, uint32_t theirs)
	{
		arena<Env> &a = *memory.get();
		entry_word<Env> &w = a.entries[i].word;

		if (w.unused(seen)) {
			w.undo_put_relaxed();
			return release_foreign(theirs);
		}

		locked<Env> lock(a, env);

		/* Another thread may have retired the entry. If this is a signal handler without
		 * the lock, sweep() retires the entry later. */
		if (!lock || !w.over(w.peek_relaxed()))
			return 0;
		lock.retire(i);

		const int error = lock.dereg_pending(i);

		/* If the deregistration failed, the user still has the MR. */
		if (error && lock && w.suspended(w.peek_relaxed()))
			lock.settle(i);
		return error;
	}

	store<Env> memory;
};

} // namespace mr_cache

#endif // MR_CACHE_CACHE_H
