// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What the cache needs of Linux, with the sizes of production; whoever uses it
 * adds the registrar and the default limits.
 */
#ifndef MR_CACHE_LINUX_ENV_H
#define MR_CACHE_LINUX_ENV_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace mr_cache {

struct linux_env {
	template <class T> using atomic = std::atomic<T>;

	static constexpr uint32_t entries = 1 << 20;
	static constexpr uint32_t domains = 1 << 14;
	static constexpr uint32_t owners = 1 << 10;
	static constexpr uint32_t least_hint_bits = 10;
	static constexpr uint32_t most_hint_bits = 18;

	struct mutex {
		void init() { pthread_mutex_init(&m, nullptr); }
		void lock() { pthread_mutex_lock(&m); }
		void unlock() { pthread_mutex_unlock(&m); }

		pthread_mutex_t m;
	};

	struct condition {
		void init() { pthread_cond_init(&c, nullptr); }
		void wait(mutex &with) { pthread_cond_wait(&c, &with.m); }
		void broadcast() { pthread_cond_broadcast(&c); }

		pthread_cond_t c;
	};

	/* Zeros, reserved only; zeros again in a child, where the kernel can (4.14). */
	static void *map(size_t size)
	{
		void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (memory == MAP_FAILED)
			return nullptr;
		madvise(memory, size, MADV_WIPEONFORK);
		return memory;
	}

	static void wipe(void *memory, size_t size) { madvise(memory, size, MADV_DONTNEED); }
	static void yield() { sched_yield(); }

	static uint64_t page_mask()
	{
#if defined(__x86_64__)
		return 4095;
#else
		static const uint64_t mask = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) - 1;

		return mask;
#endif
	}

	/* Orders the hits of one thread between two misses; constant initialization, no wrapper. */
	static uint32_t tick()
	{
		static constinit thread_local uint32_t sequence [[gnu::tls_model("initial-exec")]] =
			0;

		return ++sequence;
	}
};

} // namespace mr_cache

#endif // MR_CACHE_LINUX_ENV_H
