// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: everything but a hit.
 *
 * Rules that hold whenever the mutex is free:
 *   an entry is open and not DOOMED if and only if it is in the index;
 *   a word is closed, doomed, indexed and unindexed under the mutex only;
 *   what is closed and not on the free list belongs to one thread, which is
 *   registering or deregistering it.
 * So under the mutex, what the index gives is open, and a reference taken from it
 * is one. The registrar is called without the mutex; whoever comes back from it
 * looks at everything again.
 *
 * Two who miss the same range: the first is on the way; the second finds that,
 * waits, and looks again. Two whose ranges overlap both register; what contains
 * the other stays in the index, the other one becomes a plain registration.
 */
#ifndef MR_CACHE_SLOW_PATH_H
#define MR_CACHE_SLOW_PATH_H

#include <cerrno>

#include "arena.h"

namespace mr_cache {

template <class Env> class slow_path {
public:
	Env env{};

	/* Once. ENOMEM: no address space. */
	[[nodiscard]] int start()
	{
		auto *memory = static_cast<arena<Env> *>(env.map(sizeof(arena<Env>)));

		if (!memory)
			return ENOMEM;
		a = memory;
		begin();
		return 0;
	}

	[[nodiscard]] int covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
	{
		wish want(pd, addr, length, access);

		if (!a || !ready())
			return 0;

		holder lock(*this);
		uint32_t i = find_valid(lock, want);

		if (!i)
			return 0;
		untake(lock, i);
		return 1;
	}

	[[nodiscard]] int limits(void *who, const mr_cache_bounds *to, mr_cache_bounds *from)
	{
		if (!a || !ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find_or_add(who, env.default_limits());

		if (o == a->owner.NONE)
			return ENOMEM;
		if (from)
			*from = a->owner[o].limits;
		if (!to)
			return 0;
		a->owner[o].limits = *to;
		while (a->owner[o].is_over() && evict(lock, o))
			bury_all(lock);
		return 0;
	}

	[[nodiscard]] int clean(void *who, uint64_t keep)
	{
		if (!a || !ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find(who);
		uint64_t idle = 0;

		if (o == a->owner.NONE)
			return 0;
		for (uint32_t i = 1; i < a->high; i++)
			if (is_idle(i) && at(i).owner == o)
				idle += at(i).size();
		while (idle > keep) {
			uint32_t i = evict(lock, o);

			if (!i)
				break;
			idle -= idle < at(i).size() ? idle : at(i).size();
		}
		return 0;
	}

	[[nodiscard]] int query(void *who, mr_cache_statistics *statistics)
	{
		if (!a || !ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find(who);

		*statistics = {};
		if (o == a->owner.NONE)
			return 0;
		*statistics = a->owner[o].counted;
		for (uint32_t i = 1; i < a->high; i++) {
			uint64_t seen = at(i).word.peek_relaxed();

			if (!(seen & seen_closed) && at(i).owner == o)
				statistics->hits += at(i).word.uses(seen);
		}
		return 0;
	}

	[[nodiscard]] int flush_pd(void *pd)
	{
		if (!a || !ready())
			return 0;

		holder lock(*this);
		uint64_t key = wish::key_of(pd, 0);

		for (uint32_t i = 1; i < a->high; i++)
			if (is_open(i) && (at(i).pd_key() & ~1ULL) == key)
				retire(lock, i);
		return bury_all(lock);
	}

	[[nodiscard]] int flush_owner(void *who)
	{
		if (!a || !ready())
			return 0;

		holder lock(*this);
		uint32_t o = a->owner.find(who);

		if (o == a->owner.NONE)
			return 0;
		for (uint32_t i = 1; i < a->high; i++)
			if (is_open(i) && at(i).owner == o)
				retire(lock, i);

		int error = bury_all(lock);

		/* Looked up again: the mutex was free. */
		o = a->owner.find(who);
		if (o != a->owner.NONE)
			a->owner.forget(o);
		return error;
	}

	unsigned int reclaim(void *who)
	{
		if (!a || !ready())
			return 0;

		holder lock(*this);
		uint32_t o = who ? a->owner.find(who) : a->batch.ANY;

		if (who && o == a->owner.NONE)
			return 0;
		return evict_all(lock, o);
	}

	/*
	 * Of a user, who wants it for himself. Doomed first: whoever takes it after that
	 * does not keep it, so one reference stays one.
	 */
	[[nodiscard]] int take(uint32_t i, uint32_t theirs)
	{
		if (!a || !ready() || generation() != theirs || i >= Env::entries)
			return EINVAL;

		holder lock(*this);

		if (!is_open(i) || is_idle(i))
			return EINVAL;
		retire(lock, i);
		return at(i).word.used(at(i).word.peek_relaxed() - entry_word<Env>::REF) ? EBUSY : 0;
	}

	/* Around fork(), for children whose memory is not wiped and for the mutex. */
	void prepare_fork()
	{
		if (a)
			a->mutex.lock();
	}
	void after_fork(bool child)
	{
		if (a && child)
			env.wipe(a, sizeof(*a));
		else if (a)
			a->mutex.unlock();
	}

protected:
	arena<Env> *a = nullptr;
	uint32_t generations = 0;

	static constexpr uint64_t seen_closed = entry_word<Env>::CLOSED;

	/* The mutex, and the dead: closed entries to be deregistered when it is free. */
	struct holder {
		explicit holder(slow_path &c_) : c(c_) { c.a->mutex.lock(); }
		~holder()
		{
			c.bury_all(*this);
			c.a->mutex.unlock();
		}
		holder(const holder &) = delete;
		holder &operator=(const holder &) = delete;

		slow_path &c;
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

	[[gnu::noinline, gnu::cold]] int untake_and_acquire(uint32_t i, void *pd, void *who,
							    uint64_t addr, uint64_t length,
							    uint32_t access, mr_cache_ref *ref)
	{
		untake(i);
		return acquire(pd, who, addr, length, access, ref);
	}

	/* No hint: the index without the mutex, then all the rest. */
	[[gnu::noinline]] int acquire(void *pd, void *who, uint64_t addr, uint64_t length,
				      uint32_t access, mr_cache_ref *ref)
	{
		const wish want(pd, addr, length, access);

		if (!ready() || !is_for_us(want))
			return EOPNOTSUPP;

		uint32_t i = a->index.search(want, a->entries);

		if (i) {
			entry<Env> &e = at(i);

			if (e.word.usable(e.word.take_acquire()) && e.fits(want)) {
				hit(i, want, ref);
				return 0;
			}
			untake(i);
		}
		return acquire_locked(want, pd, who, ref);
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

	[[gnu::noinline]] int acquire_locked(const wish &want, void *pd, void *who,
					     mr_cache_ref *ref)
	{
		holder lock(*this);

		for (;;) {
			uint32_t i = find_valid(lock, want);

			if (i) {
				hit(i, want, ref);
				return 0;
			}
			if (is_on_the_way(want)) {
				bury_all(lock);
				a->arrived.wait(a->mutex);
				continue;
			}
			/* Deregister first what is dead: it may have been what was in the way. */
			if (lock.dead) {
				bury_all(lock);
				continue;
			}

			uint32_t o = a->owner.find_or_add(who, env.default_limits());
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
			return make(lock, i, want, request, ref);
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

		int error = env.settle(at(i).registration());

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

	/* Registers with the mutex free, and makes an entry of it, if it deserves one. */
	int make(holder &lock, uint32_t i, const wish &want, const mr_cache_request &request,
		 mr_cache_ref *ref)
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
		publish(lock, i, want, request);
		refer(at(i), i, generation(), ref);
		return 0;
	}

	/* Opens it with one reference: in the index, or doomed if it has no place there. */
	void publish(holder &lock, uint32_t i, const wish &want, const mr_cache_request &request)
	{
		entry<Env> &e = at(i);
		uint32_t rights = e.rights(), other;
		uint64_t end = request.start + request.size;
		wish whole = want;

		whole.addr = request.start;
		whole.length = request.size;
		other = a->index.search(whole, a->entries);
		if (e.word.peek_relaxed() & entry_word<Env>::KERNEL || !a->owner[e.owner].who ||
		    (other && at(other).rights() == rights)) {
			e.word.doom_relaxed();
			e.word.open_release(1);
			return;
		}
		while ((other = a->index.find_within(want.key, rights, request.start, end,
						     a->entries)))
			retire(lock, other);
		if (!a->index.prepare(want.key)) {
			e.word.doom_relaxed();
			e.word.open_release(1);
			return;
		}
		e.word.open_release(1);
		a->index.insert(i, want.key, rights, request.start);
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
			int error = env.reg(request, w.raw(), mr);

			if (error)
				return error;
			for (int n = SETTLE_ATTEMPTS; n && w.peek_relaxed() & w.SUSPECT; n--)
				if (env.settle(*mr))
					break;
			if (!(w.peek_relaxed() & w.INVALID) || !again || env.dereg(*mr))
				return 0;
			w.clean_relaxed();
		}
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
	int bury_all(holder &lock, uint32_t held = 0)
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

	static constexpr int SETTLE_ATTEMPTS = 16;
};

} // namespace mr_cache

#endif // MR_CACHE_SLOW_PATH_H
