/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The C interface of the registration cache. The core does not call verbs. A PD, a context (here
 * called owner) and an MR are pointers that the core only compares and returns.
 *
 * All functions are thread safe, and call the registrar without a lock. They return 0 or an errno
 * value unless said otherwise. A call from an allocator's hook inside the registrar does not wait.
 * A child has an empty cache and a new generation. In a child, releasing a parent's reference has
 * no effect.
 */
#ifndef MR_CACHE_CORE_H
#define MR_CACHE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../mr_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The access flags that the cache supports, with the values of IBV_ACCESS_*. */
enum mr_cache_access {
	MR_CACHE_LOCAL_WRITE = 1 << 0,
	MR_CACHE_REMOTE_WRITE = 1 << 1,
	MR_CACHE_REMOTE_READ = 1 << 2,
	MR_CACHE_REMOTE_ATOMIC = 1 << 3,
	MR_CACHE_RELAXED_ORDERING = 1 << 20,
	/* The registration serves only requests with exactly this range and these rights. */
	MR_CACHE_EXACT = 1 << 21,
};

struct mr_cache_request {
	void *pd;
	void *owner;
	uint64_t addr; /* addr and length become fields of the MR */
	uint64_t length;
	uint64_t start; /* whole pages to register, or with MR_CACHE_EXACT the range above */
	uint64_t size;
	uint32_t access;
	uint32_t index; /* as in struct mr_cache_ref */
	uint32_t generation;
	bool merged; /* a union of ranges; if room is short, it is not registered */
};

/* The registrar is mr_cache_registrar.c. This function registers an MR, and arms it with the word.
 * Before the call bits 0-7 of the word are 0. From then on the kernel owns these bits. EOPNOTSUPP
 * means that the cache must not be used. */
int mr_cache_reg_entry(const struct mr_cache_request *request, uint64_t *word, void **mr);
/* When this has returned 0, the word is INVALID or has no bit of the kernel. */
int mr_cache_settle_entry(void *mr);
/* When this has returned 0, the kernel does not write the word any more. */
int mr_cache_dereg_entry(void *mr);
/* Settings of a new owner. The caller has the mutex, so these functions must not call the cache. */
struct ibv_mr_cache_limits mr_cache_first_limits(void *owner);
uint64_t mr_cache_max_merge(void *owner); /* the largest merged registration, in bytes */

/* The bits of a word that count references. */
#define MR_CACHE_IN_USE 0x3fffffc00ULL

/* A reference. The struct fits into two registers. Several references may have the same mr. */
struct mr_cache_ref {
	void *mr; /* from the registrar, or NULL without a reference */
	uint32_t index;
	uint32_t generation; /* never 0 */
};

/* Starts the cache. If this fails with ENOMEM or EOPNOTSUPP (32 bits), the cache stays off. */
int mr_cache_init(void);

/* If an mr has exactly this range, takes a reference and returns the mr. Otherwise jumps to
 * mr_cache_on_miss(), with a reference to an mr with a larger range, or without a reference. */
void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access);
void *mr_cache_on_miss(void *pd, uint64_t addr, uint64_t length, uint32_t access,
		       struct mr_cache_ref part);

/* Finds a registration, or registers. Returns EOPNOTSUPP if the cache can't serve the request. */
int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     struct mr_cache_ref *ref);

/* Returns EINVAL for a released reference. After other errors the caller keeps the reference. */
int mr_cache_release(uint32_t index, uint32_t generation);

/* Removes the registration from the index. Returns 0 if the caller has the only reference. If
 * threads share this reference, all of them may get 0. Returns EBUSY if there are other users, and
 * EAGAIN in a signal handler that has interrupted the cache. */
int mr_cache_claim(uint32_t index, uint32_t generation);

/* Returns 1 if a valid cached registration contains the range and allows the access, else 0. */
int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access);

/* Sets the limits (to) and returns the old limits (from). Each pointer may be NULL. */
int mr_cache_limits(void *owner, const struct ibv_mr_cache_limits *to,
		    struct ibv_mr_cache_limits *from);

/* Evicts idle registrations until they have at most `keep` bytes. */
int mr_cache_clean(void *owner, uint64_t keep);

int mr_cache_query(void *owner, struct ibv_mr_cache_stats *statistics);

/* Call this before an owner ends. Before a PD ends, call it with owner NULL. */
int mr_cache_drain(void *owner, void *pd);

/* Returns how many bytes are pinned by registrations that are idle or being deregistered. */
uint64_t mr_cache_idle_bytes(void);

int mr_cache_is_on(void);

/* Stage 0 evicts some idle registrations of each owner. Later stages evict all idle registrations.
 * Returns how many registrations ended in all threads. `by_cache` is true if the registrar issued
 * the command that lacks room. */
uint64_t mr_cache_shrink(uint32_t stage, bool by_cache);

/*
 * Calls visit() for each owner. A lock is held, so visit() must not call the cache. If visit()
 * returns true, evicts all idle registrations of this owner. Returns the number of evictions, or -1
 * if the lock is not free. If `at_end` is true, the call tries only briefly to get the lock.
 */
typedef bool mr_cache_visitor(void *owner, const struct ibv_mr_cache_stats *statistics,
			      const void *by);
int64_t mr_cache_visit(mr_cache_visitor *visit, const void *by, bool at_end);

#ifdef __cplusplus
}
#endif

#endif /* MR_CACHE_CORE_H */
