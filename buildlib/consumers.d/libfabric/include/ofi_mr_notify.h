/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memory monitor "verbs_notify". Each registration has a word, see
 * ibv_reg_notified_mr(3). When a system call changes the memory of a registration, the
 * kernel marks the word before the call returns. ofi_mr.h includes this file.
 */
#ifndef OFI_MR_NOTIFY_H
#define OFI_MR_NOTIFY_H

#include <stdint.h>

struct ofi_mr_cache;
struct ofi_mr_entry;
struct ofi_mem_monitor;

/* The bits of a word. While HELD is set, the device keeps the pages of the registration.
 * While HELD is clear, the kernel unpins the pages if the word is INVALID. The kernel
 * may also unpin the pages of a valid registration; settling pins pages again.
 */
#define OFI_MR_NOTIFY_INVALID	(1ULL << 0)	/* final; other bits can be settled */
#define OFI_MR_NOTIFY_KERNEL	0xffULL
#define OFI_MR_NOTIFY_HELD	(1ULL << 8)

#define OFI_MR_NOTIFY_HINT_BITS	12

/* Each entry has this part. If cache is set, the provider's add_region registers with a
 * word, which is HELD at first. If the provider can't give a word, word is NULL, and the
 * cache drops the entry after use.
 */
struct ofi_mr_notify {
	struct ofi_mr_cache	*cache;
	uint64_t		*word;
	struct dlist_entry	list;
};

/* Each cache has this part */
struct ofi_mr_notify_cache {
	uint64_t		*changes;	/* the kernel's counter of stale entries; may be NULL */
	uint64_t		changes_seen;	/* its value when the last complete check began */
	uint64_t		changes_next;	/* its value when the current check began */
	size_t			unchecked_cnt;	/* words still to be checked */
	struct dlist_entry	list;
	/* Entries in the tree, by a hash of the address where they begin */
	struct ofi_mr_entry	*hints[1 << OFI_MR_NOTIFY_HINT_BITS];
};

#ifdef HAVE_BUILTIN_MM_ATOMICS
#define OFI_HAVE_MR_NOTIFY	1

extern struct ofi_mem_monitor *notify_monitor;

/* Chooses the monitor of system memory, and returns cache->notify.changes. Call this
 * before ofi_mr_cache_init(). If the device can notify (changes is set), and the user has
 * named no other monitor, the monitor becomes notify_monitor. If the device can't notify,
 * but the user has named notify_monitor, the monitor becomes NULL. Otherwise the monitor
 * does not change.
 */
uint64_t *ofi_mr_notify_select(struct ofi_mem_monitor **monitor,
			       uint64_t *changes);

/* Call this before the registration of an entry that the cache may keep. */
void ofi_mr_notify_init(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry);

/* Call this if valid() returned false. If the word is not INVALID, the kernel settles
 * the word. If the entry is valid, the function takes a reference and returns true.
 * Caller must hold mm_lock. The function releases mm_lock while the kernel settles the
 * word, which may take a second.
 */
bool ofi_mr_notify_settle(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry);

/* Tells the kernel that the entry of this word has no user; word may be NULL. Caller
 * must hold mm_lock. */
static inline void ofi_mr_notify_idle(uint64_t *word)
{
	if (word)
		__atomic_fetch_and(word, ~OFI_MR_NOTIFY_HELD, __ATOMIC_RELEASE);
}

/* Call this before the cache is used. */
void ofi_mr_notify_cache_init(struct ofi_mr_cache *cache);

/* Returns whether the cache may have stale entries that no search has checked. The
 * kernel marks a word before it increments the counter.
 */
static inline bool
ofi_mr_notify_moved(const struct ofi_mr_notify_cache *notify)
{
	return __atomic_load_n(notify->changes, __ATOMIC_ACQUIRE) !=
	       notify->changes_seen;
}

/* Call this if ofi_mr_notify_moved() is true. The function checks some words of the
 * cache, and drops stale entries. Later calls check the other words. Caller must hold
 * mm_lock.
 */
void ofi_mr_notify_sweep(struct ofi_mr_cache *cache);

#else
#define OFI_HAVE_MR_NOTIFY	0

#define ofi_mr_notify_select(monitor, changes)		NULL
#define ofi_mr_notify_init(cache, entry)		do {} while (0)
#define ofi_mr_notify_settle(cache, entry)		false
#define ofi_mr_notify_idle(word)			do {} while (0)
#define ofi_mr_notify_cache_init(cache)			do {} while (0)
#define ofi_mr_notify_moved(notify)			false
#define ofi_mr_notify_sweep(cache)			do {} while (0)

#endif

#endif /* OFI_MR_NOTIFY_H */
