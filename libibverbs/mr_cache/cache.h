// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: its hit path. What is not a hit is in
 * slow_path.h, how an entry ends in teardown.h, what owners ask for in control.h.
 *
 * A hit reads the line of arena.hot (generation, epoch), a bucket of hints, and the
 * line of the entry, which it changes twice: the reference and the stamp. A
 * release changes it once. No lock, no system call, no other write.
 *
 * Everything that the cache needs comes by Env: atomics, mutex and condition,
 * zeroed pages, the registrar, the sizes. So tests run it under a scheduler of
 * their own, and without a kernel.
 */
#ifndef MR_CACHE_CACHE_H
#define MR_CACHE_CACHE_H

#include <cerrno>

#include "control.h"

namespace mr_cache {

template <class Env> class cache : private control<Env> {
	using slow = control<Env>;
	using slow::a;

public:
	using slow::clean;
	using slow::covers;
	using slow::env;
	using slow::flush_owner;
	using slow::flush_pd;
	using slow::forget;
	using slow::is_started;
	using slow::limits;
	using slow::make_way;
	using slow::query;
	using slow::reclaim;
	using slow::start;
	using slow::take;

	[[nodiscard, gnu::always_inline]] int acquire(void *pd, void *owner, uint64_t addr,
						      uint64_t length, uint32_t access,
						      mr_cache_ref *ref)
	{
		arena<Env> *const mine = a.get();

		if (!mine) [[unlikely]]
			return EOPNOTSUPP;

		/* Acquire pairs with begin(): a child's arena is complete. */
		uint32_t generation = mine->hot.generation.load(std::memory_order_acquire);
		uint32_t bits = mine->hot.hint_bits.load(std::memory_order_relaxed);

		if (!generation) [[unlikely]]
			return slow::acquire(wish(pd, addr, length, access), pd, owner, 0, ref);

		const wish want(pd, addr, length, access);
		uint32_t i = mine->hint.look(want, bits);

		if (!i) [[unlikely]]
			return slow::acquire(wish(want), pd, owner, 0, ref);

		entry<Env> &e = mine->entries[i];

		/* No look before: it would cost a line that is another CPU's twice. */
		if (!e.word.usable(e.word.take_acquire()) || !e.fits(want)) [[unlikely]]
			return slow::acquire(wish(want), pd, owner, i, ref);
		e.use(slow::now(*mine));
		slow::refer(e, i, generation, ref);
		return 0;
	}

	[[nodiscard, gnu::always_inline]] int release(uint32_t i, uint32_t generation)
	{
		arena<Env> *const mine = a.get();

		if (!mine || mine->hot.generation.load(std::memory_order_acquire) != generation ||
		    i >= mine->hot.high.load(std::memory_order_relaxed)) [[unlikely]]
			return slow::release_foreign(generation);

		entry_word<Env> &w = mine->entries[i].word;
		uint64_t seen = w.give_release();

		if (!w.simple(seen)) [[unlikely]]
			return slow::release(i, seen);
		return 0;
	}
};

} // namespace mr_cache

#endif // MR_CACHE_CACHE_H
