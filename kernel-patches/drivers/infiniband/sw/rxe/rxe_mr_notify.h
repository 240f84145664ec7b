/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Taking a user MR away from soft-RoCE, rxe_revoke_user_mr(), giving it back,
 * rxe_restore_user_mr(), and the guard under which every access to an MR's pages runs.
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
 * To sparse, which does not know of the cleanup at the end of a scope, neither
 * of the two changes the lock: __release() and __acquire() are for it alone.
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
 * CLASS(rxe_mr_pages, held)(mr): until the end of the scope the pages of @mr
 * are its own; NULL if they were given back. At most one MTU is copied under
 * it, and nothing in it sleeps.
 */
DEFINE_CLASS(rxe_mr_pages, struct rxe_mr *, rxe_mr_pages_leave(_T),
	     rxe_mr_pages_enter(mr), struct rxe_mr *mr)

#endif /* RXE_MR_NOTIFY_H */
