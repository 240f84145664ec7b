/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * How a cache whose owner can tell whether a region is valid asks it: when one
 * is found, and of some in turn. Included by rcache.c.
 */
#ifndef UCS_RCACHE_SWEEP_H_
#define UCS_RCACHE_SWEEP_H_

#include "rcache_int.h"

#include <ucs/arch/atomic.h>
#include <ucs/async/async.h>
#include <ucs/time/time.h>

#include <errno.h>
#include <sched.h>


/* How often a cache looks for regions that are not valid if there is no miss */
#define UCS_RCACHE_SWEEP_INTERVAL ucs_time_from_sec(1.0)

/* The kernel may take a second to tell of one region: then others wait for the lock */
#define UCS_RCACHE_SWEEP_SLOW     ucs_time_from_msec(10.0)

/* Lock must be held */
static UCS_F_NOINLINE int ucs_rcache_region_ask(ucs_rcache_t *rcache,
                                                ucs_rcache_region_t *region)
{
    /* Only memory events tell of one whose registration failed */
    if (!(region->flags & UCS_RCACHE_REGION_FLAG_REGISTERED)) {
        return rcache->params.ucm_events & UCM_EVENT_VM_UNMAPPED;
    }

    return rcache->params.ops->valid(rcache->params.context, rcache, region);
}

/* Whether the words of a region say anything. @a doubt: its own */
static UCS_F_ALWAYS_INLINE int
ucs_rcache_region_is_doubted(const ucs_rcache_region_t *region, uint64_t doubt)
{
    if (doubt & UCS_RCACHE_DOUBT_FOLLOW) {
        ucs_memory_cpu_load_fence();
        doubt |= region->follow[0] | region->follow[1];
    }

    return (doubt & UCS_RCACHE_DOUBT_MASK) != 0;
}

/* Lock must be held */
static int
ucs_rcache_region_is_valid(ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
    return !ucs_rcache_region_is_doubted(region,
                                         region->doubt[0] | region->doubt[1]) ||
           ucs_rcache_region_ask(rcache, region);
}

/* Lock must be held */
static UCS_F_NOINLINE int ucs_rcache_region_held_valid(ucs_rcache_t *rcache,
                                                       ucs_rcache_region_t *region)
{
    if (ucs_rcache_region_is_valid(rcache, region)) {
        return 1;
    }

    ucs_rcache_region_unhold(region);
    return 0;
}

/* Take a reference to a region in the page table if it is valid. The reference is
 * first: nothing is taken from the region after that. Lock must be held */
static UCS_F_ALWAYS_INLINE int
ucs_rcache_region_hold_valid(ucs_rcache_t *rcache, ucs_rcache_region_t *region)
{
    uint64_t doubt = ucs_atomic_fadd64(&region->doubt[0], UCS_RCACHE_DOUBT_USER);

    ucs_rcache_region_trace(rcache, region, "hold");
    if (ucs_likely(!(uint32_t)doubt)) {
        return 1;
    }

    if (doubt & UCS_RCACHE_DOUBT_SECOND) {
        doubt |= ucs_atomic_fadd64(&region->doubt[1], UCS_RCACHE_DOUBT_USER);
    }

    return ucs_likely(!ucs_rcache_region_is_doubted(region, doubt)) ||
           ucs_rcache_region_held_valid(rcache, region);
}

/* Without memory events nothing tells of a region that is not asked for again.
 * Look at the next @a count of them, in turn; drop those that are not valid and
 * not in use: a user may just be registering its memory, without the lock. Lock
 * must be held in write mode */
static void ucs_rcache_sweep(ucs_rcache_t *rcache, size_t count)
{
    ucs_rcache_region_t *region;
    ucs_time_t before;
    int valid, slow = 0;

    if (rcache->params.ops->valid == NULL) {
        return;
    }

    for (count = ucs_min(count, rcache->num_regions); (count > 0) && !slow;
         --count) {
        region = ucs_list_extract_head(&rcache->sweep_list, ucs_rcache_region_t,
                                       sweep_list);
        ucs_list_add_tail(&rcache->sweep_list, &region->sweep_list);
        if (!(region->flags & UCS_RCACHE_REGION_FLAG_PGTABLE) ||
            (region->refcount > 1)) {
            continue;
        }

        /* See the writes of its users before they put it */
        ucs_memory_cpu_load_fence();
        if (!ucs_rcache_region_is_doubted(region,
                                          region->doubt[0] | region->doubt[1])) {
            continue;
        }

        before = ucs_get_time();
        valid  = ucs_rcache_region_ask(rcache, region);
        slow   = (ucs_get_time() - before) > UCS_RCACHE_SWEEP_SLOW;
        if (!valid) {
            ucs_rcache_region_invalidate_internal(
                    rcache, region, UCS_RCACHE_REGION_PUT_FLAG_IN_PGTABLE);
        }
    }
}

/* Regions whose memory is gone may keep resources that a registration lacked. Not
 * if it failed for another reason: a program may try that again and again. Lock
 * must be held in write mode */
static void ucs_rcache_sweep_failed(ucs_rcache_t *rcache, int error)
{
    if ((error == 0) || (error == ENOMEM) || (error == EAGAIN) ||
        (error == ENOSPC)) {
        ucs_rcache_sweep(rcache, rcache->num_regions);
    }
}

/* A child has the locks as they are at the fork, so the timer takes none then.
 * Nor does the fork: handlers of other libraries at a fork may need it */
static volatile uint32_t ucs_rcache_forking  = 0;
static volatile uint32_t ucs_rcache_sweeping = 0;

static void ucs_rcache_sweep_before_fork(void)
{
    ucs_atomic_add32(&ucs_rcache_forking, 1);
    while (ucs_rcache_sweeping != 0) {
        sched_yield();
    }
}

static void ucs_rcache_sweep_after_fork(void)
{
    ucs_atomic_sub32(&ucs_rcache_forking, 1);
}

static void ucs_rcache_sweep_in_child(void)
{
    ucs_rcache_forking  = 0;
    ucs_rcache_sweeping = 0;
}

/* There may be no miss for long. In UCS's own thread, which each cache has for
 * ucs_rcache_invalidate_handler(). It lets others in after some regions */
static void ucs_rcache_sweep_handler(int id, ucs_event_set_types_t events,
                                     void *arg)
{
    ucs_rcache_t *rcache = arg;
    size_t left          = ucs_max(64ul, rcache->num_regions / 8);
    int tries            = 100;

    ucs_atomic_add32(&ucs_rcache_sweeping, 1);
    while ((left > 0) && (tries-- > 0) && !ucs_rcache_forking) {
        if (!pthread_rwlock_trywrlock(&rcache->pgt_lock)) {
            ucs_rcache_sweep(rcache, 64);
            pthread_rwlock_unlock(&rcache->pgt_lock);
            left -= ucs_min(left, 64);
            tries = 100;
        }

        sched_yield(); /* Other threads wait, or only hit */
    }

    ucs_atomic_sub32(&ucs_rcache_sweeping, 1);
}

static ucs_status_t ucs_rcache_sweep_start(ucs_rcache_t *rcache)
{
    rcache->sweep_timer = 0;
    if ((rcache->params.ops->valid == NULL) ||
        (rcache->params.ucm_events & UCM_EVENT_VM_UNMAPPED)) {
        return UCS_OK;
    }

    return ucs_async_add_timer(UCS_ASYNC_MODE_THREAD, UCS_RCACHE_SWEEP_INTERVAL,
                               ucs_rcache_sweep_handler, rcache, NULL,
                               &rcache->sweep_timer);
}

static void ucs_rcache_sweep_stop(ucs_rcache_t *rcache)
{
    if (rcache->sweep_timer != 0) {
        ucs_async_remove_handler(rcache->sweep_timer, 1);
    }
}

#endif
