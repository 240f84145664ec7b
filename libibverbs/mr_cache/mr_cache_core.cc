// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The process's registration cache: the one instance, and the only extern "C" file
 * of the core. Adds the registrar of the verbs to linux_env.
 *
 * On 32 bits there is none: the kernel's words are of 64, which some of these CPUs
 * change by a lock of libatomic's alone, and kernels of 32 bits do not notify.
 */
#include "mr_cache_core.h"

#if UINTPTR_MAX > UINT32_MAX

#include "cache.h"
#include "linux_env.h"

namespace {

/* The same for all that start the cache; written before the pointer is published. */
struct verbs_env : mr_cache::linux_env {
	std::atomic<const mr_cache_registrar *> registrar;

	const mr_cache_registrar &use() const { return *registrar.load(std::memory_order_relaxed); }
	int reg(const mr_cache_request &request, uint64_t *word, void **mr)
	{
		return use().reg(&request, word, mr);
	}
	int settle(void *mr) { return use().settle(mr); }
	int dereg(void *mr) { return use().dereg(mr); }
	mr_cache_bounds default_limits(void *owner) const { return use().limits(owner); }
	uint64_t most_united(void *owner) const { return use().most_united(owner); }
};

/* A type: a pointer would be in a register all the way. */
struct not_found {
	void *operator()(void *pd, uint64_t addr, uint64_t length, uint32_t access,
			 mr_cache_part part) const
	{
		return mr_cache_not_found(pd, addr, length, access, part);
	}
};

constinit mr_cache::cache<verbs_env> cache;

} // namespace

extern "C" {

int mr_cache_init(const mr_cache_registrar *registrar)
{
	const mr_cache_registrar *nobody = nullptr;

	if (!cache.env.registrar.compare_exchange_strong(nobody, registrar) && nobody != registrar)
		return EBUSY;
	return cache.start();
}

int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     mr_cache_ref *ref)
{
	return cache.acquire(pd, owner, addr, length, access, ref);
}

void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return cache.find(pd, addr, length, access, not_found());
}

int mr_cache_release(uint32_t index, uint32_t generation)
{
	return cache.release(index, generation);
}

int mr_cache_take(uint32_t index, uint32_t generation)
{
	return cache.take(index, generation);
}

int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return cache.covers(pd, addr, length, access);
}

int mr_cache_limits(void *owner, const mr_cache_bounds *to, mr_cache_bounds *from)
{
	return cache.limits(owner, to, from);
}

int mr_cache_clean(void *owner, uint64_t keep)
{
	return cache.clean(owner, keep);
}

int mr_cache_query(void *owner, mr_cache_statistics *statistics)
{
	return cache.query(owner, statistics);
}

int mr_cache_query_at_end(void *owner, mr_cache_statistics *statistics)
{
	return cache.query_at_end(owner, statistics);
}

int mr_cache_flush_pd(void *pd)
{
	return cache.flush_pd(pd);
}

int mr_cache_flush_owner(void *owner)
{
	return cache.flush_owner(owner);
}

int mr_cache_forget(uint32_t index, uint32_t generation, int *shared)
{
	return cache.forget(index, generation, shared);
}

uint64_t mr_cache_idle_bytes()
{
	return cache.idle_bytes();
}

int mr_cache_is_on()
{
	return cache.is_started();
}

uint64_t mr_cache_make_way(uint32_t stage, bool by_cache)
{
	return cache.make_way(stage, by_cache);
}

uint64_t mr_cache_evict(bool (*is_wanted)(void *owner, const void *by), const void *by, bool at_end)
{
	return cache.evict(is_wanted, by, at_end);
}

} // extern "C"

#else

#include <cerrno>

extern "C" {

int mr_cache_init(const mr_cache_registrar *)
{
	return EOPNOTSUPP;
}

int mr_cache_acquire(void *, void *, uint64_t, uint64_t, uint32_t, mr_cache_ref *)
{
	return EOPNOTSUPP;
}

void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return mr_cache_not_found(pd, addr, length, access, {});
}

int mr_cache_release(uint32_t, uint32_t)
{
	return EINVAL;
}

int mr_cache_take(uint32_t, uint32_t)
{
	return EINVAL;
}

int mr_cache_covers(void *, uint64_t, uint64_t, uint32_t)
{
	return 0;
}

int mr_cache_limits(void *, const mr_cache_bounds *, mr_cache_bounds *)
{
	return EOPNOTSUPP;
}

int mr_cache_clean(void *, uint64_t)
{
	return EOPNOTSUPP;
}

int mr_cache_query(void *, mr_cache_statistics *)
{
	return EOPNOTSUPP;
}

int mr_cache_query_at_end(void *, mr_cache_statistics *)
{
	return EBUSY;
}

int mr_cache_flush_pd(void *)
{
	return 0;
}

int mr_cache_flush_owner(void *)
{
	return 0;
}

int mr_cache_forget(uint32_t, uint32_t, int *)
{
	return EINVAL;
}

uint64_t mr_cache_idle_bytes()
{
	return 0;
}

int mr_cache_is_on()
{
	return 0;
}

uint64_t mr_cache_make_way(uint32_t, bool)
{
	return 0;
}

uint64_t mr_cache_evict(bool (*)(void *, const void *), const void *, bool)
{
	return 0;
}

} // extern "C"

#endif
