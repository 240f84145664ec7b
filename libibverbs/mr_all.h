/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * One registration of the whole address space, of any mapping at any time: it
 * is on-demand paging by the device. It can't go stale, and pins nothing
 * between transfers.
 *
 * Included by <infiniband/verbs.h>.
 */
#ifndef INFINIBAND_MR_ALL_H
#define INFINIBAND_MR_ALL_H

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_mr;
struct ibv_pd;

/* In device_cap_flags_ex of ibv_query_device_ex(): ibv_register_mr_all() works. */
#define IBV_DEVICE_MR_ALL (1ULL << 62)

/**
 * ibv_register_mr_all - Register all memory of this process, now and later
 * @pd: The protection domain
 * @access: Access rights as for ibv_reg_mr(); IBV_ACCESS_ON_DEMAND is implied
 *
 * An address in the MR is the process's own. A transfer reaches the memory that is
 * mapped there while it runs, with the rights that the mapping has: nothing mapped,
 * no access. A child that was forked later has its memory not in it.
 *
 * With a remote right, each peer that has the key has all memory of this process.
 *
 * Returns the MR, for ibv_dereg_mr(), or NULL and errno:
 *   EOPNOTSUPP  the kernel or the device has no on-demand paging of all memory,
 *               or not with these rights
 *   EINVAL      rights that are none or do not go together
 *   ENOMEM      out of memory
 *   EAGAIN      on soft-RoCE: the process may have no other thread
 * or an error of ibv_query_device_ex(). Thread safe.
 */
struct ibv_mr *ibv_register_mr_all(struct ibv_pd *pd, int access);

#ifdef __cplusplus
}
#endif

#endif /* INFINIBAND_MR_ALL_H */
