/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * How UCP's registration cache finds out which of its regions are valid, where
 * memory domains tell that. Included by ucp_mm.c.
 */
#ifndef UCP_MM_NOTIFY_H_
#define UCP_MM_NOTIFY_H_

#include "ucp_context.h"
#include "ucp_mm.h"

#include <ucm/api/ucm.h>
#include <ucs/arch/cpu.h>
#include <ucs/config/global_opts.h>


/* Memory events are not needed to find out which regions are valid if all memory
 * domains that register do notify, and there is one */
static ucp_mem_notify_t ucp_mem_rcache_notify(ucp_context_h context)
{
    uint64_t some = 0, none = 0;
    ucp_md_index_t md_index;
    const uct_md_attr_t *md_attr;

    if (ucs_global_opts.rcache_notify == UCS_NO) {
        return UCP_MEM_NOTIFY_NONE;
    }

    for (md_index = 0; md_index < context->num_mds; ++md_index) {
        md_attr = &context->tl_mds[md_index].attr;
        some   |= md_attr->cap.flags & (UCT_MD_FLAG_NOTIFY |
                                        UCT_MD_FLAG_NOTIFY_SOME);
        if ((md_attr->cap.flags & UCT_MD_FLAG_REG) &&
            (md_attr->cap.reg_mem_types & UCS_BIT(UCS_MEMORY_TYPE_HOST))) {
            none |= !(md_attr->cap.flags & (UCT_MD_FLAG_NOTIFY |
                                            UCT_MD_FLAG_REG_DUMMY));
        }
    }

    return !some ? UCP_MEM_NOTIFY_NONE :
            none ? UCP_MEM_NOTIFY_SOME : UCP_MEM_NOTIFY_ALL;
}

/* Events of other memory than the host's, where all memory domains notify of that */
static int ucp_mem_rcache_events(ucp_context_h context)
{
    uct_md_attr_t *md_attr;
    ucp_md_index_t md_index;

    for (md_index = 0; md_index < context->num_mds; ++md_index) {
        md_attr = &context->tl_mds[md_index].attr;
        if (md_attr->cap.reg_mem_types & ~UCS_BIT(UCS_MEMORY_TYPE_HOST)) {
            return UCM_EVENT_MEM_TYPE_FREE;
        }
    }

    return 0;
}

/* A region has memory handles of several memory domains: all of them count. If
 * none of them can be asked, only an event tells that its memory is gone. Where
 * there are no events it serves one request: else memory that is mapped in its
 * place would be taken for it. */
static int ucp_mem_rcache_valid_cb(void *ctx, ucs_rcache_t *rcache,
                                   ucs_rcache_region_t *rregion)
{
    ucp_mem_h memh        = ucs_derived_of(rregion, ucp_mem_t);
    ucp_context_h context = ctx;
    int asked             = 0;
    unsigned md_index;

    ucs_for_each_bit(md_index, memh->md_map) {
        if (!uct_md_mem_is_valid(context->tl_mds[md_index].md,
                                 memh->uct[md_index])) {
            return 0;
        }

        asked |= context->tl_mds[md_index].attr.cap.flags & UCT_MD_FLAG_NOTIFY;
    }

    return asked || (context->mem_notify != UCP_MEM_NOTIFY_ALL);
}

static uint64_t
ucp_memh_notify_flags(ucp_context_h context, ucp_md_index_t md_index)
{
    return context->tl_mds[md_index].attr.cap.flags & UCT_MD_FLAG_NOTIFY;
}

/* A hit asks at once only where a word says something. One word tells of all the
 * memory handles of a region if each memory domain notifies: that of the first to
 * be registered. A change after the registration of another one is after that of
 * the first, too. */
static void ucp_memh_follow(ucp_context_h context, ucp_mem_h memh,
                            ucp_md_map_t md_map_registered)
{
    const volatile uint64_t *doubt;
    ucp_md_index_t md_index;

    ucs_for_each_bit(md_index, memh->md_map) {
        if (ucp_memh_notify_flags(context, md_index)) {
            return;
        }
    }

    ucs_for_each_bit(md_index, md_map_registered) {
        if (ucp_memh_notify_flags(context, md_index)) {
            doubt = uct_md_mem_doubt(context->tl_mds[md_index].md,
                                     memh->uct[md_index]);
            if (doubt != NULL) {
                ucs_rcache_region_follow(&memh->super, doubt);
            }

            return;
        }
    }
}

/* Memory handles are there, which were registered in the order of the map */
static void ucp_memh_registered(ucp_context_h context, ucp_mem_h memh,
                                ucp_md_map_t md_map_registered)
{
    if ((context->rcache != NULL) &&
        (context->mem_notify == UCP_MEM_NOTIFY_ALL)) {
        ucp_memh_follow(context, memh, md_map_registered);
    }

    /* A hit in another thread asks all that are in the map */
    ucs_memory_cpu_store_fence();
    memh->md_map |= md_map_registered;
}

#endif
