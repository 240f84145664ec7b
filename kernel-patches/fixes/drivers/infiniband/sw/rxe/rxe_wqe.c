// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* Work requests that are copied out of a ring, see rxe_wqe.h */

#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "rxe_wqe.h"

/**
 * rxe_alloc_send_wqes - Allocate a copy for each entry of the send ring
 * @qp: The queue pair
 *
 * Context: The first modify_qp; before it, a queue pair can't send.
 *
 * Return: 0, or -ENOMEM.
 */
int rxe_alloc_send_wqes(struct rxe_qp *qp)
{
	const struct rxe_queue *q = qp->sq.queue;
	size_t size = ((size_t)q->index_mask + 1) << q->log2_elem_size;

	if (qp->sq.wqes)
		return 0;
	if (!qp->is_user) { /* only the driver writes to the ring */
		qp->sq.wqes = q->buf->data;
		return 0;
	}

	/* kvmalloc() warns if @size is above 2 GiB */
	qp->sq.wqes = kmalloc(size, GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY);
	if (!qp->sq.wqes)
		qp->sq.wqes = vmalloc(size);
	return qp->sq.wqes ? 0 : -ENOMEM;
}

void rxe_free_send_wqes(struct rxe_qp *qp)
{
	if (qp->is_user)
		kvfree(qp->sq.wqes);
}

/* Do the lengths of the SGEs add up to the total length? */
static bool rxe_sges_fit(const struct rxe_dma_info *dma)
{
	u64 length = 0;
	u32 i;

	for (i = 0; i < dma->num_sge; i++)
		length += dma->sge[i].length;
	return length == dma->length;
}

/*
 * Copy the data or SGEs that follow the struct of the request. Return: false if
 * the request is invalid.
 */
static bool rxe_take_send_data(const struct rxe_qp *qp,
			       struct rxe_send_wqe *wqe,
			       const struct rxe_send_wqe *entry)
{
	struct rxe_dma_info *dma = &wqe->dma;
	bool has_sges = false;
	size_t size;

	if (!wqe->mask)
		return false;
	/* a local operation has no data; a FLUSH is for memory of the peer */
	if (wqe->mask & (WR_LOCAL_OP_MASK | WR_FLUSH_MASK))
		return true;

	if (wqe->mask & WR_ATOMIC_WRITE_MASK) {
		if (dma->length != sizeof(u64))
			return false;
		size = sizeof(u64);
	} else if (wqe->mask & WR_INLINE_MASK &&
		   wqe->wr.send_flags & IB_SEND_INLINE) {
		if (dma->length > qp->sq.max_inline)
			return false;
		size = dma->length;
	} else {
		if (dma->length > RXE_PORT_MAX_MSG_SZ ||
		    dma->num_sge > qp->sq.max_sge)
			return false;
		size = dma->num_sge * sizeof(*dma->sge);
		has_sges = true;
	}

	if (qp->is_user)
		memcpy(dma->sge, entry->dma.sge, size);
	return !has_sges || rxe_sges_fit(dma);
}

/**
 * rxe_take_send_wqe - Copy the next send request out of the ring
 * @qp: The queue pair. The producer index says that the ring has a request
 *
 * One entry of a ring must stay unused: a request in this entry is ignored.
 *
 * Return: The copy, with an error status if the request is invalid, or NULL.
 */
struct rxe_send_wqe *rxe_take_send_wqe(struct rxe_qp *qp)
{
	struct rxe_send_wqe *wqe = rxe_send_wqe(qp, qp->sq.taken);
	struct rxe_queue *q = qp->sq.queue;
	u32 next = queue_next_index(q, qp->sq.taken);
	const struct rxe_send_wqe *entry;

	if (!qp->sq.wqes ||
	    next == queue_get_consumer(q, QUEUE_TYPE_FROM_CLIENT))
		return NULL;

	entry = queue_addr_from_index(q, qp->sq.taken);
	if (qp->is_user)
		memcpy(wqe, entry, sizeof(*wqe));
	qp->sq.taken = next;

	wqe->mask = wqe->wr.opcode > IB_WR_REG_MR ? 0 :
		    wr_opcode_mask(wqe->wr.opcode, qp);
	wqe->state = wqe_state_posted;
	wqe->has_rd_atomic = 0;
	wqe->dma.resid = wqe->dma.length;
	wqe->dma.cur_sge = 0;
	wqe->dma.sge_offset = 0;
	wqe->status = rxe_take_send_data(qp, wqe, entry) ? IB_WC_SUCCESS :
							   IB_WC_LOC_QP_OP_ERR;
	return wqe;
}

/**
 * rxe_take_recv_wqe - Copy a receive request out of a ring
 * @qp: The queue pair whose responder uses the request
 * @rq: The receive queue
 * @wqe: The request in the ring
 *
 * After success qp->resp.wqe is an unused copy.
 *
 * Return: 0, or -EINVAL if the request is invalid.
 */
int rxe_take_recv_wqe(struct rxe_qp *qp, const struct rxe_rq *rq,
		      const struct rxe_recv_wqe *wqe)
{
	struct rxe_recv_wqe *copy = &qp->resp.srq_wqe.wqe;

	memcpy(copy, wqe, sizeof(*copy));
	if (copy->dma.num_sge > rq->max_sge)
		return -EINVAL;
	memcpy(qp->resp.srq_wqe.sge, wqe->dma.sge,
	       copy->dma.num_sge * sizeof(*wqe->dma.sge));
	if (!rxe_sges_fit(&copy->dma))
		return -EINVAL;

	copy->dma.resid = copy->dma.length;
	copy->dma.cur_sge = 0;
	copy->dma.sge_offset = 0;
	qp->resp.wqe = copy;
	return 0;
}
