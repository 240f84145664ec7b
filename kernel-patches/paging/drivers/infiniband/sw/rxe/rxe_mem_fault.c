// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One fault, from the packet that needs the page to the result. A thread of the
 * registering process handles the fault (rxe_mem_pool.c), and a queue pair waits
 * for the fault (rxe_mem_qp.c).
 *
 *   a task of a queue pair                  a thread of the process
 *   copies: -EINPROGRESS
 *   gives the fault to the pool;
 *   returns; the packet or work request
 *   stays in its queue
 *                                           faults; waits
 *                                           done: schedules the task
 *   copies all data again
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

#define RXE_MEM_FAULT_PAUSE	msecs_to_jiffies(20)

DEFINE_SPINLOCK(rxe_mem_lock);

/*
 * Faults that rxe_mem_copy() has met, until the task of a queue pair takes them. The
 * copy has no pointer to the queue pair. One worker runs both functions.
 */
static LIST_HEAD(rxe_mem_fault_met);

static void rxe_mem_fault_free_pool(struct kref *ref)
{
	struct rxe_mem_pool *pool = container_of(ref, typeof(*pool), ref);

	put_pid(pool->process);
	mmdrop(pool->mm);
	kfree(pool);
}

void rxe_mem_fault_put_pool(struct rxe_mem_pool *pool)
{
	kref_put(&pool->ref, rxe_mem_fault_free_pool);
}

static void rxe_mem_fault_free(struct kref *ref)
{
	struct rxe_mem_fault *fault = container_of(ref, typeof(*fault), ref);

	rxe_mem_fault_put_pool(fault->pool);
	kfree(fault);
}

void rxe_mem_fault_put(struct rxe_mem_fault *fault)
{
	kref_put(&fault->ref, rxe_mem_fault_free);
}

/* Take the newest fault that this worker met and that has no queue pair yet */
struct rxe_mem_fault *rxe_mem_fault_take_met(void)
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
 * @keep: Pin the page for rxe_mem_qp_take_page()
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
 * Fault one page in and, if this succeeds, hold the page. On return @locked is 1 if
 * mmap_lock is still held. This function also handles NUMA hinting faults, because a
 * page with a NUMA hint can't be looked up without mmap_lock.
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
 * @mm: The address space of the caller
 * @addr: The address
 * @write: For writing
 *
 * Context: Process context. Ends early when the caller is killed.
 *
 * Return: 0, -EINTR, or -EFAULT or another error if the access is not possible.
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

/* Detach a fault that is done from its queue pair. Context: rxe_mem_lock held */
void rxe_mem_fault_detach(struct rxe_mem_fault *fault)
{
	lockdep_assert_held(&rxe_mem_lock);
	fault->qp->odp_faults[fault->side] = NULL;
	fault->qp = NULL;
	if (fault->page)
		rxe_mem_fault_release(fault);
	rxe_mem_fault_put(fault);
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
		rxe_mem_fault_detach(fault);
	if (!rxe_get(qp))
		return;
	rxe_sched_task(fault->side == RXE_MEM_RESP ? &qp->recv_task :
						     &qp->send_task);
	rxe_put(qp);
}

/*
 * The zero page can't be looked up without mmap_lock. A read of the zero page would
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
	/* Wait for free memory before the next try, as a fault of a CPU does */
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
	/* Retry an interrupted fault, because a stop of the process may have interrupted it */
	rxe_mem_fault_done(fault, err == -EINTR || err == -ENOMEM ? 0 : err);
	spin_unlock(&rxe_mem_lock);

	if (!err && !kept)
		rxe_mem_put_page(page, fault->write);
}
