/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Work requests that are copied out of a ring.
 *
 * A user has the rings of a queue pair mapped, and may write to them at any time:
 *
 *   requester                             user
 *   num_sge is not above max_sge
 *                                         num_sge = 1000
 *   follows sge[999]
 *
 * So rxe copies a request once, when it starts the request, and checks the copy.
 * The copy also holds the progress. rxe does not read the request in the ring
 * again.
 *
 * The copies of a send queue are in sq.wqes, at the same index as in the ring. All
 * requests from the consumer index up to sq.taken (exclusive) have a copy. For a
 * kernel client sq.wqes is the ring itself.
 */
#ifndef RXE_WQE_H
#define RXE_WQE_H

#include "rxe.h"
#include "rxe_queue.h"

/* The copy of the send request at @index */
static inline struct rxe_send_wqe *rxe_send_wqe(struct rxe_qp *qp, u32 index)
{
	return qp->sq.wqes + ((size_t)index << qp->sq.queue->log2_elem_size);
}

/* The first copied send request that is not complete; NULL if there is none */
static inline struct rxe_send_wqe *rxe_first_send_wqe(struct rxe_qp *qp)
{
	u32 cons = queue_get_consumer(qp->sq.queue, QUEUE_TYPE_FROM_CLIENT);

	return cons == qp->sq.taken ? NULL : rxe_send_wqe(qp, cons);
}

int rxe_alloc_send_wqes(struct rxe_qp *qp);
void rxe_free_send_wqes(struct rxe_qp *qp);
struct rxe_send_wqe *rxe_take_send_wqe(struct rxe_qp *qp);
int rxe_take_recv_wqe(struct rxe_qp *qp, const struct rxe_rq *rq,
		      const struct rxe_recv_wqe *wqe);

/**
 * rxe_next_send_wqe - The send request in an entry of the ring
 * @qp: The queue pair
 * @index: The entry; all earlier entries have been copied
 *
 * If @index is the first entry without a copy, this makes the copy.
 *
 * Context: The send task, or while the send task does not run.
 *
 * Return: The copy, with an error status if the request is invalid. NULL if the
 * ring is empty.
 */
static inline struct rxe_send_wqe *rxe_next_send_wqe(struct rxe_qp *qp,
						     u32 index)
{
	if (index != qp->sq.taken)
		return rxe_send_wqe(qp, index);
	if (index == queue_get_producer(qp->sq.queue, QUEUE_TYPE_FROM_CLIENT))
		return NULL;
	return rxe_take_send_wqe(qp);
}

#endif /* RXE_WQE_H */
