/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The C boundary of the registration cache. The core knows nothing of verbs: a PD, a context (here:
 * owner) and an MR are pointers that it compares and gives back.
 *
 * A reference is (index, generation). Several may have the same mr. All functions are thread safe,
 * return 0 or an errno value unless said otherwise, and call the registrar without a lock. The
 * registrar may call them again (an allocator's hook in the middle of a registration): then they do
 * not wait. A child starts with an empty cache and a new generation; it may release references of
 * its parent: that returns 0 and touches nothing.
 */
#ifndef MR_CACHE_CORE_H
#define MR_CACHE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "../mr_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The access flags that are cached, with the values of IBV_ACCESS_*; others are EOPNOTSUPP. */
enum mr_cache_access {
	MR_CACHE_LOCAL_WRITE = 1 << 0,
	MR_CACHE_REMOTE_WRITE = 1 << 1,
	MR_CACHE_REMOTE_READ = 1 << 2,
	MR_CACHE_REMOTE_ATOMIC = 1 << 3,
	MR_CACHE_RELAXED_ORDERING = 1 << 20,
	/* No right: it serves exactly this range and these rights. Else it is rounded to pages, and
	 * serves any part with any part of its rights. */
	MR_CACHE_EXACT = 1 << 21,
};

/*
 * start and size contain addr and length, which the mr should show. They are page aligned, or with
 * MR_CACHE_EXACT the same. Merged with idle ones (merge.h) all is shown.
 */
struct mr_cache_request {
	void *pd;
	void *owner;
	uint64_t addr;
	uint64_t length;
	uint64_t start;
	uint64_t size;
	uint32_t access;
	/* Of the references to the registration. */
	uint32_t index;
	uint32_t generation;
	/* Nothing is evicted for it: the request alone may do with less. */
	bool merged;
};

/*
 * The registrar (mr_cache_registrar.c). Registers, then arms the word, whose bits 0-7 are 0 and
 * belong to the kernel from now on; it is in use while any of MR_CACHE_IN_USE is set, as one is
 * during the call. On failure nothing is left registered. EOPNOTSUPP: register this one plainly.
 */
int mr_cache_reg_entry(const struct mr_cache_request *request, uint64_t *word, void **mr);
/* After 0 the word says INVALID, or nothing; one that was suspended has its pages. */
int mr_cache_settle_entry(void *mr);
/* After 0 the kernel does not touch the word any more. */
int mr_cache_dereg_entry(void *mr);
/* Those that an owner starts with. Called with a lock held: calls nothing here. */
struct ibv_mr_cache_limits mr_cache_first_limits(void *owner);
/* The most bytes that requests are registered together; the same. */
uint64_t mr_cache_max_merge(void *owner);

/* The bits of a word that count references. */
#define MR_CACHE_IN_USE 0x3fffffc00ULL

/* In two registers. Where the mr shows another range than was asked for the shim hands out a view. */
struct mr_cache_ref {
	void *mr; /* from reg(), or NULL: none */
	uint32_t index;
	uint32_t generation; /* never 0 */
};

/* Before anything else. On an error the cache stays off: ENOMEM, or EOPNOTSUPP on 32 bits. */
int mr_cache_init(void);

/*
 * The mr, with a reference, that shows exactly this range. In all other cases, of a part or when
 * there is none, this jumps to mr_cache_on_miss() (mr_cache.c): so a hit saves no registers.
 */
void *mr_cache_find(void *pd, uint64_t addr, uint64_t length, uint32_t access);
void *mr_cache_on_miss(void *pd, uint64_t addr, uint64_t length, uint32_t access,
		       struct mr_cache_ref part);

/*
 * A reference to a valid registration that serves the request; registers one when there is none.
 * EOPNOTSUPP: it is not for the cache, or not now. Any other error is the registrar's.
 */
int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     struct mr_cache_ref *ref);

/* EINVAL: it was given back before. Other errors are of a deregistration: it is still held. */
int mr_cache_release(uint32_t index, uint32_t generation);

/*
 * The registration becomes the caller's alone, if that has the only reference (threads that share
 * one may all be told that): it is not found any more. EBUSY: nor here, but it has other users;
 * EAGAIN: this signal handler has interrupted the cache; EINVAL: no reference of this process.
 */
int mr_cache_claim(uint32_t index, uint32_t generation);

/* 1: a valid cached registration contains the range and allows the access. Else 0. */
int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access);

/* Sets (to) and tells (from: the old ones) the limits of an owner, if not NULL. */
int mr_cache_limits(void *owner, const struct ibv_mr_cache_limits *to,
		    struct ibv_mr_cache_limits *from);

/* Evicts idle registrations until at most that many bytes of them stay. */
int mr_cache_clean(void *owner, uint64_t keep);

int mr_cache_query(void *owner, struct ibv_mr_cache_stats *statistics);

/* Before a PD or a context goes: locked::drain(). */
int mr_cache_drain_pd(void *pd);
int mr_cache_drain_owner(void *owner);

/* Pinned by idle registrations, or by those that are deregistered just now. */
uint64_t mr_cache_idle_bytes(void);

int mr_cache_is_on(void);

/*
 * After ENOMEM, EAGAIN or ENOSPC: evicts some of all that is idle (stage 0), then all. Returns how
 * many were deregistered, by others too. by_cache: it was the registrar's command.
 */
uint64_t mr_cache_shrink(uint32_t stage, bool by_cache);

/*
 * Calls visit() for each owner, with a lock held: it calls nothing here. Where that returns true
 * all idle registrations of the owner are evicted, and their number is returned. at_end, of the
 * process: -1 if another thread has the lock for long, or this one.
 */
typedef bool mr_cache_visitor(void *owner, const struct ibv_mr_cache_stats *statistics,
			      const void *by);
int64_t mr_cache_visit(mr_cache_visitor *visit, const void *by, bool at_end);

#ifdef __cplusplus
}
#endif

#endif /* MR_CACHE_CORE_H */
