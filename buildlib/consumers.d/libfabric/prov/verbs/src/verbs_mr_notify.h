/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Regions with words, which the kernel marks when the memory changes. verbs_ofi.h includes
 * this file.
 */
#ifndef VERBS_MR_NOTIFY_H
#define VERBS_MR_NOTIFY_H

#include <infiniband/verbs.h>
#include <ofi_mr.h>

struct vrb_domain;
struct vrb_mem_desc;

#if OFI_HAVE_MR_NOTIFY && defined(IBV_HAVE_REG_NOTIFIED_MR)
#define VERBS_HAVE_MR_NOTIFY	1

/* Returns a counter for the regions of a domain, or NULL if its device does not
 * notify */
uint64_t *vrb_notify_open(struct vrb_domain *domain);

/* Frees a counter, or the word of a deregistered region; word may be NULL */
void vrb_notify_free(uint64_t *word);

/* Returns attributes with a new word for a region that will be in use; the word may be
 * NULL */
struct ibv_mr_notify_attr vrb_notify_attr(struct vrb_domain *domain);

/* Registers like ibv_reg_mr(), but with a word. If the function returns NULL, the caller
 * registers without a word. */
struct ibv_mr *vrb_notify_reg(struct vrb_mem_desc *md, void *buf, size_t len,
			      int access);

/* Lets the kernel compare the pages. Then the kernel clears its mark, or sets INVALID. */
int vrb_notify_settle(struct vrb_mem_desc *md);
int vrb_mr_cache_settle_region(struct ofi_mr_cache *cache,
			       struct ofi_mr_entry *entry);

/* If the cache has words, let the domain look for a hit before it builds attributes. */
void vrb_notify_use_hits(struct vrb_domain *domain);

#else
#define VERBS_HAVE_MR_NOTIFY	0

#define vrb_notify_open(domain)			NULL
#define vrb_notify_free(word)			do {} while (0)
#define vrb_notify_reg(md, buf, len, access)	NULL
#define vrb_mr_cache_settle_region		NULL
#define vrb_notify_use_hits(domain)		do {} while (0)

#endif

#endif /* VERBS_MR_NOTIFY_H */
