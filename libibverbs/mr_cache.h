/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Cached registration: ibv_reg_mr() finds the registration that is there, and ibv_dereg_mr() leaves it
 * for the next one. The kernel tells when its memory has gone (mr_notify.h), so it is never found then.
 * See ibv_mr_cache(7), and the page of each function; all are thread safe.
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
 * An access flag of ibv_reg_mr() and its iova variants, which an older library ignores. The MR may
 * share its handle and keys with others; with remote rights only with those of exactly its range and
 * rights. Its keys work after ibv_dereg_mr() until it is evicted or suspended: ibv_forget_mr() ends them.
 */
#define IBV_ACCESS_CACHED (1 << 29)

/* Registrations in use count too. These two structs may get more fields at their ends. */
struct ibv_mr_cache_limits {
	uint64_t max_bytes;
	uint64_t max_entries;
};

struct ibv_mr_cache_stats {
	uint64_t hits;
	uint64_t misses;	/* that registered */
	uint64_t suspects;	/* asked the kernel, and found intact */
	uint64_t invalidations;	/* dropped because the memory had changed */
	uint64_t evictions;	/* idle ones dropped to make room */
	uint64_t bytes;		/* registered now: in use, idle or suspended */
	uint64_t entries;
	uint64_t suspensions;	/* the kernel took back the pages of idle ones */
	uint64_t restorations;	/* of those: hits that had their pages pinned again */
};

/* For the functions without an underscore, with the size of the caller's struct. */
int _ibv_reg_mr_limits(struct ibv_context *context,
		       const struct ibv_mr_cache_limits *new_limits,
		       struct ibv_mr_cache_limits *old_limits, size_t size);
int _ibv_query_mr_cache(struct ibv_context *context,
			struct ibv_mr_cache_stats *stats, size_t size);

/* Returns 1 if a cached ibv_reg_mr() of this range would find a valid registration, else 0. */
int ibv_is_reg(struct ibv_pd *pd, const void *addr, size_t length,
	       unsigned int access);

/**
 * ibv_forget_mr - Deregister an MR for good, cached or not
 *
 * Returns 0: nobody has access by its keys any more. EBUSY: others have the same registration; it is
 * handed out no more, and ends with the last of them. With any other errno value the caller still has mr.
 */
int ibv_forget_mr(struct ibv_mr *mr);

/**
 * ibv_reg_mr_limits - Set (new_limits) and tell (old_limits) the limits of a context's cache
 *
 * Either may be NULL. Idle registrations beyond the new limits are evicted. Those in use beyond them
 * are handed out no more, and end with the last user.
 *
 * Returns 0, or an errno value and changes nothing: EOPNOTSUPP when the context has no cache, ENOMEM
 * when there are too many contexts with one, EINVAL for a limit that this library does not know.
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
 * Returns 0, or an errno value: EOPNOTSUPP when the context has no cache, or a deregistration's.
 */
int ibv_reg_mr_clean(struct ibv_context *context, size_t keep_bytes);

/**
 * ibv_query_mr_cache - Tell the contents and the history of a context's cache
 *
 * Returns 0, or an errno value and stores nothing: EOPNOTSUPP when the context has no cache.
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
