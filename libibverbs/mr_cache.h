/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * With the cache, ibv_reg_mr() finds an existing registration, and ibv_dereg_mr() keeps the
 * registration. When the memory of a registration is gone, the kernel reports this (mr_notify.h),
 * and no later call finds the registration. RDMAV_MR_CACHE turns the cache on without
 * IBV_ACCESS_CACHED. A device without IBV_DEVICE_MR_NOTIFY has no cache. All functions are thread
 * safe. See ibv_mr_cache(7), and the page of each function.
 */
#ifndef INFINIBAND_MR_CACHE_H
#define INFINIBAND_MR_CACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;
struct ibv_mr;
struct ibv_pd;

/*
 * Older libraries ignore this flag of ibv_reg_mr() and its iova variants. Several MRs may have the
 * same handle and keys. If such MRs have remote rights, they have the same range and rights. After
 * ibv_dereg_mr(), keys work until the registration is evicted, suspended or forgotten.
 */
#define IBV_ACCESS_CACHED (1 << 29)

/* The limits also count registrations in use. This struct and the next may grow at their ends. */
struct ibv_mr_cache_limits {
	uint64_t max_bytes;
	uint64_t max_entries;
};

struct ibv_mr_cache_stats {
	uint64_t hits;
	uint64_t misses;	/* requests that made a new registration */
	uint64_t suspects;	/* SUSPECT registrations that the kernel found intact */
	uint64_t invalidations;	/* registrations dropped because the memory had changed */
	uint64_t evictions;	/* idle registrations dropped to make room */
	uint64_t bytes;		/* registered now: in use, idle or suspended */
	uint64_t entries;
	uint64_t suspensions;	/* idle registrations whose pages the kernel took */
	uint64_t restorations;	/* hits that pinned the pages of a suspended registration again */
};

/* The inline functions below call these two. `size` is the size of the struct in the program. */
int _ibv_reg_mr_limits(struct ibv_context *context,
		       const struct ibv_mr_cache_limits *new_limits,
		       struct ibv_mr_cache_limits *old_limits, size_t size);
int _ibv_query_mr_cache(struct ibv_context *context,
			struct ibv_mr_cache_stats *stats, size_t size);

/**
 * ibv_is_reg - Is this range in the cache?
 * Returns 1 if a cached ibv_reg_mr() of this range would find a valid registration, otherwise 0.
 */
int ibv_is_reg(struct ibv_pd *pd, const void *addr, size_t length,
	       unsigned int access);

/**
 * ibv_forget_mr - Deregister an MR for good, cached or not
 *
 * Returns 0 when the keys of mr give no access any more. Returns EBUSY if other MRs have the same
 * registration. Then no later call finds this registration, which ends with its last MR. After any
 * other errno value, mr is still valid.
 */
int ibv_forget_mr(struct ibv_mr *mr);

/**
 * ibv_reg_mr_limits - Set (new_limits) and return (old_limits) the limits of a context's cache
 *
 * Either pointer may be NULL. Idle registrations beyond the new limits end before the call returns.
 * Registrations in use beyond the limits serve no further request, and end with the last user.
 *
 * Returns 0. On failure changes nothing and returns EOPNOTSUPP if the context has no cache, ENOMEM
 * if 1,024 other contexts have a cache, or EINVAL for a limit that this library does not know.
 */
static inline int ibv_reg_mr_limits(struct ibv_context *context,
				    struct ibv_mr_cache_limits *new_limits,
				    struct ibv_mr_cache_limits *old_limits)
{
	return _ibv_reg_mr_limits(context, new_limits, old_limits,
				  sizeof(struct ibv_mr_cache_limits));
}

/**
 * ibv_reg_mr_clean - Evict idle registrations until at most keep_bytes bytes of them stay
 *
 * The least recently used registrations go first. Their pages are unpinned when the call returns.
 * Returns 0, EOPNOTSUPP if there is no cache, or the errno value of a failed deregistration.
 */
int ibv_reg_mr_clean(struct ibv_context *context, size_t keep_bytes);

/**
 * ibv_query_mr_cache - Get the contents and the history of a context's cache
 *
 * Each number is exact while no other thread registers.
 * Returns 0. On failure stores nothing and returns EINVAL if stats is NULL, or EOPNOTSUPP if the
 * context has no cache.
 */
static inline int ibv_query_mr_cache(struct ibv_context *context,
				     struct ibv_mr_cache_stats *stats)
{
	return _ibv_query_mr_cache(context, stats, sizeof(*stats));
}

#ifdef __cplusplus
}
#endif

#endif /* INFINIBAND_MR_CACHE_H */
