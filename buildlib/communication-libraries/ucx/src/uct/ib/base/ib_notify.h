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
    UCT_IB_NOTIFY_ALL     /**< What has no word is never found in the cache */
};


/**
 * The words of a memory handle, one for each of its MRs, in memory that is
 * shared with nothing else: the kernel pins its pages.
 */
typedef struct uct_ib_notify_slot {
    uint64_t      words[UCT_IB_MR_LAST];
    struct ibv_mr *mrs[UCT_IB_MR_LAST]; /**< NULL: nobody writes that word */
} uct_ib_notify_slot_t;


/**
 * Find out whether a memory domain's device notifies.
 *
 * @param [in]  md   Memory domain with an open device. Gets notify, and the pool
 *                   that slots are taken from.
 *
 * @return Error code. UCS_ERR_UNSUPPORTED if UCX_RCACHE_NOTIFY=y and it can't,
 *         or not for all registrations.
 */
ucs_status_t uct_ib_notify_init(uct_ib_md_t *md);


/**
 * Undo @ref uct_ib_notify_init, when nothing of the domain is registered.
 */
void uct_ib_notify_cleanup(uct_ib_md_t *md);


/**
 * Give a memory handle a slot, if its domain notifies. Slots of one domain are
 * taken and returned by one thread at a time: the cache's lock is held.
 *
 * @return Error code. UCS_ERR_NO_MEMORY if there is none for a handle that is
 *         watched by nobody else.
 */
ucs_status_t uct_ib_notify_get(uct_ib_md_t *md, uct_ib_mem_t *memh);


/**
 * Return the slot, after the memory handle's MRs were deregistered.
 */
void uct_ib_notify_put(uct_ib_mem_t *memh);


/**
 * Let the kernel watch an MR that was just registered, if the handle has a slot.
 */
void uct_ib_notify_arm(uct_ib_md_t *md, uct_ib_mem_t *memh,
                       uct_ib_mr_type_t mr_type, struct ibv_mr *mr);


/**
 * Ask the kernel where a word is not zero.
 *
 * @return Whether all MRs are still of the memory that is mapped.
 */
int uct_ib_notify_settle(uct_ib_notify_slot_t *slot);


/**
 * @return What the kernel has said by a word, IBV_MR_NOTIFY_KERNEL_MASK of it.
 */
static UCS_F_ALWAYS_INLINE uint8_t uct_ib_notify_said(uint64_t word)
{
    return word;
}


/**
 * @return The words of a memory handle, or NULL if it has none.
 */
static UCS_F_ALWAYS_INLINE const uint64_t *
uct_ib_notify_words(const uct_ib_mem_t *memh)
{
    return (memh->notify == NULL) ? NULL : memh->notify->words;
}


/**
 * @return Whether the memory handle is still of the memory that is mapped, as
 *         far as its words tell. Can be called by any thread at any time.
 */
static UCS_F_ALWAYS_INLINE int uct_ib_notify_is_valid(const uct_ib_mem_t *memh)
{
    /* read each time: the kernel writes them */
    const volatile uint64_t *words = uct_ib_notify_words(memh);

    return (words == NULL) ||
           ucs_likely(!uct_ib_notify_said(words[UCT_IB_MR_DEFAULT] |
                                          words[UCT_IB_MR_STRICT_ORDER])) ||
           uct_ib_notify_settle(memh->notify);
}

#endif
