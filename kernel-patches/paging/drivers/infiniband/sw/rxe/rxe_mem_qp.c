// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The fault for which a side of a queue pair waits. The wait ends when the fault is
 * done, when another fault has made the page present, or when the queue pair ends.
 * See rxe_mem_wait.c for the queue pair during the wait.
 */

#include <linux/mm.h>

#include "rxe.h"
#include "rxe_mem_fault.h"
#include "rxe_mem_pool.h"
#include "rxe_mem_qp.h"

/* The work function of all tasks; NULL until a task waits for the first time */
static work_func_t rxe_mem_qp_work;

/* The queue pair stops waiting for its fault. Context: rxe_mem_lock held */
void rxe_mem_qp_leave(struct rxe_qp *qp, enum rxe_mem_side side)
{
	struct rxe_mem_fault *fault = qp->odp_faults[side];

	lockdep_assert_held(&rxe_mem_lock);
	if (!fault)
		return;

	if (!fault->done && fault->thread) {
		rxe_mem_pool_interrupt(fault->thread);
	} else if (!fault->done) {
		list_del(&fault->list);
		rxe_mem_fault_put(fault); /* the reference of the pool */
	}
	rxe_mem_fault_detach(fault);
}

/*
 * The queue pair no longer needs the result of its fault. A later packet that waits
 * for the same page must start its own fault. Context: rxe_mem_lock held
 */
void rxe_mem_qp_end(struct rxe_qp *qp, enum rxe_mem_side side)
{
	struct rxe_mem_fault *fault = qp->odp_faults[side];

	if (fault->done)
		rxe_mem_qp_leave(qp, side);
	else
		fault->over = true;
}

/* The queue pair whose task the calling worker runs, or NULL */
static struct rxe_qp *rxe_mem_qp_of_task(void)
{
	struct work_struct *work = current_work();

	if (!work || work->func != READ_ONCE(rxe_mem_qp_work))
		return NULL;
	return container_of(work, struct rxe_task, work)->qp;
}

/* Restart the retransmit timer, because the peer did not cause the delay of the fault */
static void rxe_mem_qp_restart_timer(struct rxe_qp *qp)
{
	if (qp_type(qp) != IB_QPT_RC || !qp->qp_timeout_jiffies)
		return;
	mod_timer(&qp->retrans_timer, jiffies + qp->qp_timeout_jiffies);
	qp->comp.timeout = 0;
}

/**
 * rxe_mem_qp_accessed - An access of the calling task succeeded
 * @odp: The MR
 * @addr: The address
 * @length: The number of bytes
 * @write: For writing
 *
 * If the queue pair still waits for a fault in this range, another fault has
 * made the page present, and the wait ends.
 */
void rxe_mem_qp_accessed(struct rxe_mem_mr *odp, unsigned long addr,
			 unsigned int length, bool write)
{
	struct rxe_qp *qp = rxe_mem_qp_of_task();
	struct rxe_mem_fault *fault;
	int side;

	for (side = RXE_MEM_REQ; qp && side <= RXE_MEM_RESP; side++) {
		if (!READ_ONCE(qp->odp_faults[side]))
			continue;
		spin_lock(&rxe_mem_lock);
		fault = qp->odp_faults[side];
		if (fault && fault->pool == odp->pool &&
		    (write || !fault->write) &&
		    fault->addr >= (addr & PAGE_MASK) &&
		    fault->addr < addr + length) {
			rxe_mem_qp_end(qp, side);
			if (side == RXE_MEM_REQ)
				rxe_mem_qp_restart_timer(qp);
		}
		spin_unlock(&rxe_mem_lock);
	}
}

/**
 * rxe_mem_qp_take_page - Take the page for which the calling responder waited
 * @odp: The MR
 * @addr: The address, which is written
 *
 * Only the access that met the fault gets the page, and only once. So the access began
 * while the page was mapped.
 *
 * Return: The page, pinned for writing, or NULL if there is none.
 */
struct page *rxe_mem_qp_take_page(struct rxe_mem_mr *odp, unsigned long addr)
{
	struct rxe_qp *qp = rxe_mem_qp_of_task();
	struct rxe_mem_fault *fault;
	struct page *page = NULL;

	if (!qp || !READ_ONCE(qp->odp_faults[RXE_MEM_RESP]))
		return NULL;

	spin_lock(&rxe_mem_lock);
	fault = qp->odp_faults[RXE_MEM_RESP];
	if (fault && fault->page && fault->write && fault->pool == odp->pool &&
	    fault->addr == (addr & PAGE_MASK)) {
		page = fault->page;
		fault->page = NULL;
		list_del(&fault->list);
	}
	spin_unlock(&rxe_mem_lock);
	return page;
}

/* Start the fault. The reference of the caller passes to the queue pair */
static int rxe_mem_qp_start(struct rxe_qp *qp, enum rxe_mem_side side, u32 psn,
			    struct rxe_mem_fault *fault)
{
	int err = -EINPROGRESS;

	WRITE_ONCE(rxe_mem_qp_work, qp->send_task.work.func);
	spin_lock(&rxe_mem_lock);
	rxe_mem_qp_leave(qp, side);
	if (qp->odp_ending) {
		err = -ESHUTDOWN;
	} else if (fault->pool->closed) {
		err = -EFAULT;
	} else {
		fault->since = jiffies;
		fault->side = side;
		fault->psn = psn;
		fault->qp = qp;
		qp->odp_faults[side] = fault;
		rxe_mem_pool_add(fault);
	}
	spin_unlock(&rxe_mem_lock);

	if (err != -EINPROGRESS)
		rxe_mem_fault_put(fault);
	return err;
}

/*
 * Wait for the fault that the calling task has just met at @psn. Return:
 * * -EINPROGRESS: the task will be scheduled when the fault is done
 * * -ESHUTDOWN: the queue pair is being destroyed
 * * Any other error: the access is not possible. Only the packet that met the fault
 *   gets the error. The next packet may succeed
 */
int rxe_mem_qp_wait(struct rxe_qp *qp, enum rxe_mem_side side, u32 psn)
{
	struct rxe_mem_fault *fault = rxe_mem_fault_take_met();
	struct rxe_mem_fault *old;
	int err = 0;

	if (WARN_ON_ONCE(!fault))
		return -EFAULT;

	spin_lock(&rxe_mem_lock);
	old = qp->odp_faults[side];
	if (old && old->pool == fault->pool && old->addr == fault->addr &&
	    old->write == fault->write)
		err = !old->done ? -EINPROGRESS :
		      old->psn == psn ? old->err : 0;
	/* The result of a fault that is done does not apply to a later access */
	if (old && old->done)
		rxe_mem_qp_leave(qp, side);
	spin_unlock(&rxe_mem_lock);

	if (!err)
		return rxe_mem_qp_start(qp, side, psn, fault);
	rxe_mem_fault_put(fault);
	return err;
}
