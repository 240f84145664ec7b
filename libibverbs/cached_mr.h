/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The functions of the registration cache that verbs.c and device.c call. ibverbs.h includes this
 * file. mr_cache.c replaces ibv_reg_mr_iova2().
 *
 * A process that does not use the cache pays one predictable branch in ibv_reg_mr() and another
 * in ibv_dereg_mr(), and makes no additional system call.
 */
#ifndef IB_VERBS_CACHED_MR_H
#define IB_VERBS_CACHED_MR_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/driver.h>
#include <infiniband/mr_cache.h>
#include <util/compiler.h>

#include "mr_notify_cmd.h"

/*
 * Two fields of an MR from the cache have other meanings. verbs_mr.mr_type has the bits below and
 * the fork generation of the entry. verbs_mr.access has the index of the entry. Providers read
 * these fields only to recognize plain registrations. struct verbs_mr can't grow, because all
 * providers embed it.
 */
#define CACHED_MR		(1U << 31)
#define CACHED_MR_VIEW		(1U << 30)	/* a view (mr_view.h), not the provider's MR */
#define CACHED_MR_TOLD		(1U << 29)	/* the cache reports its uses to ThreadSanitizer */
#define CACHED_MR_GENERATION	(CACHED_MR_TOLD - 1)

/*
 * A plain MR has this bit in verbs_mr.access if it was cached with a range rounded to pages.
 */
#define CACHED_MR_ROUNDED (1U << 31)

/* The fields of the cache in the private part of each context. */
struct mr_cache_context {
	uint32_t state;	  /* enum context_state, or 0 before the first request */
	uint32_t forks;	  /* mr_cache_forks() when the context was opened */
	uint64_t idle_ms; /* the kernel suspends MRs that are idle for this time; 0: never */
	struct ibv_mr_cache_limits limits; /* the first limits, which the program may change */
	uint64_t max_merge; /* the largest merged registration, in bytes */
};

/* Must ibv_rereg_mr() call mr_cache_rereg_mr()? */
static inline bool mr_cache_was_ours(struct ibv_mr *mr)
{
	const struct verbs_mr *vmr = verbs_get_mr(mr);

	return unlikely(vmr->mr_type & CACHED_MR ||
			vmr->access & CACHED_MR_ROUNDED);
}

/* Because the load is atomic, the compiler saves registers only after the branch. */
static inline bool mr_cache_owns(struct ibv_mr *mr)
{
	return unlikely(__atomic_load_n((uint32_t *)&verbs_get_mr(mr)->mr_type,
					__ATOMIC_RELAXED) & CACHED_MR);
}

/*
 * verbs.c has upstream's ibv_reg_mr_iova2() under this name. The cache's own ibv_reg_mr_iova2()
 * calls this for requests that the cache does not serve. Providers never get IBV_ACCESS_CACHED.
 */
struct ibv_mr *plain_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				  uint64_t iova, unsigned int access);
/* ibv_dereg_mr() calls this if mr_cache_owns() is true. */
int mr_cache_dereg_mr(struct ibv_mr *mr);
/*
 * ibv_reg_mr_notify() calls this. If the program did not ask for a cached MR and the MR has no
 * other user, turns the MR into a plain MR with the same keys. Returns 0. On failure
 * changes nothing and returns an errno value.
 */
int mr_cache_make_plain(struct ibv_mr *mr);
/*
 * ibv_rereg_mr() calls this for an MR that is or was cached. Returns true if *ret is the result of
 * the verb. Returns false if the MR is plain now and ibv_rereg_mr() must continue.
 */
bool mr_cache_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
		       void *addr, size_t length, int access, int *ret);
/*
 * Call this after a command has failed with errno. If idle registrations may hold a resource that
 * the command lacks, deregisters them and repeats the command. Returns true if the command
 * succeeded. Otherwise sets errno to the error of the last attempt.
 */
bool mr_cache_retry_cmd(struct ibv_context *context,
			struct ibv_command_buffer *cmd);
/* ibv_open_device() calls this. Returns how many forks led to this process. */
uint32_t mr_cache_forks(void);
/* ibv_import_pd() calls this, because an import may make a second struct ibv_pd for a PD. */
void mr_cache_note_import(void);
/* ibv_unimport_mr() calls this. If the MR is cached, releases its reference and returns true. */
bool mr_cache_unimport_mr(struct ibv_mr *mr);
/* Call these functions before the PD or the context is freed. */
void mr_cache_flush_pd(struct ibv_pd *pd);
void mr_cache_flush_context(struct ibv_context *context);

#endif /* IB_VERBS_CACHED_MR_H */
