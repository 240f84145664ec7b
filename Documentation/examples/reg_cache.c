// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * THE WORD of an entry is shared with the kernel:
 *
 *	bits 0-7	the kernel's: INVALID is final, SUSPECT and SUSPENDED need settling
 *	bits 8-63	ours: how many transfers use the registration
 *
 * So one atomic addition takes the reference and tells whether the kernel has marked
 * the entry. Nothing can happen between the check and the use: when munmap() has
 * returned, in any thread, the kernel's bits are not zero, and every later addition
 * sees them. If the application unmaps the memory after the addition, a transfer uses
 * the memory at that time. This is an error of the application with any MPI.
 *
 * An entry may be larger than the buffer of a transfer, and another part of it may be
 * unmapped. So reg() tells the kernel which bits hold the number of references. While
 * there is a reference, the device keeps the pages. Without a reference, the kernel may
 * take the pages.
 *
 * THE COUNTER of changes tells that the word of some entry has become INVALID. While
 * the counter does not change, the cache does not look for stale entries.
 *
 * THE LOCK guards the table of entries. A thread holds the lock to look up, make or end
 * an entry, but not to give an entry back. A cache that looks up without a lock must
 * not free or reuse an entry that another thread may still add to. Here references are
 * only taken under the lock: if its holder sees an entry without a reference, the entry
 * stays without a reference.
 *
 * MEMORY ORDER. reg_cache_put() subtracts with release, so a transfer's accesses to the
 * memory and to the MR come before the subtraction. The thread that ends the entry
 * reads the zero with acquire, so these accesses also come before ibv_dereg_mr().
 * take() adds with acquire, which pairs with the kernel's write of the bits. A
 * read-modify-write always sees the newest value of the word, so it needs no other
 * barrier.
 */
#include "reg_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef IBV_HAVE_REG_NOTIFIED_MR
#define KERNEL_BITS ((uint64_t)IBV_MR_NOTIFY_KERNEL_MASK)
#endif
#define REFERENCE ((uint64_t)1 << 8)
#define ENTRIES 1024

/*
 * The kernel pins the page of an armed word, and may write to it at any time. So all
 * words are close together, in a mapping of their own that lives as long as the cache.
 * A page of the heap could also contain a user's buffer. The user may register the page
 * (then a device reaches the words), discard it, or withhold it from children.
 */
struct reg_entry {
	uint64_t word;
	struct ibv_mr *mr; /* NULL: free */
	uintptr_t start;
	uintptr_t end;
	int gone; /* searches skip this entry, and it ends when no transfer uses it */
};

struct reg_cache {
	struct ibv_pd *pd;
	int access;
	int keeps;
	pthread_mutex_t lock;
	unsigned int next; /* the next entry to evict; entries take turns */
	unsigned long count;
	uint64_t changes; /* the counter, which the kernel increments */
	uint64_t seen;	  /* the value of changes at the last search of the table */
	struct reg_entry entry[ENTRIES];
};

/* Ask at run time whether the kernel and the driver support notification. */
static int device_notifies(struct ibv_context *context)
{
#ifdef IBV_HAVE_REG_NOTIFIED_MR
	struct ibv_device_attr attr;

	return !ibv_query_device(context, &attr) && attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY;
#else
	(void)context;
	return 0;
#endif
}

struct reg_cache *reg_cache_create(struct ibv_pd *pd, int access)
{
	struct reg_cache *cache = mmap(NULL, sizeof(*cache), PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (cache == MAP_FAILED)
		return NULL;
	/* A child sees zeros, because it must not end its parent's registrations. */
	madvise(cache, sizeof(*cache), MADV_WIPEONFORK);
	cache->pd = pd;
	cache->access = access;
	cache->keeps = device_notifies(pd->context);
	pthread_mutex_init(&cache->lock, NULL);
	return cache;
}

int reg_cache_keeps(const struct reg_cache *cache)
{
	return cache->keeps;
}

unsigned long reg_cache_count(const struct reg_cache *cache)
{
	return __atomic_load_n(&cache->count, __ATOMIC_RELAXED);
}

/*
 * The caller holds the lock, and the entry has no users. The kernel may write the word of
 * the entry until this function returns.
 */
static void end(struct reg_entry *e)
{
	ibv_dereg_mr(e->mr);
	e->mr = NULL;
}

void reg_cache_destroy(struct reg_cache *cache)
{
	for (unsigned int i = 0; i < ENTRIES; i++)
		if (cache->entry[i].mr)
			end(&cache->entry[i]);
	pthread_mutex_destroy(&cache->lock);
	munmap(cache, sizeof(*cache));
}

#ifdef IBV_HAVE_REG_NOTIFIED_MR

/* Takes a reference. Returns 0, without a reference, if the entry is unusable. Needs the lock. */
static int take(struct reg_entry *e)
{
	uint64_t seen = __atomic_fetch_add(&e->word, REFERENCE, __ATOMIC_ACQUIRE);

	if (seen & KERNEL_BITS && !(seen & IBV_MR_NOTIFY_INVALID)) {
		/* A system call instead of a registration. Our reference keeps the entry. */
		if (ibv_settle_mr_notify(e->mr))
			seen |= IBV_MR_NOTIFY_INVALID;
		else
			seen = __atomic_load_n(&e->word, __ATOMIC_ACQUIRE);
	}
	/* If it is SUSPECT again, another event just came. This is too rare for a loop. */
	if (!(seen & KERNEL_BITS))
		return 1;
	__atomic_fetch_sub(&e->word, REFERENCE, __ATOMIC_RELEASE);
	e->gone = 1;
	return 0;
}

static int unused(struct reg_entry *e)
{
	return !(__atomic_load_n(&e->word, __ATOMIC_ACQUIRE) & ~KERNEL_BITS);
}

/* Ends the entries that have become INVALID. The caller holds the lock. */
static void end_stale(struct reg_cache *cache)
{
	const uint64_t changes = __atomic_load_n(&cache->changes, __ATOMIC_ACQUIRE);

	if (changes == cache->seen)
		return;
	cache->seen = changes; /* before it reads the words, because of later changes */
	for (unsigned int i = 0; i < ENTRIES; i++) {
		struct reg_entry *e = &cache->entry[i];

		if (!e->mr)
			continue;
		if (__atomic_load_n(&e->word, __ATOMIC_ACQUIRE) & IBV_MR_NOTIFY_INVALID)
			e->gone = 1;
		if (e->gone && unused(e))
			end(e);
	}
}

/* Returns a free entry, or NULL if all are in use. The caller holds the lock. */
static struct reg_entry *make_room(struct reg_cache *cache)
{
	for (unsigned int i = 0; i < ENTRIES; i++) {
		struct reg_entry *e = &cache->entry[cache->next++ % ENTRIES];

		if (e->mr && !unused(e))
			continue;
		if (e->mr)
			end(e);
		return e;
	}
	return NULL;
}

/* Ends idle entries after ENOMEM, which they may have caused. Returns their number. */
static int end_unused(struct reg_cache *cache)
{
	int ended = 0;

	pthread_mutex_lock(&cache->lock);
	for (unsigned int i = 0; i < ENTRIES; i++)
		if (cache->entry[i].mr && unused(&cache->entry[i])) {
			end(&cache->entry[i]);
			ended++;
		}
	pthread_mutex_unlock(&cache->lock);
	errno = ENOMEM;
	return ended;
}

/*
 * Transfers use parts of an entry, so the word counts its users. If the device can't
 * revoke (EOPNOTSUPP), the count is not needed: the pages stay until the entry ends.
 */
static struct ibv_mr *reg(struct reg_cache *cache, struct reg_entry *e, uintptr_t start,
			  size_t length)
{
	struct ibv_mr_notify_attr attr = {
		.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_CHANGES,
		.word = &e->word,
		.in_use = ~KERNEL_BITS,
		.changes = &cache->changes,
	};
	struct ibv_mr *mr = ibv_reg_notified_mr(cache->pd, (void *)start, length, start,
						cache->access, &attr);

	if (mr || errno != EOPNOTSUPP)
		return mr;
	attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
	return ibv_reg_notified_mr(cache->pd, (void *)start, length, start, cache->access, &attr);
}

/* Registers whole pages, so that the next buffer on them is a hit. */
static int add(struct reg_cache *cache, struct reg_entry *e, uintptr_t start, uintptr_t end_of)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);

	start &= ~(page - 1);
	end_of = (end_of + page - 1) & ~(page - 1);
	__atomic_store_n(&e->word, REFERENCE, __ATOMIC_RELAXED); /* not armed yet */
	e->mr = reg(cache, e, start, end_of - start);
	if (!e->mr)
		return 0;
	__atomic_fetch_add(&cache->count, 1, __ATOMIC_RELAXED);
	e->start = start;
	e->end = end_of;
	e->gone = 0;
	if (!(__atomic_load_n(&e->word, __ATOMIC_ACQUIRE) & KERNEL_BITS))
		return 1;
	e->gone = 1;
	__atomic_fetch_sub(&e->word, REFERENCE, __ATOMIC_RELEASE);
	return 0;
}

static struct reg_entry *find_or_add(struct reg_cache *cache, uintptr_t start, uintptr_t end_of)
{
	struct reg_entry *e;

	for (unsigned int i = 0; i < ENTRIES; i++) { /* a real cache has a tree here */
		e = &cache->entry[i];
		if (e->mr && !e->gone && e->start <= start && end_of <= e->end && take(e))
			return e;
	}
	end_stale(cache);
	e = make_room(cache);
	return e && add(cache, e, start, end_of) ? e : NULL;
}

#else /* headers without notification, or without a count of users */

static struct reg_entry *find_or_add(struct reg_cache *cache, uintptr_t start, uintptr_t end_of)
{
	(void)cache, (void)start, (void)end_of;
	return NULL;
}

static int end_unused(struct reg_cache *cache)
{
	(void)cache;
	return 0;
}

#endif

int reg_cache_get(struct reg_cache *cache, void *addr, size_t length, struct reg *reg)
{
	const uintptr_t start = (uintptr_t)addr;
	int again;

	reg->entry = NULL;
	if (cache->keeps) {
		pthread_mutex_lock(&cache->lock);
		reg->entry = find_or_add(cache, start, start + length);
		pthread_mutex_unlock(&cache->lock);
	}
	if (reg->entry) {
		reg->mr = reg->entry->mr;
		return 0;
	}
	do {
		reg->mr = ibv_reg_mr(cache->pd, addr, length, cache->access);
		again = !reg->mr && errno == ENOMEM && end_unused(cache);
	} while (again);
	if (!reg->mr)
		return errno;
	__atomic_fetch_add(&cache->count, 1, __ATOMIC_RELAXED);
	return 0;
}

void reg_cache_put(struct reg *reg)
{
	if (reg->entry)
		__atomic_fetch_sub(&reg->entry->word, REFERENCE, __ATOMIC_RELEASE);
	else
		ibv_dereg_mr(reg->mr);
}
