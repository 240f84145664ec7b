// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * mmap_lock, lent by the thread of a fault to the task that waited for it.
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
 */

#include <linux/mm.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "rxe.h"
#include "rxe_odp_fault.h"

/* Faults whose thread keeps mmap_lock for a task, lent or borrowed */
static LIST_HEAD(rxe_odp_loans);

/* Threads wait there for the locks that they have lent */
static DECLARE_WAIT_QUEUE_HEAD(rxe_odp_returned);

/* Its thread may let go of mmap_lock. Context: rxe_odp_lock held */
static void rxe_odp_keep(struct rxe_odp_fault *fault)
{
	lockdep_assert_held(&rxe_odp_lock);
	list_del(&fault->list);
	/* Pairs with rxe_odp_get_back(): the thread may free the fault from now on */
	smp_store_release(&fault->loan, RXE_ODP_KEPT);
	wake_up(&rxe_odp_returned);
}

/* The thread of a fault keeps mmap_lock for the task. Context: rxe_odp_lock held */
void rxe_odp_lend(struct rxe_odp_fault *fault)
{
	lockdep_assert_held(&rxe_odp_lock);
	fault->loan = RXE_ODP_LENT;
	list_add(&fault->list, &rxe_odp_loans);
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

/* A lock lent to a task is not kept for it any more. Context: rxe_odp_lock held */
void rxe_odp_decline(struct work_struct *work)
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
 * no more than the copy that it is making.
 */
void rxe_odp_get_back(struct rxe_odp_fault *fault)
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
