/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memory monitor "verbs_notify": the kernel tells each registration that
 * its memory has changed, ibv_reg_mr_notify(3).
 */
#ifndef VERBS_MR_NOTIFY_H
#define VERBS_MR_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include <ofi_atom.h>

struct ofi_mem_monitor;
struct vrb_domain;
struct vrb_mem_desc;

struct vrb_mr_notify_slot;

/* The words of a domain, in pages of their own. Protected by cache.lock, but for
 * the count.
 */
struct vrb_mr_notify {
	struct vrb_mr_notify_slot	*pages;		/* a list of them */
	struct vrb_mr_notify_slot	*unused;	/* a list, through all pages */
	struct vrb_mr_notify_slot	*page;		/* to be looked at next */
	size_t				left;		/* that many of its words */
	ofi_atomic32_t			locked;		/* found under the lock */
};

#if VERBS_HAVE_MR_NOTIFY

void vrb_mr_notify_init(void);
void vrb_mr_notify_fini(void);

/* The monitor of a domain's system memory becomes verbs_notify if its device can
 * notify and the user has asked for no other one: then true is returned. Else it
 * stays as it was, or becomes NULL if verbs_notify was asked for.
 */
bool vrb_mr_notify_select(struct vrb_domain *domain,
			  struct ofi_mem_monitor **monitor);

/* After a region of the cache was registered, before it can be found. */
void vrb_mr_notify_arm(struct vrb_mem_desc *md);

/* Look at some of the domain's words, in turn, and drop stale entries. */
void vrb_mr_notify_sweep(struct vrb_domain *domain);

/* After it was deregistered. */
void vrb_mr_notify_disarmed(struct vrb_mem_desc *md);

/* After the domain's cache is gone. */
void vrb_mr_notify_close(struct vrb_domain *domain);

#else /* !VERBS_HAVE_MR_NOTIFY */

static inline void vrb_mr_notify_init(void)
{
}

static inline void vrb_mr_notify_fini(void)
{
}

static inline bool vrb_mr_notify_select(struct vrb_domain *domain,
					struct ofi_mem_monitor **monitor)
{
	return false;
}

static inline void vrb_mr_notify_arm(struct vrb_mem_desc *md)
{
}

static inline void vrb_mr_notify_sweep(struct vrb_domain *domain)
{
}

static inline void vrb_mr_notify_disarmed(struct vrb_mem_desc *md)
{
}

static inline void vrb_mr_notify_close(struct vrb_domain *domain)
{
}

#endif /* VERBS_HAVE_MR_NOTIFY */

#endif /* VERBS_MR_NOTIFY_H */
