/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memory monitor "verbs_notify": the kernel marks a word of each registration
 * before a system call that changes its memory returns, ibv_reg_notified_mr(3).
 * Included by ofi_mr.h.
 */
#ifndef OFI_MR_NOTIFY_H
#define OFI_MR_NOTIFY_H

#include <stdint.h>

struct ofi_mr_cache;
struct ofi_mr_entry;
struct ofi_mem_monitor;

/* The word. While HELD is set the device keeps the pages of the registration. If
 * it is not, the kernel takes the pages of an INVALID one, and may take those of
 * another until that is settled.
 */
#define OFI_MR_NOTIFY_INVALID	(1ULL << 0)	/* for good; others: ask again */
#define OFI_MR_NOTIFY_KERNEL	0xffULL
#define OFI_MR_NOTIFY_HELD	(1ULL << 8)

/* Of an entry. If cache is set the provider's add_region has the kernel mark a word,
 * which is HELD at first. If the provider can't, word is NULL: the entry is not kept.
 */
struct ofi_mr_notify {
	struct ofi_mr_cache	*cache;
	uint64_t		*word;
	struct dlist_entry	list;
};

#ifdef HAVE_BUILTIN_MM_ATOMICS
#define OFI_HAVE_MR_NOTIFY	1

extern struct ofi_mem_monitor *notify_monitor;

/* For cache->changes before ofi_mr_cache_init(): the monitor of system memory becomes
 * this one if the device can (changes) and the user has asked for no other. If it
 * can't (NULL) it stays as it was, or becomes NULL if this one was asked for.
 */
uint64_t *ofi_mr_notify_select(struct ofi_mem_monitor **monitor,
			       uint64_t *changes);

/* An entry that is about to be registered, and may be kept */
void ofi_mr_notify_init(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry);

/* valid() said no: if that is a doubt only, have the kernel settle it. True: the entry
 * is valid, and the caller has got a reference. Caller must hold mm_lock, which is
 * given up meanwhile, as the answer may take a second.
 */
bool ofi_mr_notify_settle(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry);

/* The entry of this word, or of none, has no user any more. Caller must hold mm_lock. */
static inline void ofi_mr_notify_idle(uint64_t *word)
{
	if (word)
		__atomic_fetch_and(word, ~OFI_MR_NOTIFY_HELD, __ATOMIC_RELEASE);
}

/* The kernel marks a word before it adds to the counter. */
static inline uint64_t ofi_mr_notify_count(const uint64_t *changes)
{
	return __atomic_load_n(changes, __ATOMIC_ACQUIRE);
}

/* Something has become stale: look at some of the cache's words, in turn until all have
 * been seen, and drop stale entries. Caller must hold mm_lock.
 */
void ofi_mr_notify_sweep(struct ofi_mr_cache *cache);

#else
#define OFI_HAVE_MR_NOTIFY	0

#define ofi_mr_notify_select(monitor, changes)		NULL
#define ofi_mr_notify_init(cache, entry)		do {} while (0)
#define ofi_mr_notify_settle(cache, entry)		false
#define ofi_mr_notify_idle(word)			do {} while (0)
#define ofi_mr_notify_count(changes)			0
#define ofi_mr_notify_sweep(cache)			do {} while (0)

#endif

#endif /* OFI_MR_NOTIFY_H */
