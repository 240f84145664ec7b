// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The work on trackers that an MMU callback can't do itself.
 *
 * Each context has a worker with one list. The worker visits all trackers on the list. A
 * tracker that needs another visit stays on the list, and the delay before the next visit
 * doubles. Each device has a workqueue, so a device that does not answer delays only its own
 * MRs. The workqueue has a rescuer, because reclaim needs the worker to unpin pages.
 *
 * CPU TIME
 *
 * The CPU time of the worker is not charged to the process. So after a worker has compared
 * pages or scanned for idle trackers, all workers of the address space rest for REST times as
 * long. They use at most a hundredth of a CPU, however many events come. The time of revoking
 * and unpinning does not count, because pinning the pages was charged to the process.
 *
 * REFERENCES
 *
 * Before a task releases the lock and visits a tracker, it takes a reference.
 * umem_notify_end() disarms the tracker, and waits only for its mutex:
 *
 *   worker                                umem_notify_end()
 *   lock; takes n off the list;
 *   takes a reference; unlock
 *                                         mutex; lock; armed = false; unlock
 *   mutex: not armed, nothing to do
 *   back on the list: refused, not armed  frees the umem
 *   puts the reference: n leaves the
 *   tree and is freed
 *
 * So umem_notify_end() does not wait until a task with a reference has visited the tracker.
 * Such a wait could deadlock. An unmap may remove the last mapping of the device's file. Then
 * the release of the file is task_work of the same task, and runs before the tracker's task_work:
 *
 *   munmap of the range and of a page of the device
 *   UNMAP: n is task_work
 *   fput(): ib_uverbs_close() is task_work
 *   ib_uverbs_close(): ends n
 *   n's task_work: not armed; frees n
 */

#include <linux/jiffies.h>
#include <linux/timekeeping.h>

#include "umem_notify.h"

/* The delay before the next visit doubles this many times, to 2.56 s. */
#define MOST_DOUBLINGS 7
#define REST 100

/* @delay is in jiffies. If @delay is 0, the worker runs immediately, even during a rest. */
static void queue_wake(struct umem_notify_queue *q, unsigned long delay)
{
	unsigned long when = jiffies + delay;

	lockdep_assert_held(&q->space->lock);

	if (delay && time_before(when, q->space->rest))
		when = q->space->rest;
	if (q->waiting && !time_before(when, q->next))
		return;
	q->waiting = true;
	q->next = when;
	mod_delayed_work(q->device->mr_notify_wq, &q->worker, when - jiffies);
}

/**
 * umem_notify_queue_add - Let the worker visit a tracker
 * @n: The tracker, its space's lock held
 * @delay: The delay in jiffies, longer if the worker has to rest; 0: immediately
 */
void umem_notify_queue_add(struct ib_umem_notify *n, unsigned long delay)
{
	umem_notify_assert_locked(n);

	if (!n->armed || n->reserved)
		return;
	list_move_tail(&n->link, &n->queue->work);
	queue_wake(n->queue, delay);
}

/* Lets the worker visit a tracker again, after a longer delay each time. */
static void queue_again(struct ib_umem_notify *n)
{
	umem_notify_queue_add(n, UMEM_NOTIFY_LATER << n->queue->doublings);
}

/**
 * umem_notify_queue_retire - Retire a tracker; if that fails, the worker tries again
 * @n: The tracker, its mutex held
 */
void umem_notify_queue_retire(struct ib_umem_notify *n)
{
	if (!umem_notify_retire(n))
		return;
	guard(umem_notify)(n);
	queue_again(n);
}

/*
 * Compares the pages of a SUSPECT tracker, or suspends the tracker if it is idle and can be
 * restored. The event may have been MADV_FREE: if the word became 0 instead of SUSPENDED, the
 * kernel would not see the next use. Returns true if the worker has to try again.
 */
static bool queue_compare(struct ib_umem_notify *n, u64 *took)
{
	bool suspect, rests, again;
	u64 began;

	scoped_guard(umem_notify, n) {
		suspect = n->armed && n->state == SUSPECT &&
			!(umem_notify_can_restore(n) && umem_notify_suspend(n));
		rests = time_before(jiffies, umem_notify_mm(n)->rest);
	}
	if (!suspect || rests)
		return suspect;
	began = ktime_get_ns();
	again = umem_notify_verify(n, UMEM_NOTIFY_WORKER) == -EAGAIN;
	*took += ktime_get_ns() - began;
	return again;
}

/**
 * umem_notify_queue_visit - Retire a tracker now
 * @n: The tracker, of which the caller has a reference. Its space's lock is held, released, and
 *     taken again
 * @took: For the worker, which also compares the pages of a SUSPECT tracker: the time that this
 *     took is added, in nanoseconds. NULL for others
 *
 * If another task has the tracker's mutex, the worker tries again.
 *
 * Context: Process context. If @took is NULL and the device's revoke does not sleep: any but
 * interrupts.
 */
void umem_notify_queue_visit(struct ib_umem_notify *n, u64 *took)
{
	bool again = true;

	umem_notify_assert_locked(n);

	if (n->reserved)
		return; /* its task_work retires it, and uses @link */
	list_del_init(&n->link);
	umem_notify_unlock(n);
	if (mutex_trylock(&n->mutex)) {
		again = took && queue_compare(n, took);
		again |= umem_notify_retire(n);
		mutex_unlock(&n->mutex);
	}
	umem_notify_lock(n);
	if (again)
		queue_again(n);
}

static void queue_task_work(struct callback_head *work)
{
	struct ib_umem_notify *n = container_of(work, struct ib_umem_notify, task_work);

	scoped_guard(umem_notify, n) {
		n->reserved = false;
		INIT_LIST_HEAD(&n->link);
		umem_notify_queue_visit(n, NULL);
	}
	umem_notify_put(n);
}

/**
 * umem_notify_queue_current - Let this task retire a tracker before it returns to user mode
 * @n: The tracker, INVALID, its space's lock held
 *
 * Return: true if this task, or another task that has reserved the tracker, will retire it.
 */
bool umem_notify_queue_current(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (n->reserved || current->flags & (PF_KTHREAD | PF_USER_WORKER))
		return n->reserved;
	list_del_init(&n->link);
	init_task_work(&n->task_work, queue_task_work);
	n->reserved = !task_work_add(current, &n->task_work, TWA_RESUME);
	if (n->reserved)
		n->refs++;
	else
		INIT_LIST_HEAD(&n->link);
	return n->reserved;
}

/**
 * umem_notify_queue_set_idle - From now on suspend a tracker after its idle time
 * @n: The tracker, its idle time set, its space's lock held
 *
 * The worker scans all trackers of its queue, twice within their shortest idle time.
 */
void umem_notify_queue_set_idle(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;

	umem_notify_assert_locked(n);

	if (!n->idle || (q->idle && q->idle <= n->idle))
		return;
	q->idle = n->idle;
	q->scan_at = jiffies + max(q->idle / 2, 1U);
	queue_wake(q, max(q->idle / 2, 1U));
}

/*
 * Suspends the trackers whose idle time is over, and puts them on the list. Finds the
 * shortest idle time of all other trackers.
 */
static void queue_suspend_idle(struct umem_notify_queue *q)
{
	struct umem_notify_walk walk = { .last = ULONG_MAX, .sleeps = true };
	struct ib_umem_notify *n = NULL;

	lockdep_assert_held(&q->space->lock);

	q->idle = 0;
	while ((n = umem_notify_mm_next(q->space, &walk, n))) {
		if (n->queue != q || !n->idle || !n->word.page || n->state & (INVALID | SUSPENDED))
			continue;
		if (umem_notify_unused_for(n, n->idle) && umem_notify_suspend(n))
			list_move_tail(&n->link, &q->work);
		else
			q->idle = min_not_zero(q->idle, n->idle);
	}
	q->scan_at = jiffies + max(q->idle / 2, 1U);
}

/* The worker of a queue */
void umem_notify_queue_work(struct work_struct *work)
{
	struct umem_notify_queue *q = container_of(work, struct umem_notify_queue, worker.work);
	struct umem_notify_mm *space = q->space;
	u64 took = 0, began = ktime_get_ns();
	struct ib_umem_notify *n;
	LIST_HEAD(todo);

	spin_lock(&space->lock);
	if (q->idle && time_after_eq(jiffies, space->rest) && time_after_eq(jiffies, q->scan_at)) {
		queue_suspend_idle(q);
		took = ktime_get_ns() - began;
	}
	q->waiting = false;
	list_splice_init(&q->work, &todo);
	while (!list_empty(&todo)) {
		n = list_first_entry(&todo, struct ib_umem_notify, link);
		n->refs++;
		umem_notify_queue_visit(n, &took);
		umem_notify_unref(n);
		cond_resched_lock(&space->lock);
	}
	if (time_before(space->rest, jiffies))
		space->rest = jiffies;
	space->rest += nsecs_to_jiffies(took * REST);
	q->doublings = list_empty(&q->work) ? 0 : min(q->doublings + 1, MOST_DOUBLINGS);
	if (q->idle)
		queue_wake(q, max_t(long, q->scan_at - jiffies, 1));
	spin_unlock(&space->lock);
}

/**
 * ib_mr_notify_close - A context is closed, and has no MR any more
 * @context: The context
 */
void ib_mr_notify_close(struct ib_ucontext *context)
{
	struct umem_notify_queue *q = context->notify;

	if (!q)
		return;
	cancel_delayed_work_sync(&q->worker); /* the worker uses the device */
	umem_notify_queue_put(q);
}
EXPORT_SYMBOL(ib_mr_notify_close);
