// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in soft-RoCE.
 *
 * All accesses to an MR are memcpy's by rxe's workers. Checking a flag before
 * the copy is not enough:
 *
 *   rxe worker                            revoke
 *   revoked? no
 *                                         revoked = true
 *                                         pages unpinned, given to another
 *   memcpy into the page                  [writes another owner's memory]
 *
 * So the copy runs under revoke_lock, which revoking takes for writing:
 *
 *   read_lock; revoked? no; memcpy
 *                                         write_lock: waits
 *   read_unlock
 *                                         revoked = true; write_unlock
 *                                         pages unpinned
 *   read_lock; revoked? yes: refused
 *
 * Copies and revoking run in process context only, so no softirq waits for the
 * lock, and none needs to be kept out.
 *
 * The reference count of the MR can't tell instead: a bound memory window
 * holds one for as long as it exists.
 */

#include "rxe.h"
#include "rxe_mr_notify.h"

struct ib_umem *rxe_mr_umem(struct ib_mr *ibmr)
{
	return to_rmr(ibmr)->umem;
}

/**
 * rxe_revoke_user_mr - Take the pages of an MR away from the device
 * @ibmr: A user MR
 *
 * The keys stay reserved. A remote access through them, or through a memory
 * window that is bound to the MR, is a remote access error until it is restored,
 * a local one a local protection error.
 *
 * Context: Process context; waits for at most one packet's copy.
 *
 * Return: 0. When it returns, nothing reads or writes the pages any more.
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
 * rxe_restore_user_mr - Give a revoked MR the pages that its umem has now
 * @ibmr: A user MR, and as many pages as before
 *
 * No copy looks at page_info while the MR is revoked, so it is filled without
 * the lock.
 *
 * Context: Process context.
 *
 * Return: 0, or -EOPNOTSUPP for an MR of persistent memory: the new pages may
 * be of another kind.
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
