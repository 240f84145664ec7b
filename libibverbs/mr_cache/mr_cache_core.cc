// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The registration cache of the process. verbs_env adds the registrar of the verbs to linux_env. */
#include "mr_cache_core.h"

#if UINTPTR_MAX > UINT32_MAX

#include "cache.h"
#include "linux_env.h"

namespace {

struct verbs_env : mr_cache::linux_env {
	static constexpr auto *reg = mr_cache_reg_entry;
	static constexpr auto *settle = mr_cache_settle_entry;
	static constexpr auto *dereg = mr_cache_dereg_entry;
	static constexpr auto *default_limits = mr_cache_first_limits;
	static constexpr auto *max_merge = mr_cache_max_merge;
};

constinit mr_cache::cache<verbs_env> cache;

} // namespace

extern "C" {

int mr_cache_init()
{
	return cache.start();
}

int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     mr_cache_ref *ref)
{
	return cache.acquire(pd, owner, addr, length, access, ref);
}

void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	/* Use a lambda, because a function pointer would occupy a register. */
	return cache.find(pd, addr, length, access,
			  [](auto... wanted) { return mr_cache_on_miss(wanted...); });
}

int mr_cache_release(uint32_t index, uint32_t generation)
{
	return cache.release(index, generation);
}

int mr_cache_claim(uint32_t index, uint32_t generation)
{
	return cache.claim(index, generation);
}

int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return cache.covers(pd, addr, length, access);
}

int mr_cache_limits(void *owner, const ibv_mr_cache_limits *to, ibv_mr_cache_limits *from)
{
	return cache.limits(owner, to, from);
}

int mr_cache_clean(void *owner, uint64_t keep)
{
	return cache.clean(owner, keep);
}

int mr_cache_query(void *owner, ibv_mr_cache_stats *statistics)
{
	return cache.query(owner, statistics);
}

int mr_cache_drain(void *owner, void *pd)
{
	return cache.drain(owner, pd);
}

uint64_t mr_cache_idle_bytes()
{
	return cache.idle_bytes();
}

int mr_cache_is_on()
{
	return cache.is_started();
}

uint64_t mr_cache_shrink(uint32_t stage, bool by_cache)
{
	return cache.shrink(stage, by_cache);
}

int64_t mr_cache_visit(mr_cache_visitor *visit, const void *by, bool at_end)
{
	return cache.visit(visit, by, at_end);
}

} // extern "C"

#else

/* Some 32-bit CPUs lack 64-bit atomics. So the cache stays off, and no code calls the aliases. */
#include <cerrno>

#ifndef __clang__
#pragma GCC diagnostic ignored "-Wattribute-alias"
#endif
#define NONE(name) decltype(name) name __attribute__((alias("mr_cache_init")))

extern "C" {

int mr_cache_init()
{
	return EOPNOTSUPP;
}

int mr_cache_is_on()
{
	return 0;
}

void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return mr_cache_on_miss(pd, addr, length, access, {});
}

NONE(mr_cache_acquire);
NONE(mr_cache_release);
NONE(mr_cache_claim);
NONE(mr_cache_covers);
NONE(mr_cache_limits);
NONE(mr_cache_clean);
NONE(mr_cache_query);
NONE(mr_cache_visit);
NONE(mr_cache_drain);
NONE(mr_cache_idle_bytes);
NONE(mr_cache_shrink);

} // extern "C"

#endif
