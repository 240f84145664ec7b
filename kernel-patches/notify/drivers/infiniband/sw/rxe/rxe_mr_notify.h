/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Revoking a user MR of soft-RoCE (rxe_revoke_user_mr()), restoring it
 * (rxe_restore_user_mr()), and the guard for every access to the pages of an MR.
 */
#ifndef RXE_MR_NOTIFY_H
#define RXE_MR_NOTIFY_H

#include <linux/cleanup.h>

struct ib_mr;
struct ib_umem;

struct ib_umem *rxe_mr_umem(struct ib_mr *ibmr);
int rxe_revoke_user_mr(struct ib_mr *ibmr);
int rxe_restore_user_mr(struct ib_mr *ibmr);

/*
 * sparse does not see the cleanup at the end of a scope. With __acquire() and
 * __release(), sparse finds the lock unchanged after each of these functions.
 */
static inline struct rxe_mr *rxe_mr_pages_enter(struct rxe_mr *mr)
{
	read_lock(&mr->revoke_lock);
	if (likely(!mr->revoked)) {
		__release(&mr->revoke_lock);
		return mr;
	}
	read_unlock(&mr->revoke_lock);
	return NULL;
}

static inline void rxe_mr_pages_leave(struct rxe_mr *mr)
{
	if (mr) {
		__acquire(&mr->revoke_lock);
		read_unlock(&mr->revoke_lock);
	}
}

/*
 * CLASS(rxe_mr_pages, held)(mr): @mr keeps its pages until the end of the scope.
 * @held is NULL if the pages were unpinned. The scope copies at most one MTU and
 * does not sleep.
 */
DEFINE_CLASS(rxe_mr_pages, struct rxe_mr *, rxe_mr_pages_leave(_T),
	     rxe_mr_pages_enter(mr), struct rxe_mr *mr)

#endif /* RXE_MR_NOTIFY_H */
