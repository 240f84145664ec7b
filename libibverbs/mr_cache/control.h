// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: what its owners ask of it beside registrations. Each scans
 * the table; none is for a hot path.
 */
#ifndef MR_CACHE_CONTROL_H
#define MR_CACHE_CONTROL_H

#include <cerrno>

#include "slow_path.h"

namespace mr_cache {

template <class Env> class control : public slow_path<Env> {
public:
	/* Once. ENOMEM: no address space. */
	[[nodiscard]] int start()
	{
		auto *memory = static_cast<arena<Env> *>(this->env.map(sizeof(arena<Env>)));

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
		uint32_t o = a->owner.find_or_add(who, this->env.default_limits());

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
		return at(i).word.used(at(i).word.peek_relaxed() - entry_word<Env>::REF) ? EBUSY
											 : 0;
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
			this->env.wipe(a, sizeof(*a));
		else if (a)
			a->mutex.unlock();
	}

protected:
	using base = slow_path<Env>;
	using base::a;
	using base::at;
	using base::begin;
	using base::bury_all;
	using base::evict;
	using base::evict_all;
	using base::find_valid;
	using base::generation;
	using base::is_idle;
	using base::is_open;
	using base::ready;
	using base::retire;
	using base::seen_closed;
	using base::untake;
	using typename base::holder;
};

} // namespace mr_cache

#endif // MR_CACHE_CONTROL_H
