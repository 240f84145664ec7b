/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * MR notification in mlx5: the two device operations. Compiled and reviewed,
 * not run.
 */
#ifndef MLX5_IB_MR_NOTIFY_H
#define MLX5_IB_MR_NOTIFY_H

struct ib_mr;
struct ib_umem;

struct ib_umem *mlx5_ib_mr_umem(struct ib_mr *ibmr);
int mlx5_ib_revoke_user_mr(struct ib_mr *ibmr);

#endif /* MLX5_IB_MR_NOTIFY_H */
