/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memory monitor "verbs_notify": the kernel marks a word of each registration
 * before a system call that changes its memory returns, ibv_reg_mr_notify(3).
 * Providers that can have that supply the calls. Included by ofi_mr.h.
 */
#ifndef OFI_MR_NOTIFY_H
#define OFI_MR_NOTIFY_H

struct ofi_mr_cache;
struct ofi_mr_entry;
struct ofi_mem_monitor;

/* The word:
 *
 *   63    32 31          9    8    7          0
 *   |      |             | HELD | the kernel's |
 *   |      |       IN_USE       |
 *
 * While a bit of IN_USE is set the device keeps the pages of a registration. If
 * none is, the kernel takes those of an INVALID one, and may take those of
 * another until it is settled.
 *
 * HELD		use_cnt is not 0, or the entry is being made
 */
#define OFI_MR_NOTIFY_INVALID	(1ULL << 0)	/* for good; others: ask again */
#define OFI_MR_NOTIFY_KERNEL	0xffULL
#define OFI_MR_NOTIFY_HELD	(1ULL << 8)
#define OFI_MR_NOTIFY_IN_USE	0xffffff00ULL

/* Both return 0 or a negative error. */
struct ofi_mr_notify_ops {
	/* Has the kernel mark the word of an entry that was registered. */
	int (*arm)(struct ofi_mr_entry *entry, uint64_t *word, uint64_t in_use);
	/* Has it look again: it takes its mark back, or says INVALID. */
	int (*settle)(struct ofi_mr_entry *entry);
};

/* Of an entry. cache is NULL if it was not armed. */
struct ofi_mr_notify {
	ofi_atomic64_t			word;
	struct ofi_mr_cache		*cache;
	struct dlist_entry		list;
};

/* The kernel needs a word that is nothing else. */
#if !defined(_WIN32) && (defined(HAVE_ATOMICS) || defined(HAVE_BUILTIN_ATOMICS))
#define OFI_HAVE_MR_NOTIFY	1

extern struct ofi_mem_monitor *notify_monitor;

/* For cache->notify before ofi_mr_cache_init(): the monitor of system memory becomes
 * this one if the device can (ops) and the user has asked for no other. If it can't
 * (NULL) it stays as it was, or becomes NULL if this one was asked for.
 */
const struct ofi_mr_notify_ops *
ofi_mr_notify_select(struct ofi_mem_monitor **monitor,
		     const struct ofi_mr_notify_ops *ops);

/* After an entry was registered, before it can be found: whether to keep it. */
bool ofi_mr_notify_arm(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry);

/* The word of an entry in use has a mark: whether it is valid all the same. */
bool ofi_mr_notify_settle(struct ofi_mr_entry *entry);

/* It has no user any more. Caller must hold mm_lock. */
void ofi_mr_notify_idle(struct ofi_mr_entry *entry);

/* Look at some of the cache's words, in turn, and drop what is stale. Caller must
 * hold mm_lock.
 */
void ofi_mr_notify_sweep(struct ofi_mr_cache *cache);

#else
#define OFI_HAVE_MR_NOTIFY	0

/* The providers' calls are not built there. */
#define ofi_mr_notify_select(monitor, ops)		NULL
#define ofi_mr_notify_arm(cache, entry)			true
#define ofi_mr_notify_idle(entry)			do {} while (0)
#define ofi_mr_notify_sweep(cache)			do {} while (0)

#endif

#endif /* OFI_MR_NOTIFY_H */
