// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A registrar without a kernel, for the cache's tests. It counts registrations, and never hands out
 * a number twice.
 */
#ifndef MR_CACHE_FAKE_REGISTRAR_H
#define MR_CACHE_FAKE_REGISTRAR_H

#include <atomic>
#include <cstdint>

#include "acquire.h"
#include "linux_env.h"
#include "mr_cache_core.h"

/* A registrar that does as little as possible. */
struct counting_env : mr_cache::linux_env {
	std::atomic<int64_t> live{0};
	std::atomic<uint64_t> made{0};

	std::atomic<uint32_t> generation{0};

	int reg(const mr_cache_request *what, uint64_t *, void **mr)
	{
		live++;
		generation = what->generation;
		*mr = reinterpret_cast<void *>(++made << 20 | what->index);
		return 0;
	}
	mr_cache_ref reference_to(void *mr) const
	{
		const uintptr_t index = reinterpret_cast<uintptr_t>(mr) % entries;

		return {mr, static_cast<uint32_t>(index), generation};
	}
	int settle(void *) { return 0; }
	int dereg(void *)
	{
		live--;
		return 0;
	}
	static ibv_mr_cache_limits default_limits(void *) { return {UINT64_MAX, UINT64_MAX}; }
	static uint64_t max_merge(void *) { return UINT64_MAX; }
};

#endif // MR_CACHE_FAKE_REGISTRAR_H
