/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * One registration covers all present and later mappings of the address space, by
 * on-demand paging of the device. The registration never becomes stale, and pins
 * pages only during transfers.
 *
 * <infiniband/verbs.h> includes this file.
 */
#ifndef INFINIBAND_MR_ALL_H
#define INFINIBAND_MR_ALL_H

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_mr;
struct ibv_pd;

/* This bit of device_cap_flags_ex tells that ibv_register_mr_all() works. */
#define IBV_DEVICE_MR_ALL (1ULL << 62)

/**
 * ibv_register_mr_all - Register all memory of this process, now and later
 * @pd: The protection domain
 * @access: Access rights as for ibv_reg_mr(); IBV_ACCESS_ON_DEMAND is implied
 *
 * An address in the MR is an address of the process. A transfer reaches the memory that is
 * mapped at this address during the transfer. If nothing is mapped, or the mapping lacks the
 * right, the access fails. In a child of fork() the MR still refers to the memory of the parent.
 *
 * With a remote right, each peer that has the key can access all memory of this process.
 *
 * Returns the MR, which ibv_dereg_mr() frees. On failure returns NULL and sets errno:
 *   EOPNOTSUPP  the kernel or the device has no on-demand paging of all memory
 *               with these rights
 *   EINVAL      unknown rights, or rights that exclude each other
 *   ENOMEM      out of memory
 *   EAGAIN      soft-RoCE needs a thread of this process, but a limit allows no other
 * Other values are errors of ibv_query_device_ex(). Thread safe.
 */
struct ibv_mr *ibv_register_mr_all(struct ibv_pd *pd, int access);

#ifdef __cplusplus
}
#endif

#endif /* INFINIBAND_MR_ALL_H */
