// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A kernel for the tests of the registration cache. It registers, arms, settles, deregisters,
 * invalidates and suspends, and counts forbidden calls of the cache. MRs are kept after their end,
 * so that a use after free is a failure instead of a crash.
 *
 * The environment takes big_lock around each call. Tests with threads take big_lock around their
 * own calls.
 */
#ifndef MR_CACHE_FAKE_KERNEL_H
#define MR_CACHE_FAKE_KERNEL_H

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "acquire.h"
#include "linux_env.h"
#include "mr_cache_core.h"

struct fake_kernel {
	struct mr {
		mr_cache_request what;
		uint64_t *word;
		std::atomic<bool> live;
		bool is_registered;	     // like `live`, for the thread sanitizer
		std::atomic<bool> invalid;   // its range maps other memory
		std::atomic<bool> suspended; // it has no pages
		uint64_t invalid_at;	     // by the clock

		bool overlaps(uint64_t start, uint64_t end) const
		{
			return what.start < end && start < what.start + what.size;
		}
	};

	std::mutex big_lock;
	std::deque<mr> all;
	std::set<mr *> live;
	uint64_t clock = 0, parents_word = 0;
	std::string complaint; // the first mistake of the cache
	int fail_reg = 0;      // an errno for the next `fail_times` registrations
	int fail_times = 0;
	int fail_settle = 0;
	int fail_dereg = 0;
	uint64_t most_bytes = UINT64_MAX; // more gives ENOMEM
	uint64_t most_size = UINT64_MAX;  // a larger registration gives EINVAL
	uint64_t bytes = 0;
	bool invalid_from_birth = false;
	unsigned int reg_calls = 0, settle_calls = 0, refused = 0;
	std::function<void()>
		after_reg; // called when the MR is armed, before the registration returns
	std::function<void(const mr &)> before_dereg; // called before the deregistration returns

	static mr_cache_ref reference_to(void *which)
	{
		const mr_cache_request &what = static_cast<mr *>(which)->what;

		return {which, what.index, what.generation};
	}

	void complain(const char *what)
	{
		if (complaint.empty())
			complaint = what;
	}

	int reg(const mr_cache_request &what, uint64_t *word, void **out)
	{
		reg_calls++;
		if (fail_times > 0) {
			fail_times--;
			return fail_reg;
		}
		if (what.size > most_size) {
			refused++;
			return EINVAL;
		}
		if (bytes + what.size > most_bytes)
			return ENOMEM;
		bool exact = what.start == what.addr && what.size == what.length;

		if ((!exact && (what.start | what.size) & 4095) || what.addr < what.start ||
		    what.addr + what.length > what.start + what.size)
			complain("asked to register a wrong range");
		for (mr *other : live) {
			if (other->word != word)
				continue;
			/* A child may have made one of the two MRs in its parent's context. */
			if (other->what.generation != what.generation)
				return EBUSY;
			complain("armed a word that is armed");
		}
		if (std::atomic_ref(*word).load() & 0xff)
			complain("armed a word that is not clean");

		mr &made = all.emplace_back();

		made.what = what;
		made.word = word;
		made.live = true;
		made.is_registered = true;
		live.insert(&made);
		bytes += what.size;
		if (invalid_from_birth)
			invalidate(made);
		*out = &made;
		if (after_reg)
			after_reg();
		return 0;
	}

	int settle(void *which)
	{
		mr *m = static_cast<mr *>(which);

		settle_calls++;
		if (!m->live)
			complain("settled what is not registered");
		if (fail_settle)
			return fail_settle;
		if (m->invalid)
			std::atomic_ref(*m->word).fetch_or(1);
		m->suspended = false;
		std::atomic_ref(*m->word).fetch_and(~6ULL);
		return 0;
	}

	int dereg(void *which)
	{
		mr *m = static_cast<mr *>(which);

		if (before_dereg)
			before_dereg(*m);
		if (!m->live)
			complain("deregistered twice");
		if (fail_dereg)
			return fail_dereg;
		m->live = false;
		m->is_registered = false;
		live.erase(m);
		bytes -= m->what.size;
		return 0;
	}

	void dereg_returns(void *which)
	{
		if (before_dereg)
			before_dereg(*static_cast<mr *>(which));
	}

	/* Call this in a child, whose memory does not have the words of its parent's MRs. */
	void forked()
	{
		for (mr *one : live)
			one->word = &parents_word;
	}

	/* The end of a context ends all its registrations. */
	void close(const void *owner)
	{
		for (mr &one : all) {
			if (!one.live || one.what.owner != owner)
				continue;
			one.live = false;
			live.erase(&one);
			bytes -= one.what.size;
		}
	}

	void invalidate(mr &m)
	{
		if (!m.invalid)
			m.invalid_at = ++clock;
		m.invalid = true;
		std::atomic_ref(*m.word).fetch_or(1);
	}

	/* Memory is short: suspends all idle registrations. */
	void suspend()
	{
		for (mr *m : live) {
			std::atomic_ref word(*m->word);
			uint64_t was = word.load();

			while (!(was & (MR_CACHE_IN_USE | 5)))
				if (word.compare_exchange_weak(was, was | 4)) {
					m->suspended = true;
					break;
				}
		}
	}

	/* munmap() of the range. */
	void invalidate(uint64_t start, uint64_t end)
	{
		for (mr *m : live)
			if (m->overlaps(start, end))
				invalidate(*m);
	}

	/*
	 * An event in the range. If `gone`, the event has changed the range, but only settle()
	 * finds this out.
	 */
	void suspect(uint64_t start, uint64_t end, bool gone)
	{
		for (mr *m : live) {
			if (!m->overlaps(start, end) || m->invalid)
				continue;
			std::atomic_ref(*m->word).fetch_or(2);
			if (gone) {
				m->invalid_at = ++clock;
				m->invalid = true;
			}
		}
	}
};

/* A small cache on the fake kernel: 64 entries, and hints that collide. */
struct fake_env : mr_cache::linux_env {
	static constexpr uint32_t entries = 65;
	static constexpr uint32_t owners = 4;
	static constexpr uint32_t least_hint_bits = 2;
	static constexpr uint32_t most_hint_bits = 4;

	fake_kernel *kernel = nullptr;
	ibv_mr_cache_limits defaults = {UINT64_MAX, UINT64_MAX};
	std::function<uint64_t(uint32_t)> shrink; // of the cache

	int reg(const mr_cache_request *what, uint64_t *word, void **out)
	{
		return with_room(*what, [&] { return reg_once(*what, word, out); });
	}
	int reg_once(const mr_cache_request &what, uint64_t *word, void **out)
	{
		std::lock_guard hold(kernel->big_lock);
		return kernel->reg(what, word, out);
	}
	/* Acts like a command that lacks resources (mr_cache_room.c). */
	template <class Try> int with_room(const mr_cache_request &what, const Try &once)
	{
		for (uint32_t stage = 0;; stage++) {
			const int error = once();

			if ((error != ENOMEM && error != EAGAIN && error != ENOSPC) ||
			    what.merged || !shrink || stage == 32 || (!shrink(stage) && stage))
				return error;
		}
	}
	int settle(void *m)
	{
		std::lock_guard hold(kernel->big_lock);
		return kernel->settle(m);
	}
	int dereg(void *m)
	{
		std::lock_guard hold(kernel->big_lock);
		return kernel->dereg(m);
	}
	ibv_mr_cache_limits default_limits(void *) const { return defaults; }
	static uint64_t max_merge(void *) { return UINT64_MAX; }
	static mr_cache_ref reference_to(void *m) { return fake_kernel::reference_to(m); }
};

inline fake_kernel::mr &mr_of(const mr_cache_ref &ref)
{
	return *static_cast<fake_kernel::mr *>(ref.mr);
}

#endif // MR_CACHE_FAKE_KERNEL_H
