// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The workers that come back to a tracker when an MMU callback, which must not
 * wait, has left something to do.
 *
 * An unmap may call 10,000 callbacks in a row. To start a work item for each
 * costs more than the unmap itself, so a callback puts its tracker on a list, and
 * one work empties it: at the end of the event, when the page tables have
 * changed. A tracker whose word counts its users is left alone for a while first, as
 * a user that finds INVALID deregisters; one that is not in use loses its pages at once.
 *
 * There is a queue for each device of an address space, on a workqueue of that
 * device: neither another process nor another device waits behind a device that does
 * not answer. Each queue has two works:
 *
 *  revoker  takes pages from the device and gives them back; waits for the device.
 *  looker   finds out whether a SUSPECT range is the same; waits for nothing.
 *
 * The workqueue has a rescuer, because pages that reclaim wants come back through it.
 *
 * IDLE TIME
 *
 * Registrations of a cache are looked at again after a while; those that have not been
 * used for that long are suspended, so that idle ones are not pinned for ever. All of a
 * queue have the same time, and are looked at in batches. Nothing is done for those that
 * are suspended.
 *
 * There is a list for each delay: the lists are in order, and the revoker looks
 * at their heads only. The lists are under the lock of the space.
 *
 * LIFE
 *
 * The end of a tracker takes it off its list, forbids that it comes back, and
 * waits for the worker that has it:
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
#include <linux/slab.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

#include "umem_notify_tracker.h"

/*
 * How long a registration is left alone after an event: events come in bursts,
 * and an application that is about to use or to deregister it settles sooner.
 * The first event's time counts: others don't push it out.
 */
#define SETTLE_DELAY max(HZ / 50, 1)
/*
 * How long a registration without a count of users is left alone after an event that ended
 * it: the event's caller goes on, as an unmap frees pages.
 */
#define UNMAP_DELAY max(HZ / 100, 2)
/* The idle time: a shorter one would keep a worker busy for nothing */
#define LEAST_IDLE_MS 20
#define MOST_IDLE_MS (1000 * MSEC_PER_SEC)

static void umem_notify_queue_wake_at(struct umem_notify_queue *q, unsigned long when)
{
	long delay = when - jiffies;

	lockdep_assert_held(&q->space->lock);

	if (q->waiting && !time_before(when, q->wake))
		return;
	q->waiting = true;
	q->wake = when;
	mod_delayed_work(q->device->mr_notify_wq, &q->revoker, max(delay, 0L));
}

/* On a list, also from the looker's. Or else only if it comes sooner so. */
static bool umem_notify_queue_put_on(struct ib_umem_notify *n, unsigned int list,
				     unsigned long delay, bool anyhow)
{
	unsigned long due = jiffies + delay;

	umem_notify_assert_locked(n);

	if (n->dead || (!anyhow && !list_empty(&n->link) &&
			(s32)((u32)due - n->due) >= 0))
		return false;
	n->due = due;
	if (!list)
		umem_notify_due_add(n);
	list_move_tail(&n->link, &n->queue->delayed[list]);
	return true;
}

static void umem_notify_queue_after(struct ib_umem_notify *n, unsigned int list,
				    unsigned long delay)
{
	if (umem_notify_queue_put_on(n, list, delay, false))
		umem_notify_queue_wake_at(n->queue, jiffies + delay);
}

/**
 * umem_notify_queue_now - The device has to lose the pages of a tracker
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_now(struct ib_umem_notify *n)
{
	if (umem_notify_queue_put_on(n, 0, 0, true))
		umem_notify_queue_wake_at(n->queue, jiffies);
}

/**
 * umem_notify_queue_invalid - A tracker has become INVALID, which its word has heard
 * @n: The tracker, its space's lock held
 *
 * Its users give it back. If there are none the device loses it when the event has ended, or
 * some milliseconds later if no count of users says so: before, the worker would only take
 * cache lines, or the CPU, from an unmap.
 * When the driver is done with an MR that is held the worker comes anyway.
 */
void umem_notify_queue_invalid(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;

	if (n->held)
		return;
	if (n->in_use &&
	    umem_notify_word_read(n->word_page, n->word) & n->in_use) {
		umem_notify_queue_after(n, 1, SETTLE_DELAY);
	} else if (umem_notify_queue_put_on(n, 0, 0, true)) {
		q->unmapped = true;
		q->space->unmapped = true;
		/* if there is no event, or a long one */
		umem_notify_queue_wake_at(q, jiffies + SETTLE_DELAY);
	}
}

/**
 * umem_notify_queue_unmapped - An event has ended
 * @space: Its address space
 */
void umem_notify_queue_unmapped(struct umem_notify_space *space)
{
	struct umem_notify_queue *q;

	if (!READ_ONCE(space->unmapped))
		return;
	spin_lock(&space->lock);
	space->unmapped = false;
	list_for_each_entry(q, &space->queues, siblings) {
		if (q->unmapped)
			umem_notify_queue_wake_at(q, jiffies + (space->due ? 0 : UNMAP_DELAY));
		q->unmapped = false;
	}
	spin_unlock(&space->lock);
}

/**
 * umem_notify_queue_later - Something happened; see to it after a while
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_later(struct ib_umem_notify *n)
{
	n->doublings = 0;
	umem_notify_queue_after(n, 1, SETTLE_DELAY);
}

/**
 * umem_notify_queue_again - Try again later, less and less often
 * @n: The tracker
 */
void umem_notify_queue_again(struct ib_umem_notify *n)
{
	umem_notify_lock(n);
	umem_notify_queue_after(n, n->doublings + 1, SETTLE_DELAY << n->doublings);
	n->doublings = min(n->doublings + 1, UMEM_NOTIFY_MOST_DOUBLINGS);
	umem_notify_unlock(n);
}

/**
 * umem_notify_queue_idle - See after a while whether a tracker is used
 * @n: The tracker, its space's lock held
 */
void umem_notify_queue_idle(struct ib_umem_notify *n)
{
	unsigned long idle = n->queue->idle, batch = max(idle / 4, 1UL);
	unsigned long due = roundup(jiffies + idle, batch);

	umem_notify_assert_locked(n);

	if (n->timed && list_empty(&n->link) && !(n->state & (INVALID | SUSPENDED)))
		umem_notify_queue_after(n, UMEM_NOTIFY_IDLE_LIST, due - jiffies);
}

/**
 * umem_notify_queue_time - From now on a tracker is suspended once it has been idle
 * @n: The tracker, its space's lock held
 * @idle_ms: For so long; those of the same queue, too
 */
void umem_notify_queue_time(struct ib_umem_notify *n, u32 idle_ms)
{
	WRITE_ONCE(n->queue->idle, msecs_to_jiffies(clamp_t(u32, idle_ms, LEAST_IDLE_MS,
							    MOST_IDLE_MS)));
	n->timed = true;
	umem_notify_queue_idle(n);
}

/* The first whose time has come. If there is none, the revoker comes again for it. */
static struct ib_umem_notify *umem_notify_queue_first_due(struct umem_notify_queue *q)
{
	const unsigned long longest = q->idle + max(q->idle / 4, 1UL);
	struct ib_umem_notify *n;
	unsigned int i;
	s32 left;

	lockdep_assert_held(&q->space->lock);

	for (i = 0; i < ARRAY_SIZE(q->delayed); i++) {
		n = list_first_entry_or_null(&q->delayed[i],
					     struct ib_umem_notify, link);
		if (!n)
			continue;
		left = n->due - (u32)jiffies;
		/* of a longer idle time, before others of this one */
		if (left <= 0 || (i == UMEM_NOTIFY_IDLE_LIST && left > (s32)longest))
			return n;
		umem_notify_queue_wake_at(q, jiffies + left);
	}
	return NULL;
}

/* A worker's work on a tracker. Returns whether one has to come back. */
static bool umem_notify_queue_visit(struct ib_umem_notify *n)
{
	bool again;

	if (!mutex_trylock(&n->mutex))
		return true;
	again = umem_notify_verify(n, UMEM_NOTIFY_WORKER) == -EAGAIN;
	umem_notify_look_idle(n, READ_ONCE(n->queue->idle));
	again |= umem_notify_retire(n);
	mutex_unlock(&n->mutex);
	return again;
}

static void umem_notify_queue_serve(struct umem_notify_queue *q, struct ib_umem_notify *n)
{
	bool due = umem_notify_due_take(n);

	lockdep_assert_held(&q->space->lock);

	list_del_init(&n->link);
	n->workers++;
	spin_unlock(&q->space->lock);

	if (umem_notify_queue_visit(n))
		umem_notify_queue_again(n);
	cond_resched();

	spin_lock(&q->space->lock);
	umem_notify_queue_idle(n);
	if (!--n->workers && n->dead)
		wake_up_var(&n->workers);
	if (due)
		umem_notify_due_end(q->space);
}

static void umem_notify_revoker(struct work_struct *work)
{
	struct umem_notify_queue *q =
		container_of(work, struct umem_notify_queue, revoker.work);
	struct ib_umem_notify *n;

	spin_lock(&q->space->lock);
	q->waiting = false;
	while ((n = umem_notify_queue_first_due(q))) {
		if (READ_ONCE(n->state) == SUSPECT) {
			list_move_tail(&n->link, &q->look);
			queue_work(q->device->mr_notify_wq, &q->looker);
			cond_resched_lock(&q->space->lock);
		} else {
			umem_notify_queue_serve(q, n);
		}
	}
	spin_unlock(&q->space->lock);
}

static void umem_notify_looker(struct work_struct *work)
{
	struct umem_notify_queue *q =
		container_of(work, struct umem_notify_queue, looker);

	spin_lock(&q->space->lock);
	while (!list_empty(&q->look))
		umem_notify_queue_serve(q, list_first_entry(&q->look, struct ib_umem_notify, link));
	spin_unlock(&q->space->lock);
}

static bool umem_notify_queue_has_worker(struct ib_umem_notify *n)
{
	bool has;

	umem_notify_lock(n);
	has = n->workers;
	umem_notify_unlock(n);
	return has;
}

/**
 * umem_notify_queue_forget - No worker comes to a tracker any more
 * @n: The tracker, its space's lock held; not while a worker that has it is waited for
 *
 * Context: Process context.
 */
void umem_notify_queue_forget(struct ib_umem_notify *n)
{
	n->dead = true;
	list_del_init(&n->link);
	if (umem_notify_due_take(n))
		umem_notify_due_end(umem_notify_space(n));
	if (!n->workers)
		return;
	umem_notify_unlock(n);
	wait_var_event(&n->workers, !umem_notify_queue_has_worker(n));
	umem_notify_lock(n);
}

static struct umem_notify_queue *umem_notify_queue_alloc(struct umem_notify_space *space,
							 struct ib_device *device)
{
	struct umem_notify_queue *q;
	unsigned int i;

	q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);
	if (!q)
		return NULL;
	q->space = space;
	q->device = device;
	q->users = 1;
	for (i = 0; i < ARRAY_SIZE(q->delayed); i++)
		INIT_LIST_HEAD(&q->delayed[i]);
	INIT_LIST_HEAD(&q->look);
	INIT_DELAYED_WORK(&q->revoker, umem_notify_revoker);
	INIT_WORK(&q->looker, umem_notify_looker);
	return q;
}

static struct umem_notify_queue *umem_notify_queue_find(struct umem_notify_space *space,
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

/* The caller's reference of the space goes with the queue, or is given back. */
static struct umem_notify_queue *umem_notify_queue_of(struct umem_notify_space *space,
						      struct ib_device *device)
{
	struct umem_notify_queue *q, *other;

	spin_lock(&space->lock);
	q = umem_notify_queue_find(space, device);
	spin_unlock(&space->lock);
	if (q)
		goto put_space;

	q = umem_notify_queue_alloc(space, device);
	if (!q) {
		q = ERR_PTR(-ENOMEM);
		goto put_space;
	}
	spin_lock(&space->lock);
	other = umem_notify_queue_find(space, device);
	if (!other)
		list_add(&q->siblings, &space->queues);
	spin_unlock(&space->lock);
	if (!other)
		return q;
	kfree(q);
	q = other;
put_space:
	umem_notify_space_put(space);
	return q;
}

/**
 * umem_notify_queue_get - The queue of the current process and a device
 * @device: The device
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The queue, to be given to umem_notify_queue_put(); ERR_PTR(): -ENOMEM,
 * -EINTR for a fatal signal.
 */
struct umem_notify_queue *umem_notify_queue_get(struct ib_device *device)
{
	struct umem_notify_space *space;
	int ret;

	ret = umem_notify_device_get(device);
	if (ret)
		return ERR_PTR(ret);
	space = umem_notify_space_get();
	if (IS_ERR(space))
		return ERR_CAST(space);
	return umem_notify_queue_of(space, device);
}

/**
 * umem_notify_queue_put - A tracker of the queue has ended
 * @q: The queue
 *
 * Context: Process context; waits for the works, which have no tracker left.
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
	cancel_delayed_work_sync(&q->revoker);
	cancel_work_sync(&q->looker);
	kfree(q);
	umem_notify_space_put(space);
}
