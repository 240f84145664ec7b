// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The end of all entries of an owner or of a PD, before it goes itself. It must not go while a
 * thread is inside the registrar for it. The loser, if a flush ended only the entries that it
 * found:
 *
 *   a thread of another owner      ibv_close_device()
 *   evicts an entry, closes it
 *                                  flush: no open entry
 *                                  frees the context
 *   deregisters in that context
 *
 * So it waits until no thread is busy. It cannot wait for references: a user may have forgotten
 * his. But a reader that took one in vain gives it back in a moment: the drain lets it run a few
 * times, and then leaves the entry to its last user.
 */
#ifndef MR_CACHE_DRAIN_H
#define MR_CACHE_DRAIN_H

#include "locked.h"

namespace mr_cache {

template <class Env> class drain {
public:
	drain(arena<Env> &in, Env &env) : lock(in, env), a(in) {}

	/* Both return an errno value of dereg() if one failed. */
	[[nodiscard]] int of_pd(void *pd)
	{
		return end_all(a.index.pd, 0U, [&] { return a.index.pd.find(pd); });
	}

	[[nodiscard]] int of_owner(void *who)
	{
		auto find = [&] { return a.owner.find(who); };

		/* The caller goes on, and the context with it: the next holder of the mutex
		 * abandons. */
		if (!lock) {
			a.owner.end(who);
			return 0;
		}

		int error = end_all(a.owner, a.owner.NONE, find);
		uint32_t o = lock ? find() : a.owner.NONE;

		if (o != a.owner.NONE)
			lock.abandon(o);
		return error;
	}

private:
	/*
	 * The record is looked up again whenever the mutex was free. Entries that are left are
	 * used, or DEREG_FAILED.
	 */
	template <class Records, class Find>
	int end_all(Records &records, uint32_t none, const Find &find)
	{
		uint32_t patience = lock.FEW, which;
		bool failed_too = true;
		int error = 0;

		while (lock && (which = find()) != none) {
			uint32_t used = retire_all(records[which].list, failed_too);

			failed_too = false;
			if (lock.has_pending()) {
				int bad = lock.dereg_pending();

				error = bad ? bad : error;
				continue;
			}
			if (lock.is_nested())
				break;
			if (records[which].busy) {
				lock.wait();
				continue;
			}
			/* The more there are, the fewer looks: they are users. */
			uint32_t cost = 1 + used / 16;

			if (!used || patience < cost)
				break;
			patience -= cost;
			lock.let_others_run();
		}
		return error;
	}

	/* Returns how many could not be closed, because they have users. */
	template <class List> uint32_t retire_all(List &list, bool failed_too)
	{
		uint32_t used = 0;

		for (uint32_t i = list.begin(); i; i = list.after(a.entries, i)) {
			if (lock.at(i).state == state::OPEN) {
				lock.retire(i);
				used += lock.at(i).state == state::OPEN;
			} else if (lock.at(i).state == state::DEREG_FAILED && failed_too) {
				lock.queue_dereg(i);
			}
		}
		return used;
	}

	locked<Env> lock;
	arena<Env> &a;
};

} // namespace mr_cache

#endif // MR_CACHE_DRAIN_H
