/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Where the verbs meet the registration cache: the functions for the hooks in upstream's
 * verbs.c and device.c. Included by ibverbs.h. ibv_reg_mr_iova2() is ours, in mr_cache.c.
 *
 * A process that does not use the cache pays one predictable branch in
 * ibv_reg_mr() and one in ibv_dereg_mr(), and no system call.
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
 * verbs_mr.mr_type of an MR that the cache handed out: the bits below and the
 * fork generation of its entry, whose index is in verbs_mr.access. No provider
 * uses these fields of a plain registration but to tell it from other kinds,
 * and struct verbs_mr is part of every provider's: it cannot grow.
 */
#define CACHED_MR		(1U << 31)
#define CACHED_MR_VIEW		(1U << 30)	/* of a part: not the provider's own */
#define CACHED_MR_TOLD		(1U << 29)	/* a thread sanitizer is told of it */
#define CACHED_MR_GENERATION	(CACHED_MR_TOLD - 1)

/*
 * In verbs_mr.access of an MR that was cached and is a plain one now: its range is
 * registered rounded to pages.
 */
#define CACHED_MR_ROUNDED (1U << 31)

/* Does ibv_rereg_mr() have to ask? */
static inline bool mr_cache_was_ours(struct ibv_mr *mr)
{
	const struct verbs_mr *vmr = verbs_get_mr(mr);

	return unlikely(vmr->mr_type & CACHED_MR ||
			vmr->access & CACHED_MR_ROUNDED);
}

/* A load of its own: so the compiler saves no registers before it is known. */
static inline bool mr_cache_owns(struct ibv_mr *mr)
{
	return unlikely(__atomic_load_n((uint32_t *)&verbs_get_mr(mr)->mr_type,
					__ATOMIC_RELAXED) & CACHED_MR);
}

/*
 * Upstream's ibv_reg_mr_iova2(), which the hook renames; ours calls it for all that the
 * cache does not serve. No provider sees IBV_ACCESS_CACHED.
 */
struct ibv_mr *plain_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				  uint64_t iova, unsigned int access);
/* ibv_dereg_mr() of an MR that mr_cache_owns(). */
int mr_cache_dereg_mr(struct ibv_mr *mr);
/*
 * For ibv_reg_mr_notify(): if the program did not ask for the MR to be cached and no
 * other user has it, it becomes a plain one with the same keys. Else an errno value, and
 * nothing changes for its users.
 */
int mr_cache_make_plain(struct ibv_mr *mr);
/*
 * For ibv_rereg_mr() of an MR that is or was cached: true if *ret is its answer, false if
 * the MR is a plain one now and it may go on.
 */
bool mr_cache_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
		       void *addr, size_t length, int access, int *ret);
/*
 * A command failed (errno). If it may lack something that idle registrations hold, they
 * go and it is tried again: did it succeed at last? Else errno is its last one.
 */
bool mr_cache_retry_cmd(struct ibv_context *context,
			struct ibv_command_buffer *cmd);
/* For a context that is opened: how often this process and its ancestors have been forked. */
uint32_t mr_cache_forks(void);
/* A PD has another name in this process from now on: ibv_import_pd(). */
void mr_cache_note_import(void);
/* For ibv_unimport_mr(): true if the MR was the cache's, which has it back. */
bool mr_cache_unimport_mr(struct ibv_mr *mr);
/* Before the PD or the context goes. */
void mr_cache_flush_pd(struct ibv_pd *pd);
void mr_cache_flush_context(struct ibv_context *context);

#endif /* IB_VERBS_CACHED_MR_H */
