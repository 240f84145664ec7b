/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Declarations for the files of the cache outside of its core. mr_cache.c lists the files. */
#ifndef IB_VERBS_MR_CACHE_PRIVATE_H
#define IB_VERBS_MR_CACHE_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "ibverbs.h"
#include "mr_cache/mr_cache_core.h"

/* mr_cache_settings.c reads from RDMAV_MR_CACHE which registrations are cached. */
enum policy {
	POLICY_NONE,	/* the value 0 caches nothing */
	POLICY_LOCAL,	/* 1 also caches all registrations without remote rights */
	POLICY_REMOTE,	/* "remote" caches all, if peers trust one another */
	POLICY_FLAG,	/* an unset variable caches only with IBV_ACCESS_CACHED */
	POLICY_NOT_ASKED,
};

#define REMOTE_ACCESS                                                          \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define CACHED_ACCESS                                                          \
	(IBV_ACCESS_LOCAL_WRITE | REMOTE_ACCESS | IBV_ACCESS_RELAXED_ORDERING)

/* The library adds these flags to the access of each request. NOT_ASKED selects the slow path. */
#define NOT_ASKED (1U << 31)
extern unsigned int mr_cache_default __attribute__((visibility("hidden")));
/* Keys with these rights must not exceed the request. If peers are trusted, the mask is 0. */
extern unsigned int mr_cache_exact_rights __attribute__((visibility("hidden")));

enum policy mr_cache_policy(void) __attribute__((visibility("hidden")));
/* Are registrations cached for a program that may not know of the cache? */
bool mr_cache_is_unasked(void) __attribute__((visibility("hidden")));

/* The kernel refuses an MR that allows writes by peers but no local writes. */
static inline bool may_be_written(unsigned int access)
{
	const unsigned int writes = IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_ATOMIC;

	return !(access & writes) || access & IBV_ACCESS_LOCAL_WRITE;
}

/* Bits of mr_cache_context.state. The first registration asks the device and the kernel. */
enum context_state {
	CONTEXT_ASKED = 1 << 0,
	CONTEXT_CACHES = 1 << 1,
	CONTEXT_RECLAIMS = 1 << 2,	/* the kernel may suspend idle MRs */
};

static inline bool context_is(struct ibv_context *context,
			      enum context_state what)
{
	return __atomic_load_n(&get_priv(context)->mr_cache.state,
			       __ATOMIC_ACQUIRE) & what;
}

bool mr_cache_ask_context(struct ibv_context *context);

static inline bool context_caches(struct ibv_context *context)
{
	if (likely(context_is(context, CONTEXT_CACHES)))
		return true;
	return !context_is(context, CONTEXT_ASKED) && mr_cache_ask_context(context);
}

/* Could this many bytes be pinned, if idle registrations were not pinned? */
bool mr_cache_may_pin(uint64_t bytes);
/* True if RDMAV_MR_CACHE_STATS is set, until the process prints its last line of statistics. */
extern bool mr_cache_reports __attribute__((visibility("hidden")));

/*
 * The cache's atomics order each read of an MR before the provider's free(). ThreadSanitizer does
 * not see these atomics, so the cache reports the order. For this purpose each MR gets a mark, and
 * registrations use the slow path.
 */
void __tsan_acquire(void *of) __attribute__((weak));
void __tsan_release(void *of) __attribute__((weak));

static inline bool has_thread_sanitizer(void)
{
	return __tsan_acquire && __tsan_release;
}

/* A freed view, and an MR that becomes plain, have this mr_type with generation 0. */
#define CACHED_MR_FREED CACHED_MR
#define CACHED_MR_TAKEN CACHED_MR

/* Returns the marks (cached_mr.h) of an MR with a reference of this generation. */
static inline uint32_t type_of(uint32_t generation)
{
	return CACHED_MR | (has_thread_sanitizer() ? CACHED_MR_TOLD : 0) |
	       (generation & CACHED_MR_GENERATION);
}

static inline bool is_rounded(const struct ibv_mr *mr)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);

	return ((uintptr_t)mr->addr | mr->length) % page;
}

/* If true, don't call the provider. It may have ended, or exit() may have interrupted malloc(). */
extern bool mr_cache_is_ending __attribute__((visibility("hidden")));

#endif /* IB_VERBS_MR_CACHE_PRIVATE_H */
