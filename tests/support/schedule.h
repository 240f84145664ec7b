// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A scheduler that decides everything. Its threads are fibers of one thread. Each atomic operation
 * is a point where another fiber may continue, chosen by a seed. So a seed replays an interleaving.
 * The code between two points is indivisible. Memory orders are not weakened; ThreadSanitizer
 * checks memory orders.
 */
#ifndef MR_CACHE_SCHEDULE_H
#define MR_CACHE_SCHEDULE_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include <ucontext.h>

#include "linux_env.h"

class schedule {
public:
	explicit schedule(uint64_t seed) : random(seed) { now = this; }
	~schedule() { now = nullptr; }
	schedule(const schedule &) = delete;
	schedule &operator=(const schedule &) = delete;

	static schedule *now;

	uint32_t pick(uint32_t below) { return static_cast<uint32_t>(random() % below); }

	void spawn(std::function<void()> body)
	{
		fiber &f = fibers.emplace_back();

		f.body = std::move(body);
		f.stack = std::make_unique<char[]>(STACK);
		getcontext(&f.context);
		f.context.uc_stack.ss_sp = f.stack.get();
		f.context.uc_stack.ss_size = STACK;
		f.context.uc_link = &home;
		makecontext(&f.context, &schedule::enter, 0);
	}

	/* Runs the threads until all have ended. Returns false if they do not end. */
	bool run(uint64_t most_points)
	{
		left = most_points;
		for (;;) {
			uint32_t alive = 0, awake = 0;

			for (fiber &f : fibers) {
				alive += !f.done;
				awake += f.is_awake(left);
			}
			if (!alive)
				return true;
			if (!left)
				return false;
			if (!awake) {
				left--;
				continue;
			}
			current = choose(awake);
			swapcontext(&home, &current->context);
			current = nullptr;
		}
	}

	/* The state of the running fiber, or of the thread outside of the scheduler. */
	static mr_cache::thread_state &thread()
	{
		return now && now->current ? now->current->state : now->outside;
	}

	/* After @at points a signal handler runs in the current thread. */
	void signal(uint64_t at, std::function<void()> handler)
	{
		points_to_signal = at;
		on_signal = std::move(handler);
	}

	/*
	 * The number of waits for the mutex or a condition. With only one thread, a wait is a
	 * deadlock.
	 */
	uint64_t waits = 0;

	/* Another thread may continue here. */
	static void point()
	{
		if (!now || !now->current)
			return;
		if (now->points_to_signal && !--now->points_to_signal)
			now->on_signal();
		if (now->left)
			now->left--;
		if (now->left && now->pick(3))
			return;
		/*
		 * Sometimes lets a thread sleep for long, because some races need many steps of
		 * other threads.
		 */
		if (!now->pick(32))
			now->current->asleep =
				now->left - std::min<uint64_t>(now->left, now->pick(1500));
		swapcontext(&now->current->context, &now->home);
	}

	/*
	 * Returns the deadline @points points from now. The clock counts points, and a wait counts
	 * as one point.
	 */
	static uint64_t deadline(uint64_t points)
	{
		return ~(now->left - std::min(now->left, points));
	}
	/* 0 is no deadline. */
	static bool is_later_than(uint64_t deadline) { return deadline && ~now->left >= deadline; }

	/* Waits for a step of another thread. */
	static void wait()
	{
		if (now->left)
			now->left--;
		swapcontext(&now->current->context, &now->home);
	}

private:
	static constexpr size_t STACK = 128 << 10;

	struct fiber {
		ucontext_t context;
		std::unique_ptr<char[]> stack;
		std::function<void()> body;
		bool done = false;
		mr_cache::thread_state state = {};
		uint64_t asleep = UINT64_MAX; // until this many points are left

		bool is_awake(uint64_t left) const { return !done && left <= asleep; }
	};

	static void enter()
	{
		now->current->body();
		now->current->done = true;
	}

	fiber *choose(uint32_t awake)
	{
		uint32_t n = pick(awake);

		for (fiber &f : fibers)
			if (f.is_awake(left) && !n--)
				return &f;
		return nullptr;
	}

	std::mt19937_64 random;
	std::deque<fiber> fibers;
	fiber *current = nullptr;
	uint64_t points_to_signal = 0;
	std::function<void()> on_signal;
	mr_cache::thread_state outside = {};
	ucontext_t home;
	uint64_t left = 0;
};

inline schedule *schedule::now = nullptr;

/* std::atomic as the cache uses it; each operation is a point. */
template <class T> class scheduled_atomic {
public:
	T load(std::memory_order) const
	{
		schedule::point();
		return value;
	}
	void store(T to, std::memory_order)
	{
		schedule::point();
		value = to;
	}
	T fetch_add(T by, std::memory_order)
	{
		schedule::point();
		return std::exchange(value, value + by);
	}
	T fetch_sub(T by, std::memory_order)
	{
		schedule::point();
		return std::exchange(value, value - by);
	}
	T fetch_or(T bits, std::memory_order)
	{
		schedule::point();
		return std::exchange(value, value | bits);
	}
	T fetch_and(T bits, std::memory_order)
	{
		schedule::point();
		return std::exchange(value, value & bits);
	}
	bool compare_exchange_weak(T &from, T to, std::memory_order, std::memory_order)
	{
		schedule::point();
		if (value != from) {
			from = value;
			return false;
		}
		value = to;
		return true;
	}
	bool compare_exchange_strong(T &from, T to, std::memory_order a, std::memory_order b)
	{
		return compare_exchange_weak(from, to, a, b);
	}

private:
	T value;
};

struct scheduled_mutex {
	void init() { held = false; }
	bool try_lock()
	{
		schedule::point();
		return !std::exchange(held, true);
	}
	void lock()
	{
		schedule::point();
		while (held) {
			schedule::now->waits++;
			schedule::wait();
		}
		held = true;
	}
	void unlock()
	{
		held = false;
		schedule::point();
	}
	bool held;
};

struct scheduled_condition {
	void init() { count = 1; }
	uint64_t ticket() const { return count; }
	bool wait(uint64_t seen, uint64_t deadline)
	{
		while (count == seen && !schedule::is_later_than(deadline)) {
			schedule::now->waits++;
			schedule::wait();
		}
		return count != seen;
	}
	void broadcast() { count++; }
	uint64_t count;
};

#endif // MR_CACHE_SCHEDULE_H
