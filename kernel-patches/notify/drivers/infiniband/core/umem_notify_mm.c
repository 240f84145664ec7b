// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An address space with watched memory: the tree of its trackers, its lock, and the events
 * in progress.
 *
 * Each address space has one MMU notifier, for any number of registrations. A tracker
 * enters and leaves the tree under the lock, so registering and deregistering do not
 * wait for an invalidation. With an interval notifier for each registration, registering
 * or deregistering would have to wait until no invalidation of the address space is in
 * progress. Another process that shares a file can keep invalidations in progress as long
 * as it likes.
 */

#include <linux/slab.h>

#include "umem_notify.h"

/* A walk visits this number of trackers before it releases the lock. */
#define WALK_BATCH 64
/* Walks that may pause at one tracker, so that its references do not overflow */
#define MOST_PAUSES 64

/**
 * umem_notify_mm_begin - An event that may replace pages begins
 * @space: The address space, its lock held; the caller searches the tree afterwards
 * @start: The first address
 * @last: The last address
 *
 * The MMU notifier is called before the page tables change. The notifier does not see a
 * tracker that is inserted after the call:
 *
 *   ib_mr_notify_track()                  another thread
 *                                         invalidate_range_start(): searches the tree
 *   inserts
 *   pins page P, which is still mapped
 *                                         unmaps P
 *                                         invalidate_range_end()
 *                                         [word never set: P stays registered]
 *
 * So an event has a slot from its start to its end. The event takes the slot before it
 * searches the tree. umem_notify_create() inserts a tracker and checks the slots, and
 * holds the lock during both steps. So either the event finds the tracker in the tree,
 * or the event has a slot and the tracker starts as SUSPECT.
 *
 * An event that finds no free slot counts as an event of all pages.
 */
void umem_notify_mm_begin(struct umem_notify_mm *space, unsigned long start, unsigned long last)
{
	lockdep_assert_held(&space->lock);

	if (space->nr == ARRAY_SIZE(space->events))
		space->beyond++;
	else
		space->events[space->nr++] = (struct umem_notify_event){ start, last };
}

/**
 * umem_notify_mm_end - An event has ended
 * @space: The address space, its lock held
 * @start: As for umem_notify_mm_begin()
 * @last: As for umem_notify_mm_begin()
 *
 * If two events have the same arguments, it does not matter which slot is freed. Each event
 * ends with this call: the mm reports the end of an event if the start callback succeeded, and
 * umem_notify_event_start() always succeeds.
 */
void umem_notify_mm_end(struct umem_notify_mm *space, unsigned long start, unsigned long last)
{
	struct umem_notify_event *event;

	lockdep_assert_held(&space->lock);

	for (event = space->events; event < space->events + space->nr; event++) {
		if (event->start == start && event->last == last) {
			*event = space->events[--space->nr];
			return;
		}
	}
	space->beyond--;
}

/**
 * umem_notify_mm_changes - Is an event in progress that may replace pages of the range?
 * @space: The address space, its lock held
 * @start: The first address
 * @last: The last address
 */
bool umem_notify_mm_changes(const struct umem_notify_mm *space,
			    unsigned long start, unsigned long last)
{
	const struct umem_notify_event *event;

	lockdep_assert_held(&space->lock);

	for (event = space->events; event < space->events + space->nr; event++) {
		if (event->start <= last && event->last >= start)
			return true;
	}
	return space->beyond;
}

/**
 * umem_notify_queue_put - Drop the reference of a tracker or of the context
 * @q: The queue
 *
 * Context: Any but interrupts; does not sleep.
 */
void umem_notify_queue_put(struct umem_notify_queue *q)
{
	if (!refcount_dec_and_test(&q->refs))
		return;
	mmu_notifier_put(&q->space->mn);
	kfree(q);
}

/**
 * umem_notify_unref - Drop a reference to a tracker
 * @n: The tracker, its space's lock held; may be freed
 *
 * The caller keeps the space: it has another reference to a queue of the space, or is a callback
 * of the MMU notifier, for which SRCU keeps the space.
 */
void umem_notify_unref(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;

	umem_notify_assert_locked(n);

	if (--n->refs)
		return;
	interval_tree_remove(&n->range, &q->space->trackers);
	kfree(n);
	umem_notify_queue_put(q);
}

/**
 * umem_notify_put - Drop a reference to a tracker
 * @n: The tracker; may be freed
 *
 * Context: Any but interrupts; does not sleep.
 */
void umem_notify_put(struct ib_umem_notify *n)
{
	struct umem_notify_queue *q = n->queue;

	refcount_inc(&q->refs); /* the space stays until its lock is released */
	spin_lock(&q->space->lock);
	umem_notify_unref(n);
	spin_unlock(&q->space->lock);
	umem_notify_queue_put(q);
}

/**
 * umem_notify_mm_next - The next tracker of a walk
 * @space: The address space, its lock held
 * @walk: The walk: its range, and @sleeps
 * @n: The tracker visited last, or NULL at the beginning
 *
 * The walk has a reference to the tracker that it visits, so the lock may be released. A tracker
 * stays in the tree until its last reference is gone, and the walk continues from it. If the
 * tracker has ended in between, it is INVALID and has no word, so other walks leave it alone.
 *
 * A process may have a million trackers at one address, so the walk pauses after WALK_BATCH
 * trackers. It goes on to another tracker first if so many walks have paused at this tracker that
 * its references could overflow.
 *
 * Return: The tracker, or NULL at the end. The caller has to call this function until the end.
 */
struct ib_umem_notify *umem_notify_mm_next(struct umem_notify_mm *space,
					   struct umem_notify_walk *walk, struct ib_umem_notify *n)
{
	struct interval_tree_node *next;

	lockdep_assert_held(&space->lock);

	if (n && ++walk->nr >= WALK_BATCH && n->refs < MOST_PAUSES) {
		walk->nr = 0;
		spin_unlock(&space->lock);
		if (walk->sleeps)
			cond_resched();
		spin_lock(&space->lock);
	}
	next = n ? interval_tree_iter_next(&n->range, walk->start, walk->last) :
		   interval_tree_iter_first(&space->trackers, walk->start, walk->last);
	if (n)
		umem_notify_unref(n);
	if (!next)
		return NULL;
	n = container_of(next, struct ib_umem_notify, range);
	n->refs++;
	return n;
}
