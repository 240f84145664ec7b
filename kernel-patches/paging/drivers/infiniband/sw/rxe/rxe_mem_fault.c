// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One fault: from the packet that needs the page to the result. A thread of the
 * registering process handles the fault, see rxe_mem_pool.c; how a queue pair
 * waits is in rxe_mem_wait.c.
 *
 *   a task of a queue pair                  a thread of the process
 *   copies: -EINPROGRESS
 *   gives the fault to the pool;
 *   returns, with its packet or work
 *   request where it was
 *                                           faults; waits
 *                                           done: schedules the task
 *   copies again, as for the first
 *   time
 *
 * A fault holds no reference to an MR, queue pair, device or worker of rxe. So
 * each of them can end during the fault, and the thread is interrupted when no
 * queue pair waits any more.
 *
 * The page may be absent again when the task runs. Then the task starts another
 * fault, as a CPU would. If the access is not possible, the thread stores the error
 * and the task fails with it.
 */

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "rxe.h"
#include "rxe_mem_fault.h"
#include "rxe_mem_page.h"
#include "rxe_mem_pool.h"

#define RXE_MEM_FAULT_PAUSE	msecs_to_jiffies(20)

DEFINE_SPINLOCK(rxe_mem_lock);

/*
 * Faults between rxe_mem_copy(), which knows the page, and the task, which knows
 * the queue pair. One worker runs both.
 */
static LIST_HEAD(rxe_mem_fault_met);

/* The work function of all tasks; NULL until a task waits for the first time */
static work_func_t rxe_mem_fault_work;

static void rxe_mem_fault_free(struct kref *ref)
{
	struct rxe_mem_fault *fault = container_of(ref, typeof(*fault), ref);

	rxe_mem_pool_put(fault->pool);
	kfree(fault);
}

void rxe_mem_fault_put(struct rxe_mem_fault *fault)
{
	kref_put(&fault->ref, rxe_mem_fault_free);
}

/* Take the newest fault that this worker met and that has no queue pair yet */
static struct rxe_mem_fault *rxe_mem_fault_take_met(void)
{
	struct rxe_mem_fault *fault, *found = NULL;

	spin_lock(&rxe_mem_lock);
	list_for_each_entry(fault, &rxe_mem_fault_met, list) {
		if (fault->by == current) {
			list_del(&fault->list);
			found = fault;
			break;
		}
	}
	spin_unlock(&rxe_mem_lock);
	return found;
}

/**
 * rxe_mem_fault_meet - Remember a fault that the calling task must wait for
 * @odp: The MR
 * @addr: The address
 * @write: For writing
 * @keep: Pin the page for rxe_mem_fault_take_page()
 * @locked: The page was looked up under mmap_lock
 *
 * Return: -EINPROGRESS
 */
int rxe_mem_fault_meet(struct rxe_mem_mr *odp, unsigned long addr, bool write,
		       bool keep, bool locked)
{
	struct rxe_mem_fault *fault, *old;

	atomic64_inc(&odp->waits);
	old = rxe_mem_fault_take_met();
	if (old)
		rxe_mem_fault_put(old);

	/* If this allocation failed, a permitted access would be refused */
	fault = kzalloc(sizeof(*fault), GFP_KERNEL | __GFP_NOFAIL);
	kref_init(&fault->ref);
	kref_get(&odp->pool->ref);
	fault->pool = odp->pool;
	fault->addr = addr & PAGE_MASK;
	fault->write = write;
	fault->keep = keep;
	fault->locked = locked;
	fault->by = current;
	spin_lock(&rxe_mem_lock);
	list_add(&fault->list, &rxe_mem_fault_met);
	spin_unlock(&rxe_mem_lock);
	return -EINPROGRESS;
}

/*
 * Fault one page in and, if this succeeds, hold it. On return @locked tells
 * whether mmap_lock is still held. This also handles NUMA hinting faults: a page
 * with a NUMA hint can't be looked up without mmap_lock.
 */
static int rxe_mem_fault_locked(struct mm_struct *mm, unsigned long addr,
				bool write, unsigned int flags,
				struct page **page, int *locked)
{
	long got = -EFAULT;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	*locked = 1;
	if (vma_lookup(mm, addr))
		got = rxe_mem_gup(mm, addr, write,
				  flags | FOLL_HONOR_NUMA_FAULT, page, locked);
	if (got != 1)
		return got < 0 ? got : -EINTR;

	/* See rxe_mem_page_lock_file() */
	if (write && folio_test_locked(page_folio(*page))) {
		if (*locked)
			mmap_read_unlock(mm);
		*locked = 0;
		if (folio_wait_locked_killable(page_folio(*page))) {
			rxe_mem_put_page(*page, write);
			return -EINTR;
		}
	}
	return 0;
}

static int rxe_mem_fault_page(struct mm_struct *mm, unsigned long addr,
			      bool write, unsigned int flags,
			      struct page **page)
{
	int locked = 0;
	int err;

	err = rxe_mem_fault_locked(mm, addr, write, flags, page, &locked);
	if (locked)
		mmap_read_unlock(mm);
	return err;
}

/**
 * rxe_mem_fault_in - Fault one page in, however long it takes
 * @mm: The address space, of the caller
 * @addr: The address
 * @write: For writing
 *
 * Context: Process context. Ends early when the caller is killed.
 *
 * Return: 0; -EFAULT or another error when there is no such access; -EINTR.
 */
int rxe_mem_fault_in(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct page *page;
	int err;

	err = rxe_mem_fault_page(mm, addr, write, 0, &page);
	if (!err)
		rxe_mem_put_page(page, write);
	return err;
}

/* Unpin the page of a fault. Context: rxe_mem_lock held */
void rxe_mem_fault_release(struct rxe_mem_fault *fault)
{
	lockdep_assert_held(&rxe_mem_lock);
	list_del(&fault->list);
	rxe_mem_put_page(fault->page, fault->write);
	fault->page = NULL;
}

/* Detach a fault from its queue pair. Context: rxe_mem_lock held */
void rxe_mem_fault_leave(struct rxe_qp *qp, enum rxe_mem_side side)
{
	struct rxe_mem_fault *fault = qp->odp_faults[side];

	lockdep_assert_held(&rxe_mem_lock);
	if (!fault)
		return;

	qp->odp_faults[side] = NULL;
	fault->qp = NULL;
	if (fault->page) {
		rxe_mem_fault_release(fault);
	} else if (!fault->done && fault->thread) {
		rxe_mem_pool_interrupt(fault->thread);
	} else if (!fault->done) {
		list_del(&fault->list);
		rxe_mem_fault_put(fault); /* its pool's */
	}
	rxe_mem_fault_put(fault);
}

/*
 * The queue pair no longer needs the result of its fault. A later packet that waits
 * for the same page must start its own fault. Context: rxe_mem_lock held
 */
void rxe_mem_fault_end(struct rxe_qp *qp, enum rxe_mem_side side)
{
	struct rxe_mem_fault *fault = qp->odp_faults[side];

	if (fault->done)
		rxe_mem_fault_leave(qp, side);
	else
		fault->over = true;
}

/* The queue pair whose task the calling worker runs, or NULL */
static struct rxe_qp *rxe_mem_fault_qp(void)
{
	struct work_struct *work = current_work();

	if (!work || work->func != READ_ONCE(rxe_mem_fault_work))
		return NULL;
	return container_of(work, struct rxe_task, work)->qp;
}

/* Restart the retransmit timer: the time of the fault is not the peer's */
static void rxe_mem_fault_restart_timer(struct rxe_qp *qp)
{
	if (qp_type(qp) != IB_QPT_RC || !qp->qp_timeout_jiffies)
		return;
	mod_timer(&qp->retrans_timer, jiffies + qp->qp_timeout_jiffies);
	qp->comp.timeout = 0;
}

/**
 * rxe_mem_fault_accessed - An access of the calling task succeeded
 * @odp: The MR
 * @addr: The address
 * @length: The number of bytes
 * @write: For writing
 *
 * If the queue pair still waits for a fault in this range, another fault has
 * brought the page, and the wait ends.
 */
void rxe_mem_fault_accessed(struct rxe_mem_mr *odp, unsigned long addr,
			    unsigned int length, bool write)
{
	struct rxe_qp *qp = rxe_mem_fault_qp();
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
			rxe_mem_fault_end(qp, side);
			if (side == RXE_MEM_REQ)
				rxe_mem_fault_restart_timer(qp);
		}
		spin_unlock(&rxe_mem_lock);
	}
}

/**
 * rxe_mem_fault_take_page - Take the page for which the calling responder waited
 * @odp: The MR
 * @addr: The address, which is written
 *
 * Only the access that met the fault gets the page, once. So the access began while
 * the page was mapped.
 *
 * Return: The page, pinned for writing, or NULL if there is none.
 */
struct page *rxe_mem_fault_take_page(struct rxe_mem_mr *odp, unsigned long addr)
{
	struct rxe_qp *qp = rxe_mem_fault_qp();
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

/**
 * rxe_mem_fault_done - Store the result of a fault and schedule its queue pair
 * @fault: The fault
 * @err: The result
 *
 * Context: rxe_mem_lock held
 */
void rxe_mem_fault_done(struct rxe_mem_fault *fault, int err)
{
	struct rxe_qp *qp = fault->qp;

	lockdep_assert_held(&rxe_mem_lock);
	fault->err = err;
	fault->done = true;
	if (!qp)
		return;
	if (fault->over)
		rxe_mem_fault_leave(qp, fault->side);
	if (!rxe_get(qp))
		return;
	rxe_sched_task(fault->side == RXE_MEM_RESP ? &qp->recv_task :
						     &qp->send_task);
	rxe_put(qp);
}

/*
 * The zero page can't be looked up without mmap_lock either: a read of it would
 * start a fault again and again. So the memory gets its own page, as for a write.
 */
static void rxe_mem_fault_replace_zeros(struct mm_struct *mm,
					unsigned long addr)
{
	struct vm_area_struct *vma;
	struct page *page;

	if (mmap_read_lock_killable(mm))
		return;
	vma = vma_lookup(mm, addr);
	if (vma && vma_is_anonymous(vma) &&
	    rxe_mem_page_may_access(vma, true) &&
	    rxe_mem_gup(mm, addr, true, FOLL_NOWAIT, &page, NULL) == 1)
		rxe_mem_put_page(page, true);
	mmap_read_unlock(mm);
}

/**
 * rxe_mem_fault_serve - Handle a fault, however long it takes
 * @fault: The fault
 *
 * Context: a thread of the fault's process
 */
void rxe_mem_fault_serve(struct rxe_mem_fault *fault)
{
	struct rxe_mem_pool *pool = fault->pool;
	struct page *page;
	bool kept = false;
	int err;

	err = rxe_mem_fault_page(pool->mm, fault->addr, fault->write,
				 FOLL_INTERRUPTIBLE, &page);
	/* Memory may become free soon, as for a fault of a CPU */
	if (err == -ENOMEM)
		schedule_timeout_interruptible(RXE_MEM_FAULT_PAUSE);
	if (!err && !fault->locked && is_zero_pfn(page_to_pfn(page)))
		rxe_mem_fault_replace_zeros(pool->mm, fault->addr);

	spin_lock(&rxe_mem_lock);
	if (!err && fault->keep && fault->qp && !fault->over && !pool->closed) {
		kept = true;
		fault->page = page;
		list_add(&fault->list, &pool->kept);
	}
	/* Retry an interrupted fault: a stop of the process may have caused it */
	rxe_mem_fault_done(fault, err == -EINTR || err == -ENOMEM ? 0 : err);
	spin_unlock(&rxe_mem_lock);

	if (!err && !kept)
		rxe_mem_put_page(page, fault->write);
}

/* Start the fault. The reference of the caller passes to the queue pair */
static int rxe_mem_fault_start(struct rxe_qp *qp, enum rxe_mem_side side,
			       u32 psn, struct rxe_mem_fault *fault)
{
	int err = -EINPROGRESS;

	WRITE_ONCE(rxe_mem_fault_work, qp->send_task.work.func);
	spin_lock(&rxe_mem_lock);
	rxe_mem_fault_leave(qp, side);
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
 * Wait for the fault that the calling task has just met at @psn. -EINPROGRESS: the
 * task will be scheduled when the fault is done. -ESHUTDOWN: the queue pair is
 * being destroyed. Any other error: the access is not possible. The error is for
 * the packet that met the fault only: the next packet may succeed.
 */
int rxe_mem_fault_wait(struct rxe_qp *qp, enum rxe_mem_side side, u32 psn)
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
	/* A fault that is done has no result for a later access */
	if (old && old->done)
		rxe_mem_fault_leave(qp, side);
	spin_unlock(&rxe_mem_lock);

	if (!err)
		return rxe_mem_fault_start(qp, side, psn, fault);
	rxe_mem_fault_put(fault);
	return err;
}
