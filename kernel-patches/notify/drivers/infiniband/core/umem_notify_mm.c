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
 * umem_notify_mm_insert - Let events visit a tracker from now on
 * @space: The address space, its lock held
 * @n: The tracker, its range set
 */
void umem_notify_mm_insert(struct umem_notify_mm *space, struct ib_umem_notify *n)
{
	lockdep_assert_held(&space->lock);

	n->serial = ++space->serial;
	interval_tree_insert(&n->range, &space->trackers);
}

/*
 * The next tracker after the tracker visited last, which may have been removed since.
 * interval_tree_insert() inserts a tracker after all trackers with the same start, so the
 * trackers are in the order of (start, serial number).
 */
static struct interval_tree_node *space_after(struct umem_notify_mm *space,
					      const struct umem_notify_walk *walk)
{
	struct rb_node *rb = space->trackers.rb_root.rb_node;
	struct ib_umem_notify *n, *visited = NULL;

	while (rb) {
		n = rb_entry(rb, struct ib_umem_notify, range.rb);
		if (n->range.start < walk->key ||
		    (n->range.start == walk->key && n->serial <= walk->serial)) {
			visited = n;
			rb = rb->rb_right;
		} else {
			rb = rb->rb_left;
		}
	}
	return visited ? interval_tree_iter_next(&visited->range, walk->start, walk->last) :
			 interval_tree_iter_first(&space->trackers, walk->start, walk->last);
}

/**
 * umem_notify_mm_next - The next tracker of a walk
 * @space: The address space, its lock held
 * @walk: The walk, with its range and @sleeps set
 * @n: The tracker visited last; NULL at the beginning, or if the caller has released the
 *     lock since
 *
 * A process may have a million trackers at one address, so the lock is released after
 * WALK_BATCH trackers.
 *
 * Return: The tracker, or NULL at the end.
 */
struct ib_umem_notify *umem_notify_mm_next(struct umem_notify_mm *space,
					   struct umem_notify_walk *walk,
					   struct ib_umem_notify *n)
{
	struct interval_tree_node *next;

	lockdep_assert_held(&space->lock);

	if (n && ++walk->nr == WALK_BATCH) {
		walk->nr = 0;
		n = NULL;
		spin_unlock(&space->lock);
		if (walk->sleeps)
			cond_resched();
		spin_lock(&space->lock);
	}
	next = n ? interval_tree_iter_next(&n->range, walk->start, walk->last) :
		   space_after(space, walk);
	if (!next)
		return NULL;
	n = container_of(next, struct ib_umem_notify, range);
	walk->key = n->range.start;
	walk->serial = n->serial;
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
 * Return: The space, which the caller has to give to umem_notify_mm_put(), or
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
 * umem_notify_mm_put - Drop a reference to a space
 * @space: The space
 *
 * Context: Any but interrupts.
 */
void umem_notify_mm_put(struct umem_notify_mm *space)
{
	mmu_notifier_put(&space->mn);
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
