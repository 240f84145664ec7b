// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Gets a reference as libibverbs does: by find(), or by acquire() if find() finds nothing.
 * Therefore a sanitizer or the scheduler sees the hit path of the library. find() returns only the
 * registration; the registrars of the tests know its reference.
 */
#ifndef MR_CACHE_ACQUIRE_H
#define MR_CACHE_ACQUIRE_H

#include <cerrno>
#include <cstdint>

#include "mr_cache_core.h"

/* Returns 0, or the error of acquire(). Writes *ref only on success. */
template <class Cache>
int acquire(Cache &cache, void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
	    mr_cache_ref *ref)
{
	int error = 0;
	auto on_miss = [&](void *, uint64_t, uint64_t, uint32_t, mr_cache_ref part) -> void * {
		if (!part.mr)
			error = cache.acquire(pd, owner, addr, length, access, ref);
		return part.mr;
	};

	if (void *mr = cache.find(pd, addr, length, access, on_miss))
		*ref = cache.env.reference_to(mr);
	return error;
}

/*
 * Does the same as ibv_forget_mr(). If other users remain, sets *shared, and the registration ends
 * with its last user.
 */
template <class Cache> int forget(Cache &cache, const mr_cache_ref &ref, int *shared)
{
	const int taken = cache.claim(ref.index, ref.generation);

	*shared = taken == EBUSY;
	return taken == EAGAIN ? taken : cache.release(ref.index, ref.generation);
}

#endif // MR_CACHE_ACQUIRE_H
