/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Where the verbs meet the registration cache: what the hooks in upstream's
 * verbs.c and device.c call. Included by ibverbs.h.
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

struct ibv_command_buffer;

/*
 * verbs_mr.mr_type of an MR that the cache handed out: the bits below and the
 * fork generation of its entry, whose index is in verbs_mr.access. No provider
 * uses these fields of a plain registration but to tell it from other kinds,
 * and struct verbs_mr is part of every provider's: it cannot grow.
 */
#define CACHED_MR		(1U << 31)
#define CACHED_MR_VIEW		(1U << 30)	/* of a part: not the provider's own */
#define CACHED_MR_GENERATION	(CACHED_MR_VIEW - 1)

/* IBV_ACCESS_CACHED when all registrations are to be cached, or nobody has asked yet. */
extern unsigned int cached_mr_default;

static inline bool cached_mr_wanted(unsigned int access)
{
	return unlikely((access | cached_mr_default) & IBV_ACCESS_CACHED);
}

static inline bool cached_mr_owns(struct ibv_mr *mr)
{
	return unlikely(verbs_get_mr(mr)->mr_type & CACHED_MR);
}

/*
 * False: not for the cache, or it could not; register plainly. No provider sees
 * IBV_ACCESS_CACHED: it is taken out of *access.
 */
bool cached_mr_reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
		   unsigned int *access, struct ibv_mr **mr);
/* ibv_dereg_mr() of what cached_mr_owns(). */
int cached_mr_dereg(struct ibv_mr *mr);
/*
 * For a verb that changes the MR (ibv_rereg_mr(), ibv_reg_mr_notify()): if nobody
 * asked for it to be cached and nobody else has it, it becomes a plain one with the
 * same keys. Else an errno value, and nothing changes for its users.
 */
int cached_mr_make_plain(struct ibv_mr *mr);
/* What ibv_rereg_mr() says of a cached MR: 0 if it is a plain one now, else errno is set. */
int cached_mr_rereg(struct ibv_mr *mr);
/* After a plain registration failed: did idle ones make room, so that it is worth another try? */
bool cached_mr_made_room(unsigned int access);
/* Before the PD or the context goes. */
void cached_mr_flush_pd(struct ibv_pd *pd);
void cached_mr_flush_context(struct ibv_context *context);

/*
 * Registers and arms, in one system call where the provider takes the usual way
 * (mr_notify_reg.c). NULL: errno is set.
 */
struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access,
				uint64_t *word);
/* Tells the kernel the word with the command that registers the MR. */
void mr_notify_fill_word(struct ibv_command_buffer *cmd,
			 unsigned int write_method);
/* ibv_settle_mr_notify() of an MR that may be handed out (mr_notify.c). */
int mr_notify_settle(struct ibv_mr *mr);
/* ibv_unreg_mr_notify() likewise. */
int mr_notify_unreg(struct ibv_mr *mr);

#endif /* IB_VERBS_CACHED_MR_H */
