/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Whether an answer is one to the request that the completer looks at, or an old
 * one, to a request before it that was repeated:
 *
 *   requester                             responder
 *   write 0, read 1 to 3
 *   its timer fires: write 0, read 1 to 3
 *                                         acknowledges 0
 *                                         answers 1, 2 (lost), 3
 *                                         acknowledges 0 again
 *                                         answers 1, 2, 3 again
 *   the write is done; takes 1, drops 3
 *   is told of 0 in the middle of the read
 *   drops 1, takes 2: the next part
 */
#ifndef RXE_ANSWER_H
#define RXE_ANSWER_H

/*
 * Has it a number of this message? All of its numbers count, not only those of
 * the part asked for last, for a refusal has the number of the first request.
 */
static inline bool rxe_is_of_message(struct rxe_qp *qp, u32 psn,
				     struct rxe_send_wqe *wqe)
{
	u32 packets = max(1U, DIV_ROUND_UP(wqe->dma.length, (u32)qp->mtu));
	u32 before = (wqe->last_psn - packets) & BTH_PSN_MASK;

	return psn_compare(psn, before) > 0;
}

#endif /* RXE_ANSWER_H */
