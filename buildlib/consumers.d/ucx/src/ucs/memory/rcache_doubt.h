/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * A region's doubt: two words that others may write, as a device or the kernel.
 * The upper half of the first one is the region's reference count.
 */
#ifndef UCS_RCACHE_DOUBT_H_
#define UCS_RCACHE_DOUBT_H_

#include <ucs/sys/compiler_def.h>

struct ucs_rcache;
struct ucs_rcache_region;


/* Any of these bits, in either word: ask whether the region is valid */
#define UCS_RCACHE_DOUBT_MASK   UCS_MASK(8)
/* It is used, even if the reference count is 1: it is not in the page table */
#define UCS_RCACHE_DOUBT_KEPT   UCS_BIT(8)
/* In the first one: the second word is there, too. It counts as the first does */
#define UCS_RCACHE_DOUBT_SECOND UCS_BIT(9)
/* In the first one: two words of others tell of it, too */
#define UCS_RCACHE_DOUBT_FOLLOW UCS_BIT(10)
/* One reference */
#define UCS_RCACHE_DOUBT_USER   UCS_BIT(32)
/* While a registered region is unused, which has one reference then, the page
 * table's, none of these is set */
#define UCS_RCACHE_DOUBT_USED   (~UCS_MASK(33) | UCS_RCACHE_DOUBT_KEPT)

/* Fields that are the halves of such a word */
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#  define UCS_RCACHE_DOUBT_HALVES(_lower, _upper) _upper; _lower
#else
#  define UCS_RCACHE_DOUBT_HALVES(_lower, _upper) _lower; _upper
#endif


/**
 * Tell whether a registered region still is of the memory that is mapped. Called
 * each time that the region is found, with a reference to it, and now and then for
 * unused ones, whose refcount is 1, with the lock of the cache held. A region which
 * is not valid is removed, and deregistered when it is unused. If this tells of all
 * changes of memory, the cache needs no memory events.
 *
 * It is not called for a region whose doubt says nothing. The doubt does, so it is
 * called, unless @ref ucs_rcache_ops_t::mem_reg clears these bits and lets others
 * write the words. By the bits that the cache has in them, these others find out
 * whether the region is used: the same atomic operation that takes a reference
 * returns their bits, and they see the reference after it. So they may take the
 * pages of an unused region, which gets them again by a call of this. Such regions
 * are in pages that are shared with nothing else.
 *
 * @param [in]  context    User context, as passed to @ref ucs_rcache_create
 * @param [in]  rcache     Pointer to the registration cache.
 * @param [in]  region     Memory region to look at.
 *
 * @return Nonzero if it is valid.
 */
typedef int (*ucs_rcache_valid_func_t)(void *context, struct ucs_rcache *rcache,
                                       struct ucs_rcache_region *region);


/**
 * Do not ask of a region as long as the words of another one say nothing: they tell
 * of the same memory. Can be called without the lock of the cache.
 *
 * @param [in]  region     Memory region.
 * @param [in]  doubt      The other one's words, which stay while @a region is
 *                         registered. Only the low bytes count.
 */
void ucs_rcache_region_follow(struct ucs_rcache_region *region,
                              const volatile uint64_t *doubt);


/**
 * Drop all unused regions which are not valid any more.
 *
 * @param [in]  rcache      Memory registration cache.
 */
void ucs_rcache_drop_invalid(struct ucs_rcache *rcache);

#endif
