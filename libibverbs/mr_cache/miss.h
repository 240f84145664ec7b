// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * If the search without the mutex fails, this class serves the request. It searches with the mutex,
 * waits for a thread that registers the same range, makes room, registers, and publishes the entry.
 *
 * The wait ends after some milliseconds, because a longer wait could be a deadlock. The other
 * thread may wait for the program's pager (userfaultfd), which may need a lock of this thread.
 * After the wait this thread registers, too. The larger entry stays indexed (deserves_place()).
 */
#ifndef MR_CACHE_MISS_H
#define MR_CACHE_MISS_H

#include <cerrno>

#include "locked.h"
#include "merge.h"

namespace mr_cache {

template <class Env> class miss {
public:
	/* In version `as_of` the index has no entry for the request. */
	miss(arena<Env> &in, Env &env, const request &wanted, void *of_owner, uint64_t as_of)
	    : lock(in, env), a(in), want(wanted), who(of_owner), version(as_of)
	{
	}

	[[nodiscard]] int acquire(mr_cache_ref *ref)
	{
		while (lock) {
			bool plain = false;
			uint32_t i =
				a.index.version() == version ? 0 : lock.find_valid(want, &plain);

			if (i)
				return a.hit(i, lock.generation, ref);
			if (plain || !lock)
				return EOPNOTSUPP;
			version = a.index.version();
			/* Do this before find(), because dereg_pending() unlocks the mutex. */
			if (lock.has_pending()) {
				lock.dereg_pending();
				continue;
			}
			i = lock.is_nested() ? 0 : a.making.find(want, a.entries);
			if (i) {
				(void)lock.await(&lock.at(i).until);
				continue;
			}

			uint32_t o = a.owner.find_or_add(who, lock.env);

			if (o == a.owner.NONE)
				return EOPNOTSUPP;

			const uint64_t size = wanted_size();

			if (!a.owner[o].has_room(size)) {
				if (!make_room(o, size))
					return EOPNOTSUPP;
				continue;
			}
			sweep();
			i = lock.allocate();
			if (!i) {
				if (!lock.evict(o) && !lock.shrink(0, lock.ALL))
					return EOPNOTSUPP;
				continue;
			}

			const request whole = a.owner[o].merge_looks ? merged(a.owner[o]) : want;
			const int error = make(i, o, whole, ref);

			if (!lock || !error || whole.length == want.length)
				return error;
			a.owner[o].merge_looks = -REMEMBERED;
		}
		return EOPNOTSUPP;
	}

private:
	/* Retires idle entries whose memory was unmapped, because no request would find them. */
	void sweep()
	{
		for (uint32_t n = SWEPT; n; n--) {
			if (++a.hand >= a.high())
				a.hand = 1;
			if (entry_word<Env>::over(lock.at(a.hand).word.peek_relaxed()))
				lock.retire(a.hand);
		}
	}

	/* Returns false if the limits of the owner are too low, or if too few bytes are idle. */
	bool make_room(uint32_t o, uint64_t size)
	{
		owner_record<Env> &of = a.owner[o];
		uint64_t freed = 0, entries = 0;
		const uint32_t looks = looks_for_room(o, size);

		if (!looks)
			return false;
		do {
			uint32_t i = lock.evict(o, looks);

			if (!i)
				return lock.has_pending();
			freed += lock.at(i).size();
			entries++;
		} while (of.counted.bytes - freed > of.limits.max_bytes - size ||
			 of.counted.entries - entries >= of.limits.max_entries);
		return true;
	}

	/* Returns how many entries to check for each eviction, or 0 if too few bytes are idle. */
	uint32_t looks_for_room(uint32_t o, uint64_t size)
	{
		const owner_record<Env> &of = a.owner[o];
		const uint64_t excess = of.counted.bytes + size - of.limits.max_bytes;

		if (size > of.limits.max_bytes || !of.limits.max_entries)
			return 0;
		if (of.counted.bytes + size <= of.limits.max_bytes ||
		    (of.list.size() > lock.LOOKS && excess < of.counted.bytes / 16))
			return lock.LOOKS;
		return lock.idle_bytes(o, excess) < excess ? 0 : lock.ALL;
	}

	/* Tries a merge only if ranges overlapped recently, and no merge has failed since then. */
	[[gnu::noinline]] request merged(owner_record<Env> &of)
	{
		if (of.merge_looks < 0) {
			of.merge_looks++;
			return want;
		}
		of.merge_looks--;

		const request found = merge<Env>(want, a, of.max_merge).range();

		return of.has_room(found.length) ? found : want;
	}

	uint64_t wanted_size() const
	{
		const uint64_t mask = Env::page_mask();

		return ((want.addr & mask) + want.length + mask) & ~mask;
	}

	int make(uint32_t i, uint32_t o, const request &whole, mr_cache_ref *ref)
	{
		entry<Env> &e = lock.at(i);
		void *mr = nullptr;

		e.describe(whole);
		e.state = state::MAKING;
		e.until = 0;
		e.views = 1;
		e.owner = o;
		a.owner.add(o, a.entries, i);
		a.making.add(i);

		mr_cache_request asked = {want.pd(),
					  a.owner[o].who(),
					  whole.addr,
					  whole.length,
					  want.exact() ? want.addr : e.start(),
					  want.exact() ? want.length : e.size(),
					  want.access & ~static_cast<uint32_t>(MR_CACHE_EXACT),
					  i,
					  lock.generation,
					  whole.length != want.length};
		int error = EOPNOTSUPP;

		/* Pending entries may hold resources that the registration needs. */
		if (lock.has_pending())
			lock.dereg_pending();
		if (lock)
			lock.outside([&] { error = reg_and_settle(asked, e.word, &mr); });

		/* In a child the user gets the MR without an entry. */
		if (!lock) {
			*ref = {mr, i, asked.generation};
			return mr ? 0 : EOPNOTSUPP;
		}
		a.making.remove(i);
		if (error) {
			e.word.unhold_relaxed();
			/* EBUSY means that an MR of a closed context still has the word. */
			lock.free(i, error == EBUSY);
			return error;
		}
		a.owner[o].counted.misses++;
		e.register_as(mr);
		a.hot.epoch.store(a.hot.epoch.load(std::memory_order_relaxed) + 1,
				  std::memory_order_relaxed);
		publish(i);
		return a.hit(i, lock.generation, ref);
	}

	/* Opens the entry with one reference. An entry outside of the catalog is UNLINKED. */
	void publish(uint32_t i)
	{
		entry<Env> &e = lock.at(i);

		e.state = state::OPEN;
		if (!deserves_place(i)) {
			e.word.mark_unlinked_relaxed();
			e.word.open_release(0);
			return;
		}
		e.word.open_release(0);

		const uint64_t views = a.views.load(std::memory_order_relaxed) + e.views;
		const uint32_t more = a.hint.grow(a.last_hint(), views);

		a.views.store(views, std::memory_order_relaxed);
		if (more <= a.ready_hint.load(std::memory_order_relaxed))
			a.hot.last_hint.store(more, std::memory_order_relaxed);
		a.hint.learn(a.hint.hash_of(want), a.last_hint(), i);
	}

	bool deserves_place(uint32_t i)
	{
		entry<Env> &e = lock.at(i);

		if (e.word.peek_relaxed() & entry_word<Env>::KERNEL || a.owner[e.owner].is_gone())
			return false;
		/* The limits may have been lowered after the registration began. */
		if (a.owner[e.owner].is_over())
			return false;
		/* If the version changed, another entry may contain this entry. */
		if (a.index.version() != version) {
			const uint32_t other = a.index.search(e.own_range(), a.entries);

			if (other && lock.at(other).rights() == e.rights())
				return false;
		}

		const auto retire = [&](uint32_t within) {
			if (!e.shows(want))
				e.views += lock.at(within).views;
			lock.retire(within);
		};

		if (a.index.insert(i, a.entries, retire) && a.owner[e.owner].merge_looks >= 0)
			a.owner[e.owner].merge_looks = REMEMBERED;
		return true;
	}

	/* If the registration becomes invalid now, it serves only this request. */
	int reg_and_settle(const mr_cache_request &asked, entry_word<Env> &w, void **mr)
	{
		const int error = lock.env.reg(&asked, w.raw(), mr);

		for (int n = lock.SETTLE_ATTEMPTS; !error && n && w.peek_relaxed() & w.SUSPECT; n--)
			if (lock.env.settle(*mr))
				break;
		return error;
	}

	static constexpr uint32_t SWEPT = 2;
	static constexpr int32_t REMEMBERED = 64; // misses

	locked<Env> lock;
	arena<Env> &a;
	const request &want;
	void *const who;
	uint64_t version;
};

} // namespace mr_cache

#endif // MR_CACHE_MISS_H
