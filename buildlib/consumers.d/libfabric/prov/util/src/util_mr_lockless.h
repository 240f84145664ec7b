/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hits of the registration cache that take no lock and search no tree, for a
 * cache whose monitor of system memory can say without a lock whether an
 * entry is valid (cache->lockless). Nothing changes for any other cache.
 *
 * An entry of such a cache is open or closed. Open, it is in the tree and in
 * lru_list, and its references are counted in one atomic word. It is opened when
 * it has come into the tree, and closed before it goes out, by the holder of
 * mm_lock. Closed, it is as in any cache: use_cnt are its references.
 *
 *   63      32 31        2    1      0
 *   |  hits   | references | USED | OPEN |
 *
 * hits	references that were taken without the lock since it was opened
 * USED	one was since the entry came to the end of lru_list
 *
 * A reference is taken, and given back, by a compare-and-swap that demands
 * OPEN. Closing moves the references to use_cnt in one step, so that none is
 * lost, and a later give-back finds the entry closed and takes the lock.
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
#define UTIL_MR_REFS	(UTIL_MR_HIT - UTIL_MR_REF)

#define UTIL_MR_WAYS	4

/* Open entries by the chunks of memory that they touch. A chunk has 2^n bytes,
 * where n is the class of the entry, log2 of its size. So an entry touches three
 * at most, and it is of no account where in it a request begins. Written under
 * mm_lock, read without it. A hint may be wrong in any way: the entry is verified.
 */
struct util_mr_hint {
	ofi_atomic64_t		start;
	ofi_atomic64_t		entry;
};

/* Uses only as much of the table as there are entries for, which stays in the
 * processor's caches. A bucket is a line of them.
 */
struct util_mr_hints {
	ofi_atomic64_t		classes;	/* those that had entries */
	ofi_atomic64_t		mask;
	int64_t			max_mask;
	unsigned int		oust;
	struct {
		struct util_mr_hint	way[UTIL_MR_WAYS];
	} __attribute__((aligned(64))) bucket[];
};

static inline int util_mr_class(size_t len)
{
	return 63 - __builtin_clzll(len | 1);
}

static inline struct util_mr_hint *
util_mr_bucket(struct util_mr_hints *hints, uint64_t addr, int class)
{
	uint64_t hash = ((addr >> class) * 64 + class) * 0x9e3779b97f4a7c15ULL;
	int64_t mask = ofi_atomic_load_explicit64(&hints->mask,
						  memory_order_relaxed);

	return hints->bucket[(hash >> 32) & mask].way;
}

/* The last entry of its class that begins before the address: no entry of the
 * tree contains another, so it is the only one of them that may do. Or NULL.
 */
static inline struct ofi_mr_entry *
util_mr_look(struct util_mr_hints *hints, uint64_t addr, int class)
{
	struct util_mr_hint *hint = util_mr_bucket(hints, addr, class);
	uint64_t distance, least = 2ULL << class;
	struct util_mr_hint *found = NULL;
	int i;

	for (i = 0; i < UTIL_MR_WAYS; i++) {
		distance = addr - ofi_atomic_load_explicit64(
				&hint[i].start, memory_order_relaxed);
		if (distance < least) {
			least = distance;
			found = &hint[i];
		}
	}
	return !found ? NULL : (struct ofi_mr_entry *) (intptr_t)
	       ofi_atomic_load_explicit64(&found->entry, memory_order_acquire);
}

/* Of an open entry. Caller must hold mm_lock. */
static void util_mr_learn(struct util_mr_hints *hints, uint64_t addr,
			  struct ofi_mr_entry *entry)
{
	int64_t start = (intptr_t) entry->info.iov.iov_base;
	struct util_mr_hint *hint =
		util_mr_bucket(hints, addr,
			       util_mr_class(entry->info.iov.iov_len));
	struct util_mr_hint *put = &hint[hints->oust++ % UTIL_MR_WAYS];
	struct ofi_mr_entry *old;
	int i;

	for (i = 0; i < UTIL_MR_WAYS; i++) {
		old = (struct ofi_mr_entry *) (intptr_t)
			ofi_atomic_get64(&hint[i].entry);
		if (old && ofi_atomic_get64(&old->refs) & UTIL_MR_OPEN &&
		    ofi_atomic_get64(&hint[i].start) ==
				(intptr_t) old->info.iov.iov_base) {
			if (old == entry)
				return;
			continue;
		}
		/* One that leads nowhere would hide others */
		ofi_atomic_set64(&hint[i].start, -1);
		put = &hint[i];
	}

	/* A reader of the entry sees that its word is 0, or a later value. */
	ofi_atomic_store_explicit64(&put->entry, (intptr_t) entry,
				    memory_order_release);
	ofi_atomic_store_explicit64(&put->start, start, memory_order_relaxed);
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

/* refs: as it was before */
static inline bool util_mr_take(struct ofi_mr_entry *entry, int64_t *refs)
{
	*refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	do {
		if (!(*refs & UTIL_MR_OPEN))
			return false;
	} while (!util_mr_cas(entry, refs, (*refs | UTIL_MR_USED) +
						UTIL_MR_REF + UTIL_MR_HIT));
	return true;
}

/* Give a reference back; false if that needs the lock: it was closed. */
static inline bool util_mr_give(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry)
{
	int64_t refs;

	if (!cache->hints)
		return false;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	do {
		if (!(refs & UTIL_MR_OPEN))
			return false;
	} while (!util_mr_cas(entry, &refs, refs - UTIL_MR_REF));
	return true;
}

/* The reference was taken in vain: nothing was used. refs: as it was before */
static UTIL_MR_NOINLINE void util_mr_untake(struct ofi_mr_cache *cache,
					    struct ofi_mr_entry *entry,
					    int64_t refs)
{
	int64_t unused = ~refs & UTIL_MR_USED;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	do {
		if (!(refs & UTIL_MR_OPEN)) {
			ofi_mr_cache_delete(cache, entry);
			return;
		}
	} while (!util_mr_cas(entry, &refs, (refs & ~unused) -
						UTIL_MR_REF - UTIL_MR_HIT));
}

/* A valid entry for the request, with a reference, or NULL: ask the tree. */
static inline struct ofi_mr_entry *
util_mr_hit(struct ofi_mr_cache *cache, const struct ofi_mr_info *info)
{
	struct ofi_mem_monitor *monitor = cache->monitors[info->iface];
	uint64_t addr = (uintptr_t) info->iov.iov_base, classes;
	struct util_mr_hints *hints = cache->hints;
	struct ofi_mr_entry *entry;
	int64_t refs;

	if (!hints)
		return NULL;

	/* An entry is not of a lower class than a part of it. */
	classes = ofi_atomic_load_explicit64(&hints->classes,
					     memory_order_relaxed) &
		  ~0ULL << util_mr_class(info->iov.iov_len);
	for (; classes; classes &= classes - 1) {
		entry = util_mr_look(hints, addr, __builtin_ctzll(classes));
		if (!entry || !util_mr_take(entry, &refs))
			continue;

		if (OFI_LIKELY(ofi_iov_within(&info->iov, &entry->info.iov) &&
			       info->peer_id == entry->info.peer_id &&
			       info->iface == entry->info.iface &&
			       monitor->valid(monitor, info, entry)))
			return entry;

		util_mr_untake(cache, entry, refs);
	}
	return NULL;
}

/* A new entry, which has a user, if it is in the tree. Caller must hold mm_lock. */
static inline void util_mr_open(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry)
{
	uint64_t addr = (uintptr_t) entry->info.iov.iov_base;
	uint64_t last = addr + MAX(entry->info.iov.iov_len, 1) - 1;
	int class = util_mr_class(entry->info.iov.iov_len);
	struct util_mr_hints *hints = cache->hints;
	int64_t mask;

	if (!hints || !entry->node || entry->info.iface != FI_HMEM_SYSTEM)
		return;

	dlist_insert_tail(&entry->list_entry, &cache->lru_list);
	ofi_atomic_store_explicit64(&entry->refs,
				    entry->use_cnt * UTIL_MR_REF + UTIL_MR_OPEN,
				    memory_order_release);

	mask = ofi_atomic_get64(&hints->mask);
	if (cache->cached_cnt * 2 > (uint64_t) mask && mask < hints->max_mask)
		ofi_atomic_set64(&hints->mask, mask * 2 + 1);
	ofi_atomic_set64(&hints->classes,
			 ofi_atomic_get64(&hints->classes) | 1ULL << class);
	for (; addr >> class <= last >> class; addr += 1ULL << class)
		util_mr_learn(hints, addr, entry);
}

/* Of an entry that was just closed, when its word was refs */
static inline void util_mr_closed(struct ofi_mr_cache *cache,
				  struct ofi_mr_entry *entry, uint64_t refs)
{
	uint64_t hits = refs / UTIL_MR_HIT;

	cache->search_cnt += hits;
	cache->hit_cnt += hits;
	cache->delete_cnt += entry->use_cnt + hits;
	entry->use_cnt = (int) ((refs & UTIL_MR_REFS) / UTIL_MR_REF);
	cache->delete_cnt -= entry->use_cnt;
}

/* Before an entry goes out of the tree. Caller must hold mm_lock. */
static inline void util_mr_close(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry)
{
	int64_t refs;

	if (!cache->hints)
		return;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	if (!(refs & UTIL_MR_OPEN))
		return;

	while (!util_mr_cas(entry, &refs, 0))
		;
	util_mr_closed(cache, entry, refs);
	if (entry->use_cnt)
		dlist_remove_init(&entry->list_entry);
}

/* The tree has an entry for the request. While it is open use_cnt only counts
 * such uses. Caller must hold mm_lock.
 */
static inline void util_mr_use(struct ofi_mr_cache *cache,
			       struct ofi_mr_entry *entry, const void *addr)
{
	int64_t refs;

	if (!cache->hints)
		return;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	if (!(refs & UTIL_MR_OPEN))
		return;

	while (!util_mr_cas(entry, &refs, (refs | UTIL_MR_USED) + UTIL_MR_REF))
		;
	dlist_remove_init(&entry->list_entry);
	dlist_insert_tail(&entry->list_entry, &cache->lru_list);
	util_mr_learn(cache->hints, (uintptr_t) addr, entry);
}

/* Of the head of lru_list, which was removed from it: whether to evict it; it is
 * closed then. One that is in use, or was used since, goes to the end of the list,
 * as if it had gone there when it was used. Caller must hold mm_lock.
 */
static inline bool util_mr_evict(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry, size_t *chances)
{
	bool used;
	int64_t refs;

	if (!cache->hints)
		return true;

	refs = ofi_atomic_load_explicit64(&entry->refs, memory_order_relaxed);
	if (!(refs & UTIL_MR_OPEN))
		return true;

	do {
		used = refs & (UTIL_MR_REFS | UTIL_MR_USED);
	} while (!util_mr_cas(entry, &refs, used ? refs & ~UTIL_MR_USED : 0));

	if (!used) {
		util_mr_closed(cache, entry, refs);
		return true;
	}
	dlist_insert_tail(&entry->list_entry, &cache->lru_list);
	(*chances)--;
	return false;
}

static inline void util_mr_hints_free(struct ofi_mr_cache *cache)
{
	if (cache->hints)
		(void) ofi_unmap_anon_pages(cache->hints,
				sizeof(*cache->hints) +
				(cache->hints->max_mask + 1) *
				sizeof(cache->hints->bucket[0]));
}

static inline void util_mr_hints_init(struct ofi_mr_cache *cache)
{
	int64_t max_mask = roundup_power_of_two(2 *
			MAX(MIN(cache->cached_max_cnt, 1 << 18), 16)) - 1;
	void *hints;

	cache->hints = NULL;
	if (!cache->lockless ||
	    ofi_mmap_anon_pages(&hints, sizeof(*cache->hints) + (max_mask + 1) *
				sizeof(cache->hints->bucket[0]), 0))
		return;

	cache->hints = hints;
	cache->hints->max_mask = max_mask;
	ofi_atomic_initialize64(&cache->hints->classes, 0);
	ofi_atomic_initialize64(&cache->hints->mask, 31);
}

#else /* No entry is ever open. */

#define util_mr_hit(cache, info)		NULL
#define util_mr_give(cache, entry)		false
#define util_mr_open(cache, entry)		do {} while (0)
#define util_mr_close(cache, entry)		do {} while (0)
#define util_mr_use(cache, entry, addr)		do {} while (0)
#define util_mr_evict(cache, entry, chances)	true
#define util_mr_hints_init(cache)		(cache)->hints = NULL
#define util_mr_hints_free(cache)		do {} while (0)

#endif

#endif /* UTIL_MR_LOCKLESS_H */
