/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hits of the registration cache that take no lock and search no tree, for a
 * cache whose entries have a word that the kernel marks (ofi_mr_notify.h). Nothing
 * changes for any other cache.
 *
 * An entry of such a cache is open or closed. Open, it is in the tree and in
 * lru_list, and its references are counted in the word, where the kernel looks
 * whether it is in use. It is opened when it has come into the tree, and closed
 * before it goes out, by the holder of mm_lock. Closed, it is as in any cache:
 * use_cnt are its references.
 *
 *   63  34   33     32    31      9    8    7          0
 *   | hits | USED | OPEN | references | HELD | the kernel's |
 *
 * hits	references that were taken without the lock, not counted yet
 * USED	one was since the entry came to the end of lru_list
 *
 * A reference is taken, and given back, by a compare-and-swap that demands
 * OPEN; the kernel's marks are those of the word before. Closing moves the
 * references to use_cnt in one step, so that none is lost, and a later give-back
 * finds the entry closed and takes the lock.
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
 * one that is not in use is not OPEN: an old hint can always be followed.
 */
#ifndef UTIL_MR_LOCKLESS_H
#define UTIL_MR_LOCKLESS_H

#include <ofi_iov.h>
#include <ofi_mr.h>

/* The path that a hit does not take, so that it saves no registers for it */
#define UTIL_MR_NOINLINE	__attribute__((noinline))

#if OFI_HAVE_MR_NOTIFY

#define UTIL_MR_REF	(1ULL << 9)
#define UTIL_MR_REFS	(OFI_MR_NOTIFY_IN_USE & ~OFI_MR_NOTIFY_HELD)
#define UTIL_MR_FULL	(1ULL << 31)	/* no more references in the word */
#define UTIL_MR_OPEN	(1ULL << 32)
#define UTIL_MR_USED	(1ULL << 33)
#define UTIL_MR_HIT	(1ULL << 34)
#define UTIL_MR_MOST	1024	/* hits of an entry that are not counted yet */
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

static inline int64_t util_mr_get(ofi_atomic64_t *of)
{
	return ofi_atomic_load_explicit64(of, memory_order_relaxed);
}

static inline void util_mr_set(ofi_atomic64_t *of, int64_t value)
{
	ofi_atomic_store_explicit64(of, value, memory_order_relaxed);
}

static inline int util_mr_class(size_t len)
{
	return 63 - __builtin_clzll(len | 1);
}

static inline struct util_mr_hint *
util_mr_bucket(struct util_mr_hints *hints, uint64_t addr, int class)
{
	uint64_t hash = ((addr >> class) * 64 + class) * 0x9e3779b97f4a7c15ULL;

	return hints->bucket[(hash >> 32) & util_mr_get(&hints->mask)].way;
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
		distance = addr - util_mr_get(&hint[i].start);
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
	struct util_mr_hint *hint =
		util_mr_bucket(hints, addr,
			       util_mr_class(entry->info.iov.iov_len));
	struct util_mr_hint *put = &hint[hints->oust++ % UTIL_MR_WAYS];
	struct ofi_mr_entry *old;
	bool known = false;
	int i;

	for (i = 0; i < UTIL_MR_WAYS; i++) {
		old = (struct ofi_mr_entry *) (intptr_t)
			util_mr_get(&hint[i].entry);
		if (old && util_mr_get(&old->notify.word) & UTIL_MR_OPEN &&
		    util_mr_get(&hint[i].start) ==
				(intptr_t) old->info.iov.iov_base) {
			known |= old == entry;
			continue;
		}
		/* One that leads nowhere would hide others */
		util_mr_set(&hint[i].start, -1);
		put = &hint[i];
	}
	if (known)
		return;

	/* A reader of the entry sees this word or a later one. */
	ofi_atomic_store_explicit64(&put->entry, (intptr_t) entry,
				    memory_order_release);
	util_mr_set(&put->start, (intptr_t) entry->info.iov.iov_base);
}

/* Changes it if it is still what it was; else says what it is. */
static inline bool util_mr_cas(struct ofi_mr_entry *entry, uint64_t *was,
			       uint64_t word)
{
	return ofi_atomic_compare_exchange_weak64(&entry->notify.word,
						  (int64_t *) was, word);
}

/* A hit takes a reference. was: the word before */
static inline bool util_mr_take(struct ofi_mr_entry *entry, uint64_t *was)
{
	*was = util_mr_get(&entry->notify.word);
	do {
		if ((*was & (UTIL_MR_OPEN | UTIL_MR_FULL)) != UTIL_MR_OPEN)
			return false;
	} while (!util_mr_cas(entry, was, (*was | UTIL_MR_USED) + UTIL_MR_REF +
						UTIL_MR_HIT));
	return true;
}

/* Give a reference back; false if that needs the lock: it was closed. */
static inline bool util_mr_give(struct ofi_mr_cache *cache,
				struct ofi_mr_entry *entry)
{
	uint64_t word;

	if (!cache->hints)
		return false;

	word = util_mr_get(&entry->notify.word);
	do {
		if (!(word & UTIL_MR_OPEN))
			return false;
	} while (!util_mr_cas(entry, &word, word - UTIL_MR_REF));
	return true;
}

/* The reference was taken in vain: nothing was used. was: the word before */
static UTIL_MR_NOINLINE void util_mr_untake(struct ofi_mr_cache *cache,
					    struct ofi_mr_entry *entry,
					    uint64_t was)
{
	uint64_t word = util_mr_get(&entry->notify.word);

	do {
		if (!(word & UTIL_MR_OPEN)) {
			ofi_mr_cache_delete(cache, entry);
			return;
		}
	} while (!util_mr_cas(entry, &word, (word & (was | ~UTIL_MR_USED)) -
						UTIL_MR_REF - UTIL_MR_HIT));
}

static inline void util_mr_count(struct ofi_mr_cache *cache, uint64_t word)
{
	cache->search_cnt += word / UTIL_MR_HIT;
	cache->hit_cnt += word / UTIL_MR_HIT;
	cache->delete_cnt += word / UTIL_MR_HIT;
}

/* Many hits. There may be no miss for long, which looks for stale entries. */
static UTIL_MR_NOINLINE void util_mr_many(struct ofi_mr_cache *cache,
					  struct ofi_mr_entry *entry)
{
	uint64_t word;

	pthread_mutex_lock(&mm_lock);
	word = util_mr_get(&entry->notify.word);
	while (!util_mr_cas(entry, &word, word & (UTIL_MR_HIT - 1)))
		;
	util_mr_count(cache, word);
	ofi_mr_notify_sweep(cache);
	pthread_mutex_unlock(&mm_lock);
	ofi_mr_cache_flush(cache, false);
}

/* A valid entry for the request, with a reference, or NULL: ask the tree. */
static inline struct ofi_mr_entry *
util_mr_hit(struct ofi_mr_cache *cache, const struct ofi_mr_info *info)
{
	uint64_t addr = (uintptr_t) info->iov.iov_base, classes, was;
	struct util_mr_hints *hints = cache->hints;
	struct ofi_mr_entry *entry;

	if (!hints)
		return NULL;

	/* An entry is not of a lower class than a part of it. */
	classes = util_mr_get(&hints->classes) &
		  ~0ULL << util_mr_class(info->iov.iov_len);
	for (; classes; classes &= classes - 1) {
		entry = util_mr_look(hints, addr, __builtin_ctzll(classes));
		if (!entry || !util_mr_take(entry, &was))
			continue;

		if (OFI_UNLIKELY(!ofi_iov_within(&info->iov,
						 &entry->info.iov) ||
				 info->peer_id != entry->info.peer_id ||
				 info->iface != entry->info.iface ||
				 (was & OFI_MR_NOTIFY_KERNEL &&
				  !ofi_mr_notify_settle(entry)))) {
			util_mr_untake(cache, entry, was);
			continue;
		}

		if (OFI_UNLIKELY(was >= UTIL_MR_MOST * UTIL_MR_HIT))
			util_mr_many(cache, entry);
		return entry;
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

	if (!hints || !entry->node || !entry->notify.cache)
		return;

	dlist_insert_tail(&entry->list_entry, &cache->lru_list);
	ofi_atomic_add64(&entry->notify.word, UTIL_MR_OPEN - OFI_MR_NOTIFY_HELD +
					      entry->use_cnt * UTIL_MR_REF);

	mask = util_mr_get(&hints->mask);
	if (cache->cached_cnt * 2 > (uint64_t) mask && mask < hints->max_mask)
		util_mr_set(&hints->mask, mask * 2 + 1);
	util_mr_set(&hints->classes,
		    util_mr_get(&hints->classes) | 1ULL << class);
	for (; addr >> class <= last >> class; addr += 1ULL << class)
		util_mr_learn(hints, addr, entry);
}

/* The word of an entry when it is closed: the kernel's marks stay. */
static inline uint64_t util_mr_closed(uint64_t word)
{
	return (word & OFI_MR_NOTIFY_KERNEL) |
	       (word & UTIL_MR_REFS ? OFI_MR_NOTIFY_HELD : 0);
}

/* It was closed, and its word before that was this one. */
static inline void util_mr_settle_up(struct ofi_mr_cache *cache,
				     struct ofi_mr_entry *entry, uint64_t word)
{
	util_mr_count(cache, word);
	cache->delete_cnt += entry->use_cnt;
	entry->use_cnt = (int) ((word & UTIL_MR_REFS) / UTIL_MR_REF);
	cache->delete_cnt -= entry->use_cnt;
}

/* Before an entry goes out of the tree. Caller must hold mm_lock. */
static inline void util_mr_close(struct ofi_mr_cache *cache,
				 struct ofi_mr_entry *entry)
{
	uint64_t word;

	if (!cache->hints)
		return;

	word = util_mr_get(&entry->notify.word);
	if (!(word & UTIL_MR_OPEN))
		return;

	while (!util_mr_cas(entry, &word, util_mr_closed(word)))
		;
	util_mr_settle_up(cache, entry, word);
	if (entry->use_cnt)
		dlist_remove_init(&entry->list_entry);
}

/* The tree has an entry for the request, which is valid and held. While it is open
 * use_cnt only counts such uses. Caller must hold mm_lock.
 */
static inline void util_mr_use(struct ofi_mr_cache *cache,
			       struct ofi_mr_entry *entry, const void *addr)
{
	uint64_t word;

	if (!cache->hints)
		return;

	word = util_mr_get(&entry->notify.word);
	if (!(word & UTIL_MR_OPEN))
		return;

	/* Its users are not given back, it seems: as in any cache from now on. */
	if (word & UTIL_MR_FULL) {
		entry->use_cnt--;
		util_mr_close(cache, entry);
		entry->use_cnt++;
		return;
	}

	while (!util_mr_cas(entry, &word, ((word | UTIL_MR_USED) + UTIL_MR_REF) &
						~OFI_MR_NOTIFY_HELD))
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
	uint64_t word;
	bool used;

	if (!cache->hints)
		return true;

	word = util_mr_get(&entry->notify.word);
	if (!(word & UTIL_MR_OPEN))
		return true;

	do {
		used = word & (UTIL_MR_REFS | UTIL_MR_USED);
	} while (!util_mr_cas(entry, &word, used ? word & ~UTIL_MR_USED :
						   util_mr_closed(word)));

	if (!used) {
		util_mr_settle_up(cache, entry, word);
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
	if (!cache->notify ||
	    ofi_mmap_anon_pages(&hints, sizeof(*cache->hints) + (max_mask + 1) *
				sizeof(cache->hints->bucket[0]), 0))
		return;

	cache->hints = hints;
	cache->hints->max_mask = max_mask;
	util_mr_set(&cache->hints->mask, MIN(max_mask, 255));
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
