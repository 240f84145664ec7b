/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
#ifndef UCT_IB_NOTIFY_H_
#define UCT_IB_NOTIFY_H_

#include "ib_md.h"

#include <ucs/arch/cpu.h>


/*
 * Registrations that know when they are stale, ibv_reg_mr_notify(3): the kernel
 * sets bits of a word before a system call that changes the memory returns.
 */
enum {
    UCT_IB_NOTIFY_NONE,   /**< The device or the library can't, or was told not to */
    UCT_IB_NOTIFY_SOME,   /**< Some registrations may have no word: memory events
                               are needed as well */
    UCT_IB_NOTIFY_ALL     /**< A region without a word is never found in the cache:
                               none is device memory, of several MRs, or on demand */
};


/**
 * Find out whether a memory domain's device notifies.
 *
 * @param [in]  md   Memory domain with an open device. Gets notify.
 *
 * @return Error code. UCS_ERR_UNSUPPORTED if UCX_RCACHE_NOTIFY=y and it can't,
 *         or not for all registrations.
 */
ucs_status_t uct_ib_notify_init(uct_ib_md_t *md);


/**
 * Give a memory handle the words of a region, one for each of its MRs, before
 * they are registered, if its domain notifies.
 */
void uct_ib_notify_begin(uct_ib_md_t *md, uct_ib_mem_t *memh,
                         ucs_rcache_region_t *region);


/**
 * Take them back: the handle has no MRs.
 */
void uct_ib_notify_failed(uct_ib_mem_t *memh);


/**
 * Let the kernel watch an MR that was just registered, if the handle has words.
 */
void uct_ib_notify_arm(uct_ib_md_t *md, uct_ib_mem_t *memh,
                       uct_ib_mr_type_t mr_type, struct ibv_mr *mr);


/**
 * Ask the kernel where a word is not zero.
 *
 * @return Whether all MRs are still of the memory that is mapped.
 */
int uct_ib_notify_settle(const uct_ib_mem_t *memh);


/**
 * @return The kernel's bits of a word, IBV_MR_NOTIFY_KERNEL_MASK of it.
 */
static UCS_F_ALWAYS_INLINE uint8_t uct_ib_notify_said(uint64_t word)
{
    return word;
}


/**
 * @return Whether a region's memory handle is still of the memory that is mapped.
 *         An unused one may have no pages: it gets some when it is found.
 */
int uct_ib_notify_region_is_valid(const ucs_rcache_region_t *region,
                                  const uct_ib_mem_t *memh);


/**
 * @return Whether the memory handle is still of the memory that is mapped, as
 *         far as its words tell. Can be called by any thread at any time.
 */
static UCS_F_ALWAYS_INLINE int uct_ib_notify_is_valid(const uct_ib_mem_t *memh)
{
    return (memh->doubt == NULL) ||
           ucs_likely(!uct_ib_notify_said(memh->doubt[UCT_IB_MR_DEFAULT] |
                                          memh->doubt[UCT_IB_MR_STRICT_ORDER])) ||
           uct_ib_notify_settle(memh);
}

#endif
