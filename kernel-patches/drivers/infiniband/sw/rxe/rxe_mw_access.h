/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The key of a memory window opens the window, and not the MR behind it, which
 * may be all memory.
 *
 * A window may be bound anew or invalidated at any moment. Looked at without its
 * lock it loses:
 *
 *   responder                             owner
 *   mr = mw->mr
 *                                         binds the window to another MR, and
 *                                         deregisters @mr: freed
 *   takes a reference to @mr, and
 *   compares with the bounds of the
 *   other one
 *
 * So it is read as a whole under its lock, and its MR referenced there.
 */
#ifndef RXE_MW_ACCESS_H
#define RXE_MW_ACCESS_H

#include "rxe.h"

/* The MR behind a window, referenced, if the window still gives @access. */
static inline struct rxe_mr *rxe_mw_get_mr(struct rxe_mw *mw,
					   const struct rxe_qp *qp, u32 rkey,
					   int access)
{
	struct rxe_mr *mr = mw->mr;

	lockdep_assert_held(&mw->lock);

	if (mw->rkey != rkey || mw->state != RXE_MW_STATE_VALID ||
	    rxe_mw_pd(mw) != qp->pd ||
	    (mw->ibmw.type == IB_MW_TYPE_2 && mw->qp != qp) ||
	    access & ~mw->access || !mr || mr->state != RXE_MR_STATE_VALID ||
	    !rxe_get(mr))
		return NULL;
	return mr;
}

/* @offset: from the beginning of the window */
static inline bool rxe_mw_covers(const struct rxe_mw *mw, u64 offset, u64 length)
{
	return offset <= mw->length && length <= mw->length - offset;
}

/**
 * rxe_mw_begin - Begin an access by the key of a window
 * @mw: The window
 * @qp: The queue pair; knows the range of the request, and learns the offset
 *	to add to its address
 * @pkt: The request
 * @access: The rights that it needs
 *
 * Return: The MR behind the window, referenced; NULL if it must not be.
 */
static inline struct rxe_mr *rxe_mw_begin(struct rxe_mw *mw, struct rxe_qp *qp,
					  struct rxe_pkt_info *pkt, int access)
{
	struct rxe_mr *mr;
	u64 base;

	spin_lock_bh(&mw->lock);
	mr = rxe_mw_get_mr(mw, qp, qp->resp.rkey, access);
	base = mw->access & IB_ZERO_BASED ? 0 : mw->addr;
	qp->resp.offset = mw->addr - base;
	/* To flush all of the MR needs no address. */
	if (mr && !((pkt->mask & RXE_FLUSH_MASK) && feth_sel(pkt) == IB_FLUSH_MR) &&
	    !rxe_mw_covers(mw, qp->resp.va - base, qp->resp.resid)) {
		rxe_put(mr);
		mr = NULL;
	}
	spin_unlock_bh(&mw->lock);
	return mr;
}

/**
 * rxe_mw_go_on - Go on with the read of a queue pair, or repeat it
 * @mw: The window
 * @qp: The queue pair
 * @rkey: The key that it was begun with
 *
 * Return: The MR behind the window, referenced; NULL if it must not be any more.
 */
static inline struct rxe_mr *rxe_mw_go_on(struct rxe_mw *mw, struct rxe_qp *qp,
					  u32 rkey)
{
	const struct resp_res *res = qp->resp.res;
	struct rxe_mr *mr;

	spin_lock_bh(&mw->lock);
	mr = rxe_mw_get_mr(mw, qp, rkey, IB_ACCESS_REMOTE_READ);
	if (mr && !rxe_mw_covers(mw, res->read.va - mw->addr, res->read.resid)) {
		rxe_put(mr);
		mr = NULL;
	}
	spin_unlock_bh(&mw->lock);
	return mr;
}

#endif /* RXE_MW_ACCESS_H */
