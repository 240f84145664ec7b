// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Work on trackers that an MMU callback leaves to others.
 *
 * Each context has a worker with one list. The worker visits all trackers on the list;
 * those that have to be tried again stay there, and the delay before the next visit
 * doubles. Each device has a workqueue, so a device that does not answer delays no other
 * one. The workqueue has a rescuer, because pages that reclaim wants come back through it.
 *
 * TIME
 *
 * The worker does not belong to the process whose trackers it looks at. Once it has
 * compared pages, or looked for idle trackers, all workers of the address space rest for
 * REST times as long. So they cost other processes a hundredth of a CPU at most, whatever
 * events come. Revoking and unpinning do not count: the process has pinned the pages before.
 *
 * LIFE
 *
 * A task that comes to a tracker without a lock has a reference. The end of the tracker
 * waits for its mutex only, and disarms it:
 *
 *   worker                                umem_notify_end()
 *   lock; takes n off the list;
 *   a reference; unlock
 *                                         mutex; lock; armed = false; unlock
 *   mutex: not armed, nothing to do
 *   a list again: refused, not armed      frees the umem
 *   puts the reference: frees n
 *
 * So nobody waits for a task that has not come to its own trackers yet. For an unmap can
 * take the last mapping of the device's file, whose release is work of the same task and
 * comes first:
 *
 *   munmap of the range and of a page of the device
 *   UNMAP: n is task_work
 *   fput(): ib_uverbs_close() is task_work
 *   ib_uverbs_close(): ends n
 *   n's task_work: not armed; frees n
 */

#include <linux/jiffies.h>
#include <linux/timekeeping.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "umem_notify_tracker.h"

/*
 * How long a registration is left alone after an event: events come in bursts,
 * and an application that is about to use or to deregister it settles sooner.
 */
#define SETTLE_DELAY max(HZ / 50, 1)
/* The delay before trackers are tried again doubles so often: to some seconds. */
#define MOST_DOUBLINGS 7
#define REST 100

static void queue_wake_at(struct umem_notify_queue *q, unsigned long when)
{
	long delay = when - jiffies;

	lockdep_assert_held(&q->space->lock);

	if (q->waiting && !time_before(when, q->next))
		return;
	q->waiting = true;
	q->next = when;
	mod_delayed_work(q->device->mr_notify_wq, &q->worker, max(delay, 0L));
}

static void queue_wake_after(struct umem_notify_queue *q, unsigned long delay)
{
	unsigned long when = jiffies + delay;

	queue_wake_at(q, time_before(when, q->space->rest) ? q->space->rest : when);
}

static bool queue_add(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (!n->armed || n->own)
		return false;
	list_move_tail(&n->link, &n->queue->work);
	return true;
}

/**
 * umem_notify_queue_now - The worker visits a tracker at once
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_now(struct ib_umem_notify *n)
{
	if (queue_add(n))
		queue_wake_at(n->queue, jiffies);
}

/**
 * umem_notify_queue_later - The worker visits a tracker after a while
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_later(struct ib_umem_notify *n)
{
	if (queue_add(n))
		queue_wake_after(n->queue, SETTLE_DELAY);
}

/* The worker tries again, less and less often. */
static void queue_again(struct ib_umem_notify *n)
{
	if (queue_add(n))
		queue_wake_after(n->queue, SETTLE_DELAY << n->queue->doublings);
}

/* The caller comes to a tracker, however soon that ends. */
static void queue_take(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (!n->own)
		list_del_init(&n->link);
	n->refs++;
}

/**
 * umem_notify_queue_leave - The caller does not touch a tracker again
 * @n: The tracker; may be freed
 *
 * Context: Any but interrupts.
 */
void umem_notify_queue_leave(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;
	bool last;

	umem_notify_lock(n);
	last = !--n->refs;
	umem_notify_unlock(n);
	if (!last)
		return;
	kfree(n);
	umem_notify_queue_put(q);
}

/**
 * umem_notify_queue_retire - Retire a tracker, or leave that to the worker
 * @n: The tracker, its mutex held
 */
void umem_notify_queue_retire(struct ib_umem_notify *n)
{
	if (!umem_notify_retire(n))
		return;
	umem_notify_lock(n);
	queue_again(n);
	umem_notify_unlock(n);
}

/**
 * umem_notify_queue_come - Retire a tracker that is the caller's own
 * @n: The tracker, @own; may be freed
 *
 * Context: Any but interrupts.
 */
void umem_notify_queue_come(struct ib_umem_notify *n)
{
	bool has = mutex_trylock(&n->mutex);

	umem_notify_lock(n);
	n->own = false;
	INIT_LIST_HEAD(&n->link);
	if (!has)
		queue_again(n);
	umem_notify_unlock(n);
	if (has) {
		umem_notify_queue_retire(n);
		mutex_unlock(&n->mutex);
	}
	umem_notify_queue_leave(n);
}

static void queue_task_work(struct callback_head *work)
{
	umem_notify_queue_come(container_of(work, struct ib_umem_notify, task_work));
}

/**
 * umem_notify_queue_own - A tracker is the caller's own
 * @n: The tracker, its space's lock held, not @own yet
 *
 * Its @link is the caller's, who calls umem_notify_queue_come().
 */
void umem_notify_queue_own(struct ib_umem_notify *n)
{
	queue_take(n);
	n->own = true;
}

/**
 * umem_notify_queue_current - The current task retires a tracker before it returns to user mode
 * @n: The tracker, its space's lock held
 *
 * Return: Whether it will, or another one that has the tracker for its own.
 */
bool umem_notify_queue_current(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (n->own)
		return true;
	if (current->flags & (PF_KTHREAD | PF_USER_WORKER))
		return false;
	list_del_init(&n->link);
	init_task_work(&n->task_work, queue_task_work);
	if (task_work_add(current, &n->task_work, TWA_RESUME)) {
		INIT_LIST_HEAD(&n->link);
		return false;
	}
	n->refs++;
	n->own = true;
	return true;
}

/**
 * umem_notify_queue_time - From now on a tracker is suspended once it has been idle
 * @n: The tracker, its idle time set, its space's lock held
 *
 * The worker looks at all of its queue, twice in the shortest idle time of them.
 */
void umem_notify_queue_time(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;
	unsigned long idle = umem_notify_idle_time(n);

	umem_notify_assert_locked(n);

	if (!idle || (q->idle && q->idle <= idle))
		return;
	q->idle = idle;
	q->look = jiffies + max(idle / 2, 1UL);
	queue_wake_at(q, q->look);
}

/*
 * Suspends the trackers that have been idle for long enough, and puts them on the list.
 * Finds the shortest idle time of the others.
 */
static void queue_look(struct umem_notify_queue *q)
{
	struct umem_notify_walk walk = { .last = ULONG_MAX, .sleeps = true };
	struct ib_umem_notify *n = NULL;
	unsigned long idle;

	lockdep_assert_held(&q->space->lock);

	q->idle = 0;
	while ((n = umem_notify_space_next(q->space, &walk, n))) {
		idle = n->queue == q ? umem_notify_idle_time(n) : 0;
		if (idle && !umem_notify_was_used(n) && umem_notify_unused_for(n) >= idle &&
		    umem_notify_suspend(n))
			queue_add(n);
		else if (idle && (!q->idle || idle < q->idle))
			q->idle = idle;
	}
	q->look = jiffies + max(q->idle / 2, 1UL);
}

/*
 * An idle registration that an event hit is suspended, not compared: the event may have
 * been MADV_FREE, and nothing tells of a use from then on. One that can't be restored is
 * compared like one that is in use.
 */
static bool queue_suspends(struct ib_umem_notify *n)
{
	bool suspends;

	umem_notify_lock(n);
	suspends = n->state == SUSPECT && umem_notify_can_restore(n) && umem_notify_suspend(n);
	umem_notify_unlock(n);
	return suspends;
}

/* Adds the time of a comparison to @took. Returns whether the worker has to come back. */
static bool queue_visit(struct ib_umem_notify *n, bool rests, u64 *took)
{
	bool again = false;
	u64 began;

	if (!mutex_trylock(&n->mutex))
		return true;
	if (n->armed && umem_notify_state(n) == SUSPECT && !queue_suspends(n)) {
		began = ktime_get_ns();
		again = rests || umem_notify_verify(n, UMEM_NOTIFY_WORKER) == -EAGAIN;
		*took += ktime_get_ns() - began;
	}
	again |= umem_notify_retire(n);
	mutex_unlock(&n->mutex);
	return again;
}

/* Visits all trackers of a list. Those to be tried again go back to that of the queue. */
static void queue_visit_all(struct umem_notify_queue *q, struct list_head *todo, bool rests,
			    u64 *took)
{
	struct ib_umem_notify *n;
	bool again;

	while (!list_empty(todo)) {
		n = list_first_entry(todo, struct ib_umem_notify, link);
		queue_take(n);
		spin_unlock(&q->space->lock);

		again = queue_visit(n, rests, took);
		cond_resched();

		spin_lock(&q->space->lock);
		if (again)
			queue_add(n);
		spin_unlock(&q->space->lock);
		umem_notify_queue_leave(n);
		spin_lock(&q->space->lock);
	}
}

static void umem_notify_queue_work(struct work_struct *work)
{
	struct umem_notify_queue *q =
		container_of(work, struct umem_notify_queue, worker.work);
	struct umem_notify_space *space = q->space;
	u64 began = ktime_get_ns(), took = 0;
	LIST_HEAD(todo);
	bool rests;

	spin_lock(&space->lock);
	rests = time_before(jiffies, space->rest);
	q->waiting = false;
	if (q->idle && !rests && !time_before(jiffies, q->look)) {
		queue_look(q);
		took = ktime_get_ns() - began;
	}
	list_splice_init(&q->work, &todo);
	queue_visit_all(q, &todo, rests, &took);
	if (!rests)
		space->rest = (time_before(jiffies, space->rest) ? space->rest : jiffies) +
			      nsecs_to_jiffies(took * REST);
	if (list_empty(&q->work)) {
		q->doublings = 0;
	} else {
		queue_wake_after(q, SETTLE_DELAY << q->doublings);
		q->doublings = min(q->doublings + 1, MOST_DOUBLINGS);
	}
	if (q->idle)
		queue_wake_at(q, time_before(q->look, space->rest) ? space->rest : q->look);
	spin_unlock(&space->lock);
}

static struct umem_notify_queue *queue_create(struct ib_device *device,
					      const struct mmu_notifier_ops *ops)
{
	struct umem_notify_queue *q;
	int ret;

	ret = umem_notify_device_get(device);
	if (ret)
		return ERR_PTR(ret);
	q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);
	if (!q)
		return ERR_PTR(-ENOMEM);
	q->space = umem_notify_space_get(ops);
	if (IS_ERR(q->space)) {
		ret = PTR_ERR(q->space);
		kfree(q);
		return ERR_PTR(ret);
	}
	q->device = device;
	refcount_set(&q->refs, 1);
	INIT_LIST_HEAD(&q->work);
	INIT_DELAYED_WORK(&q->worker, umem_notify_queue_work);
	return q;
}

/**
 * umem_notify_queue_get - The queue for a registration of the current process
 * @context: The context that registers
 * @ops: The callbacks of the MMU notifier of an address space
 *
 * Of two threads that are the first one gets a queue of its own.
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The queue, to be given to umem_notify_queue_put(), or ERR_PTR(-ENOMEM).
 */
struct umem_notify_queue *umem_notify_queue_get(struct ib_ucontext *context,
						const struct mmu_notifier_ops *ops)
{
	struct umem_notify_queue *q = READ_ONCE(context->notify);

	if (!q || q->space->mn.mm != current->mm) {
		q = queue_create(context->device, ops);
		if (IS_ERR(q))
			return q;
		q->single = cmpxchg(&context->notify, NULL, q);
		if (q->single)
			return q;
	}
	refcount_inc(&q->refs);
	return q;
}

/**
 * umem_notify_queue_put - A tracker of the queue is freed, or its context is closed
 * @q: The queue
 *
 * Context: Any but interrupts.
 */
void umem_notify_queue_put(struct umem_notify_queue *q)
{
	if (!refcount_dec_and_test(&q->refs))
		return;
	umem_notify_space_put(q->space);
	kfree(q);
}

/**
 * umem_notify_queue_stop - All trackers of a queue have ended
 * @q: The queue
 *
 * Context: Process context; waits for the worker, which uses the device and its workqueue.
 */
void umem_notify_queue_stop(struct umem_notify_queue *q)
{
	cancel_delayed_work_sync(&q->worker);
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
	umem_notify_queue_stop(q);
	umem_notify_queue_put(q);
}
