/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * How UCP's registration cache learns from its memory domains which regions became
 * invalid. ucp_mm.c includes this file.
 */
#ifndef UCP_MM_NOTIFY_H_
#define UCP_MM_NOTIFY_H_

#include "ucp_context.h"
#include "ucp_mm.inl"

#include <ucs/config/global_opts.h>


/* Find out whether the cache can do without memory events. Ignore memory domains that
 * register no memory, or whose registration does nothing. At least one memory domain has
 * to remain, and all remaining memory domains have to notify */
static int ucp_mem_rcache_can_notify(ucp_context_h context)
{
    int found = 0;
    const uct_md_attr_t *md_attr;
    ucp_md_index_t md_index;

    if (ucs_global_opts.rcache_notify == UCS_NO) {
        return 0;
    }

    for (md_index = 0; md_index < context->num_mds; ++md_index) {
        md_attr = &context->tl_mds[md_index].attr;
        if (!(md_attr->cap.flags & UCT_MD_FLAG_REG)) {
            continue;
        }

        if (!(md_attr->cap.flags & (UCT_MD_FLAG_NOTIFY |
                                    UCT_MD_FLAG_REG_DUMMY)) ||
            (md_attr->cap.reg_mem_types != UCS_BIT(UCS_MEMORY_TYPE_HOST))) {
            return 0;
        }

        found |= !!(md_attr->cap.flags & UCT_MD_FLAG_NOTIFY);
    }

    return found;
}

/* The caller has registered some memory handles of a region, in the order of the map. The
 * word of the first handle is enough, because all handles have the same memory, and the
 * kernel reports each change after the first registration. Without a word the region
 * serves only this request */
static void ucp_memh_notify(ucp_context_h context, ucp_mem_h memh,
                            ucp_md_map_t md_map_registered)
{
    const volatile uint64_t *word;
    ucp_md_index_t md_index;

    if ((memh->md_map != 0) || (md_map_registered == 0)) {
        return;
    }

    ucs_for_each_bit(md_index, md_map_registered) {
        word = uct_md_mem_word(context->tl_mds[md_index].md, memh->uct[md_index]);
        if (word != NULL) {
            memh->super.word = word;
            return;
        }
    }

    ucs_rcache_region_invalidate(
            context->rcache, &memh->super,
            (ucs_rcache_invalidate_comp_func_t)ucs_empty_function, NULL);
}

#endif
