/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Which registrations are cached, and for whom, as the program and RDMAV_MR_CACHE ask. */
#ifndef IB_VERBS_MR_CACHE_POLICY_H
#define IB_VERBS_MR_CACHE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#define REMOTE_ACCESS                                                          \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define CACHED_ACCESS                                                          \
	(IBV_ACCESS_LOCAL_WRITE | REMOTE_ACCESS | IBV_ACCESS_RELAXED_ORDERING)

/* RDMAV_MR_CACHE: which registrations are cached, and for whom. */
enum policy {
	POLICY_NOT_ASKED,
	POLICY_FLAG,	/* unset: those with IBV_ACCESS_CACHED */
	POLICY_LOCAL,	/* 1: also every one that no peer can notice */
	POLICY_REMOTE,	/* remote: every one, for peers that trust one another */
	POLICY_NONE,	/* 0: nothing at all */
};

/*
 * IBV_ACCESS_CACHED when all registrations are to be cached; and until it is known, or for ever
 * where a thread sanitizer is to be told, with a bit that is no right.
 */
#define NOT_ASKED (1U << 31)
extern unsigned int mr_cache_default __attribute__((visibility("hidden")));
/* Those rights with which a registration serves its own range only. */
extern unsigned int mr_cache_exact_rights __attribute__((visibility("hidden")));

/* Read once. */
enum policy mr_cache_policy(void) __attribute__((visibility("hidden")));
/* Does the program perhaps not know that its registrations are cached? */
bool mr_cache_is_unasked(void) __attribute__((visibility("hidden")));
/* The request to the core for a registration with that access. */
unsigned int mr_cache_access_of_entry(unsigned int access)
	__attribute__((visibility("hidden")));

/* The kernel refuses writes by peers where local writes are not allowed. */
static inline bool may_be_written(unsigned int access)
{
	const unsigned int writes = IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_ATOMIC;

	return !(access & writes) || access & IBV_ACCESS_LOCAL_WRITE;
}

/* A range that can be rounded to pages, with access that the kernel would allow. */
static inline bool can_be_cached(uint64_t addr, uint64_t length,
				 unsigned int access)
{
	return !(access & ~CACHED_ACCESS) && may_be_written(access) && length &&
	       addr + length > addr;
}

#endif /* IB_VERBS_MR_CACHE_POLICY_H */
