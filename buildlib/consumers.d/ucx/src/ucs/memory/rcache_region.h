/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Where the regions of a cache are, and how their users are counted. If the cache
 * has operation `valid', others may write the doubt of a region, as the kernel,
 * which pins its page: they are in pages that nothing else shares. Included by
 * rcache.c.
 */
#ifndef UCS_RCACHE_REGION_H_
#define UCS_RCACHE_REGION_H_

#include "rcache_int.h"

#include <ucs/arch/atomic.h>
#include <ucs/arch/cpu.h>
#include <ucs/datastruct/mpool.inl>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>


static ucs_mpool_ops_t ucs_rcache_region_mp_ops = {
    .chunk_alloc   = ucs_mpool_chunk_mmap,
    .chunk_release = ucs_mpool_chunk_munmap,
    .obj_init      = NULL,
    .obj_cleanup   = NULL,
    .obj_str       = NULL
};

static ucs_status_t ucs_rcache_region_mp_init(ucs_rcache_t *rcache)
{
    if (rcache->params.ops->valid == NULL) {
        return UCS_OK;
    }

    return ucs_mpool_init(&rcache->region_mp, 0,
                          rcache->params.region_struct_size, 0,
                          UCS_SYS_CACHE_LINE_SIZE, 64, UINT_MAX,
                          &ucs_rcache_region_mp_ops, "rcache_region");
}

static void ucs_rcache_region_mp_cleanup(ucs_rcache_t *rcache)
{
    if (rcache->params.ops->valid != NULL) {
        ucs_mpool_cleanup(&rcache->region_mp, 0);
    }
}

/* Lock must be held in write mode */
static ucs_rcache_region_t *ucs_rcache_region_alloc(ucs_rcache_t *rcache)
{
    void *region;

    if (rcache->params.ops->valid != NULL) {
        return ucs_mpool_get(&rcache->region_mp);
    }

    return ucs_posix_memalign(&region,
                              ucs_max(sizeof(void *), UCS_PGT_ENTRY_MIN_ALIGN),
                              rcache->params.region_struct_size,
                              "rcache_region") ? NULL : region;
}

/* Lock must be held in write mode */
static void
ucs_rcache_region_free(ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
    if (rcache->params.ops->valid == NULL) {
        ucs_free(region);
    } else if (!(region->flags & UCS_RCACHE_REGION_FLAG_DOUBTED)) {
        ucs_mpool_put(region);
    }
}

/* A writer of the doubt may take the pages of an unused region. It finds that by
 * the doubt itself, whose upper half is the refcount: so it comes before or after a
 * user, and a later user sees its bits. A region with two words counts in both */

static UCS_F_ALWAYS_INLINE void
ucs_rcache_region_add_second(ucs_rcache_region_t *region)
{
    if (ucs_unlikely(region->doubt[0] & UCS_RCACHE_DOUBT_SECOND)) {
        ucs_atomic_fadd64(&region->doubt[1], UCS_RCACHE_DOUBT_USER);
    }
}

static UCS_F_ALWAYS_INLINE void
ucs_rcache_region_sub_second(ucs_rcache_region_t *region)
{
    if (ucs_unlikely(region->doubt[0] & UCS_RCACHE_DOUBT_SECOND)) {
        ucs_atomic_fsub64(&region->doubt[1], UCS_RCACHE_DOUBT_USER);
    }
}

static UCS_F_ALWAYS_INLINE void
ucs_rcache_region_add_user(ucs_rcache_region_t *region)
{
    ucs_rcache_region_add_second(region);
    ucs_atomic_add32(&region->refcount, 1);
}

/* Of a region in the page table, which has a reference. Lock must be held */
static void ucs_rcache_region_unhold(ucs_rcache_region_t *region)
{
    ucs_rcache_region_sub_second(region);
    ucs_atomic_sub32(&region->refcount, 1);
}

/* It is registered and has a user: the count tells from now on. Lock must be held
 * in write mode */
static void ucs_rcache_region_count(ucs_rcache_region_t *region)
{
    if (region->doubt[0] & UCS_RCACHE_DOUBT_SECOND) {
        ucs_atomic_fadd64(&region->doubt[1],
                          region->refcount * UCS_RCACHE_DOUBT_USER);
        ucs_atomic_and64(&region->doubt[1], ~UCS_RCACHE_DOUBT_KEPT);
    }

    ucs_atomic_and64(&region->doubt[0], ~UCS_RCACHE_DOUBT_KEPT);
}

void ucs_rcache_region_follow(ucs_rcache_region_t *region,
                              const volatile uint64_t *doubt)
{
    region->follow = doubt;
    ucs_memory_cpu_store_fence();
    ucs_atomic_or64(&region->doubt[0], UCS_RCACHE_DOUBT_FOLLOW);
    ucs_atomic_and64(&region->doubt[0], ~UCS_RCACHE_DOUBT_MASK);
}

/* It leaves the page table, whose reference goes, but for the second word's: the
 * last user's is 1 then. Lock must be held in write mode */
static void ucs_rcache_region_keep(ucs_rcache_region_t *region)
{
    ucs_atomic_or64(&region->doubt[0], UCS_RCACHE_DOUBT_KEPT);
}

#endif
