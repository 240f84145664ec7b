/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The C boundary of the registration cache. The core does not know the verbs: a PD, a context
 * (here: owner) and an MR are pointers that it only compares and returns.
 *
 * All functions are thread safe, and call the registrar without a lock. They return 0 or an errno
 * value unless said otherwise. If an allocator's hook inside the registrar calls them, they don't
 * wait. A child has an empty cache and a new generation. Releasing a parent's reference is a no-op.
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
	/* The registration serves exactly this range and these rights, and no part of its pages. */
	MR_CACHE_EXACT = 1 << 21,
};

struct mr_cache_request {
	void *pd;
	void *owner;
	uint64_t addr; /* the range for the fields of the MR */
	uint64_t length;
	uint64_t start; /* the range to register: whole pages, or with MR_CACHE_EXACT as above */
	uint64_t size;
	uint32_t access;
	uint32_t index; /* as in struct mr_cache_ref */
	uint32_t generation;
	bool merged; /* a union: evict nothing for it. The request alone may need less room. */
};

/*
 * The registrar (mr_cache_registrar.c). Registers the MR, and arms it with the word. Bits 0-7 of
 * the word are 0, and belong to the kernel from now on. EOPNOTSUPP: register without cache.
 */
int mr_cache_reg_entry(const struct mr_cache_request *request, uint64_t *word, void **mr);
/* After 0 the word says INVALID, or has no bit of the kernel. */
int mr_cache_settle_entry(void *mr);
/* After 0 the kernel does not write the word any more. */
int mr_cache_dereg_entry(void *mr);
/* The settings of a new owner. The caller has a lock, so these must not call the cache. */
struct ibv_mr_cache_limits mr_cache_first_limits(void *owner);
uint64_t mr_cache_max_merge(void *owner); /* the largest merged registration, in bytes */

/* The bits of a word that count references. */
#define MR_CACHE_IN_USE 0x3fffffc00ULL

/* A reference, which fits into two registers. Several references may have the same mr. */
struct mr_cache_ref {
	void *mr; /* from the registrar; NULL: no reference */
	uint32_t index;
	uint32_t generation; /* never 0 */
};

/* Starts the cache. After ENOMEM or EOPNOTSUPP (32 bits) it stays off. */
int mr_cache_init(void);

/* Returns the mr with exactly this range, and takes a reference. Otherwise jumps to
 * mr_cache_on_miss(), with a reference to an mr with a larger range, or without a reference. */
void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access);
void *mr_cache_on_miss(void *pd, uint64_t addr, uint64_t length, uint32_t access,
		       struct mr_cache_ref part);

/* Finds a registration, or registers. EOPNOTSUPP: the cache can't serve this request now. */
int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     struct mr_cache_ref *ref);

/* EINVAL: the reference was released before. Other errors: the caller still has it. */
int mr_cache_release(uint32_t index, uint32_t generation);

/* Removes the registration from the index. 0: the caller has the only reference (threads that share
 * it may all get 0). EBUSY: there are other users. EAGAIN: a signal handler interrupted the
 * cache. */
int mr_cache_claim(uint32_t index, uint32_t generation);

/* Returns 1 if a valid cached registration contains the range and allows the access, or 0. */
int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access);

/* Sets the limits (to) and returns the old limits (from). Both may be NULL. */
int mr_cache_limits(void *owner, const struct ibv_mr_cache_limits *to,
		    struct ibv_mr_cache_limits *from);

/* Evicts idle registrations until at most `keep` bytes of them stay. */
int mr_cache_clean(void *owner, uint64_t keep);

int mr_cache_query(void *owner, struct ibv_mr_cache_stats *statistics);

/* Call this before an owner ends, or with owner NULL before a PD ends. */
int mr_cache_drain(void *owner, void *pd);

/* Bytes pinned by registrations that are idle, or being deregistered. */
uint64_t mr_cache_idle_bytes(void);

int mr_cache_is_on(void);

/* Evicts some idle registrations of all owners (stage 0), or all (later). Returns how many were
 * deregistered, also by other threads. by_cache: a command of the registrar lacks room. */
uint64_t mr_cache_shrink(uint32_t stage, bool by_cache);

/*
 * Calls visit() for each owner. A lock is held, so visit() must not call the cache. If visit()
 * returns true, evicts all idle registrations of this owner. Returns how many were evicted, or -1
 * if it gets no lock (at_end: it tries only briefly).
 */
typedef bool mr_cache_visitor(void *owner, const struct ibv_mr_cache_stats *statistics,
			      const void *by);
int64_t mr_cache_visit(mr_cache_visitor *visit, const void *by, bool at_end);

#ifdef __cplusplus
}
#endif

#endif /* MR_CACHE_CORE_H */
