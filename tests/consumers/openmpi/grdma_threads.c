// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests Open MPI's registration cache grdma with threads, and with an owner that names stale
 * registrations, as btl/ofi does. Some threads register parts of a few buffers with different
 * rights, and keep some of the registrations for a while. One thread replaces buffers, and one
 * thread acts as a memory hook. The owner has room for a part of the registrations.
 *
 * Each registration has a record, which is freed when the registration ends. With AddressSanitizer
 * the use of a freed record ends the program.
 *
 * -DWITHOUT_WORD is for an Open MPI that has only the first patch. Then no registration becomes
 * stale.
 */
#include "opal/mca/rcache/grdma/rcache_grdma_module.c"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 16, BUFFERS = 48, THREADS = 4, MOST_KEPT = 4, MOST_REGISTERED = 250 };

struct record {
	size_t buffer;
	unsigned int version;
};

struct registration {
	mca_rcache_base_registration_t base;
	struct record *volatile record;
};

/* A thread holds the lock of a buffer for reading while it has a registration of the buffer. */
static struct {
	pthread_rwlock_t lock;
	atomic_uint version;
} buffers[BUFFERS];

static unsigned char *memory;
static mca_rcache_grdma_module_t cache;
static atomic_long live, wrong;
static atomic_bool stop;
static _Atomic uint64_t changes; /* registrations that have become stale */

/* Normally the file of the component defines this variable. */
mca_rcache_grdma_component_t mca_rcache_grdma_component = { .leave_pinned = 1 };

static int register_memory(void *owner, void *base, size_t size,
			   mca_rcache_base_registration_t *reg)
{
	struct record *record;

	if (atomic_fetch_add(&live, 1) >= MOST_REGISTERED) {
		atomic_fetch_sub(&live, 1);
		return OPAL_ERR_OUT_OF_RESOURCE;
	}
	record = malloc(sizeof(*record));
	record->buffer = ((unsigned char *)base - memory) / (PAGE * PAGES);
	record->version = buffers[record->buffer].version;
	((struct registration *)reg)->record = record;
	return OPAL_SUCCESS;
}

static int deregister_memory(void *owner, mca_rcache_base_registration_t *reg)
{
	free(((struct registration *)reg)->record);
	((struct registration *)reg)->record = NULL;
	atomic_fetch_sub(&live, 1);
	return OPAL_SUCCESS;
}

static bool is_valid(void *owner, mca_rcache_base_registration_t *reg, bool may_wait)
{
	const struct record *record = ((struct registration *)reg)->record;

	return record->version == buffers[record->buffer].version;
}

static mca_rcache_base_registration_t *use(size_t buffer, size_t first, size_t count,
					   int32_t access)
{
	unsigned char *base = memory + (buffer * PAGES + first) * PAGE;
	mca_rcache_base_registration_t *reg = NULL;

	if (cache.super.rcache_register(&cache.super, base, count * PAGE, 0, access, &reg) || !reg)
		return NULL;
	if (!is_valid(NULL, reg, true) || reg->base > base ||
	    reg->bound < base + count * PAGE - 1 || (reg->access_flags & access) != access)
		wrong++;
	return reg;
}

static void *user(void *seed_of)
{
	unsigned int seed = (uintptr_t)seed_of;
	struct {
		mca_rcache_base_registration_t *reg;
		size_t buffer;
	} kept[MOST_KEPT] = {};

	while (!stop || kept[0].reg || kept[1].reg || kept[2].reg || kept[3].reg) {
		size_t at = rand_r(&seed) % MOST_KEPT, first = rand_r(&seed) % PAGES;

		if (kept[at].reg) {
			cache.super.rcache_deregister(&cache.super, kept[at].reg);
			kept[at].reg = NULL;
			pthread_rwlock_unlock(&buffers[kept[at].buffer].lock);
			continue;
		}
		kept[at].buffer = rand_r(&seed) % BUFFERS;
		if (stop || pthread_rwlock_tryrdlock(&buffers[kept[at].buffer].lock))
			continue;
		kept[at].reg = use(kept[at].buffer, first, 1 + rand_r(&seed) % (PAGES - first),
				   rand_r(&seed) % 8 ? 1 : 3);
		if (!kept[at].reg)
			pthread_rwlock_unlock(&buffers[kept[at].buffer].lock);
	}
	return NULL;
}

static void *replacer(void *unused)
{
	unsigned int seed = 1;

	while (!stop) {
		size_t buffer = rand_r(&seed) % BUFFERS;

#ifndef WITHOUT_WORD
		if (!pthread_rwlock_trywrlock(&buffers[buffer].lock)) {
			buffers[buffer].version++;
			changes++;
			pthread_rwlock_unlock(&buffers[buffer].lock);
		}
#endif
		usleep(50);
	}
	return NULL;
}

/* Unmaps memory near the buffers. */
static void *hook(void *unused)
{
	unsigned int seed = 1;

	while (!stop) {
		size_t page = rand_r(&seed) % (BUFFERS * PAGES);

		cache.super.rcache_invalidate_range(&cache.super, memory + page * PAGE, PAGE);
		usleep(50);
	}
	return NULL;
}

#ifndef WITHOUT_WORD
static void use_once(size_t buffer)
{
	mca_rcache_base_registration_t *reg = use(buffer, 0, PAGES, 1);

	if (reg)
		cache.super.rcache_deregister(&cache.super, reg);
}

/*
 * Counts the stale registrations that end although no user requests them again. If `counted` is
 * true, `changes` counts the registrations that became stale.
 */
static long ends(bool counted)
{
	long before;

	for (size_t i = 0; i < BUFFERS; i++)
		use_once(i);
	use_once(0);
	before = live;
	for (size_t i = 1; i < BUFFERS; i++) {
		buffers[i].version++;
		changes += counted;
	}
	use_once(0);
	return before - live;
}
#endif

static int check(bool good, const char *name)
{
	printf("%sok grdma: %s\n", good ? "" : "not ", name);
	return !good;
}

int main(int argc, char **argv)
{
	const char *seconds = getenv("RUN_SECONDS");
	pthread_t threads[THREADS + 2];
	int failures = 0;

	opal_init_util(&argc, &argv);
	opal_set_using_threads(true);
	opal_leave_pinned = 1;
	memory = aligned_alloc(PAGE, (size_t)BUFFERS * PAGES * PAGE);
	for (size_t i = 0; i < BUFFERS; i++)
		pthread_rwlock_init(&buffers[i].lock, NULL);
	cache.resources.sizeof_reg = sizeof(struct registration);
	cache.resources.register_mem = register_memory;
	cache.resources.deregister_mem = deregister_memory;
	mca_rcache_grdma_module_init(&cache, OBJ_NEW(mca_rcache_grdma_cache_t));
#ifndef WITHOUT_WORD
	cache.super.rcache_is_valid = is_valid;
	cache.super.rcache_changes = (const uint64_t *)&changes;

	failures += check(!ends(false), "idle ones are not looked at while nothing is counted");
	failures += check(ends(true) == BUFFERS - 1, "stale ones end when they are counted");
#endif
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, user, (void *)(i + 2));
	pthread_create(&threads[THREADS], NULL, replacer, NULL);
	pthread_create(&threads[THREADS + 1], NULL, hook, NULL);
	sleep(seconds ? atoi(seconds) : 10);
	stop = true;
	for (int i = 0; i < THREADS + 2; i++)
		pthread_join(threads[i], NULL);

	failures += check(!wrong, "no registration is stale, or of other memory");
	failures += check(cache.stat_cache_hit && cache.stat_evicted,
			  "some are found, and some make room");
#ifndef WITHOUT_WORD
	failures += check(cache.stat_stale, "some are stale");
#endif
	do_unregistration_gc(&cache.super);
	while (cache.super.rcache_evict(&cache.super))
		;
	failures += check(!live, "none is left");
	return failures != 0;
}
