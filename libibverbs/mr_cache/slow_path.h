// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: an acquisition that is no hit, and a release that is not simple.
 *
 * Two who miss the same range: the first is on the way; the second finds that,
 * waits, and looks again. Two whose ranges overlap both register; what contains
 * the other stays in the index, the other one becomes a plain registration.
 */
#ifndef MR_CACHE_SLOW_PATH_H
#define MR_CACHE_SLOW_PATH_H

#include <cerrno>

#include "teardown.h"

namespace mr_cache {

template <class Env> class slow_path : public teardown<Env> {
protected:
	using base = teardown<Env>;
	using base::a;
	using base::allocate;
	using base::at;
	using base::bury_all;
	using base::evict;
	using base::evict_all;
	using base::free;
	using base::generation;
	using base::now;
	using base::ready;
	using base::refer;
	using base::retire;
	using base::untake;
	using typename base::holder;

	/* A reference of an ancestor is nothing to us; one that nobody ever got is an error. */
	[[gnu::noinline, gnu::cold]] int release_foreign(uint32_t theirs)
	{
		if (!a || !ready())
			return EINVAL;
		return theirs && theirs < generation() ? 0 : EINVAL;
	}

	/* After give(), of whoever saw that he was the last one of something that is to go. */
	[[gnu::noinline, gnu::cold]] int release(uint32_t i, uint64_t seen)
	{
		if (!entry_word<Env>::used(seen)) {
			at(i).word.restore_relaxed();
			return EINVAL;
		}

		holder lock(*this);

		/* Somebody else may have been faster, and the entry be another by now. */
		if (!entry_word<Env>::over(at(i).word.peek_relaxed()))
			return 0;
		retire(lock, i);
		return bury_all(lock, i);
	}

	/* No hint, or one for which an entry was taken in vain: the index, then all the rest. */
	[[gnu::noinline]] int acquire(const wish &want, void *pd, void *who, uint32_t taken,
				      mr_cache_ref *ref)
	{
		if (taken)
			untake(taken);
		if (!ready() || !is_for_us(want))
			return EOPNOTSUPP;

		uint64_t version = a->index.version();
		uint32_t i = a->index.search(want, a->entries);

		if (i) {
			entry<Env> &e = at(i);

			if (e.word.usable(e.word.take_acquire()) && e.fits(want)) {
				hit(i, want, ref);
				return 0;
			}
			untake(i);
			version = UNKNOWN;
		}
		return acquire_locked(want, pd, who, version, ref);
	}

	void hit(uint32_t i, const wish &want, mr_cache_ref *ref)
	{
		at(i).use(now());
		a->hint.learn(want, a->hot.hint_bits.load(std::memory_order_relaxed), i);
		refer(at(i), i, generation(), ref);
	}

	static bool is_for_us(const wish &want)
	{
		uint64_t end;

		return want.key > 1 && want.length &&
		       !(want.access & ~(RIGHTS | MR_CACHE_RELAXED_ORDERING)) &&
		       !__builtin_add_overflow(want.addr, want.length, &end) &&
		       end <= ~Env::page_mask();
	}

	/* As of that version of the index there is none. */
	int acquire_locked(const wish &want, void *pd, void *who, uint64_t version,
			   mr_cache_ref *ref)
	{
		holder lock(*this);

		for (;;) {
			uint32_t i = a->index.version() == version ? 0 : find_valid(lock, want);

			if (i) {
				hit(i, want, ref);
				return 0;
			}
			version = a->index.version();
			/*
			 * Deregister first what is dead: it may have been what was in the way.
			 * That lets go of the mutex, so it comes before the wait and not between
			 * looking and waiting: whom one would wait for may arrive meanwhile.
			 */
			if (lock.dead) {
				bury_all(lock);
				continue;
			}
			if (is_on_the_way(want)) {
				a->waiting++;
				a->arrived.wait(a->mutex);
				a->waiting--;
				continue;
			}

			uint32_t o = a->owner.find_or_add(who, this->env.default_limits());
			uint64_t start = want.addr & ~Env::page_mask();
			uint64_t end =
				(want.addr + want.length + Env::page_mask()) & ~Env::page_mask();
			mr_cache_request request = {pd,	   who,		want.addr,  want.length,
						    start, end - start, want.access};

			if (o == a->owner.NONE || request.size > a->owner[o].limits.bytes)
				return EOPNOTSUPP;
			if (!a->owner[o].has_room(request.size)) {
				if (!evict(lock, o))
					return EOPNOTSUPP;
				continue;
			}
			i = allocate();
			if (!i) {
				if (!evict(lock, a->batch.ANY))
					return EOPNOTSUPP;
				continue;
			}
			at(i).owner = o;
			return make(lock, i, want, version, request, ref);
		}
	}

	/*
	 * An entry of the index that serves, with a reference taken; or 0. May let go
	 * of the mutex to settle; then what it says is as of afterwards.
	 */
	uint32_t find_valid(holder &lock, const wish &want)
	{
		for (int patience = SETTLE_ATTEMPTS;;) {
			uint32_t i = a->index.search(want, a->entries);

			if (!i || !is_for_us(want))
				return 0;

			entry<Env> &e = at(i);
			uint64_t seen = e.word.take_acquire();

			if (e.word.usable(seen))
				return i;
			if (seen & e.word.INVALID)
				retire(lock, i);
			else if (seen & e.word.SUSPECT && patience--)
				settle(lock, i);
			else if (e.word.fold_relaxed())
				a->owner[e.owner].counted.hits += e.word.uses(e.word.FOLD);
			else
				retire(lock, i); // a bit that nobody knows, or no end of suspicion
			untake(lock, i);
		}
	}

	/* With a reference; lets go of the mutex. What cannot be settled is not used. */
	void settle(holder &lock, uint32_t i)
	{
		a->mutex.unlock();

		int error = this->env.settle(at(i).registration());

		a->mutex.lock();
		if (error)
			retire(lock, i);
		else if (!(at(i).word.peek_relaxed() & entry_word<Env>::INVALID))
			a->owner[at(i).owner].counted.suspects_settled++;
	}

	bool is_on_the_way(const wish &want)
	{
		for (auto *p = a->on_the_way; p; p = p->next)
			if (p->key == want.key && p->request->start <= want.addr &&
			    want.addr + want.length <= p->request->start + p->request->size &&
			    !(want.access & ~p->request->access))
				return true;
		return false;
	}

	/* Registers with the mutex free, and makes an entry of it, if it deserves one. */
	int make(holder &lock, uint32_t i, const wish &want, uint64_t version,
		 const mr_cache_request &request, mr_cache_ref *ref)
	{
		typename arena<Env>::pending mine = {&request, want.key, a->on_the_way};
		entry<Env> &e = at(i);
		uint32_t o = e.owner;
		void *mr = nullptr;

		a->owner[o].add(request.size);
		a->owner[o].counted.misses++;
		a->on_the_way = &mine;
		e.describe(want);

		int error = register_with_room(lock, request, e.word, &mr);

		for (auto **p = &a->on_the_way; *p; p = &(*p)->next) {
			if (*p == &mine) {
				*p = mine.next;
				break;
			}
		}
		if (a->waiting)
			a->arrived.broadcast();
		if (error) {
			a->owner[o].remove(request.size);
			free(i);
			return error;
		}
		e.register_as(mr);
		a->hot.epoch.store(a->hot.epoch.load(std::memory_order_relaxed) + 1,
				   std::memory_order_relaxed);
		e.use(now());
		publish(lock, i, want, version, request);
		refer(at(i), i, generation(), ref);
		return 0;
	}

	/* Opens it with one reference: in the index, or doomed if it has no place there. */
	void publish(holder &lock, uint32_t i, const wish &want, uint64_t version,
		     const mr_cache_request &request)
	{
		entry<Env> &e = at(i);
		uint32_t rights = e.rights(), other = 0;
		uint64_t end = request.start + request.size;

		/* What contained all of it would contain what was wanted. */
		if (a->index.version() != version) {
			wish whole = want;

			whole.addr = request.start;
			whole.length = request.size;
			other = a->index.search(whole, a->entries);
		}
		if (e.word.peek_relaxed() & entry_word<Env>::KERNEL || !a->owner[e.owner].who ||
		    (other && at(other).rights() == rights)) {
			e.word.doom_relaxed();
			e.word.open_release(1);
			return;
		}
		while ((other = a->index.find_within(want.key, rights, request.start, end,
						     a->entries)))
			retire(lock, other);

		uint32_t domain = a->index.prepare(want.key);

		if (!domain) {
			e.word.doom_relaxed();
			e.word.open_release(1);
			return;
		}
		e.word.open_release(1);
		a->index.insert(i, domain, rights, request.start);
		a->entry_count++;

		uint32_t bits = a->hot.hint_bits.load(std::memory_order_relaxed);

		bits = a->hint.grow(bits, a->entry_count);
		a->hot.hint_bits.store(bits, std::memory_order_relaxed);
		a->hint.learn(want, bits, i);
	}

	/* Lets go of the mutex; out of memory: evicts some, then all that is idle, and tries again.
	 */
	int register_with_room(holder &lock, const mr_cache_request &request, entry_word<Env> &w,
			       void **mr)
	{
		int error;

		for (int stage = 0;; stage++) {
			bury_all(lock);
			a->mutex.unlock();
			error = register_valid(request, w, mr);
			a->mutex.lock();
			if (error != ENOMEM || stage == 2)
				return error;

			uint32_t evicted = 0;

			if (stage == 0)
				for (uint64_t n = a->entry_count / 16 + 1;
				     n && evict(lock, a->batch.ANY); n--)
					evicted++;
			else
				evicted = evict_all(lock, a->batch.ANY);
			if (!evicted)
				return error;
		}
	}

	/* One that became invalid while it was made is made once more; then it is what it is. */
	int register_valid(const mr_cache_request &request, entry_word<Env> &w, void **mr)
	{
		for (int again = 1;; again--) {
			int error = this->env.reg(request, w.raw(), mr);

			if (error)
				return error;
			for (int n = SETTLE_ATTEMPTS; n && w.peek_relaxed() & w.SUSPECT; n--)
				if (this->env.settle(*mr))
					break;
			if (!(w.peek_relaxed() & w.INVALID) || !again || this->env.dereg(*mr))
				return 0;
			w.clean_relaxed();
		}
	}

	static constexpr int SETTLE_ATTEMPTS = 16;
	static constexpr uint64_t UNKNOWN = ~0ULL; // no version
};

} // namespace mr_cache

#endif // MR_CACHE_SLOW_PATH_H
