/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "ib_notify.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/log.h>
#include <ucs/sys/stubs.h>

#include <dlfcn.h>


#if HAVE_DECL_IBV_REG_MR_NOTIFY

static struct {
    int (*reg)(struct ibv_mr *mr, uint64_t *word);
    int (*reg_in_use)(struct ibv_mr *mr, uint64_t *word, uint64_t in_use);
    int (*settle)(struct ibv_mr *mr);
} uct_ib_notify_verbs;

/* Looked up, not linked: also runs with a libibverbs that does not have them */
static int uct_ib_notify_have_verbs()
{
    void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);

    if (lib == NULL) {
        return 0;
    }

    *(void**)&uct_ib_notify_verbs.reg        = dlsym(lib, "ibv_reg_mr_notify");
    *(void**)&uct_ib_notify_verbs.reg_in_use =
            dlsym(lib, "ibv_reg_mr_notify_reclaim");
    *(void**)&uct_ib_notify_verbs.settle     = dlsym(lib, "ibv_settle_mr_notify");
    dlclose(lib); /* this module is linked with it */
    return (uct_ib_notify_verbs.reg != NULL) &&
           (uct_ib_notify_verbs.settle != NULL);
}

/* Whether each registration of host memory by the cache is one of ibv_reg_mr().
 * Device memory, and large regions that threads register in parts, are not, and
 * on-demand paging (of UCT_MD_MEM_FLAG_NONBLOCK) has no word. */
static int uct_ib_notify_covers_all(uct_ib_md_t *md)
{
    return (md->reg_mem_types == UCS_BIT(UCS_MEMORY_TYPE_HOST)) &&
           (md->config.odp.max_size == 0) &&
           ((md->config.min_mt_reg == SIZE_MAX) ||
            ((md->ops != NULL) &&
             (md->ops->reg_multithreaded ==
              (uct_ib_md_reg_multithreaded_func_t)
                      ucs_empty_function_return_unsupported)));
}

ucs_status_t uct_ib_notify_init(uct_ib_md_t *md)
{
    int must = ucs_global_opts.rcache_notify == UCS_YES;

    md->notify = UCT_IB_NOTIFY_NONE;
    if (ucs_global_opts.rcache_notify == UCS_NO) {
        return UCS_OK;
    }

    if (!(IBV_DEV_ATTR(&md->dev, device_cap_flags) & IBV_DEVICE_MR_NOTIFY) ||
        !uct_ib_notify_have_verbs()) {
        ucs_debug("%s: memory regions can't notify",
                  uct_ib_device_name(&md->dev));
        return must ? UCS_ERR_UNSUPPORTED : UCS_OK;
    }

    if (must) {
        /* Rather one thread, or pinned, than memory without a word */
        md->config.min_mt_reg   = SIZE_MAX;
        md->config.odp.max_size = 0;
    }

    md->notify = uct_ib_notify_covers_all(md) ? UCT_IB_NOTIFY_ALL :
                                                UCT_IB_NOTIFY_SOME;
    ucs_debug("%s: memory regions notify, %s memory events",
              uct_ib_device_name(&md->dev),
              (md->notify == UCT_IB_NOTIFY_ALL) ? "without" : "beside");
    return (must && (md->notify != UCT_IB_NOTIFY_ALL)) ? UCS_ERR_UNSUPPORTED :
                                                         UCS_OK;
}

void uct_ib_notify_begin(uct_ib_md_t *md, uct_ib_mem_t *memh,
                         ucs_rcache_region_t *region)
{
    UCS_STATIC_ASSERT(UCT_IB_MR_LAST ==
                      ucs_static_array_size(region->doubt));
    UCS_STATIC_ASSERT(UCT_IB_MR_LAST ==
                      ucs_static_array_size(memh->watched));

    if (md->notify != UCT_IB_NOTIFY_NONE) {
        region->doubt_low = md->relaxed_order ? UCS_RCACHE_DOUBT_SECOND : 0;
        memh->doubt       = region->doubt;
    }
}

void uct_ib_notify_failed(uct_ib_mem_t *memh)
{
    if (memh->doubt != NULL) {
        memh->doubt[UCT_IB_MR_DEFAULT] |= IBV_MR_NOTIFY_INVALID;
        memh->doubt                     = NULL;
    }
}

/* A cache may find a part of a larger region, and another part may be unmapped. So
 * the device keeps the pages of an invalid region while it is used, as it does of
 * one that an event took out of the cache. Unused, it gives them back at once. A
 * device that can't be revoked keeps them in any case. */
static int uct_ib_notify_reg(struct ibv_mr *mr, volatile uint64_t *doubt)
{
    uint64_t *word = (uint64_t*)doubt;
    int ret = EOPNOTSUPP;

    *word |= UCS_RCACHE_DOUBT_KEPT; /* until it is registered */
    if (uct_ib_notify_verbs.reg_in_use != NULL) {
        ret = uct_ib_notify_verbs.reg_in_use(mr, word,
                                             UCS_RCACHE_DOUBT_USED);
    }

    return (ret == EOPNOTSUPP) ? uct_ib_notify_verbs.reg(mr, word) : ret;
}

void uct_ib_notify_arm(uct_ib_md_t *md, uct_ib_mem_t *memh,
                       uct_ib_mr_type_t mr_type, struct ibv_mr *mr)
{
    int ret;

    /* On-demand paging follows the memory itself; memory events end regions whose
     * memory is gone, as their keys reach memory that is mapped there later */
    if ((memh->doubt == NULL) || (memh->flags & UCT_IB_MEM_FLAG_ODP)) {
        return;
    }

    ret = uct_ib_notify_reg(mr, &memh->doubt[mr_type]);
    if (ret == 0) {
        memh->watched[mr_type] = mr;
        return;
    }

    ucs_debug("ibv_reg_mr_notify(mr=%p) failed: %s", mr, strerror(ret));
    if (md->notify == UCT_IB_NOTIFY_ALL) {
        memh->doubt[mr_type] |= IBV_MR_NOTIFY_INVALID; /* for this time only */
    }
}

int uct_ib_notify_settle(const uct_ib_mem_t *memh)
{
    int i;

    for (i = 0; i < UCT_IB_MR_LAST; ++i) {
        if (!uct_ib_notify_said(memh->doubt[i])) {
            continue;
        }

        /* INVALID is final. Anything else is a doubt, which the kernel takes
         * back, or makes INVALID. */
        if ((memh->doubt[i] & IBV_MR_NOTIFY_INVALID) ||
            (memh->watched[i] == NULL) ||
            uct_ib_notify_verbs.settle(memh->watched[i]) ||
            uct_ib_notify_said(memh->doubt[i])) {
            return 0;
        }
    }

    return 1;
}

int uct_ib_notify_region_is_valid(const ucs_rcache_region_t *region,
                                  const uct_ib_mem_t *memh)
{
    return ((region->refcount == 1) &&
            !((region->doubt[UCT_IB_MR_DEFAULT] |
               region->doubt[UCT_IB_MR_STRICT_ORDER]) &
              (IBV_MR_NOTIFY_INVALID | IBV_MR_NOTIFY_SUSPECT))) ||
           uct_ib_notify_is_valid(memh);
}

#else

ucs_status_t uct_ib_notify_init(uct_ib_md_t *md)
{
    md->notify = UCT_IB_NOTIFY_NONE;
    return (ucs_global_opts.rcache_notify == UCS_YES) ? UCS_ERR_UNSUPPORTED :
                                                        UCS_OK;
}

void uct_ib_notify_begin(uct_ib_md_t *md, uct_ib_mem_t *memh,
                         ucs_rcache_region_t *region)
{
}

void uct_ib_notify_failed(uct_ib_mem_t *memh)
{
}

void uct_ib_notify_arm(uct_ib_md_t *md, uct_ib_mem_t *memh,
                       uct_ib_mr_type_t mr_type, struct ibv_mr *mr)
{
}

int uct_ib_notify_settle(const uct_ib_mem_t *memh)
{
    return 1;
}

int uct_ib_notify_region_is_valid(const ucs_rcache_region_t *region,
                                  const uct_ib_mem_t *memh)
{
    return 1;
}

#endif
