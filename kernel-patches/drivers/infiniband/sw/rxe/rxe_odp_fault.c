// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Faults that must be waited for, and queue pairs that wait for them.
 *
 * Who answers a fault may be a disk, a thread with a userfaultfd, a FUSE server,
 * a server behind a dead network: it may take for ever. Nobody waits for that but
 * a kernel thread of its own, one for each thing that a queue pair waits for. It
 * holds the address space and nothing of rxe: no MR, no queue pair, no device, no
 * worker. So all of these can end meanwhile, and the thread is killed with the
 * queue pair that waited.
 *
 *   a task of a queue pair                  the thread
 *   copies: -EINPROGRESS
 *   starts the thread; returns, with
 *   its packet or work request where
 *   it was
 *                                           faults; waits
 *                                           done: schedules the task
 *   copies again, as if nothing had
 *   been
 *
 * The page may be gone again by then: so it goes round until page and task meet,
 * as a CPU would. If the access is not possible the thread says so, and the task
 * fails with it.
 *
 * A task only tries to get mmap_lock, and where others always queue for it that
 * never works. The thread has queued: so it keeps the lock, if others wait for
 * it, until the task has ended.
 *
 *   a task of a queue pair         the thread            the process
 *                                  mmap_read_lock
 *                                  faults                mmap_write_lock: waits
 *                                  lends; schedules the
 *                                  task; waits
 *   borrows; copies; gives back
 *   [borrows; copies ...]
 *   ends
 *                                  mmap_read_unlock      goes on
 *
 * or, where the task has no end:
 *
 *   borrows; copies                a tenth of a second is
 *                                  over: recalls; waits
 *   gives back
 *                                  mmap_read_unlock      goes on
 *   borrows: there is nothing
 *
 * The peer of an RC queue pair is told nothing at first. When the fault takes
 * longer than RXE_ODP_PATIENCE and the peer repeats what it sent, it is told to
 * try again later (RNR NAK), as often as it repeats; of a read that has been
 * answered in part, the rest. Of an unreliable transport the message is dropped
 * then.
 */

#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "rxe.h"

#define RXE_ODP_PATIENCE	msecs_to_jiffies(20)
#define RXE_ODP_PACKETS		512

/* Who waits: the two halves of the send task do so on their own */
enum rxe_odp_side {
	RXE_ODP_REQ,
	RXE_ODP_COMP,
	RXE_ODP_RESP,
};

enum rxe_odp_loan {
	RXE_ODP_KEPT,
	RXE_ODP_LENT,
	RXE_ODP_BORROWED,
	RXE_ODP_RECALLED,	/* borrowed, for the last time */
};

struct rxe_odp_fault {
	/* of who met it or the queue pair, and of the thread */
	struct kref		ref;
	struct mm_struct	*mm;
	unsigned long		addr;
	bool			write;

	/* in rxe_odp_met until it is known which queue pair waits; in rxe_odp_loans */
	struct list_head	list;
	struct task_struct	*by;	/* the worker that met it */

	struct task_struct	*thread;
	struct work_struct	*work;	/* the task that waits; may have gone */
	unsigned long		since;

	/* under rxe_odp_lock */
	struct rxe_qp		*qp;	/* NULL: nobody waits any more */
	enum rxe_odp_side	side;
	bool			over;	/* what waited for it needs no answer */
	bool			done;
	int			err;
	enum rxe_odp_loan	loan;	/* of mmap_lock, by the thread */
};

/*
 * Guards the queue pairs of faults, the faults of queue pairs, rxe_odp_met and
 * rxe_odp_loans. A task's lock nests in it.
 */
static DEFINE_SPINLOCK(rxe_odp_lock);

/*
 * Faults on their way from rxe_odp_copy(), which knows the page, to its caller's
 * caller, which knows the queue pair. Both are the same worker's.
 */
static LIST_HEAD(rxe_odp_met);

/* Faults whose thread keeps mmap_lock for a task, lent or borrowed */
static LIST_HEAD(rxe_odp_loans);

/* Threads wait there for the locks that they have lent */
static DECLARE_WAIT_QUEUE_HEAD(rxe_odp_returned);

/* What the work of each task calls; NULL until one waits for the first time */
static work_func_t rxe_odp_do_work;

static void rxe_odp_free_fault(struct kref *ref)
{
	struct rxe_odp_fault *fault = container_of(ref, typeof(*fault), ref);

	if (fault->thread)
		put_task_struct(fault->thread);
	mmdrop(fault->mm);
	kfree(fault);
}

static void rxe_odp_put_fault(struct rxe_odp_fault *fault)
{
	kref_put(&fault->ref, rxe_odp_free_fault);
}

/* The fault that this worker has met last and nobody waits for yet */
static struct rxe_odp_fault *rxe_odp_take_met(void)
{
	struct rxe_odp_fault *fault, *found = NULL;

	spin_lock(&rxe_odp_lock);
	list_for_each_entry(fault, &rxe_odp_met, list) {
		if (fault->by == current) {
			list_del(&fault->list);
			found = fault;
			break;
		}
	}
	spin_unlock(&rxe_odp_lock);
	return found;
}

/**
 * rxe_odp_meet - Remember a fault that must be waited for
 * @odp: The MR it is in
 * @addr: The address
 * @write: For writing
 *
 * Return: -EINPROGRESS; -EFAULT when there is no memory to remember it.
 */
int rxe_odp_meet(struct rxe_odp_mr *odp, unsigned long addr, bool write)
{
	struct rxe_odp_fault *fault, *old;

	atomic64_inc(&odp->waits);
	old = rxe_odp_take_met();
	if (old)
		rxe_odp_put_fault(old);

	fault = kzalloc(sizeof(*fault), GFP_KERNEL);
	if (!fault)
		return -EFAULT;

	kref_init(&fault->ref);
	mmgrab(odp->mm);
	fault->mm = odp->mm;
	fault->addr = addr & PAGE_MASK;
	fault->write = write;
	fault->by = current;
	spin_lock(&rxe_odp_lock);
	list_add(&fault->list, &rxe_odp_met);
	spin_unlock(&rxe_odp_lock);
	return -EINPROGRESS;
}

/* Fault one page in; whether mmap_lock is still held then is in @locked */
static int rxe_odp_fault_locked(struct mm_struct *mm, unsigned long addr,
				bool write, int *locked)
{
	struct page *page;
	long got = -EFAULT;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	*locked = 1;
	if (vma_lookup(mm, addr))
		got = rxe_odp_gup(mm, addr, write, 0, &page, locked);
	if (got != 1)
		return got < 0 ? got : 0;

	/* See rxe_odp_lock_file() */
	if (write && folio_test_locked(page_folio(page))) {
		if (*locked)
			mmap_read_unlock(mm);
		*locked = 0;
		if (folio_wait_locked_killable(page_folio(page)))
			got = -EINTR;
	}
	rxe_odp_put_page(page, write);
	return got < 0 ? got : 0;
}

/**
 * rxe_odp_fault_in - Fault one page in, however long it takes
 * @mm: The address space; a reference to its users is held
 * @addr: The address
 * @write: For writing
 *
 * Context: Process context. Ends early when the caller is killed.
 *
 * Return: 0; -EFAULT or another error when there is no such access; -EINTR.
 */
int rxe_odp_fault_in(struct mm_struct *mm, unsigned long addr, bool write)
{
	int locked = 0;
	int err;

	err = rxe_odp_fault_locked(mm, addr, write, &locked);
	if (locked)
		mmap_read_unlock(mm);
	return err;
}

/* Does somebody wait? Asked after allow_signal(): who leaves says it, then kills */
static bool rxe_odp_awaited(struct rxe_odp_fault *fault)
{
	bool awaited;

	spin_lock(&rxe_odp_lock);
	awaited = fault->qp;
	spin_unlock(&rxe_odp_lock);
	return awaited;
}

/* Its thread may let go of mmap_lock. Context: rxe_odp_lock held */
static void rxe_odp_keep(struct rxe_odp_fault *fault)
{
	lockdep_assert_held(&rxe_odp_lock);
	list_del(&fault->list);
	/* Pairs with rxe_odp_get_back(): the thread may free the fault from now on */
	smp_store_release(&fault->loan, RXE_ODP_KEPT);
	wake_up(&rxe_odp_returned);
}

/* Take a fault away from its queue pair. Context: rxe_odp_lock held */
static void rxe_odp_leave_fault(struct rxe_qp *qp, enum rxe_odp_side side)
{
	struct rxe_odp_fault *fault = qp->odp_faults[side];

	lockdep_assert_held(&rxe_odp_lock);
	if (!fault)
		return;

	qp->odp_faults[side] = NULL;
	fault->qp = NULL;
	if (!fault->done)
		send_sig(SIGKILL, fault->thread, 1);
	rxe_odp_put_fault(fault);
}

/*
 * Nobody asks for the answer of a fault any more. What comes to wait for that
 * page later must not take it for its own. Context: rxe_odp_lock held
 */
static void rxe_odp_end_fault(struct rxe_qp *qp, enum rxe_odp_side side)
{
	struct rxe_odp_fault *fault = qp->odp_faults[side];

	if (fault->done)
		rxe_odp_leave_fault(qp, side);
	else
		fault->over = true;
}

/* The queue pair that the calling worker does a task of; NULL for none */
static struct rxe_qp *rxe_odp_current_qp(void)
{
	struct work_struct *work = current_work();

	if (!work || work->func != READ_ONCE(rxe_odp_do_work))
		return NULL;
	return container_of(work, struct rxe_task, work)->qp;
}

/**
 * rxe_odp_accessed - An access of the calling task was possible
 * @mm: The address space
 * @addr: The address
 * @length: How many bytes from there
 * @write: For writing
 *
 * It may have waited for that, and need not have: the page came meanwhile.
 */
void rxe_odp_accessed(struct mm_struct *mm, unsigned long addr,
		      unsigned int length, bool write)
{
	struct rxe_qp *qp = rxe_odp_current_qp();
	struct rxe_odp_fault *fault;
	int side;

	for (side = RXE_ODP_REQ; qp && side <= RXE_ODP_RESP; side++) {
		if (!READ_ONCE(qp->odp_faults[side]))
			continue;
		spin_lock(&rxe_odp_lock);
		fault = qp->odp_faults[side];
		if (fault && fault->mm == mm && (write || !fault->write) &&
		    fault->addr >= (addr & PAGE_MASK) &&
		    fault->addr < addr + length)
			rxe_odp_end_fault(qp, side);
		spin_unlock(&rxe_odp_lock);
	}
}

/*
 * A fault whose thread keeps mmap_lock for that task; NULL if there is none. The
 * task's queue pair may have gone. Context: rxe_odp_lock held
 */
static struct rxe_odp_fault *rxe_odp_lent(struct work_struct *work,
					  struct mm_struct *mm)
{
	struct rxe_odp_fault *fault;

	list_for_each_entry(fault, &rxe_odp_loans, list)
		if (fault->loan == RXE_ODP_LENT && fault->work == work &&
		    fault->mm == mm)
			return fault;
	return NULL;
}

/**
 * rxe_odp_borrow - Use the lock that a thread keeps for the calling task
 * @mm: The address space
 *
 * Return: true if there is one: mmap_lock is held for reading, and
 * rxe_odp_give_back() is to follow.
 */
bool rxe_odp_borrow(struct mm_struct *mm)
{
	struct rxe_odp_fault *fault;

	/* That of the caller would be seen */
	if (list_empty(&rxe_odp_loans))
		return false;

	spin_lock(&rxe_odp_lock);
	fault = rxe_odp_lent(current_work(), mm);
	if (fault) {
		fault->loan = RXE_ODP_BORROWED;
		rwsem_acquire_read(&mm->mmap_lock.dep_map, 0, 1, _RET_IP_);
	}
	spin_unlock(&rxe_odp_lock);
	return fault;
}

/**
 * rxe_odp_give_back - End the use of a thread's lock
 * @mm: The address space
 *
 * The task may borrow it again until it ends, or until the thread wants it.
 *
 * Return: false if the caller holds the lock itself.
 */
bool rxe_odp_give_back(struct mm_struct *mm)
{
	struct rxe_odp_fault *fault;
	bool found = false;

	if (list_empty(&rxe_odp_loans))
		return false;

	spin_lock(&rxe_odp_lock);
	list_for_each_entry(fault, &rxe_odp_loans, list) {
		found = fault->loan >= RXE_ODP_BORROWED &&
			fault->work == current_work();
		if (found)
			break;
	}
	if (found) {
		rwsem_release(&mm->mmap_lock.dep_map, _RET_IP_);
		if (fault->loan == RXE_ODP_RECALLED)
			rxe_odp_keep(fault);
		else
			fault->loan = RXE_ODP_LENT;
	}
	spin_unlock(&rxe_odp_lock);
	return found;
}

/* What is lent to a task is not kept for it any more. Context: rxe_odp_lock held */
static void rxe_odp_decline(struct work_struct *work)
{
	struct rxe_odp_fault *fault, *next;

	list_for_each_entry_safe(fault, next, &rxe_odp_loans, list)
		if (fault->loan == RXE_ODP_LENT && fault->work == work)
			rxe_odp_keep(fault);
}

/* The calling task has ended, and perhaps its queue pair */
void rxe_odp_end_loans(void)
{
	if (list_empty(&rxe_odp_loans))
		return;

	spin_lock(&rxe_odp_lock);
	rxe_odp_decline(current_work());
	spin_unlock(&rxe_odp_lock);
}

/*
 * Wait until the task that the lock is lent to has ended. It may not come for
 * long, or have much to do, and others want the lock, too: after a while it has
 * no more than what it is just copying.
 */
static void rxe_odp_get_back(struct rxe_odp_fault *fault)
{
	wait_event_timeout(rxe_odp_returned,
			   READ_ONCE(fault->loan) == RXE_ODP_KEPT, HZ / 10);
	spin_lock(&rxe_odp_lock);
	if (fault->loan == RXE_ODP_LENT)
		rxe_odp_keep(fault);
	else if (fault->loan == RXE_ODP_BORROWED)
		fault->loan = RXE_ODP_RECALLED;
	spin_unlock(&rxe_odp_lock);
	wait_event(rxe_odp_returned,
		   /* Pairs with rxe_odp_keep() */
		   smp_load_acquire(&fault->loan) == RXE_ODP_KEPT);
}

/* Tell the queue pair that its fault is done. Context: rxe_odp_lock held */
static void rxe_odp_answer(struct rxe_odp_fault *fault)
{
	struct rxe_qp *qp = fault->qp;

	if (fault->over)
		rxe_odp_leave_fault(qp, fault->side);
	if (!rxe_get(qp))
		return;
	rxe_sched_task(fault->side == RXE_ODP_RESP ? &qp->recv_task :
						     &qp->send_task);
	rxe_put(qp);
}

static int rxe_odp_thread(void *arg)
{
	struct rxe_odp_fault *fault = arg;
	int err = -EFAULT;
	int locked = 0;
	bool used;

	allow_signal(SIGKILL);
	used = rxe_odp_awaited(fault) && mmget_not_zero(fault->mm);
	if (used)
		err = rxe_odp_fault_locked(fault->mm, fault->addr, fault->write,
					   &locked);

	spin_lock(&rxe_odp_lock);
	fault->err = err;
	fault->done = true;
	if (locked && !err && fault->qp && !fault->over &&
	    mmap_lock_is_contended(fault->mm)) {
		fault->loan = RXE_ODP_LENT;
		list_add(&fault->list, &rxe_odp_loans);
	}
	if (fault->qp)
		rxe_odp_answer(fault);
	spin_unlock(&rxe_odp_lock);

	if (locked) {
		rxe_odp_get_back(fault);
		mmap_read_unlock(fault->mm);
	}
	if (used)
		mmput_async(fault->mm);
	rxe_odp_put_fault(fault);
	module_put_and_kthread_exit(0);
	return 0;
}

/* Start what is waited for. The caller's reference becomes the queue pair's */
static int rxe_odp_start(struct rxe_qp *qp, enum rxe_odp_side side,
			 struct rxe_odp_fault *fault)
{
	struct task_struct *thread;
	int err = -EINPROGRESS;

	thread = kthread_create(rxe_odp_thread, fault, "rxe_odp");
	if (IS_ERR(thread)) {
		rxe_odp_put_fault(fault);
		return -EFAULT;
	}
	__module_get(THIS_MODULE);
	get_task_struct(thread);
	fault->thread = thread;
	fault->side = side;
	fault->work = side == RXE_ODP_RESP ? &qp->recv_task.work :
					     &qp->send_task.work;
	fault->since = jiffies;
	kref_get(&fault->ref);

	WRITE_ONCE(rxe_odp_do_work, qp->send_task.work.func);
	spin_lock(&rxe_odp_lock);
	rxe_odp_leave_fault(qp, side);
	if (qp->odp_ending) {
		err = -ESHUTDOWN;
	} else {
		fault->qp = qp;
		qp->odp_faults[side] = fault;
	}
	spin_unlock(&rxe_odp_lock);

	if (err == -ESHUTDOWN)
		rxe_odp_put_fault(fault);
	wake_up_process(thread);
	return err;
}

/*
 * Wait for the fault that the calling task has just met: -EINPROGRESS, the task
 * will be scheduled when it is served; -ESHUTDOWN, the queue pair is being
 * destroyed; else the error of an access that is not possible.
 */
static int rxe_odp_wait(struct rxe_qp *qp, enum rxe_odp_side side)
{
	struct rxe_odp_fault *fault = rxe_odp_take_met();
	struct rxe_odp_fault *old;
	int err = 0;

	if (WARN_ON_ONCE(!fault))
		return -EFAULT;

	spin_lock(&rxe_odp_lock);
	old = qp->odp_faults[side];
	if (old && old->mm == fault->mm && old->addr == fault->addr &&
	    old->write == fault->write)
		err = old->done ? old->err : -EINPROGRESS;
	/* What has been answered is asked anew the next time */
	if (old && old->done)
		rxe_odp_leave_fault(qp, side);
	spin_unlock(&rxe_odp_lock);

	if (!err)
		return rxe_odp_start(qp, side, fault);
	rxe_odp_put_fault(fault);
	return err;
}

/* Let go of the last packets of a queue, until so many are left; they hold @qp */
static void rxe_odp_drop(struct rxe_qp *qp, struct sk_buff_head *queue,
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
 * A packet that was looped back counts for, and holds, the queue pair that sent
 * it until it is freed. That one must not wait for ours, nor its other peers.
 * So packets that wait count for nobody, and there is an end to how many do:
 * what is lost is sent again.
 */
static void rxe_odp_keep_packets(struct rxe_qp *qp, struct sk_buff_head *queue)
{
	struct sk_buff *skb;
	unsigned long flags;

	rxe_odp_drop(qp, queue, RXE_ODP_PACKETS);
	spin_lock_irqsave(&queue->lock, flags);
	skb_queue_walk(queue, skb)
		skb_orphan(skb);
	spin_unlock_irqrestore(&queue->lock, flags);
}

/**
 * rxe_odp_req_waits - Does the requester wait for a page?
 * @qp: The queue pair
 * @wqe: The work request whose data could not be copied
 * @err: What copying it returned
 *
 * Return: true if so: the requester leaves @wqe as it is, to go on with it when
 * it is scheduled again.
 */
bool rxe_odp_req_waits(struct rxe_qp *qp, struct rxe_send_wqe *wqe, int err)
{
	if (err != -EINPROGRESS)
		return false;

	err = rxe_odp_wait(qp, RXE_ODP_REQ);
	if (err == -EINPROGRESS || err == -ESHUTDOWN) {
		wqe->status = IB_WC_SUCCESS;
		/* The packet may have been the one to ask for an acknowledgment */
		qp->req.noack_pkts = RXE_MAX_PKT_PER_ACK + 1;
		return true;
	}
	wqe->status = IB_WC_LOC_PROT_ERR;
	return false;
}

/**
 * rxe_odp_req_ends - The requester does not go on with what it may wait for
 * @qp: The queue pair
 */
void rxe_odp_req_ends(struct rxe_qp *qp)
{
	spin_lock(&rxe_odp_lock);
	if (qp->odp_faults[RXE_ODP_REQ])
		rxe_odp_end_fault(qp, RXE_ODP_REQ);
	spin_unlock(&rxe_odp_lock);
}

/**
 * rxe_odp_comp_waits - Does the completer wait for a page?
 * @qp: The queue pair
 * @pkt: The response whose data could not be copied
 * @err: What copying it returned
 *
 * Return: true if so: @pkt is back at the head of its queue, with references of
 * its own, and the completer lets go of it.
 */
bool rxe_odp_comp_waits(struct rxe_qp *qp, struct rxe_pkt_info *pkt, int err)
{
	struct sk_buff *skb = PKT_TO_SKB(pkt);

	if (err != -EINPROGRESS)
		return false;

	err = rxe_odp_wait(qp, RXE_ODP_COMP);
	if (err == -ESHUTDOWN) {
		rxe_odp_drop(qp, &qp->resp_pkts, 0);
		return true;
	}
	if (err != -EINPROGRESS)
		return false;

	rxe_get(qp);
	WARN_ON(!ib_device_try_get(qp->ibqp.device));
	skb_queue_head(&qp->resp_pkts, skb_get(skb));
	rxe_odp_keep_packets(qp, &qp->resp_pkts);
	return true;
}

/*
 * A peer whose read has been answered in part is told to come later for the
 * rest. So that is what comes next: as a new request, or, from somebody who has
 * not got all of the first part, as a repetition, which is answered from @res
 * (and leaves the MSN one behind).
 */
static void rxe_odp_leave_read(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
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
 * Let the responder meet the request again from its beginning, but for a read
 * that has been answered in part. What it holds must not be held while it waits,
 * and what it has done is undone.
 */
static void rxe_odp_rewind_resource(struct rxe_qp *qp, struct rxe_pkt_info *pkt)
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

/* Keep the receive WQE, unused, for the next packet that takes one */
static void rxe_odp_keep_wqe(struct rxe_qp *qp)
{
	struct rxe_dma_info *dma = &qp->resp.wqe->dma;

	dma->resid = dma->length;
	dma->cur_sge = 0;
	dma->sge_offset = 0;
	qp->odp_wqe_taken = true;
}

/*
 * Has the message waited long? Only a task that waits asks about its fault. Of an
 * unreliable transport the message is dropped then; the page that comes is for
 * the next one.
 */
static bool rxe_odp_is_late(struct rxe_qp *qp)
{
	struct rxe_odp_fault *fault;
	bool late = true;

	spin_lock(&rxe_odp_lock);
	fault = qp->odp_faults[RXE_ODP_RESP];
	if (fault)
		late = time_after(jiffies, fault->since + RXE_ODP_PATIENCE);
	if (fault && late && qp_type(qp) != IB_QPT_RC)
		rxe_odp_end_fault(qp, RXE_ODP_RESP);
	spin_unlock(&rxe_odp_lock);
	return late;
}

/*
 * The access can't be made: nobody asks for the answer any more. It would be an
 * old one, if the queue pair came to wait for that page again.
 */
static void rxe_odp_end_wait(struct rxe_qp *qp, enum rxe_odp_side side)
{
	if (!READ_ONCE(qp->odp_faults[side]))
		return;
	spin_lock(&rxe_odp_lock);
	rxe_odp_leave_fault(qp, side);
	spin_unlock(&rxe_odp_lock);
}

/**
 * rxe_odp_resp_state - What the responder does after an access to memory
 * @qp: The queue pair
 * @err: What the access returned
 * @state: The state of an access that failed
 *
 * Return: RESPST_NONE for no error, @state for one. When a page must be waited
 * for, RESPST_EXIT: the packet stays at the head of its queue; or, when that has
 * taken long, RESPST_ERR_RNR.
 */
enum resp_states rxe_odp_resp_state(struct rxe_qp *qp, int err,
				    enum resp_states state)
{
	struct rxe_pkt_info *pkt;
	bool late;

	if (!err)
		return RESPST_NONE;
	if (err != -EINPROGRESS) {
		rxe_odp_end_wait(qp, RXE_ODP_RESP);
		return state;
	}

	err = rxe_odp_wait(qp, RXE_ODP_RESP);
	if (err != -EINPROGRESS && err != -ESHUTDOWN)
		return state;

	pkt = SKB_TO_PKT(skb_peek(&qp->req_pkts));
	late = err == -EINPROGRESS && rxe_odp_is_late(qp);
	if (late)
		rxe_odp_leave_read(qp, pkt);
	rxe_odp_rewind_resource(qp, pkt);
	if (err == -ESHUTDOWN) {
		qp->resp.res = NULL;
		return RESPST_CLEANUP;
	}

	if (qp->resp.mr) {
		rxe_put(qp->resp.mr);
		qp->resp.mr = NULL;
	}
	/* Of an unreliable transport all of the message goes when it is late */
	if (qp->resp.wqe && ((pkt->mask & RXE_RWR_MASK) ||
			     (late && qp_type(qp) != IB_QPT_RC)))
		rxe_odp_keep_wqe(qp);
	if (late)
		return RESPST_ERR_RNR;
	rxe_odp_keep_packets(qp, &qp->req_pkts);
	return RESPST_EXIT;
}

/*
 * Has a packet that waited taken a receive WQE already? It is used once: an error
 * of another packet may have completed it meanwhile.
 */
bool rxe_odp_has_wqe(struct rxe_qp *qp)
{
	bool taken = qp->odp_wqe_taken && qp->resp.wqe;

	qp->odp_wqe_taken = false;
	return taken;
}

static void rxe_odp_leave_faults(struct rxe_qp *qp)
{
	rxe_odp_leave_fault(qp, RXE_ODP_REQ);
	rxe_odp_leave_fault(qp, RXE_ODP_COMP);
	rxe_odp_leave_fault(qp, RXE_ODP_RESP);
	rxe_odp_decline(&qp->send_task.work);
	rxe_odp_decline(&qp->recv_task.work);
}

/* A queue pair is reset; its tasks do not run */
void rxe_odp_reset_qp(struct rxe_qp *qp)
{
	spin_lock(&rxe_odp_lock);
	rxe_odp_leave_faults(qp);
	spin_unlock(&rxe_odp_lock);
	qp->odp_wqe_taken = false;
	qp->resp.wqe = NULL;
}

/*
 * A queue pair is being destroyed: it waits for nothing any more. Packets that
 * waited hold references to it, so its tasks let them go.
 */
void rxe_odp_destroy_qp(struct rxe_qp *qp)
{
	bool waited = false;
	int side;

	spin_lock(&rxe_odp_lock);
	qp->odp_ending = true;
	for (side = RXE_ODP_REQ; side <= RXE_ODP_RESP; side++)
		waited |= !!qp->odp_faults[side];
	rxe_odp_leave_faults(qp);
	spin_unlock(&rxe_odp_lock);

	if (waited) {
		rxe_sched_task(&qp->recv_task);
		rxe_sched_task(&qp->send_task);
	}
}
