/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Where the regions of a cache are. If the cache has operation `valid', others
 * may write the doubt of a region, as the kernel, which pins its page: they are
 * in pages that nothing else shares. Included by rcache.c.
 */
#ifndef UCS_RCACHE_REGION_H_
#define UCS_RCACHE_REGION_H_

#include "rcache_int.h"

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

#endif
