// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The threads that are inside the registrar, to register, to settle or to deregister, and those
 * that wait until one of them has come back. A thread that is inside waits for no other one, which
 * might wait for it: an allocator's hook may come to the cache again in the middle of a call. The
 * cache's mutex guards everything here; all bytes 0: no thread.
 *
 * A thread that is not inside may have a lock that the other one needs, and the cache cannot know:
 * that of an allocator, or of the pager of user space that brings the pages. So a thread that only
 * wishes that the other one were done waits for some milliseconds (wait_briefly()); without bound
 * waits only the end of a PD or a context (drain.h), which must not go before.
 */
#ifndef MR_CACHE_OPERATIONS_H
#define MR_CACHE_OPERATIONS_H

#include "entry.h"

namespace mr_cache {

/* On the stack of its thread. */
struct operation {
	uintptr_t thread;
	const wish *makes; // the range being registered, or NULL
	uint32_t settles;  // the entry that the kernel is asked about, or 0
	operation *next;
	int cancel_state; // of the thread before
};

template <class Env> class operations {
public:
	void init() { progress.init(); }

	void enter(operation *mine, const wish *makes, uint32_t settles = 0)
	{
		*mine = {self(), makes, settles, first, disable_cancel()};
		first = mine;
	}

	void leave(operation *mine)
	{
		for (operation **o = &first; *o; o = &(*o)->next) {
			if (*o == mine) {
				*o = mine->next;
				break;
			}
		}
		if (waiting)
			progress.broadcast();
		restore_cancel(mine->cancel_state);
	}

	/* Is this thread inside already? */
	bool is_nested() const
	{
		for (operation *o = first; o; o = o->next)
			if (o->thread && o->thread == self())
				return true;
		return false;
	}

	/* Is a range that serves the wish being registered? */
	bool is_made(const wish &want) const
	{
		for (operation *o = first; o; o = o->next)
			if (o->makes && serves(*o->makes, want))
				return true;
		return false;
	}

	/* Is the kernel being asked about that entry? */
	bool is_settled(uint32_t i) const
	{
		for (operation *o = first; o; o = o->next)
			if (o->settles == i)
				return true;
		return false;
	}

	/* Lets go of the mutex until a thread leaves. */
	void wait(typename Env::mutex &mutex)
	{
		waiting++;
		progress.wait(mutex);
		waiting--;
	}

	/*
	 * The same for some milliseconds in all: *until is 0 at first, and then tells when they are
	 * over. False: they are, and perhaps no thread has left.
	 */
	bool wait_briefly(typename Env::mutex &mutex, uint64_t *until)
	{
		bool in_time;

		if (!*until)
			*until = Env::deadline();
		waiting++;
		in_time = progress.wait_until(mutex, *until);
		waiting--;
		return in_time;
	}

private:
	static bool serves(const wish &made, const wish &want)
	{
		uint64_t mask = Env::page_mask();

		if (made.key != want.key || want.access & ~made.access)
			return false;
		if (want.exact())
			return made.addr == want.addr && made.length == want.length &&
			       made.access == want.access;
		return (made.addr & ~mask) <= want.addr &&
		       want.addr + want.length <= ((made.addr + made.length + mask) & ~mask);
	}

	/* An Env whose threads are not cancelled has neither. */
	static int disable_cancel()
	{
		if constexpr (requires { Env::disable_cancel(); })
			return Env::disable_cancel();
		else
			return 0;
	}
	static void restore_cancel(int state)
	{
		if constexpr (requires { Env::restore_cancel(state); })
			Env::restore_cancel(state);
	}

	/* Tells threads apart; 0 in an Env whose registrar does not come back here. */
	static uintptr_t self()
	{
		if constexpr (requires { Env::self(); })
			return Env::self();
		else
			return 0;
	}

	operation *first;
	uint32_t waiting;
	typename Env::condition progress; // a thread has left
};

} // namespace mr_cache

#endif // MR_CACHE_OPERATIONS_H
