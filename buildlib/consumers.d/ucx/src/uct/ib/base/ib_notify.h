/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
#ifndef UCT_IB_NOTIFY_H_
#define UCT_IB_NOTIFY_H_

#include "ib_md.h"


/*
 * MRs that tell when they become invalid, see ibv_reg_notified_mr(3). When a system call
 * changes the mapping of the memory, the kernel sets bits of a word before the call
 * returns.
 */


/**
 * Find out whether the memory handles in the cache of a memory domain can have words.
 *
 * @param [in]  md   Memory domain with an open device. Sets md->notify.
 *
 * @return UCS_ERR_UNSUPPORTED if UCX_RCACHE_NOTIFY=y and the handles can't have words.
 */
ucs_status_t uct_ib_notify_init(uct_ib_md_t *md);


/**
 * If the domain notifies, give a memory handle a word before its registration.
 */
ucs_status_t uct_ib_notify_memh_init(uct_ib_md_t *md, uct_ib_mem_t *memh);


/**
 * Release the word of a memory handle that has no MR.
 */
void uct_ib_notify_memh_cleanup(uct_ib_mem_t *memh);


/**
 * Register an MR with the word of a memory handle. If this fails, register an MR without
 * a word, and set the word to invalid. Such an MR serves one request.
 */
ucs_status_t uct_ib_notify_reg_mr(uct_ib_md_t *md, void *address, size_t length,
                                  uint64_t access_flags, uct_ib_mem_t *memh,
                                  struct ibv_mr **mr_p, int silent);


/**
 * If the word of a memory handle is not zero, let the kernel find out whether the handle
 * is valid.
 *
 * @return Nonzero if the memory handle is valid.
 */
int uct_ib_notify_settle(const uct_ib_mem_t *memh);

#endif
