/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hits of the registration cache that take no lock and search no tree, for a
 * cache whose monitor of system memory can say without a lock whether an
 * entry is valid (cache->lockless). Nothing changes for any other cache.
 *
 * An entry of such a cache is open or closed. Only the holder of mm_lock opens
 * or closes it. Closed, it is as in any cache: use_cnt are its references,
 * and it is in the list lru_list if there are none. Open, it is in the tree
 * and in lru_list, and its references are counted in one atomic word:
 *
 *   63      32 31        2    1      0
 *   |  hits   | references | USED | OPEN |
 *
 * hits	references that were taken without the lock since it was opened
 * USED	one was since the entry came to the end of lru_list
 *
 * A reference is taken, and given back, by a compare-and-swap that demands
 * OPEN. All else is done as before, under mm_lock between close() and open().
 * Closing moves the references to use_cnt in one step, so that none is lost,
 * and a later give-back finds the entry closed and takes the lock.
 *
 * The fields of an entry are compared only while a reference is held:
 *
 *	a hit				an eviction
 *	hint: the entry at that address
 *					close(): no references
 *					deregisters; registers other memory
 *					in the same entry; open()
 *	takes a reference (*)
 *	compares the range: another's
 *	gives it back
 *
 * From (*) on close() finds a reference, so the registration stays. Were the
 * range compared first, it would use other memory's registration. Entries are
 * of a pool that gives no memory back before the cache ends, and the word of
 * one that is not in use is 0: an old hint can always be followed.
 */
#ifndef UTIL_MR_LOCKLESS_H
#define UTIL_MR_LOCKLESS_H

#include <ofi_iov.h>
#include <ofi_mr.h>

#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define UTIL_MR_SINGLE_THREADED	__libc_single_threaded
#endif
#endif
#ifndef UTIL_MR_SINGLE_THREADED
#define UTIL_MR_SINGLE_THREADED	0
#endif

/* The path that a hit does not take, so that it saves no registers for it */
#define UTIL_MR_NOINLINE	__attribute__((noinline))

/* Windows has no memory_order_*, and nothing there says lockless. */
#if !defined(_WIN32) && (defined(HAVE_ATOMICS) || defined(HAVE_BUILTIN_ATOMICS))

#define UTIL_MR_OPEN	(1ULL << 0)
#define UTIL_MR_USED	(1ULL << 1)
#define UTIL_MR_REF	(1ULL << 2)
#define UTIL_MR_HIT	(1ULL << 32)

/* Where a request that began at an address was found the last time. Written
 * under mm_lock, read without it. It may be wrong in any way: the entry is
 * verified.
 */
struct util_mr_hint {
	ofi_atomic64_t		addr;
	ofi_atomic64_t		entry;
};

/* Uses only as much of the table as there are entries for, which stays in the
 * processor's caches. The place of a hint is one of two neighbors.
 */
struct util_mr_hints {
	ofi_atomic64_t		mask;
	int64_t			max_mask;
	struct util_mr_hint	table[];
};

static inline struct util_mr_hint *
util_mr_hint_at(struct util_mr_hints *hints, uint64_t addr, int which)
{
	uint64_t hash = (addr * 0x9e3779b97f4a7c15ULL) >> 40;
	int64_t mask = ofi_atomic_load_explicit64(&hints->mask,
						  memory_order_relaxed);

	return &hints->table[(hash ^ which) & mask];
}

static inline void util_mr_hint_set(struct util_mr_hint *hint, int64_t addr,
				    int64_t entry)
{
	/* A reader of the entry sees that its word is 0, or a later value. */
	ofi_atomic_store_explicit64(&hint->entry, entry, memory_order_release);
	ofi_atomic_store_explicit64(&hint->addr, addr, memory_order_relaxed);
}

/* Caller must hold mm_lock. */
static inline void util_mr_learn(struct ofi_mr_cache *cache, int64_t addr,
				 struct ofi_mr_entry *entry)
{
	struct util_mr_hints *hints = cache->hints;
	struct util_mr_hint *first, *second;
	int64_t mask = ofi_atomic_load_explicit64(&hints->mask,
						  memory_order_relaxed);
	int64_t old;

	if (cache->cached_cnt * 4 > (uint64_t) mask && mask < hints->max_mask)
		ofi_atomic_store_explicit64(&hints->mask, mask * 2 + 1,
					    memory_order_relaxed);

	first = util_mr_hint_at(hints, addr, 0);
	second = util_mr_hint_at(hints, addr, 1);
	old = ofi_atomic_load_explicit64(&first->addr, memory_order_relaxed);
	if (old != addr)
		util_mr_hint_set(second, old,
			ofi_atomic_load_explicit64(&first->entry,
						   memory_order_relaxed));
	util_mr_hint_set(first, addr, (intptr_t) entry);
}

/* old: as it was just read. As libc's locks do, it takes no atomic instruction
 * in a process that has no other thread.
 */
static inline bool util_mr_cas(struct ofi_mr_entry *entry, int64_t *old,
			       int64_t refs)
{
	if (UTIL_MR_SINGLE_THREADED) {
		ofi_atomic_store_explicit64(&entry->refs, refs,
					    memory_order_relaxed);
		return true;
	}
	return ofi_atomic_compare_exchange_weak64(&entry->refs, old, refs);
}

static inline bool util_mr_take(struct ofi_mr_entry *entry)
{
	int64_t refs = ofi_atomic_load_explicit64(&entry->refs,
						  memory_order_relaxed);

	do {
		if (!(refs & UTIL_MR_OPEN))
			return false;
	} while (!util_mr_cas(entry, &refs, (refs | UTIL_MR_USED) +
						UTIL_MR_REF + UTIL_MR_HIT));
	return true;
}

/* Give a reference back; false if that needs the lock. A hit can't be given back
 * if the entry was closed since and the hit was counted.
 */
static inline bool util_mr_give(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry, uint64_t units)
{
	int64_t refs;

	if (!cache->hints)
		return false;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	do {
		if (!(refs & UTIL_MR_OPEN) || (uint64_t) refs < units)
			return false;
	} while (!util_mr_cas(entry, &refs, refs - units));
	return true;
}

/* The reference was taken in vain. */
static UTIL_MR_NOINLINE struct ofi_mr_entry *
util_mr_no_hit(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry)
{
	if (!util_mr_give(cache, entry, UTIL_MR_REF + UTIL_MR_HIT))
		ofi_mr_cache_delete(cache, entry);
	return NULL;
}

/* A valid entry for the request, with a reference, or NULL: ask the tree. */
static inline struct ofi_mr_entry *
util_mr_hit(struct ofi_mr_cache *cache, const struct ofi_mr_info *info)
{
	struct ofi_mem_monitor *monitor = cache->monitors[info->iface];
	int64_t addr = (intptr_t) info->iov.iov_base;
	struct ofi_mr_entry *entry;
	struct util_mr_hint *hint;

	if (!cache->hints)
		return NULL;

	hint = util_mr_hint_at(cache->hints, addr, 0);
	if (ofi_atomic_load_explicit64(&hint->addr,
				       memory_order_relaxed) != addr) {
		hint = util_mr_hint_at(cache->hints, addr, 1);
		if (ofi_atomic_load_explicit64(&hint->addr,
					       memory_order_relaxed) != addr)
			return NULL;
	}

	entry = (struct ofi_mr_entry *) (intptr_t)
		ofi_atomic_load_explicit64(&hint->entry, memory_order_acquire);
	if (!entry || !util_mr_take(entry))
		return NULL;

	if (OFI_LIKELY(ofi_iov_within(&info->iov, &entry->info.iov) &&
		       info->peer_id == entry->info.peer_id &&
		       info->iface == entry->info.iface &&
		       monitor->valid(monitor, info, entry)))
		return entry;

	return util_mr_no_hit(cache, entry);
}

/* Before an entry of the cache is changed. Caller must hold mm_lock. */
static inline void util_mr_close(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry)
{
	uint64_t hits;
	int64_t refs;

	if (!cache->hints)
		return;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	if (!(refs & UTIL_MR_OPEN))
		return;

	while (!util_mr_cas(entry, &refs, 0))
		;

	hits = (uint64_t) refs / UTIL_MR_HIT;
	cache->search_cnt += hits;
	cache->hit_cnt += hits;
	cache->delete_cnt += entry->use_cnt + hits;
	entry->use_cnt = (int) ((refs & (UTIL_MR_HIT - 1)) / UTIL_MR_REF);
	cache->delete_cnt -= entry->use_cnt;
	if (entry->use_cnt)
		dlist_remove_init(&entry->list_entry);
}

/* After it was changed, if it is still in the tree. addr: where the request
 * began that led to it. Caller must hold mm_lock.
 */
static inline void util_mr_open(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry, const void *addr)
{
	if (!cache->hints || !entry->node ||
	    entry->info.iface != FI_HMEM_SYSTEM)
		return;

	if (entry->use_cnt)
		dlist_insert_tail(&entry->list_entry, &cache->lru_list);
	ofi_atomic_store_explicit64(&entry->refs,
				    entry->use_cnt * UTIL_MR_REF + UTIL_MR_OPEN,
				    memory_order_release);
	util_mr_learn(cache, (intptr_t) addr, entry);
}

/* Of the head of lru_list, which was removed from it: whether to evict it.
 * One that was used since goes to the end of the list, as if it had gone there
 * when it was used, and one that is in use is out of it until it is not.
 * Caller must hold mm_lock.
 */
static inline bool util_mr_evict(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry, size_t *chances)
{
	int64_t refs;

	if (!cache->hints)
		return true;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	while (*chances && refs & UTIL_MR_USED) {
		if (util_mr_cas(entry, &refs, refs & ~UTIL_MR_USED)) {
			dlist_insert_tail(&entry->list_entry, &cache->lru_list);
			(*chances)--;
			return false;
		}
	}

	util_mr_close(cache, entry);
	return !entry->use_cnt;
}

static inline void util_mr_hints_init(struct ofi_mr_cache *cache)
{
	cache->hints = NULL;
	if (cache->lockless) {
		size_t cnt = roundup_power_of_two(4 *
				MAX(MIN(cache->cached_max_cnt, 1 << 18), 16));

		cache->hints = calloc(1, sizeof(*cache->hints) +
				      cnt * sizeof(cache->hints->table[0]));
		if (cache->hints) {
			ofi_atomic_initialize64(&cache->hints->mask, 63);
			cache->hints->max_mask = cnt - 1;
		}
	}
}

#else /* No entry is ever open. */

#define UTIL_MR_REF	1

static inline bool util_mr_give(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry, uint64_t units)
{
	return false;
}

static inline struct ofi_mr_entry *
util_mr_hit(struct ofi_mr_cache *cache, const struct ofi_mr_info *info)
{
	return NULL;
}

static inline void util_mr_close(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry)
{
}

static inline void util_mr_open(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry, const void *addr)
{
}

static inline bool util_mr_evict(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry, size_t *chances)
{
	return true;
}

static inline void util_mr_hints_init(struct ofi_mr_cache *cache)
{
	cache->hints = NULL;
}

#endif

#endif /* UTIL_MR_LOCKLESS_H */
