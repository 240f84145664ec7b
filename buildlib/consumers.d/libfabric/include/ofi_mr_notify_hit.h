/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds an entry of "verbs_notify" without a search of the tree. A table has the entries
 * of the tree by the addresses where they begin. Two entries may compete for a place in
 * the table. If no entry of the table begins where the request begins, the cache searches
 * the tree.
 */
#ifndef OFI_MR_NOTIFY_HIT_H
#define OFI_MR_NOTIFY_HIT_H

#include <ofi_mr.h>

/* Caller must hold mm_lock. */
static inline struct ofi_mr_entry **
ofi_mr_notify_hint(struct ofi_mr_cache *cache, const void *start)
{
	uint64_t hash = (uintptr_t) start * 0x9e3779b97f4a7c15ULL;

	return &cache->notify.hints[hash >> (64 - OFI_MR_NOTIFY_HINT_BITS)];
}

static inline uint64_t ofi_mr_notify_said(struct ofi_mr_entry *entry)
{
	return __atomic_load_n(entry->notify.word, __ATOMIC_ACQUIRE) &
	       OFI_MR_NOTIFY_KERNEL;
}

/* Returns whether the caller can use the entry. The function sets HELD before it reads
 * the word. So either the kernel sees HELD and keeps the pages, or the function sees the
 * kernel's mark. If the entry is not valid, the caller's search settles or removes the
 * entry. Caller must hold mm_lock.
 */
static inline bool ofi_mr_notify_hold(struct ofi_mr_entry *entry)
{
	if (!entry->use_cnt)
		__atomic_fetch_or(entry->notify.word, OFI_MR_NOTIFY_HELD,
				  __ATOMIC_RELAXED);
	return !ofi_mr_notify_said(entry);
}

/* Returns an entry with a reference, or NULL if the caller has to search the tree. A
 * search finds entries that the table lacks, drops stale entries, and makes room if the
 * cache is full. A hit needs no room.
 */
static inline struct ofi_mr_entry *
ofi_mr_notify_hit(struct ofi_mr_cache *cache, const void *addr, size_t len)
{
	struct ofi_mr_entry *entry;

	pthread_mutex_lock(&mm_lock);
	entry = *ofi_mr_notify_hint(cache, addr);
	if (!entry || entry->info.iov.iov_base != addr ||
	    entry->info.iov.iov_len < len ||
	    !dlist_empty(&cache->dead_region_list) ||
	    ofi_mr_notify_moved(&cache->notify) || !ofi_mr_notify_hold(entry)) {
		pthread_mutex_unlock(&mm_lock);
		return NULL;
	}

	if (entry->use_cnt++ == 0)
		dlist_remove(&entry->list_entry);
	cache->search_cnt++;
	cache->hit_cnt++;
	pthread_mutex_unlock(&mm_lock);
	return entry;
}

#endif /* OFI_MR_NOTIFY_HIT_H */
