// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Faults that must be waited for, and the threads that wait. How a queue pair waits
 * is in rxe_odp_wait.c, how it gets mmap_lock then in rxe_odp_loan.c.
 *
 * The answer to a fault may come from a disk, a thread with a userfaultfd, a
 * FUSE server, a server behind a dead network: it may take for ever. Only a
 * kernel thread of its own waits for that, one for each page that a queue pair
 * waits for. It holds the address space and nothing of rxe: no MR, no queue
 * pair, no device, no worker. So all of these can end meanwhile, and the thread
 * is killed with the queue pair that waited.
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
 * A user has RXE_ODP_THREADS threads at most, and each address space one, which
 * stays with it: a user that never answers a fault would take all that the
 * machine can have. Further faults of that user wait for a thread, and may end
 * while they do. Those of another process, perhaps the one to answer, do not
 * wait for it.
 *
 * The page may be gone again by then: so it goes round until page and task meet,
 * as a CPU would. If the access is not possible the thread says so, and the task
 * fails with it.
 */

#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "rxe.h"
#include "rxe_odp_fault.h"

#define RXE_ODP_THREADS		256

DEFINE_SPINLOCK(rxe_odp_lock);

/*
 * Faults on their way from rxe_odp_copy(), which knows the page, to its caller's
 * caller, which knows the queue pair. Both are the same worker's.
 */
static LIST_HEAD(rxe_odp_met);

static LIST_HEAD(rxe_odp_users);
static DEFINE_SPINLOCK(rxe_odp_users_lock);	/* nests in rxe_odp_lock */

/* The function of each task's work; NULL until one waits for the first time */
static work_func_t rxe_odp_do_work;

/* NULL: no memory */
struct rxe_odp_user *rxe_odp_get_user(kuid_t uid)
{
	struct rxe_odp_user *new = kzalloc(sizeof(*new), GFP_KERNEL);
	struct rxe_odp_user *user;

	if (!new)
		return NULL;

	spin_lock(&rxe_odp_users_lock);
	list_for_each_entry(user, &rxe_odp_users, list) {
		if (uid_eq(user->uid, uid)) {
			refcount_inc(&user->ref);
			goto out;
		}
	}
	user = new;
	new = NULL;
	refcount_set(&user->ref, 1);
	user->uid = uid;
	INIT_LIST_HEAD(&user->faults);
	INIT_LIST_HEAD(&user->served);
	list_add(&user->list, &rxe_odp_users);
out:
	spin_unlock(&rxe_odp_users_lock);
	kfree(new);
	return user;
}

void rxe_odp_put_user(struct rxe_odp_user *user)
{
	if (!refcount_dec_and_lock(&user->ref, &rxe_odp_users_lock))
		return;
	list_del(&user->list);
	spin_unlock(&rxe_odp_users_lock);
	kfree(user);
}

static void rxe_odp_free_fault(struct kref *ref)
{
	struct rxe_odp_fault *fault = container_of(ref, typeof(*fault), ref);

	if (fault->thread)
		put_task_struct(fault->thread);
	rxe_odp_put_user(fault->user);
	mmdrop(fault->mm);
	kfree(fault);
}

void rxe_odp_put_fault(struct rxe_odp_fault *fault)
{
	kref_put(&fault->ref, rxe_odp_free_fault);
}

/* The fault that this worker has met last and no queue pair waits for yet */
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
	refcount_inc(&odp->user->ref);
	fault->user = odp->user;
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

/*
 * Does a queue pair wait, and is the address space there? Asked after
 * allow_signal(): a queue pair that leaves clears fault->qp, then kills.
 */
static bool rxe_odp_begin(struct rxe_odp_fault *fault)
{
	bool begun;

	spin_lock(&rxe_odp_lock);
	begun = fault->qp && mmget_not_zero(fault->mm);
	fault->begun = begun;
	spin_unlock(&rxe_odp_lock);
	return begun;
}

/* Take a fault away from its queue pair. Context: rxe_odp_lock held */
void rxe_odp_leave_fault(struct rxe_qp *qp, enum rxe_odp_side side)
{
	struct rxe_odp_fault *fault = qp->odp_faults[side];

	lockdep_assert_held(&rxe_odp_lock);
	if (!fault)
		return;

	qp->odp_faults[side] = NULL;
	fault->qp = NULL;
	if (!fault->done && fault->thread) {
		send_sig(SIGKILL, fault->thread, 1);
	} else if (!fault->done) {
		list_del(&fault->list);
		rxe_odp_put_fault(fault); /* its user's */
	}
	rxe_odp_put_fault(fault);
}

/*
 * The queue pair does not ask for the answer of a fault any more. A later
 * packet that waits for that page must not take it for its own. Context:
 * rxe_odp_lock held
 */
void rxe_odp_end_fault(struct rxe_qp *qp, enum rxe_odp_side side)
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

static void rxe_odp_serve(struct rxe_odp_fault *fault)
{
	int err = -EFAULT;
	int locked = 0;
	bool used;

	used = rxe_odp_begin(fault);
	if (used)
		err = rxe_odp_fault_locked(fault->mm, fault->addr, fault->write,
					   &locked);

	spin_lock(&rxe_odp_lock);
	fault->err = err;
	fault->done = true;
	if (locked && !err && fault->qp && !fault->over &&
	    mmap_lock_is_contended(fault->mm))
		rxe_odp_lend(fault);
	if (fault->qp)
		rxe_odp_answer(fault);
	spin_unlock(&rxe_odp_lock);

	if (locked) {
		rxe_odp_get_back(fault);
		mmap_read_unlock(fault->mm);
	}
	if (used)
		mmput_async(fault->mm);
}

/* Give a fault to a thread. Context: rxe_odp_lock held */
static void rxe_odp_take(struct rxe_odp_fault *fault,
			 struct task_struct *thread)
{
	fault->thread = get_task_struct(thread);
	list_add(&fault->of_user, &fault->user->served);
}

/* Does a thread serve that address space? Context: rxe_odp_lock held */
static bool rxe_odp_is_served(struct rxe_odp_user *user, struct mm_struct *mm)
{
	struct rxe_odp_fault *fault;

	list_for_each_entry(fault, &user->served, of_user)
		if (fault->mm == mm)
			return true;
	return false;
}

/* The next fault without a thread that the calling one may serve after @done */
static struct rxe_odp_fault *rxe_odp_choose(struct rxe_odp_fault *done)
{
	struct rxe_odp_user *user = done->user;
	struct rxe_odp_fault *fault;

	/* It goes to others only if its address space keeps another thread */
	if (!rxe_odp_is_served(user, done->mm))
		list_for_each_entry(fault, &user->faults, list)
			if (fault->mm == done->mm)
				return fault;

	if (user->threads >= RXE_ODP_THREADS)
		return NULL;
	return list_first_entry_or_null(&user->faults, struct rxe_odp_fault,
					list);
}

/* The next fault of the calling thread, after @done; NULL: it ends */
static struct rxe_odp_fault *rxe_odp_next_fault(struct rxe_odp_fault *done)
{
	struct rxe_odp_user *user = done->user;
	struct rxe_odp_fault *fault;

	spin_lock(&rxe_odp_lock);
	list_del(&done->of_user);
	user->threads--;
	fault = rxe_odp_choose(done);
	if (fault) {
		list_del(&fault->list);
		/* It was killed for the one before, if at all, which is done */
		flush_signals(current);
		user->threads++;
		rxe_odp_take(fault, current);
	}
	spin_unlock(&rxe_odp_lock);
	return fault;
}

static int rxe_odp_thread(void *arg)
{
	struct rxe_odp_fault *fault = arg, *next;

	allow_signal(SIGKILL);
	do {
		rxe_odp_serve(fault);
		next = rxe_odp_next_fault(fault);
		rxe_odp_put_fault(fault);
		fault = next;
	} while (fault);
	module_put_and_kthread_exit(0);
	return 0;
}

/* May it have a thread of its own? Context: rxe_odp_lock held */
static bool rxe_odp_may_start(struct rxe_odp_fault *fault)
{
	lockdep_assert_held(&rxe_odp_lock);
	return fault->user->threads < RXE_ODP_THREADS ||
	       !rxe_odp_is_served(fault->user, fault->mm);
}

/* How many threads keep that address space? Context: rxe_odp_lock held */
static int rxe_odp_count_users(struct rxe_odp_user *user, struct mm_struct *mm)
{
	struct rxe_odp_fault *fault;
	int count = 0;

	list_for_each_entry(fault, &user->served, of_user)
		count += fault->mm == mm && fault->begun && !fault->done;
	return count;
}

/*
 * End the faults that are left of processes that have ended: that memory is not
 * seen again, and they would have threads, beside those of living processes,
 * until they are answered. Context: rxe_odp_lock held
 */
static void rxe_odp_end_orphans(struct rxe_odp_user *user)
{
	struct rxe_odp_fault *fault;

	list_for_each_entry(fault, &user->served, of_user)
		if (fault->begun && !fault->done &&
		    atomic_read(&fault->mm->mm_users) ==
		    rxe_odp_count_users(user, fault->mm))
			send_sig(SIGKILL, fault->thread, 1);
}

/*
 * Have a fault served: now, if there is a thread for it, which need not be used;
 * or later. Context: rxe_odp_lock held
 */
static bool rxe_odp_get_served(struct rxe_odp_fault *fault,
			       struct task_struct *thread)
{
	bool now = thread && rxe_odp_may_start(fault);

	kref_get(&fault->ref);
	if (now) {
		fault->user->threads++;
		rxe_odp_take(fault, thread);
	} else {
		list_add_tail(&fault->list, &fault->user->faults);
	}
	return now;
}

/* Start the awaited fault. The caller's reference becomes the queue pair's */
static int rxe_odp_start(struct rxe_qp *qp, enum rxe_odp_side side,
			 struct rxe_odp_fault *fault)
{
	struct task_struct *thread = NULL;
	bool now = false;
	bool ending;

	fault->side = side;
	fault->work = side == RXE_ODP_RESP ? &qp->recv_task.work :
					     &qp->send_task.work;

	WRITE_ONCE(rxe_odp_do_work, qp->send_task.work.func);
	spin_lock(&rxe_odp_lock);
	if (fault->user->threads >= RXE_ODP_THREADS)
		rxe_odp_end_orphans(fault->user);
	if (rxe_odp_may_start(fault)) {
		spin_unlock(&rxe_odp_lock);
		thread = kthread_create(rxe_odp_thread, fault, "rxe_odp");
		if (IS_ERR(thread)) {
			rxe_odp_put_fault(fault);
			return -EFAULT;
		}
		spin_lock(&rxe_odp_lock);
	}
	fault->since = jiffies; /* making a thread may have taken long */
	rxe_odp_leave_fault(qp, side);
	ending = qp->odp_ending;
	if (!ending) {
		fault->qp = qp;
		qp->odp_faults[side] = fault;
		now = rxe_odp_get_served(fault, thread);
	}
	spin_unlock(&rxe_odp_lock);

	if (now) {
		__module_get(THIS_MODULE);
		wake_up_process(thread);
	} else if (thread) {
		kthread_stop(thread); /* that has not begun */
	}
	if (ending)
		rxe_odp_put_fault(fault);
	return ending ? -ESHUTDOWN : -EINPROGRESS;
}

/*
 * Wait for the fault that the calling task has just met: -EINPROGRESS, the task
 * will be scheduled when it is served; -ESHUTDOWN, the queue pair is being
 * destroyed; else the error of an access that is not possible.
 */
int rxe_odp_wait(struct rxe_qp *qp, enum rxe_odp_side side)
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
	/* An answered fault is asked anew the next time */
	if (old && old->done)
		rxe_odp_leave_fault(qp, side);
	spin_unlock(&rxe_odp_lock);

	if (!err)
		return rxe_odp_start(qp, side, fault);
	rxe_odp_put_fault(fault);
	return err;
}

