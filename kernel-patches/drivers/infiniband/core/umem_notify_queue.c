// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Work on trackers that an MMU callback leaves to others.
 *
 * Each device of an address space has a worker with one list. The worker visits all
 * trackers on the list; those that have to be tried again stay there, and the delay
 * before the next visit doubles. Each device has a workqueue: no other device waits
 * behind one that does not answer. The workqueue has a rescuer, because pages that
 * reclaim wants come back through it.
 *
 * TIME
 *
 * The worker does not belong to the process whose trackers it looks at. Once it has
 * compared pages, or looked for idle trackers, it rests for REST times as long. So it
 * costs other processes a hundredth of a CPU at most, whatever events come. Revoking and
 * unpinning do not count: the process has pinned the pages before.
 *
 * LIFE
 *
 * The end of a tracker takes it off its list, forbids that it comes back, and waits for
 * the tasks that have it:
 *
 *   worker                                umem_notify_queue_forget()
 *   lock; takes n off the list;
 *   workers = 1; unlock
 *                                         lock; dead = true; unlock
 *   n goes on a list again: refused,      waits for workers == 0
 *   it is dead
 *   lock; workers = 0; wakes; unlock
 *   [does not touch n again]
 *                                         frees n
 *
 * The wake-up goes by the address of n alone.
 */

#include <linux/jiffies.h>
#include <linux/timekeeping.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>
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

	queue_wake_at(q, time_before(when, q->rest) ? q->rest : when);
}

static bool queue_add(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (n->dead || n->own)
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

/**
 * umem_notify_queue_again - The worker tries again, less and less often
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_again(struct ib_umem_notify *n)
{
	if (queue_add(n))
		queue_wake_after(n->queue, SETTLE_DELAY << n->queue->doublings);
}

/**
 * umem_notify_queue_take - The caller has a tracker: its end waits
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_take(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (!n->own)
		list_del_init(&n->link);
	n->workers++;
}

/**
 * umem_notify_queue_leave - The caller does not touch a tracker again
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_leave(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (!--n->workers && n->dead)
		wake_up_var(n);
}

/**
 * umem_notify_queue_retire - Retire a tracker, or leave that to the worker
 * @n: The tracker, taken
 */
void umem_notify_queue_retire(struct ib_umem_notify *n)
{
	bool again = true;

	if (mutex_trylock(&n->mutex)) {
		again = umem_notify_retire(n);
		mutex_unlock(&n->mutex);
	}
	if (!again)
		return;
	umem_notify_lock(n);
	umem_notify_queue_again(n);
	umem_notify_unlock(n);
}

static void queue_drop(struct umem_notify_queue *q)
{
	struct umem_notify_space *space = q->space;
	bool last;

	spin_lock(&space->lock);
	last = !--q->refs;
	spin_unlock(&space->lock);
	if (!last)
		return;
	kfree(q);
	umem_notify_space_put(space);
}

/**
 * umem_notify_queue_come - Retire a tracker that is the caller's own
 * @n: The tracker, @own; may be freed
 *
 * Nobody waits for a task that has not come to its own trackers yet: if a tracker has
 * ended meanwhile, the task frees it. For an unmap can take the last mapping of the
 * device's file, whose release is work of the same task and comes first:
 *
 *   munmap of the range and of a page of the device
 *   UNMAP: n is task_work
 *   fput(): ib_uverbs_close() is task_work
 *   ib_uverbs_close(): waits for who has n    [for itself]
 *
 * Context: Any but interrupts.
 */
void umem_notify_queue_come(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;
	bool left, dead;

	umem_notify_lock(n);
	n->own = false;
	INIT_LIST_HEAD(&n->link);
	left = n->left;
	dead = n->dead;
	if (!dead)
		n->workers++;
	umem_notify_unlock(n);
	if (left) {
		kfree(n);
		queue_drop(q);
	}
	if (dead)
		return;
	umem_notify_queue_retire(n);
	umem_notify_lock(n);
	umem_notify_queue_leave(n);
	umem_notify_unlock(n);
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
	umem_notify_assert_locked(n);

	list_del_init(&n->link);
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
	if (n->dead || current->flags & (PF_KTHREAD | PF_USER_WORKER))
		return false;
	umem_notify_queue_own(n);
	init_task_work(&n->task_work, queue_task_work);
	if (!task_work_add(current, &n->task_work, TWA_RESUME))
		return true;
	n->own = false;
	INIT_LIST_HEAD(&n->link);
	return false;
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
	if (umem_notify_state(n) == SUSPECT && !queue_suspends(n)) {
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
		umem_notify_queue_take(n);
		spin_unlock(&q->space->lock);

		again = queue_visit(n, rests, took);
		cond_resched();

		spin_lock(&q->space->lock);
		if (again)
			queue_add(n);
		umem_notify_queue_leave(n);
	}
}

static void umem_notify_queue_work(struct work_struct *work)
{
	struct umem_notify_queue *q =
		container_of(work, struct umem_notify_queue, worker.work);
	bool rests = time_before(jiffies, q->rest);
	u64 began = ktime_get_ns(), took = 0;
	LIST_HEAD(todo);

	spin_lock(&q->space->lock);
	q->waiting = false;
	if (q->idle && !rests && !time_before(jiffies, q->look)) {
		queue_look(q);
		took = ktime_get_ns() - began;
	}
	list_splice_init(&q->work, &todo);
	queue_visit_all(q, &todo, rests, &took);
	if (!rests)
		q->rest = jiffies + nsecs_to_jiffies(took * REST);
	if (list_empty(&q->work)) {
		q->doublings = 0;
	} else {
		queue_wake_after(q, SETTLE_DELAY << q->doublings);
		q->doublings = min(q->doublings + 1, MOST_DOUBLINGS);
	}
	if (q->idle)
		queue_wake_at(q, time_before(q->look, q->rest) ? q->rest : q->look);
	spin_unlock(&q->space->lock);
}

static bool queue_has_worker(struct ib_umem_notify *n)
{
	bool has;

	umem_notify_lock(n);
	has = n->workers;
	umem_notify_unlock(n);
	return has;
}

/**
 * umem_notify_queue_forget - No task comes to a tracker any more
 * @n: The tracker, its space's lock held; not while the tasks that have it are waited for
 *
 * A tracker that is @dead is never idle, and goes on no list. It may be taken before that,
 * so the count is read again under the lock:
 *
 *   the end                               another task
 *                                         lock; takes n; unlock
 *   lock; dead = true; unlock
 *   workers is 1: waits
 *                                         lock; workers = 0; unlock
 *   lock; workers is 0: ends it
 *
 * Context: Process context.
 */
void umem_notify_queue_forget(struct ib_umem_notify *n)
{
	n->dead = true;
	if (!n->own)
		list_del_init(&n->link);
	while (n->workers) {
		umem_notify_unlock(n);
		wait_var_event(n, !queue_has_worker(n));
		umem_notify_lock(n);
	}
}

static struct umem_notify_queue *queue_find(struct umem_notify_space *space,
					    const struct ib_device *device)
{
	struct umem_notify_queue *q;

	lockdep_assert_held(&space->lock);

	list_for_each_entry(q, &space->queues, siblings)
		if (q->device == device) {
			q->users++;
			return q;
		}
	return NULL;
}

/**
 * umem_notify_queue_get - The queue of an address space and a device
 * @space: The address space; the caller's reference goes with the queue, or is given back
 * @device: The device
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The queue, to be given to umem_notify_queue_put(), or ERR_PTR(-ENOMEM).
 */
struct umem_notify_queue *umem_notify_queue_get(struct umem_notify_space *space,
						struct ib_device *device)
{
	struct umem_notify_queue *q, *other;

	spin_lock(&space->lock);
	other = queue_find(space, device);
	spin_unlock(&space->lock);
	if (other) {
		umem_notify_space_put(space);
		return other;
	}

	q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);
	if (!q) {
		umem_notify_space_put(space);
		return ERR_PTR(-ENOMEM);
	}
	q->space = space;
	q->device = device;
	q->users = 1;
	q->refs = 1;
	q->rest = jiffies;
	INIT_LIST_HEAD(&q->work);
	INIT_DELAYED_WORK(&q->worker, umem_notify_queue_work);

	spin_lock(&space->lock);
	other = queue_find(space, device);
	if (!other)
		list_add(&q->siblings, &space->queues);
	spin_unlock(&space->lock);
	if (!other)
		return q;
	kfree(q);
	umem_notify_space_put(space);
	return other;
}

/**
 * umem_notify_queue_put - A tracker of the queue has ended
 * @q: The queue
 *
 * Context: Process context; waits for the worker, which has no tracker left.
 */
void umem_notify_queue_put(struct umem_notify_queue *q)
{
	struct umem_notify_space *space = q->space;
	bool last;

	spin_lock(&space->lock);
	last = !--q->users;
	if (last)
		list_del(&q->siblings);
	spin_unlock(&space->lock);
	if (!last)
		return;
	cancel_delayed_work_sync(&q->worker); /* before the device and its workqueue go */
	queue_drop(q);
}
