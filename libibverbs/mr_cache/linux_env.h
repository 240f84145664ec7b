// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The functions of Linux that the cache uses, and the sizes of its tables in production. */
#ifndef MR_CACHE_LINUX_ENV_H
#define MR_CACHE_LINUX_ENV_H

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../static_tls.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* LeakSanitizer defines this name. NOLINTNEXTLINE(bugprone-reserved-identifier) */
extern "C" [[gnu::weak]] void __lsan_register_root_region(const void *start, size_t size);

namespace mr_cache {

/* A signal handler does not take the mutex while `locks` is set in its thread. */
struct thread_state {
	uint32_t inside; // the depth of nested calls of the registrar
	bool locks;	 // the thread has the mutex, or is about to take it
};

struct linux_env {
	template <class T> using atomic = std::atomic<T>;

	static constexpr uint32_t entries = 1 << 20;
	static constexpr uint32_t owners = 1 << 10;
	static constexpr uint32_t least_hint_bits = 11;
	static constexpr uint32_t most_hint_bits = 21;

	struct mutex {
		void init() { pthread_mutex_init(&m, nullptr); }
		void lock() { pthread_mutex_lock(&m); }
		bool try_lock() { return !pthread_mutex_trylock(&m); }
		void unlock() { pthread_mutex_unlock(&m); }

		pthread_mutex_t m;
	};

	/* In a child the count is 0, which ends each wait. */
	struct condition {
		void init() { count.store(1, std::memory_order_relaxed); }
		/* Call this with the mutex, and then wait() without the mutex. */
		uint32_t ticket()
		{
			waiting.store(true, std::memory_order_relaxed);
			return count.load(std::memory_order_relaxed);
		}
		/* Returns false after the deadline. With deadline 0, waits without a limit. */
		bool wait(uint32_t seen, uint64_t deadline)
		{
			const timespec at = {static_cast<time_t>(deadline / SECOND),
					     static_cast<long>(deadline % SECOND)};

			while (count.load(std::memory_order_relaxed) == seen)
				if (futex(FUTEX_WAIT_BITSET, seen, deadline ? &at : nullptr) ==
				    ETIMEDOUT)
					return false;
			return true;
		}
		void broadcast()
		{
			if (!waiting.load(std::memory_order_relaxed))
				return;
			waiting.store(false, std::memory_order_relaxed);
			count.fetch_add(1, std::memory_order_relaxed);
			futex(FUTEX_WAKE_BITSET, INT_MAX, nullptr);
		}

	private:
		int futex(int operation, uint32_t value, const timespec *until)
		{
			const int before = errno;
			const long ret = syscall(SYS_futex, &count, operation | FUTEX_PRIVATE_FLAG,
						 value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
			const int error = ret < 0 ? errno : 0;

			errno = before;
			return error;
		}

		std::atomic<uint32_t> count;
		std::atomic<bool> waiting;
	};

	static int disable_cancel()
	{
		int state;

		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		return state;
	}
	static void restore_cancel(int state) { pthread_setcancelstate(state, nullptr); }

	static uint64_t deadline()
	{
		timespec now;

		clock_gettime(CLOCK_MONOTONIC, &now);
		return static_cast<uint64_t>(now.tv_sec) * SECOND +
		       static_cast<uint64_t>(now.tv_nsec) + PATIENCE;
	}
	static constexpr uint64_t SECOND = 1000000000, PATIENCE = SECOND / 20;

	/* Reserves memory that the kernel zeroes in a child. Small pages suit small caches. */
	static void *map(size_t size)
	{
		void *memory = reserve(whole(size) + HUGE_PAGE);

		if (memory == MAP_FAILED)
			return nullptr;
		/* Without this advice gcore would write the whole reservation. */
		madvise(memory, whole(size) + HUGE_PAGE, MADV_DONTDUMP);
		memory = reinterpret_cast<void *>(whole(reinterpret_cast<uintptr_t>(memory)));
		if (madvise(memory, whole(size), MADV_WIPEONFORK)) {
			wipe(memory, size);
			return nullptr;
		}
		madvise(memory, whole(size), MADV_NOHUGEPAGE); // a kernel may lack huge pages
		return memory;
	}
	/* Makes memory accessible up to the ends of its huge pages, and populates the memory. */
	static bool commit(void *start, size_t size, bool huge)
	{
		const auto page = static_cast<uintptr_t>(page_mask());
		auto first = reinterpret_cast<uintptr_t>(start), end = whole(first + size);

		size += first & page;
		start = reinterpret_cast<void *>(first & ~page);
		first &= ~(HUGE_PAGE - 1);
		if (mprotect(reinterpret_cast<void *>(first), end - first, PROT_READ | PROT_WRITE))
			return false;
		if (huge)
			madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);
		if (locks.load(std::memory_order_relaxed))
			mlock(start, size); // beyond the limit the memory stays unlocked
		madvise(start, size, MADV_POPULATE_WRITE);
		return true;
	}
	/*
	 * If MCL_FUTURE is set, mmap() locks the whole new mapping, and fails beyond the limit. So
	 * this function maps one page, unlocks the page, and enlarges the mapping. The added pages
	 * are not locked. Sets `locks` if MCL_FUTURE is set.
	 */
	static void *reserve(size_t size)
	{
		const auto page = static_cast<size_t>(page_mask()) + 1;
		void *one = mmap(nullptr, page, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		unsigned char resident = 0;

		if (one == MAP_FAILED)
			return one;
		if (mincore(one, page, &resident))
			resident = 0;
		locks.store(resident & 1, std::memory_order_relaxed);
		munlock(one, page);

		void *all = mprotect(one, page, PROT_NONE)
				    ? MAP_FAILED
				    : mremap(one, page, size, MREMAP_MAYMOVE);

		if (all == MAP_FAILED)
			munmap(one, page);
		return all;
	}
	static inline std::atomic<bool> locks;

	/* Tells LeakSanitizer where the only pointers to idle registrations are. */
	static void published(void *memory, size_t size)
	{
		if (&__lsan_register_root_region)
			__lsan_register_root_region(memory, size);
	}

	static void clear(void *memory, size_t size)
	{
		madvise(memory, whole(size), MADV_DONTNEED);
	}

	static void wipe(void *memory, size_t size) { munmap(memory, whole(size)); }

	static constexpr uintptr_t HUGE_PAGE = 2 << 20;
	static constexpr uintptr_t whole(uintptr_t n)
	{
		return (n + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	}

	static void yield() { sched_yield(); }
	/* Lets threads of any priority run. */
	static void nap()
	{
		const timespec shortest = {0, 1};

		nanosleep(&shortest, nullptr);
	}

	static uint64_t page_mask()
	{
#if defined(__x86_64__)
		return 4095;
#else
		static constinit std::atomic<uint64_t> known = 0;
		uint64_t mask = known.load(std::memory_order_relaxed);

		if (!mask) [[unlikely]] {
			mask = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) - 1;
			known.store(mask, std::memory_order_relaxed);
		}
		return mask;
#endif
	}

	static thread_state &thread()
	{
		static constinit thread_local thread_state state STATIC_TLS = {};

		return state;
	}

	/* Counts a thread's calls, so that its hits in the same epoch get increasing stamps. */
	static uint32_t tick()
	{
		static constinit thread_local uint32_t sequence STATIC_TLS = 0;

		return ++sequence;
	}
};

} // namespace mr_cache

#endif // MR_CACHE_LINUX_ENV_H
