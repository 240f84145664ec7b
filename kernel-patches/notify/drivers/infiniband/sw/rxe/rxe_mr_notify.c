// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in soft-RoCE.
 *
 * All accesses to an MR are memcpy's by rxe's workers. A flag that is checked
 * before the copy leaves this race:
 *
 *   rxe worker                            revoke
 *   revoked? no
 *                                         revoked = true
 *                                         pages unpinned, given to another
 *   memcpy into the page                  [writes another owner's memory]
 *
 * So the worker copies under revoke_lock, which revoking takes for writing:
 *
 *   read_lock; revoked? no; memcpy
 *                                         write_lock: waits
 *   read_unlock
 *                                         revoked = true; write_unlock
 *                                         pages unpinned
 *   read_lock; revoked? yes: refused
 *
 * Workers and revoking run in process context only, so softirqs need not be
 * disabled.
 *
 * The reference count of the MR can't replace the lock: a bound memory window
 * holds a reference for its whole lifetime.
 */

#include "rxe.h"
#include "rxe_mr_notify.h"

struct ib_umem *rxe_mr_umem(struct ib_mr *ibmr)
{
	return to_rmr(ibmr)->umem;
}

/**
 * rxe_revoke_user_mr - End the device's access to the pages of an MR
 * @ibmr: A user MR
 *
 * The keys stay reserved. Until the MR is restored, a remote access through its
 * keys or a memory window bound to it fails with a remote access error, and a
 * local access fails with a local protection error.
 *
 * Context: Process context; waits for at most one packet's copy.
 *
 * Return: 0. After the return no worker reads or writes the pages.
 */
int rxe_revoke_user_mr(struct ib_mr *ibmr)
{
	struct rxe_mr *mr = to_rmr(ibmr);

	write_lock(&mr->revoke_lock);
	mr->revoked = true;
	write_unlock(&mr->revoke_lock);
	return 0;
}

/**
 * rxe_restore_user_mr - Let a revoked MR use the current pages of its umem
 * @ibmr: A user MR, with as many pages as before
 *
 * While the MR is revoked, rxe copies nothing from or to the MR. So this function
 * fills page_info without the lock.
 *
 * Context: Process context.
 *
 * Return: 0, or -EOPNOTSUPP for an MR of persistent memory, because the new
 * pages may not be persistent.
 */
int rxe_restore_user_mr(struct ib_mr *ibmr)
{
	struct rxe_mr *mr = to_rmr(ibmr);
	struct rxe_mr_page *info = mr->page_info;
	struct sg_page_iter iter;

	if (mr->access & IB_ACCESS_FLUSH_PERSISTENT)
		return -EOPNOTSUPP;
	for_each_sgtable_page(&mr->umem->sgt_append.sgt, &iter, 0)
		(info++)->page = sg_page_iter_page(&iter);

	write_lock(&mr->revoke_lock);
	mr->revoked = false;
	write_unlock(&mr->revoke_lock);
	return 0;
}
