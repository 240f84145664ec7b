/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "ib_notify.h"

#include <ucs/config/global_opts.h>
#include <ucs/debug/log.h>
#include <ucs/sys/stubs.h>

#include <dlfcn.h>


#if HAVE_DECL_IBV_REG_NOTIFIED_MR

/* This bit of a word says that the MR is in use. It is always set, because a request may
 * use a part of a region while another part is unmapped. So the device keeps the pages
 * until the region is deregistered */
#define UCT_IB_NOTIFY_IN_USE UCS_BIT(8)

static struct {
    __typeof__(ibv_reg_notified_mr)   *reg;
    __typeof__(ibv_settle_mr_notify)  *settle;
    __typeof__(ibv_alloc_notify_word) *alloc_word;
    __typeof__(ibv_free_notify_word)  *free_word;
} uct_ib_notify_verbs;

/* Find the verbs at run time, because UCX also runs with a libibverbs that lacks them */
static int uct_ib_notify_have_verbs()
{
    uct_ib_notify_verbs.reg        = dlsym(RTLD_DEFAULT, "ibv_reg_notified_mr");
    uct_ib_notify_verbs.settle     = dlsym(RTLD_DEFAULT, "ibv_settle_mr_notify");
    uct_ib_notify_verbs.alloc_word = dlsym(RTLD_DEFAULT, "ibv_alloc_notify_word");
    uct_ib_notify_verbs.free_word  = dlsym(RTLD_DEFAULT, "ibv_free_notify_word");
    return (uct_ib_notify_verbs.reg != NULL) &&
           (uct_ib_notify_verbs.settle != NULL) &&
           (uct_ib_notify_verbs.alloc_word != NULL) &&
           (uct_ib_notify_verbs.free_word != NULL);
}

/* Is each registration of the cache one MR of host memory? A registration by several
 * threads has several MRs, and an MR with on-demand paging can't notify */
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
    int must = (ucs_global_opts.rcache_notify == UCS_YES);

    md->notify = (ucs_global_opts.rcache_notify != UCS_NO) &&
                 (IBV_DEV_ATTR(&md->dev, device_cap_flags) &
                  IBV_DEVICE_MR_NOTIFY) &&
                 uct_ib_notify_have_verbs();
    if (md->notify && must) {
        /* The user prefers notification to registration by several threads and to
         * on-demand paging */
        md->config.min_mt_reg   = SIZE_MAX;
        md->config.odp.max_size = 0;
    }

    md->notify = md->notify && uct_ib_notify_covers_all(md);
    ucs_debug("%s: memory regions %s", uct_ib_device_name(&md->dev),
              md->notify ? "notify" : "do not notify");
    return (must && !md->notify) ? UCS_ERR_UNSUPPORTED : UCS_OK;
}

ucs_status_t uct_ib_notify_memh_init(uct_ib_md_t *md, uct_ib_mem_t *memh)
{
    memh->word = md->notify ?
                 uct_ib_notify_verbs.alloc_word(md->dev.ibv_context) : NULL;
    return (md->notify && (memh->word == NULL)) ? UCS_ERR_NO_MEMORY : UCS_OK;
}

void uct_ib_notify_memh_cleanup(uct_ib_mem_t *memh)
{
    if (memh->word != NULL) {
        uct_ib_notify_verbs.free_word(memh->word);
        memh->word = NULL;
    }
}

ucs_status_t uct_ib_notify_reg_mr(uct_ib_md_t *md, void *address, size_t length,
                                  uint64_t access_flags, uct_ib_mem_t *memh,
                                  struct ibv_mr **mr_p, int silent)
{
    struct ibv_mr_notify_attr attr = {
        .comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_CHANGES,
        .word      = memh->word,
        .in_use    = UCT_IB_NOTIFY_IN_USE,
        .changes   = (uint64_t*)ucs_rcache_changes()
    };

    *memh->word = UCT_IB_NOTIFY_IN_USE;
    *mr_p       = uct_ib_notify_verbs.reg(md->pd, address, length,
                                          (uintptr_t)address, access_flags, &attr);
    if ((*mr_p == NULL) && (errno == EOPNOTSUPP)) {
        /* The device can't revoke an MR, so it keeps the pages in any case */
        attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
        *mr_p          = uct_ib_notify_verbs.reg(md->pd, address, length,
                                                 (uintptr_t)address, access_flags,
                                                 &attr);
    }

    memh->notify_mr = *mr_p;
    if (*mr_p != NULL) {
        return UCS_OK;
    }

    ucs_debug("ibv_reg_notified_mr(addr=%p length=%zu) failed: %m", address,
              length);
    *memh->word |= IBV_MR_NOTIFY_INVALID;
    return uct_ib_reg_mr(md->pd, address, length, access_flags, mr_p, silent);
}

int uct_ib_notify_settle(const uct_ib_mem_t *memh)
{
    return (memh->notify_mr != NULL) &&
           !uct_ib_notify_verbs.settle(memh->notify_mr) &&
           !(*(volatile uint64_t*)memh->word & IBV_MR_NOTIFY_KERNEL_MASK);
}

#else

ucs_status_t uct_ib_notify_init(uct_ib_md_t *md)
{
    md->notify = 0;
    return (ucs_global_opts.rcache_notify == UCS_YES) ? UCS_ERR_UNSUPPORTED :
                                                        UCS_OK;
}

ucs_status_t uct_ib_notify_memh_init(uct_ib_md_t *md, uct_ib_mem_t *memh)
{
    memh->word = NULL;
    return UCS_OK;
}

void uct_ib_notify_memh_cleanup(uct_ib_mem_t *memh)
{
}

ucs_status_t uct_ib_notify_reg_mr(uct_ib_md_t *md, void *address, size_t length,
                                  uint64_t access_flags, uct_ib_mem_t *memh,
                                  struct ibv_mr **mr_p, int silent)
{
    return UCS_ERR_UNSUPPORTED;
}

int uct_ib_notify_settle(const uct_ib_mem_t *memh)
{
    return 0;
}

#endif
