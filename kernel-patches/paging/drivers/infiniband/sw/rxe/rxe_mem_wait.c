// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The wait of a queue pair for a page. The requester, completer or responder leaves
 * the packet or work request in its queue, and continues when the fault is done.
 *
 * At first the peer of an RC queue pair gets no answer. When the faults of one
 * packet take longer than RXE_MEM_PATIENCE, the responder sends an RNR NAK, and
 * another RNR NAK each time that the peer repeats the request. If a read has been
 * answered in part, the RNR NAK is for the rest. A requester uses no retries while
 * it waits. An unreliable transport drops the message when one fault takes longer
 * than RXE_MEM_PATIENCE.
 */

#include <linux/skbuff.h>

#include "rxe.h"
#include "rxe_mem_qp.h"

#define RXE_MEM_PATIENCE	msecs_to_jiffies(20)
#define RXE_MEM_PACKETS		512

/* Drop packets, which hold references to @qp, from the end of a queue until @left remain */
static void rxe_mem_drop(struct rxe_qp *qp, struct sk_buff_head *queue,
			 unsigned int left)
{
	struct sk_buff *skb;

	while (skb_queue_len(queue) > left) {
		skb = skb_dequeue_tail(queue);
		rxe_put(qp);
		kfree_skb(skb);
		ib_device_put(qp->ibqp.device);
	}
}

/*
 * Until a looped-back packet is freed, it counts in skb_out of the queue pair that
 * sent it, and holds a reference to the sender. The sender and its other peers must
 * not wait for our page. So a waiting packet counts in no skb_out. The number of
 * waiting packets is limited. The sender retransmits the packets that are dropped.
 */
static void rxe_mem_keep_packets(struct rxe_qp *qp, struct sk_buff_head *queue)
{
	struct sk_buff *skb;
	unsigned long flags;

	rxe_mem_drop(qp, queue, RXE_MEM_PACKETS);
	spin_lock_irqsave(&queue->lock, flags);
	skb_queue_walk(queue, skb)
		skb_orphan(skb);
	spin_unlock_irqrestore(&queue->lock, flags);
}

/**
 * rxe_mem_req_waits - Does the requester wait for a page?
 * @qp: The queue pair
 * @wqe: The work request whose data could not be copied
 * @err: The result of the copy
 *
 * Return: true if the requester waits. Then it leaves @wqe unchanged, and continues
 * with @wqe when it is scheduled again.
 */
bool rxe_mem_req_waits(struct rxe_qp *qp, struct rxe_send_wqe *wqe, int err)
{
	if (err != -EINPROGRESS)
		return false;

	err = rxe_mem_qp_wait(qp, RXE_MEM_REQ, qp->req.psn);
	if (err == -EINPROGRESS || err == -ESHUTDOWN) {
		wqe->status = IB_WC_SUCCESS;
		/* The waiting packet may be the packet that requests an acknowledgment */
		qp->req.noack_pkts = RXE_MAX_PKT_PER_ACK + 1;
		return true;
	}
	wqe->status = IB_WC_LOC_PROT_ERR;
	return false;
}

/**
 * rxe_mem_req_ends - The requester gives up its work request
 * @qp: The queue pair
 */
void rxe_mem_req_ends(struct rxe_qp *qp)
{
	spin_lock(&rxe_mem_lock);
	if (qp->odp_faults[RXE_MEM_REQ])
		rxe_mem_qp_end(qp, RXE_MEM_REQ);
	spin_unlock(&rxe_mem_lock);
}

/* Does the peer send nothing because the requester waits? */
bool rxe_mem_req_holds_up(struct rxe_qp *qp)
{
	struct rxe_mem_fault *fault;
	bool waits;

	if (!READ_ONCE(qp->odp_faults[RXE_MEM_REQ]))
		return false;
	spin_lock(&rxe_mem_lock);
	fault = qp->odp_faults[RXE_MEM_REQ];
	waits = fault && !fault->over;
	spin_unlock(&rxe_mem_lock);
	return waits;
}

/**
 * rxe_mem_comp_waits - Does the completer wait for a page?
 * @qp: The queue pair
 * @pkt: The response whose data could not be copied
 * @err: The result of the copy
 *
 * Return: true if the completer waits. Then @pkt is at the head of its queue again,
 * with its own references, and the completer must not use @pkt any more.
 */
bool rxe_mem_comp_waits(struct rxe_qp *qp, struct rxe_pkt_info *pkt, int err)
{
	struct sk_buff *skb = PKT_TO_SKB(pkt);

	if (err != -EINPROGRESS)
		return false;

	err = rxe_mem_qp_wait(qp, RXE_MEM_COMP, pkt->psn);
	if (err == -ESHUTDOWN) {
		rxe_mem_drop(qp, &qp->resp_pkts, 0);
		return true;
	}
	if (err != -EINPROGRESS)
		return false;

	rxe_get(qp);
	WARN_ON(!ib_device_try_get(qp->ibqp.device));
	skb_queue_head(&qp->resp_pkts, skb_get(skb));
	rxe_mem_keep_packets(qp, &qp->resp_pkts);
	return true;
}

/*
 * If a read is answered in part, the peer gets an RNR NAK for the rest. If the
 * peer received all of the first part, it requests the rest as a new request. If
 * the peer lost a packet of the first part, it repeats the request, and the
 * responder answers from @res. In this case the MSN stays one too low.
 */
static void rxe_mem_leave_read(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
{
	struct resp_res *res = qp->resp.res;

	if (!res || res->type != RXE_READ_MASK || res->cur_psn == pkt->psn)
		return;

	pkt->psn = res->cur_psn;
	if (psn_compare(res->cur_psn, qp->resp.psn) > 0)
		qp->resp.psn = res->cur_psn;
	if (!res->replay)
		qp->resp.msn--;
	qp->resp.res = NULL;
}

/*
 * Let the responder process the request again from its beginning, or continue a read
 * that is answered in part. The responder must hold nothing while it waits, so this
 * function undoes the responder's work.
 */
static void rxe_mem_rewind_resource(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
{
	struct resp_res *res = qp->resp.res;

	if (!res || (res->type == RXE_READ_MASK && res->cur_psn != pkt->psn))
		return;

	if (!res->replay) {
		if (res->type == RXE_READ_MASK)
			qp->resp.msn--;
		qp->resp.res_head = res - qp->resp.resources;
		free_rd_atomic_resource(res);
	}
	qp->resp.res = NULL;
}

/* Keep the unused receive WQE for the next packet that needs one */
static void rxe_mem_keep_wqe(struct rxe_qp *qp)
{
	struct rxe_dma_info *dma = &qp->resp.wqe->dma;

	dma->resid = dma->length;
	dma->cur_sge = 0;
	dma->sge_offset = 0;
	qp->odp_wqe_taken = true;
}

/* The PSN at which the request of @pkt continues: for a read, the PSN of its rest */
static u32 rxe_mem_part(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
{
	struct resp_res *res = qp->resp.res;

	return res && res->type == RXE_READ_MASK ? res->cur_psn : pkt->psn;
}

/* The peer has waited long. Schedule the responder, which sends the RNR NAK */
static void rxe_mem_timer(struct timer_list *t)
{
	struct rxe_qp *qp = container_of(t, struct rxe_qp, odp_timer);

	if (!rxe_get(qp))
		return;
	rxe_sched_task(&qp->recv_task);
	rxe_put(qp);
}

/*
 * Does the RC peer get an RNR NAK? The peer gets its first RNR NAK when the pages of
 * one packet take longer than RXE_MEM_PATIENCE. Until the packet succeeds, the peer
 * then gets an RNR NAK immediately each time that it repeats the request. Without an
 * answer the peer would use up its retries. Context: rxe_mem_lock held
 */
static bool rxe_mem_is_late_rc(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
{
	u32 part = rxe_mem_part(qp, pkt);

	if (!qp->odp_since || qp->odp_part != part) {
		qp->odp_since = jiffies ?: 1;
		qp->odp_part = part;
		qp->odp_told = false;
	}
	if (time_after(jiffies, qp->odp_since + RXE_MEM_PATIENCE))
		qp->odp_told = true;
	if (!qp->odp_timer.function)
		timer_setup(&qp->odp_timer, rxe_mem_timer, 0);
	if (!qp->odp_told)
		mod_timer(&qp->odp_timer, qp->odp_since + RXE_MEM_PATIENCE + 1);
	return qp->odp_told;
}

/*
 * Has the message waited long? Only a waiting task calls this function. If the answer
 * is yes, an unreliable transport drops the message, but the fault continues, so that
 * the next message finds the page.
 */
static bool rxe_mem_is_late(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
{
	struct rxe_mem_fault *fault;
	bool late = false;

	spin_lock(&rxe_mem_lock);
	fault = qp->odp_faults[RXE_MEM_RESP];
	if (fault) {
		/* The packet that started the fault has not waited yet */
		late = fault->met &&
		       time_after(jiffies, fault->since + RXE_MEM_PATIENCE);
		if (qp_type(qp) == IB_QPT_RC)
			late = rxe_mem_is_late_rc(qp, pkt);
		else if (late)
			rxe_mem_qp_end(qp, RXE_MEM_RESP);
		fault->met = true;
	}
	spin_unlock(&rxe_mem_lock);
	return late;
}

/*
 * The access is not possible: drop the result of the fault. If the queue pair waited
 * for the same page later, this result would be out of date.
 */
static void rxe_mem_end_wait(struct rxe_qp *qp, enum rxe_mem_side side)
{
	if (!READ_ONCE(qp->odp_faults[side]))
		return;
	spin_lock(&rxe_mem_lock);
	rxe_mem_qp_leave(qp, side);
	spin_unlock(&rxe_mem_lock);
}

/**
 * rxe_mem_resp_state - The responder's state after an access to memory
 * @qp: The queue pair
 * @err: The result of the access
 * @state: The state for a failed access
 *
 * Return:
 * * RESPST_NONE after success
 * * @state after an error
 * * RESPST_EXIT if the responder must wait for a page; the packet stays at the head
 *   of its queue
 * * RESPST_ERR_RNR if the packet has waited long
 * * RESPST_CLEANUP if the queue pair is being destroyed
 */
enum resp_states rxe_mem_resp_state(struct rxe_qp *qp, int err,
				    enum resp_states state)
{
	struct rxe_pkt_info *pkt;
	bool late;

	if (!err)
		return RESPST_NONE;
	if (err != -EINPROGRESS) {
		rxe_mem_end_wait(qp, RXE_MEM_RESP);
		return state;
	}

	pkt = SKB_TO_PKT(skb_peek(&qp->req_pkts));
	err = rxe_mem_qp_wait(qp, RXE_MEM_RESP, rxe_mem_part(qp, pkt));
	if (err != -EINPROGRESS && err != -ESHUTDOWN)
		return state;

	late = err == -EINPROGRESS && rxe_mem_is_late(qp, pkt);
	if (late)
		rxe_mem_leave_read(qp, pkt);
	rxe_mem_rewind_resource(qp, pkt);
	if (err == -ESHUTDOWN) {
		qp->resp.res = NULL;
		return RESPST_CLEANUP;
	}

	if (qp->resp.mr) {
		rxe_put(qp->resp.mr);
		qp->resp.mr = NULL;
	}
	/* An unreliable transport drops the whole message when it is late */
	if (qp->resp.wqe && ((pkt->mask & RXE_RWR_MASK) ||
			     (late && qp_type(qp) != IB_QPT_RC)))
		rxe_mem_keep_wqe(qp);
	if (late) {
		/* the next packet of an unreliable transport begins a message */
		if (qp_type(qp) != IB_QPT_RC)
			qp->resp.opcode = -1;
		return RESPST_ERR_RNR;
	}
	rxe_mem_keep_packets(qp, &qp->req_pkts);
	return RESPST_EXIT;
}

/**
 * rxe_mem_flushed - The progress of a flush that has waited for a page
 * @qp: The queue pair, whose responder processes a flush
 *
 * Return: The number of bytes that are already flushed, from the beginning of the
 * range. 0 if this flush has not waited yet, or if another packet has waited after it.
 */
u64 rxe_mem_flushed(struct rxe_qp *qp)
{
	struct rxe_pkt_info *pkt = SKB_TO_PKT(skb_peek(&qp->req_pkts));

	return qp->odp_since && qp->odp_part == pkt->psn ? qp->odp_flushed : 0;
}

/*
 * Does the responder still have the receive WQE of a packet that waited? An error of
 * another packet may have completed this WQE during the wait. Returns true only once.
 */
bool rxe_mem_has_wqe(struct rxe_qp *qp)
{
	bool taken = qp->odp_wqe_taken && qp->resp.wqe;

	qp->odp_wqe_taken = false;
	return taken;
}

static void rxe_mem_leave_faults(struct rxe_qp *qp)
{
	rxe_mem_qp_leave(qp, RXE_MEM_REQ);
	rxe_mem_qp_leave(qp, RXE_MEM_COMP);
	rxe_mem_qp_leave(qp, RXE_MEM_RESP);
}

/*
 * When a queue pair is reset, its tasks do not run. When a queue pair is destroyed,
 * its tasks may run:
 *
 *   its responder                           rxe_mem_destroy_qp()
 *   rxe_mem_is_late(): a fault waits,
 *   so the timer is armed
 *                                           sets odp_ending, leaves the faults
 *                                           stops the timer
 *   a fault is met: -ESHUTDOWN, no timer
 *
 * If the timer were stopped first, it could fire after the queue pair is freed.
 */
static void rxe_mem_stop_timer(struct rxe_qp *qp)
{
	if (qp->odp_timer.function)
		timer_delete_sync(&qp->odp_timer);
}

/* A queue pair is reset; its tasks do not run */
void rxe_mem_reset_qp(struct rxe_qp *qp)
{
	rxe_mem_stop_timer(qp);
	spin_lock(&rxe_mem_lock);
	rxe_mem_leave_faults(qp);
	spin_unlock(&rxe_mem_lock);
	qp->odp_since = 0;
	qp->odp_flushed = 0;
	qp->odp_wqe_taken = false;
	qp->resp.wqe = NULL;
}

/*
 * A queue pair is being destroyed, and stops waiting. Waiting packets hold references
 * to the queue pair, so its tasks free these packets.
 */
void rxe_mem_destroy_qp(struct rxe_qp *qp)
{
	bool waited = false;
	int side;

	spin_lock(&rxe_mem_lock);
	qp->odp_ending = true;
	for (side = RXE_MEM_REQ; side <= RXE_MEM_RESP; side++)
		waited |= !!qp->odp_faults[side];
	rxe_mem_leave_faults(qp);
	spin_unlock(&rxe_mem_lock);
	rxe_mem_stop_timer(qp);

	if (waited) {
		rxe_sched_task(&qp->recv_task);
		rxe_sched_task(&qp->send_task);
	}
}
