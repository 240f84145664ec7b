// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Where the arena is: made once, seen by all threads, and begun again in a child, which finds zeros
 * there.
 */
#ifndef MR_CACHE_STORE_H
#define MR_CACHE_STORE_H

#include <cerrno>

#include "arena.h"

namespace mr_cache {

template <class Env> class store {
public:
	/* May be called by several threads, once each or more often. ENOMEM: no address space. */
	[[nodiscard]] int start(Env &env)
	{
		if (get())
			return 0;

		auto *made = static_cast<arena<Env> *>(env.map(sizeof(arena<Env>)));

		if (!made)
			return ENOMEM;
		/* It begins before it can be seen. */
		if (made->prepare_first() && begin(*made) && publish(made)) {
			env.published(made, sizeof(*made));
			return 0;
		}
		env.wipe(made, sizeof(*made));
		return get() ? 0 : ENOMEM;
	}

	/* NULL: not started. A thread that sees it sees all that was written before. */
	arena<Env> *get() const { return p.load(std::memory_order_acquire); }

	/* The same, if it has begun in this process. */
	arena<Env> *current() const
	{
		arena<Env> *a = get();

		return a && a->hot.generation.load(std::memory_order_acquire) ? a : nullptr;
	}

	/* The same, begun in this process. */
	arena<Env> *ready()
	{
		arena<Env> *a = get();

		if (!a || a->hot.generation.load(std::memory_order_acquire)) [[likely]]
			return a;
		return begun(a);
	}

	/* The generation of the last one that began, here or in an ancestor. */
	uint32_t latest() const { return generations.load(std::memory_order_relaxed); }

private:
	/*
	 * Not if a signal handler interrupted its own thread's work in the arena, and forked: that
	 * gets no lock, and the child begins when the thread has come back.
	 */
	arena<Env> *begun(arena<Env> *a)
	{
		bool &locks = Env::thread().locks;
		uint32_t nobody = 0;

		if (locks)
			return a;
		locks = true;
		if (a->hot.birth.compare_exchange_strong(nobody, 1, std::memory_order_relaxed,
							 std::memory_order_relaxed))
			(void)(a->prepare_first() && begin(*a)); // accessible before the fork, too
		locks = false;
		while (!a->hot.generation.load(std::memory_order_acquire))
			Env::nap();
		return a;
	}

	/*
	 * The arena is all zeros. A fork by a signal handler makes it that once more, with the mark
	 * that it is being born.
	 */
	bool begin(arena<Env> &in)
	{
		do {
			in.hot.birth.store(1, std::memory_order_relaxed);
			in.is_prepared({0, in.hint.LEAST, nullptr});
			in.mutex.init();
			in.making.init();
			in.hot.high.store(1, std::memory_order_relaxed);
			in.hot.last_hint.store(in.hint.LEAST, std::memory_order_relaxed);
			in.hot.epoch.store(1, std::memory_order_relaxed);
			/* Pairs with the acquire loads of generation. */
			in.hot.generation.store(
				generations.fetch_add(1, std::memory_order_relaxed) + 1,
				std::memory_order_release);
		} while (!in.hot.birth.load(std::memory_order_relaxed));
		return true;
	}

	bool publish(arena<Env> *made)
	{
		arena<Env> *nothing = nullptr;

		return p.compare_exchange_strong(nothing, made, std::memory_order_acq_rel,
						 std::memory_order_acquire);
	}

	std::atomic<arena<Env> *> p{nullptr};
	std::atomic<uint32_t> generations{0};
};

} // namespace mr_cache

#endif // MR_CACHE_STORE_H
