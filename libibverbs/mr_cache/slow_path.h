// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: an acquisition that is no hit, and a release that is not simple.
 *
 * Two who miss the same range: the first is on the way; the second finds that,
 * waits, and looks again. Two whose ranges overlap both register; what contains
 * the other stays in the catalog, the other one becomes a plain registration.
 *
 * Overlapping ranges are not merged into one registration: a window that slides over a
 * buffer would pin all of it anew at each step.
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
	using base::be_busy;
	using base::bury_all;
	using base::enter;
	using base::evict;
	using base::evict_all;
	using base::evict_any;
	using base::free;
	using base::generation;
	using base::is_idle;
	using base::is_nested;
	using base::leave;
	using base::now;
	using base::ready;
	using base::refer;
	using base::retire;
	using base::untake;
	using base::wait;
	using typename base::holder;
	using typename base::operation;

	/* A reference of an ancestor is nothing to us; one that nobody ever got is an error. */
	[[gnu::noinline, gnu::cold]] int release_foreign(uint32_t theirs)
	{
		if (!ready())
			return EINVAL;
		return theirs && theirs < generation() ? 0 : EINVAL;
	}

	/* After give(), of whoever saw that he was the last one of something that is to go. */
	[[gnu::noinline, gnu::cold]] int release(uint32_t i, uint64_t seen)
	{
		if (entry_word<Env>::unused(seen)) {
			at(i).word.restore_relaxed();
			return EINVAL;
		}

		holder lock(*this);

		/* Somebody else may have been faster, and the entry be another by now. */
		if (!entry_word<Env>::over(at(i).word.peek_relaxed()))
			return 0;
		retire(lock, i);
		return end(lock, i);
	}

	/*
	 * Deregisters what was closed for its last user. On an error the user has it still, and
	 * the kernel may have suspended it meanwhile.
	 */
	int end(holder &lock, uint32_t i)
	{
		int error = bury_all(lock, i);

		if (error && entry_word<Env>::suspended(at(i).word.peek_relaxed()))
			settle(lock, i);
		return error;
	}

	/* No hint, or one for which an entry was taken in vain: the catalog, then all the rest. */
	[[gnu::noinline]] int acquire(const wish &want, void *pd, void *who, uint32_t taken,
				      mr_cache_ref *ref)
	{
		if (taken)
			untake(taken);
		if (!ready() || !is_for_us(want))
			return EOPNOTSUPP;

		uint64_t version = a->index.version();
		uint32_t bits = a->hot.hint_bits.load(std::memory_order_relaxed);
		uint32_t i = a->hint.look_further(want, bits);
		bool hinted = i && at(i).fits(want);

		if (!hinted)
			i = a->index.search(want, a->entries);
		if (i) {
			entry<Env> &e = at(i);

			if (e.word.usable(e.word.take_acquire()) && e.fits(want)) {
				hit(i, ref);
				if (hinted)
					a->hint.learn_again(want, bits, i, a->entries,
							    e.last_use());
				else
					a->hint.learn(want, bits, i, a->entries);
				return 0;
			}
			untake(i);
			version = a->index.UNKNOWN;
		}
		return acquire_locked(want, pd, who, version, ref);
	}

	void hit(uint32_t i, mr_cache_ref *ref)
	{
		at(i).use(now());
		refer(at(i), i, generation(), ref);
	}

	static bool is_for_us(const wish &want)
	{
		uint64_t end;

		return want.key > 3 && want.length &&
		       !(want.access & ~(RIGHTS | MR_CACHE_RELAXED_ORDERING | MR_CACHE_EXACT)) &&
		       !__builtin_add_overflow(want.addr, want.length, &end) &&
		       end <= ~Env::page_mask();
	}

	/* As of that version of the catalog there is none. */
	int acquire_locked(const wish &want, void *pd, void *who, uint64_t version,
			   mr_cache_ref *ref)
	{
		holder lock(*this);

		for (;;) {
			uint32_t i = a->index.version() == version ? 0 : find_valid(lock, want);

			if (i) {
				hit(i, ref);
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
			if (is_on_the_way(want) && !is_nested()) {
				wait();
				continue;
			}

			uint32_t o = a->owner.find_or_add(who, this->env);

			if (o == a->owner.NONE)
				return EOPNOTSUPP;

			uint64_t mask = Env::page_mask(), start = want.addr & ~mask;
			uint64_t end = (want.addr + want.length + mask) & ~mask;

			if (!a->owner[o].has_room(end - start)) {
				if (!make_room(lock, o, end - start))
					return EOPNOTSUPP;
				continue;
			}
			sweep(lock, o);
			i = allocate();
			if (!i) {
				if (!evict(lock, o) && !evict_any(lock))
					return EOPNOTSUPP;
				continue;
			}
			return make(lock, i, want, pd, o, version, ref);
		}
	}

	/*
	 * Idle entries whose memory has gone serve nobody, and nobody would look at them again:
	 * each miss looks at some, so that they are never more than a fraction of what is there.
	 */
	void sweep(holder &lock, uint32_t o)
	{
		auto &list = a->owner[o].list;

		for (uint32_t n = list.size() < SWEPT ? list.size() : SWEPT; n; n--) {
			uint32_t i = list.turn(a->entries);

			if (entry_word<Env>::over(at(i).word.peek_relaxed()))
				retire(lock, i);
		}
	}

	/*
	 * Evicts until an owner has room for so much; false if it will not have. What is in use
	 * cannot be evicted: if that leaves too little, idle ones need not go for nothing.
	 */
	bool make_room(holder &lock, uint32_t o, uint64_t size)
	{
		owner_record<Env> &of = a->owner[o];
		uint64_t freed = 0, entries = 0;

		if (size > of.limits.bytes || !of.limits.entries || !may_have_room(o, size))
			return false;
		do {
			uint32_t i = evict(lock, o);

			if (!i)
				return lock.dead;
			freed += at(i).size();
			entries++;
		} while (of.counted.bytes - freed > of.limits.bytes - size ||
			 of.counted.entries - entries >= of.limits.entries);
		return true;
	}

	/* Exact for a few entries; of many, if they are much of all, what the next ones are like.
	 */
	bool may_have_room(uint32_t o, uint64_t size)
	{
		owner_record<Env> &of = a->owner[o];
		uint64_t excess = of.counted.bytes + size - of.limits.bytes;
		uint64_t seen = 0, idle = 0;

		if (of.counted.bytes + size <= of.limits.bytes)
			return true;
		if (of.list.size() > SURVEYED && excess < of.counted.bytes / 16)
			return true;
		for (uint32_t n = of.list.size() < SURVEYED ? of.list.size() : SURVEYED; n; n--) {
			uint32_t i = of.list.turn(a->entries);

			seen += at(i).size();
			if (is_idle(i))
				idle += at(i).size();
		}
		if (of.list.size() <= SURVEYED)
			return idle >= excess;
		return static_cast<double>(idle) * static_cast<double>(of.counted.bytes) >=
		       static_cast<double>(excess) * static_cast<double>(seen);
	}

	/*
	 * An entry of the catalog that serves, with a reference taken; or 0. May let go
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
			else if (seen & (e.word.SUSPECT | e.word.SUSPENDED) && patience--)
				settle(lock, i);
			else if (e.word.fold_relaxed())
				a->owner[e.owner].counted.hits += e.word.uses(e.word.FOLD);
			else
				retire(lock,
				       i); // FULL, a bit that nobody knows, no end of suspicion
			untake(lock, i);
		}
	}

	/* With a reference; lets go of the mutex. What cannot be settled is not used. */
	void settle(holder &lock, uint32_t i)
	{
		operation mine;
		entry<Env> &e = at(i);
		bool suspended = e.word.suspended(e.word.peek_relaxed());

		enter(&mine, nullptr);
		be_busy(i, 1);
		a->mutex.unlock();

		int error = this->env.settle(e.registration());

		a->mutex.lock();
		be_busy(i, -1);
		leave(&mine);
		if (error) {
			retire(lock, i);
			return;
		}

		mr_cache_statistics &counted = a->owner[e.owner].counted;
		bool valid = !(e.word.peek_relaxed() & e.word.INVALID);

		counted.suspensions += suspended;
		counted.restorations += suspended && valid;
		counted.suspects_settled += !suspended && valid;
	}

	bool is_on_the_way(const wish &want)
	{
		uint64_t mask = Env::page_mask();

		for (operation *o = a->operations; o; o = o->next) {
			const wish *w = o->makes;

			if (!w || w->key != want.key || want.access & ~w->access)
				continue;
			if (want.exact() ? w->addr == want.addr && w->length == want.length &&
						   w->access == want.access
					 : (w->addr & ~mask) <= want.addr &&
						   want.addr + want.length <=
							   ((w->addr + w->length + mask) & ~mask))
				return true;
		}
		return false;
	}

	/* Registers with the mutex free, and makes an entry of it, if it deserves one. */
	int make(holder &lock, uint32_t i, const wish &want, void *pd, uint32_t o, uint64_t version,
		 mr_cache_ref *ref)
	{
		entry<Env> &e = at(i);
		uint32_t p = a->pd.find_or_add(pd);
		bool nested = is_nested();
		void *mr = nullptr;
		operation mine;

		if (!p) {
			e.link = a->free_entry;
			a->free_entry = i;
			return EOPNOTSUPP;
		}
		e.describe(want);
		e.state = state::MAKING;
		e.owner = o;
		e.pd = p;
		a->owner.add(o, a->entries, i);
		a->pd.add(p, a->entries, i);
		be_busy(i, 1);
		enter(&mine, &want);

		mr_cache_request request = {pd,
					    a->owner[o].who,
					    want.addr,
					    want.length,
					    e.start(),
					    e.size(),
					    want.access & ~static_cast<uint32_t>(MR_CACHE_EXACT)};

		if (want.exact()) {
			request.start = want.addr;
			request.size = want.length;
		}

		e.word.hold_relaxed();

		int error = register_with_room(lock, request, e.word, nested, &mr);

		be_busy(i, -1);
		leave(&mine);
		if (error) {
			e.word.unhold_relaxed();
			free(i);
			return error;
		}
		a->owner[o].counted.misses++;
		e.register_as(mr);
		a->hot.epoch.store(a->hot.epoch.load(std::memory_order_relaxed) + 1,
				   std::memory_order_relaxed);
		e.use(now());
		publish(lock, i, want, version);
		refer(e, i, generation(), ref);
		return 0;
	}

	/* Opens it with its one reference: in the catalog, or doomed if it has no place there. */
	void publish(holder &lock, uint32_t i, const wish &want, uint64_t version)
	{
		entry<Env> &e = at(i);

		e.state = state::OPEN;
		if (!deserves_place(lock, i, want, version)) {
			e.word.doom_relaxed();
			e.word.open_release(0);
			return;
		}
		e.word.open_release(0);
		a->entry_count++;

		uint32_t bits = a->hot.hint_bits.load(std::memory_order_relaxed);
		uint32_t more = a->hint.grow(bits, a->entry_count);

		if (more != bits && a->commit_hints(more)) {
			bits = more;
			a->hot.hint_bits.store(bits, std::memory_order_relaxed);
		}
		a->hint.learn(want, bits, i, a->entries, true);
	}

	/* Then it is in the catalog, and what it contains is not any more. */
	bool deserves_place(holder &lock, uint32_t i, const wish &want, uint64_t version)
	{
		entry<Env> &e = at(i);

		if (e.word.peek_relaxed() & entry_word<Env>::KERNEL || a->owner[e.owner].is_gone())
			return false;
		/* What contained all of it would contain what was wanted. */
		if (a->index.version() != version) {
			wish whole = want;

			if (!want.exact()) {
				whole.addr = e.start();
				whole.length = e.size();
			}

			uint32_t other = a->index.search(whole, a->entries);

			if (other && at(other).rights() == e.rights())
				return false;
		}
		while (uint32_t other = a->index.find_within(e, a->entries))
			retire(lock, other);
		return a->index.insert(i, a->entries);
	}

	static bool is_shortage(int error)
	{
		return error == ENOMEM || error == EAGAIN || error == ENOSPC;
	}

	/*
	 * Lets go of the mutex. Short of something that idle registrations may hold: evicts some,
	 * then all that is idle, and tries again. What others are just giving back counts too.
	 */
	int register_with_room(holder &lock, const mr_cache_request &request, entry_word<Env> &w,
			       bool nested, void **mr)
	{
		for (uint32_t stage = 0;; stage++) {
			bury_all(lock);

			uint64_t buried = a->buried;

			a->mutex.unlock();

			int error = register_valid(request, w, mr);

			a->mutex.lock();
			if (!is_shortage(error) || stage == STAGES)
				return error;
			if (a->buried == buried && !give_way(lock, stage, nested))
				return error;
		}
	}

	/*
	 * Evicts some of all that is idle at first, then all. Returns how many registrations
	 * ended, of others too: what they are just giving back is room.
	 */
	uint64_t give_way(holder &lock, uint32_t stage, bool nested)
	{
		uint64_t buried = a->buried;

		if (stage)
			for (uint32_t o = 0; o < a->owner.size(); o++)
				evict_all(lock, o);
		else
			for (uint64_t n = a->entry_count / 16 + 1; n && evict_any(lock); n--)
				;
		bury_all(lock);
		for (;;) {
			if (nested || a->buried != buried || !a->burying)
				break;
			wait();
		}
		return a->buried - buried;
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
	static constexpr uint32_t SWEPT = 2;
	static constexpr uint32_t SURVEYED = 64;
	static constexpr uint32_t STAGES = 32; // others may take what was given back
};

} // namespace mr_cache

#endif // MR_CACHE_SLOW_PATH_H
