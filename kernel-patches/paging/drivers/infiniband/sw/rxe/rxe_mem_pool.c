// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The lifetime of the threads that wait for pages, and the choice of a thread for a
 * fault. See rxe_mem_fault.c for the handling of a fault.
 *
 * A fault may need a disk, a userfaultfd handler, a FUSE server, or a server behind
 * a dead network, so it may take forever. So threads of the registering process
 * (vhost_task_create()) wait for the page. These threads count in RLIMIT_NPROC and
 * in the control groups of the process, share its address space like its other
 * threads, and are killed with the process. A kernel thread would be charged to no
 * user, and would keep the memory of a killed process. A worker can't be killed, and
 * all users share the few workers.
 *
 * A worker can't make a thread of the process: only a thread of the process can. So
 * the registration makes the first thread. If this fails, the registration fails. If
 * a thread takes a fault and no other thread is idle, the thread makes another thread
 * before it waits. If this fails, or if there are RXE_MEM_POOL_THREADS threads, the
 * other faults wait, and take turns with the faults that have a thread
 * (rxe_mem_pool_turn()). The threads of a pool work for one process only.
 *
 * A thread ends when it is not needed, when the last MR of its process ends, and
 * when the process is killed or executes another program:
 *
 *   the last MR ends, or a thread is idle   the process is killed
 *   the thread leaves the pool, and         each thread is killed, too
 *   marks itself as killed
 *              \                            /
 *               get_signal() in vhost_task_fn()
 *               rxe_mem_pool_killed()
 *               a worker: vhost_task_stop(), which waits for no fault
 *
 * vhost_task_stop() waits for the thread, and the thread may wait for its fault,
 * or be stopped with its process. So rxe calls vhost_task_stop() only for threads
 * that are about to call do_exit(), and the end of an MR waits for no thread.
 */

#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/vhost_task.h>
#include <linux/workqueue.h>

#include "rxe.h"
#include "rxe_mem_fault.h"
#include "rxe_mem_pool.h"

#define RXE_MEM_POOL_THREADS	16
#define RXE_MEM_POOL_IDLE	2	/* not counting the thread that becomes idle */
#define RXE_MEM_POOL_TURN	msecs_to_jiffies(100)

struct rxe_mem_thread {
	struct list_head	list;	/* in the list of its pool, or in rxe_mem_pool_ended */
	struct rxe_mem_pool	*pool;
	struct vhost_task	*task;

	/* rxe_mem_lock protects the fields below. */
	struct task_struct	*self;
	struct rxe_mem_fault	*fault;	/* NULL: the thread is idle */
	unsigned long		since;	/* jiffies when the thread took the fault */
	bool			left;	/* the thread left the pool without a signal */
};

static LIST_HEAD(rxe_mem_pools);
static LIST_HEAD(rxe_mem_pool_ended);

static void rxe_mem_pool_stop_ended(struct work_struct *work);
static DECLARE_WORK(rxe_mem_pool_stop_work, rxe_mem_pool_stop_ended);

static void rxe_mem_pool_turn(struct work_struct *work);
static DECLARE_DELAYED_WORK(rxe_mem_pool_turn_work, rxe_mem_pool_turn);

/* Context: rxe_mem_lock held */
static struct rxe_mem_thread *rxe_mem_pool_idle(struct rxe_mem_pool *pool)
{
	struct rxe_mem_thread *thread;

	lockdep_assert_held(&rxe_mem_lock);
	list_for_each_entry(thread, &pool->threads, list)
		if (!thread->fault)
			return thread;
	return NULL;
}

/*
 * Wake an idle thread for the waiting faults. If no thread is idle, schedule
 * rxe_mem_pool_turn(). Context: rxe_mem_lock held
 */
static void rxe_mem_pool_wake(struct rxe_mem_pool *pool)
{
	struct rxe_mem_thread *thread = rxe_mem_pool_idle(pool);

	if (thread)
		vhost_task_wake(thread->task);
	else
		queue_delayed_work(system_unbound_wq, &rxe_mem_pool_turn_work,
				   RXE_MEM_POOL_TURN);
}

/**
 * rxe_mem_pool_add - Give a fault to the threads of its process
 * @fault: The fault, whose pool is not closed
 *
 * Context: rxe_mem_lock held
 */
void rxe_mem_pool_add(struct rxe_mem_fault *fault)
{
	struct rxe_mem_pool *pool = fault->pool;

	lockdep_assert_held(&rxe_mem_lock);
	kref_get(&fault->ref);
	list_add_tail(&fault->list, &pool->faults);
	rxe_mem_pool_wake(pool);
}

/**
 * rxe_mem_pool_interrupt - End the wait of a thread for its fault
 * @thread: The thread, which handles a fault
 *
 * A wait for a userfaultfd ends immediately. A wait in a file system may go on
 * until the process ends. Such a wait gets a spurious wake-up, which any sleeper
 * must accept. Context: rxe_mem_lock held
 */
void rxe_mem_pool_interrupt(struct rxe_mem_thread *thread)
{
	lockdep_assert_held(&rxe_mem_lock);
	/* Like set_notify_signal(); get_signal() clears the flag before the next fault */
	set_tsk_thread_flag(thread->self, TIF_NOTIFY_SIGNAL);
	vhost_task_wake(thread->task);
}

/*
 * For each fault without a thread, interrupt one thread whose turn is over, the
 * thread with the oldest fault first. The queue pair of an interrupted fault starts
 * the fault again, at the end of the list. Context: rxe_mem_lock held
 */
static void rxe_mem_pool_give_turns(struct rxe_mem_pool *pool)
{
	struct rxe_mem_thread *thread, *next;
	struct list_head *waits = pool->faults.next;

	list_for_each_entry_safe(thread, next, &pool->threads, list) {
		if (waits == &pool->faults)
			break;
		if (!thread->fault ||
		    time_before(jiffies, thread->since + RXE_MEM_POOL_TURN))
			continue;
		rxe_mem_pool_interrupt(thread);
		/* If the thread does not come back, interrupt another thread next time */
		thread->since = jiffies;
		list_move_tail(&thread->list, &pool->threads);
		waits = waits->next;
	}
}

/*
 * All threads of a pool may wait for pages that never come. The process may even be
 * unable to supply these pages, because it waits for a fault that has no thread:
 *
 *   the process          the fault for page A      the fault for page B
 *                        has the last thread;
 *                        waits for page A
 *                                                  waits for a thread
 *   [needs page B to
 *   make page A: waits]
 *                        is interrupted; waits
 *                        for a thread
 *                                                  gets the thread; gets page B
 *   makes page A
 *                        gets the thread; gets
 *                        page A
 *
 * A thread that takes a fault also tries to make another thread, because the limits
 * may allow another thread now.
 */
static void rxe_mem_pool_turn(struct work_struct *work)
{
	struct rxe_mem_pool *pool;
	bool again = false;

	spin_lock(&rxe_mem_lock);
	list_for_each_entry(pool, &rxe_mem_pools, list) {
		again |= !list_empty(&pool->faults);
		rxe_mem_pool_give_turns(pool);
	}
	if (again)
		queue_delayed_work(system_unbound_wq, &rxe_mem_pool_turn_work,
				   RXE_MEM_POOL_TURN);
	spin_unlock(&rxe_mem_lock);
}

/*
 * The pool has no more work. Its threads end, and its faults return an error.
 * Context: rxe_mem_lock held
 */
static void rxe_mem_pool_close(struct rxe_mem_pool *pool)
{
	struct rxe_mem_fault *fault, *next;
	struct rxe_mem_thread *thread;

	lockdep_assert_held(&rxe_mem_lock);
	if (pool->closed)
		return;

	pool->closed = true;
	list_del(&pool->list);
	list_for_each_entry_safe(fault, next, &pool->faults, list) {
		list_del(&fault->list);
		rxe_mem_fault_done(fault, -EFAULT);
		rxe_mem_fault_put(fault);
	}
	list_for_each_entry_safe(fault, next, &pool->kept, list)
		rxe_mem_fault_release(fault);
	list_for_each_entry(thread, &pool->threads, list) {
		if (thread->fault)
			rxe_mem_pool_interrupt(thread);
		else
			vhost_task_wake(thread->task);
	}
}

/*
 * End only the calling thread: set a pending SIGKILL, as the kernel does for each
 * thread of an exiting group. vhost_task_fn() checks for this signal.
 */
static void rxe_mem_pool_end_thread(void)
{
	spin_lock_irq(&current->sighand->siglock);
	sigaddset(&current->pending.signal, SIGKILL);
	set_thread_flag(TIF_SIGPENDING);
	spin_unlock_irq(&current->sighand->siglock);
}

/* Are there enough idle threads without @thread? Context: rxe_mem_lock held */
static bool rxe_mem_pool_is_surplus(struct rxe_mem_thread *thread)
{
	struct rxe_mem_thread *other;
	int idle = 0;

	list_for_each_entry(other, &thread->pool->threads, list)
		idle += other != thread && !other->fault;
	return idle > RXE_MEM_POOL_IDLE;
}

/* The next fault of the calling thread. After NULL the thread may have left the pool */
static struct rxe_mem_fault *rxe_mem_pool_take(struct rxe_mem_thread *thread)
{
	struct rxe_mem_pool *pool = thread->pool;
	struct rxe_mem_fault *fault;

	spin_lock(&rxe_mem_lock);
	thread->self = current;
	fault = list_first_entry_or_null(&pool->faults, struct rxe_mem_fault,
					 list);
	if (fault) {
		list_del(&fault->list);
		fault->thread = thread;
		thread->fault = fault;
		thread->since = jiffies;
		list_move_tail(&thread->list, &pool->threads);
		/* The wake-up may have been for two faults */
		if (!list_empty(&pool->faults))
			rxe_mem_pool_wake(pool);
	} else if (pool->closed || rxe_mem_pool_is_surplus(thread)) {
		thread->left = true;
		list_del(&thread->list);
		pool->count--;
	}
	spin_unlock(&rxe_mem_lock);
	return fault;
}

static int rxe_mem_pool_start(struct rxe_mem_pool *pool);

/* Handle faults until there is none; then vhost_task_fn() sleeps */
static bool rxe_mem_pool_work(void *arg)
{
	struct rxe_mem_thread *thread = arg;
	struct rxe_mem_pool *pool = thread->pool;
	struct rxe_mem_fault *fault = rxe_mem_pool_take(thread);
	bool last;

	if (!fault && !thread->left)
		return false;

	__set_current_state(TASK_RUNNING);
	if (!fault) {
		rxe_mem_pool_end_thread();
		return true;
	}

	spin_lock(&rxe_mem_lock);
	last = !rxe_mem_pool_idle(pool);
	spin_unlock(&rxe_mem_lock);
	if (last)
		rxe_mem_pool_start(pool); /* may fail */

	rxe_mem_fault_serve(fault);

	spin_lock(&rxe_mem_lock);
	thread->fault = NULL;
	spin_unlock(&rxe_mem_lock);
	rxe_mem_fault_put(fault);
	return true;
}

/* The thread is about to exit. If it has not left the pool, its process exits, too */
static void rxe_mem_pool_killed(void *arg)
{
	struct rxe_mem_thread *thread = arg;

	spin_lock(&rxe_mem_lock);
	if (!thread->left) {
		list_del(&thread->list);
		thread->pool->count--;
		rxe_mem_pool_close(thread->pool);
	}
	list_add(&thread->list, &rxe_mem_pool_ended);
	spin_unlock(&rxe_mem_lock);
	queue_work(system_unbound_wq, &rxe_mem_pool_stop_work);
}

static struct rxe_mem_thread *rxe_mem_pool_next_ended(void)
{
	struct rxe_mem_thread *thread;

	spin_lock(&rxe_mem_lock);
	thread = list_first_entry_or_null(&rxe_mem_pool_ended,
					  struct rxe_mem_thread, list);
	if (thread)
		list_del(&thread->list);
	spin_unlock(&rxe_mem_lock);
	return thread;
}

/* Stop threads that are about to exit. Then these threads run no code of this module */
static void rxe_mem_pool_stop_ended(struct work_struct *work)
{
	struct rxe_mem_thread *thread;

	while ((thread = rxe_mem_pool_next_ended())) {
		vhost_task_stop(thread->task);
		rxe_mem_fault_put_pool(thread->pool);
		kfree(thread);
		module_put(THIS_MODULE);
	}
}

/* The module is unloaded: no thread uses it, and the worker is about to return */
void rxe_mem_pool_exit(void)
{
	cancel_delayed_work_sync(&rxe_mem_pool_turn_work);
	flush_work(&rxe_mem_pool_stop_work);
}

/* Create a thread. Only a SIGKILL of the caller may interrupt this */
static struct vhost_task *rxe_mem_pool_create(struct rxe_mem_thread *thread)
{
	struct vhost_task *task;
	sigset_t all, before;

	siginitsetinv(&all, sigmask(SIGKILL));
	sigprocmask(SIG_BLOCK, &all, &before);
	task = vhost_task_create(rxe_mem_pool_work, rxe_mem_pool_killed, thread,
				 "rxe_odp");
	sigprocmask(SIG_SETMASK, &before, NULL);
	return task ?: ERR_PTR(-EAGAIN); /* some 6.12.y return NULL */
}

/*
 * Make a thread of the calling process, which must be the pool's process. Return:
 * -EAGAIN if the limits of the process or of the pool allow no more threads.
 */
static int rxe_mem_pool_start(struct rxe_mem_pool *pool)
{
	struct rxe_mem_thread *thread;
	struct vhost_task *task;
	bool room;

	thread = kzalloc(sizeof(*thread), GFP_KERNEL_ACCOUNT);
	if (!thread)
		return -ENOMEM;

	thread->pool = pool;
	spin_lock(&rxe_mem_lock);
	room = !pool->closed && pool->count < RXE_MEM_POOL_THREADS;
	pool->count += room;
	spin_unlock(&rxe_mem_lock);

	task = room ? rxe_mem_pool_create(thread) : ERR_PTR(-EAGAIN);
	if (IS_ERR(task)) {
		spin_lock(&rxe_mem_lock);
		pool->count -= room;
		spin_unlock(&rxe_mem_lock);
		kfree(thread);
		return PTR_ERR(task);
	}

	thread->task = task;
	kref_get(&pool->ref);
	__module_get(THIS_MODULE);
	spin_lock(&rxe_mem_lock);
	list_add(&thread->list, &pool->threads);
	spin_unlock(&rxe_mem_lock);
	vhost_task_start(task);
	return 0;
}

static struct rxe_mem_pool *rxe_mem_pool_new(void)
{
	struct rxe_mem_pool *pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);

	if (!pool)
		return NULL;

	kref_init(&pool->ref);
	mmgrab(current->mm);
	pool->mm = current->mm;
	pool->process = get_pid(task_tgid(current));
	mutex_init(&pool->start_lock);
	INIT_LIST_HEAD(&pool->threads);
	INIT_LIST_HEAD(&pool->faults);
	INIT_LIST_HEAD(&pool->kept);
	return pool;
}

/* The pool of the calling process. If there is none, @new becomes the pool */
static struct rxe_mem_pool *rxe_mem_pool_find(struct rxe_mem_pool *new)
{
	struct rxe_mem_pool *pool;

	spin_lock(&rxe_mem_lock);
	list_for_each_entry(pool, &rxe_mem_pools, list) {
		if (pool->mm == new->mm && pool->process == new->process) {
			kref_get(&pool->ref);
			goto out;
		}
	}
	pool = new;
	list_add(&pool->list, &rxe_mem_pools);
out:
	pool->mrs++;
	spin_unlock(&rxe_mem_lock);
	return pool;
}

/**
 * rxe_mem_pool_join - Get the pool of the calling process for a new MR
 *
 * At the end of the MR the caller has to call rxe_mem_pool_leave().
 *
 * Return: The pool, which has a thread; ERR_PTR(-EAGAIN) if the process can't have
 * another thread; or ERR_PTR(-ENOMEM).
 */
struct rxe_mem_pool *rxe_mem_pool_join(void)
{
	struct rxe_mem_pool *new = rxe_mem_pool_new();
	struct rxe_mem_pool *pool;
	bool wanted;
	int err = 0;

	if (!new)
		return ERR_PTR(-ENOMEM);
	pool = rxe_mem_pool_find(new);
	if (pool != new)
		rxe_mem_fault_put_pool(new);

	mutex_lock(&pool->start_lock);
	spin_lock(&rxe_mem_lock);
	wanted = !rxe_mem_pool_idle(pool);
	spin_unlock(&rxe_mem_lock);
	if (wanted)
		err = rxe_mem_pool_start(pool);
	/* One thread is enough, even if it is busy */
	if (READ_ONCE(pool->count))
		err = 0;
	mutex_unlock(&pool->start_lock);
	if (!err)
		return pool;

	rxe_mem_pool_leave(pool);
	return ERR_PTR(err);
}

/* An MR has ended. This function does not wait for threads */
void rxe_mem_pool_leave(struct rxe_mem_pool *pool)
{
	spin_lock(&rxe_mem_lock);
	if (!--pool->mrs)
		rxe_mem_pool_close(pool);
	spin_unlock(&rxe_mem_lock);
	rxe_mem_fault_put_pool(pool);
}
