// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache: what its owners ask of it beside registrations. Each looks at
 * the owner's or the PD's entries, and at no others.
 */
#ifndef MR_CACHE_CONTROL_H
#define MR_CACHE_CONTROL_H

#include <cerrno>

#include "slow_path.h"

namespace mr_cache {

template <class Env> class control : public slow_path<Env> {
public:
	/* May be called by several threads, once each or more often. ENOMEM: no address space. */
	[[nodiscard]] int start()
	{
		if (a)
			return 0;

		auto *memory = static_cast<arena<Env> *>(this->env.map(sizeof(arena<Env>)));

		if (!memory)
			return ENOMEM;
		/* Whoever sees it finds it begun. */
		if (memory->commit_head() && begin(*memory) && a.publish(memory))
			return 0;
		this->env.wipe(memory, sizeof(*memory));
		return a ? 0 : ENOMEM;
	}

	bool is_started() const { return a.get(); }

	[[nodiscard]] int covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
	{
		wish want(pd, addr, length, access);

		if (!ready())
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
		if (!ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find_or_add(who, this->env);

		if (o == a->owner.NONE)
			return ENOMEM;
		if (from)
			*from = a->owner[o].limits;
		if (!to)
			return 0;
		a->owner[o].limits = *to;
		/* What cannot be deregistered is not tried twice: each turn has one idle less. */
		while (a->owner[o].is_over() && evict(lock, o))
			bury_all(lock);
		return 0;
	}

	/* An errno value of dereg() if it failed for one: then more than that stays. */
	[[nodiscard]] int clean(void *who, uint64_t keep)
	{
		if (!ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find(who);
		uint64_t idle = 0;

		if (o == a->owner.NONE)
			return 0;
		auto &list = a->owner[o].list;

		for (uint32_t i = list.begin(), n = list.size(); n;
		     i = list.after(a->entries, i), n--)
			if (is_idle(i))
				idle += at(i).size();
		while (idle > keep) {
			uint32_t i = evict(lock, o);

			if (!i)
				break;
			idle -= idle < at(i).size() ? idle : at(i).size();
		}
		return bury_all(lock);
	}

	[[nodiscard]] int query(void *who, mr_cache_statistics *statistics)
	{
		if (!ready())
			return EOPNOTSUPP;

		holder lock(*this);
		uint32_t o = a->owner.find(who);

		*statistics = {};
		if (o == a->owner.NONE)
			return 0;
		*statistics = a->owner[o].counted;
		auto &list = a->owner[o].list;

		for (uint32_t i = list.begin(), n = list.size(); n;
		     i = list.after(a->entries, i), n--)
			if (at(i).state == state::OPEN) {
				uint64_t seen = at(i).word.peek_relaxed();

				statistics->hits += at(i).word.uses(seen);
				statistics->suspensions += at(i).word.suspended(seen);
			}
		return 0;
	}

	[[nodiscard]] int flush_pd(void *pd)
	{
		if (!ready())
			return 0;

		holder lock(*this);

		return drain(lock, a->pd, 0U, [&] { return a->pd.find(pd); });
	}

	[[nodiscard]] int flush_owner(void *who)
	{
		if (!ready())
			return 0;

		holder lock(*this);
		auto find = [&] { return a->owner.find(who); };
		int error = drain(lock, a->owner, a->owner.NONE, find);
		uint32_t o = find();

		if (o != a->owner.NONE)
			abandon(o);
		return error;
	}

	/*
	 * Something else is short of what idle registrations may hold: evicts some of all at
	 * first, then all. Returns how many were deregistered, by others meanwhile too.
	 */
	uint64_t make_way(uint32_t stage)
	{
		if (!ready())
			return 0;

		holder lock(*this);

		return give_way(lock, stage, is_nested());
	}

	/* Evicts all that is idle, of one owner or of all (NULL). Returns how many. */
	unsigned int reclaim(void *who)
	{
		if (!ready())
			return 0;

		holder lock(*this);
		uint64_t buried = a->buried;

		for (uint32_t o = 0; o < a->owner.size(); o++)
			if (!who || a->owner[o].who == who)
				evict_all(lock, o);
		bury_all(lock);
		return static_cast<unsigned int>(a->buried - buried);
	}

	/*
	 * Of a user, who wants it for himself. Doomed first: whoever takes it after that
	 * does not keep it, so one reference stays one.
	 */
	[[nodiscard]] int take(uint32_t i, uint32_t theirs)
	{
		if (!is_reference(i, theirs))
			return EINVAL;

		holder lock(*this);

		if (at(i).state != state::OPEN || is_idle(i))
			return EINVAL;
		retire(lock, i);
		for (uint32_t n = FEW;
		     (at(i).word.peek_relaxed() & at(i).word.REFS) > at(i).word.REF; n--) {
			if (!n || is_nested())
				return EBUSY;
			let_others_run();
		}
		return 0;
	}

	/*
	 * Gives a reference back, and has nobody find the registration again. It is deregistered,
	 * unless others share it: then it ends with the last of them.
	 */
	[[nodiscard]] int forget(uint32_t i, uint32_t theirs, int *shared)
	{
		*shared = 0;
		if (!is_reference(i, theirs))
			return this->release_foreign(theirs);

		holder lock(*this);

		if (at(i).state != state::OPEN || is_idle(i))
			return EINVAL;
		retire(lock, i);
		for (uint32_t n = FEW; !close(lock, i, 1); n--) {
			if (!n || is_nested()) {
				/* The last one ends it, which may be us after all. */
				(void)at(i).word.give_release();
				*shared = !close(lock, i);
				break;
			}
			let_others_run();
		}
		return this->end(lock, i);
	}

protected:
	using base = slow_path<Env>;
	using base::a;
	using base::at;
	using base::begin;
	using base::bequeath;
	using base::bury_all;
	using base::close;
	using base::evict;
	using base::evict_all;
	using base::find_valid;
	using base::free;
	using base::generation;
	using base::give_way;
	using base::is_idle;
	using base::is_nested;
	using base::ready;
	using base::retire;
	using base::untake;
	using base::wait;
	using typename base::holder;

private:
	bool is_reference(uint32_t i, uint32_t theirs)
	{
		return ready() && generation() == theirs && i &&
		       i < a->hot.high.load(std::memory_order_relaxed);
	}

	/* Those that took a reference in vain give it back soon. */
	void let_others_run()
	{
		a->mutex.unlock();
		this->env.yield();
		a->mutex.lock();
	}

	/*
	 * Ends all entries of a list that can be ended: those of a PD or an owner, whose record
	 * is looked up again whenever the mutex was free. What is left is used, or PARKED.
	 */
	template <class Records, class Find>
	int drain(holder &lock, Records &records, uint32_t none, const Find &find)
	{
		uint32_t patience = PATIENCE, which;
		bool parked_too = true;
		int error = 0;

		while ((which = find()) != none) {
			uint32_t used = retire_all(lock, records[which].list, parked_too);

			parked_too = false;
			if (lock.dead) {
				int bad = bury_all(lock);

				error = bad ? bad : error;
				continue;
			}
			if (is_nested())
				break;
			if (records[which].busy) {
				wait();
				continue;
			}
			/* The more there are, the fewer looks: they are users. */
			uint32_t cost = 1 + used / 16;

			if (!used || patience < cost)
				break;
			patience -= cost;
			let_others_run();
		}
		return error;
	}

	/* Returns how many could not be closed, because somebody has them. */
	template <class List> uint32_t retire_all(holder &lock, List &list, bool parked_too)
	{
		uint32_t used = 0;

		for (uint32_t i = list.begin(), n = list.size(); n;
		     i = list.after(a->entries, i), n--) {
			if (at(i).state == state::OPEN) {
				retire(lock, i);
				used += at(i).state == state::OPEN;
			} else if (at(i).state == state::PARKED && parked_too) {
				bequeath(lock, i);
			}
		}
		return used;
	}

	/* Its context is about to be freed, and with it all that is still registered there. */
	void abandon(uint32_t o)
	{
		auto &list = a->owner[o].list;

		for (uint32_t i = list.begin(), n = list.size(), next; n; i = next, n--) {
			next = list.after(a->entries, i);
			if (at(i).state == state::PARKED)
				free(i);
		}
		a->owner.forget(o);
	}

	static constexpr uint32_t PATIENCE = 4096;
	static constexpr uint32_t FEW = 64;
};

} // namespace mr_cache

#endif // MR_CACHE_CONTROL_H
