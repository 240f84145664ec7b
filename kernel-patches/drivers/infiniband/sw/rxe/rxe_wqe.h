/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Work requests that have been taken out of a ring.
 *
 * A user has the rings of a queue pair mapped, and may write there at any time:
 *
 *   requester                             user
 *   num_sge is not above max_sge
 *                                         num_sge = 1000
 *   follows sge[999]
 *
 * So a request is copied once, when its turn comes, and the copy is checked. How
 * far it has got is kept there as well, and nothing of it is read in the ring
 * any more.
 *
 * Of a send queue, the requests from its consumer on and before sq.taken have a
 * copy, in the same place of sq.wqes. Those behind have not been looked at. Of a
 * kernel client the ring itself is sq.wqes.
 */
#ifndef RXE_WQE_H
#define RXE_WQE_H

#include "rxe.h"
#include "rxe_queue.h"

/* The copy of the send request in that place */
static inline struct rxe_send_wqe *rxe_send_wqe(struct rxe_qp *qp, u32 index)
{
	return qp->sq.wqes + ((size_t)index << qp->sq.queue->log2_elem_size);
}

/* The first send request that is not complete; NULL if none has been taken */
static inline struct rxe_send_wqe *rxe_first_send_wqe(struct rxe_qp *qp)
{
	u32 cons = queue_get_consumer(qp->sq.queue, QUEUE_TYPE_FROM_CLIENT);

	return cons == qp->sq.taken ? NULL : rxe_send_wqe(qp, cons);
}

int rxe_alloc_send_wqes(struct rxe_qp *qp);
void rxe_free_send_wqes(struct rxe_qp *qp);
struct rxe_send_wqe *rxe_next_send_wqe(struct rxe_qp *qp, u32 index);
int rxe_take_recv_wqe(struct rxe_qp *qp, const struct rxe_rq *rq,
		      const struct rxe_recv_wqe *wqe);

#endif /* RXE_WQE_H */
