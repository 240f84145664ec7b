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

#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

#include "umem_notify.h"

/* A walk visits this number of trackers before it releases the lock. */
#define WALK_BATCH 64
/* Walks that may pause at one tracker, so that its references do not overflow */
#define MOST_PAUSES 64

/* The number of spaces whose callbacks may still run */
static atomic_t umem_notify_nr_spaces;

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
void umem_notify_mm_begin(struct umem_notify_mm *space, unsigned long start,
			  unsigned long last)
{
	unsigned int slot;

	lockdep_assert_held(&space->lock);

	if (space->busy == U64_MAX) {
		space->beyond++;
		return;
	}
	slot = ffz(space->busy);
	space->busy |= BIT_ULL(slot);
	space->events[slot] = (struct umem_notify_event){ start, last };
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
void umem_notify_mm_end(struct umem_notify_mm *space, unsigned long start,
			unsigned long last)
{
	const struct umem_notify_event *event;
	u64 left;

	lockdep_assert_held(&space->lock);

	for (left = space->busy; left; left &= left - 1) {
		event = &space->events[__ffs64(left)];
		if (event->start == start && event->last == last) {
			space->busy &= ~BIT_ULL(__ffs64(left));
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
	u64 left;

	lockdep_assert_held(&space->lock);

	for (left = space->busy; left; left &= left - 1) {
		event = &space->events[__ffs64(left)];
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
					   struct umem_notify_walk *walk,
					   struct ib_umem_notify *n)
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

/* The notifier's alloc_notifier() */
struct mmu_notifier *umem_notify_mm_alloc(struct mm_struct *mm)
{
	struct umem_notify_mm *space;

	space = kzalloc(sizeof(*space), GFP_KERNEL);
	if (!space)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&space->lock);
	space->trackers = RB_ROOT_CACHED;
	space->rest = jiffies;
	atomic_inc(&umem_notify_nr_spaces);
	return &space->mn;
}

/* The notifier's free_notifier() */
void umem_notify_mm_free(struct mmu_notifier *mn)
{
	kfree(umem_notify_mm_of(mn));
	if (atomic_dec_and_test(&umem_notify_nr_spaces))
		wake_up_var(&umem_notify_nr_spaces);
}

struct space_registration {
	struct work_struct work;
	const struct mmu_notifier_ops *ops;
	struct mm_struct *mm;
	struct mmu_notifier *mn;
};

static void space_register(struct work_struct *work)
{
	struct space_registration *r = container_of(work, struct space_registration, work);

	r->mn = mmu_notifier_get(r->ops, r->mm);
}

/**
 * umem_notify_mm_get - The space of the current process
 * @ops: The callbacks of its MMU notifier
 *
 * The first call for an address space calls mm_take_all_locks(). mm_take_all_locks() gives up
 * if the calling task has to do something before it returns to user mode (a signal, io_uring
 * work, the freezer, a debugger). If the address space has many mappings, taking all locks
 * takes long, and frequent signals would make each call fail. A kworker gets no signals. So
 * a kworker makes the call.
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The space, which umem_notify_queue_put() puts;
 * ERR_PTR(-ENOMEM).
 */
struct umem_notify_mm *umem_notify_mm_get(const struct mmu_notifier_ops *ops)
{
	struct space_registration r = { .ops = ops, .mm = current->mm };

	INIT_WORK_ONSTACK(&r.work, space_register);
	queue_work(system_unbound_wq, &r.work);
	flush_work(&r.work);
	destroy_work_on_stack(&r.work);
	return IS_ERR(r.mn) ? ERR_CAST(r.mn) : umem_notify_mm_of(r.mn);
}

/**
 * umem_notify_mm_exit - Wait for the last callbacks of all spaces
 *
 * ib_uverbs is unloaded next, and no space is in use. mmu_notifier_synchronize()
 * waits for a grace period of SRCU, but not for the callbacks that SRCU calls after
 * the grace period:
 *
 *   unloading                             SRCU
 *   [the last space was put]
 *                                         the grace period ends
 *   mmu_notifier_synchronize() returns
 *   the module is freed
 *                                         umem_notify_mm_free() [freed code]
 *
 * So the spaces are counted. SRCU calls its callbacks with bottom halves disabled, so
 * when the count is 0, the last callback returns within a grace period of RCU:
 *
 *                                         umem_notify_mm_free(): the count is 0
 *   the count is 0; synchronize_rcu(): waits
 *                                         returns; enables bottom halves
 *   the module is freed
 */
void umem_notify_mm_exit(void)
{
	wait_var_event(&umem_notify_nr_spaces, !atomic_read(&umem_notify_nr_spaces));
	synchronize_rcu();
}
