// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An address space with watched memory: the tree of its trackers, its lock, and the events
 * in progress.
 *
 * The MMU notifier is the only one of the address space, for any number of
 * registrations. A tracker ends when it is erased from the tree under the lock:
 * no end waits for an invalidation, and no registration does. An interval notifier for
 * each registration could be neither inserted nor removed while invalidations of the
 * address space overlap, and another process that shares a file can keep that up for as
 * long as it likes.
 */

#include <linux/hashtable.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

#include "umem_notify_tracker.h"

/* Trackers of a walk under one hold of the lock */
#define WALK_BATCH 64

/* Found under RCU, changed under the lock */
static DEFINE_HASHTABLE(umem_notify_spaces, 8);
static DEFINE_SPINLOCK(umem_notify_spaces_lock);
/* Spaces, found or not, whose callbacks may come */
static atomic_t umem_notify_nr_spaces;

/**
 * umem_notify_space_begin - An event that may replace pages begins
 * @space: The address space, its lock held since before the tree is searched
 * @start: The first address
 * @last: The last address
 *
 * The MMU notifier calls before the page tables change, and not for a node that is
 * inserted afterwards:
 *
 *   umem_notify_track()                   another thread
 *                                         invalidate_range_start(): searches the tree
 *   inserts
 *   pins page P, which is still mapped
 *                                         unmaps P
 *                                         invalidate_range_end()
 *                                         [never told: P stays registered]
 *
 * So an event has a slot from its start to its end. The event takes the slot and
 * searches the tree under one hold of the lock, and a tracker is inserted and looks at
 * the slots under one hold: either the event sees the tracker or the tracker sees the
 * event, and is SUSPECT from the beginning.
 *
 * An event that finds no slot counts as one of all pages.
 */
void umem_notify_space_begin(struct umem_notify_space *space, unsigned long start,
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
 * umem_notify_space_end - An event has ended
 * @space: The address space, its lock held
 * @start: As for umem_notify_space_begin()
 * @last: As for umem_notify_space_begin()
 *
 * Of two events with the same arguments either slot will do. The mm calls the end of
 * each start that has succeeded, and ours always does.
 */
void umem_notify_space_end(struct umem_notify_space *space, unsigned long start,
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
 * umem_notify_space_changes - Is an event in progress that may replace pages there?
 * @space: The address space, its lock held
 * @start: The first address
 * @last: The last address
 */
bool umem_notify_space_changes(const struct umem_notify_space *space,
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

static bool space_is_quiet(struct umem_notify_space *space, unsigned long start,
			   unsigned long last)
{
	bool quiet;

	spin_lock(&space->lock);
	quiet = !umem_notify_space_changes(space, start, last);
	spin_unlock(&space->lock);
	return quiet;
}

/**
 * umem_notify_space_wait - Wait until no event that may replace pages is in progress
 * @space: The address space
 * @start: The first address
 * @last: The last address
 * @until: At most until then, in jiffies
 *
 * Return: 0, -EAGAIN if it took longer, -EINTR for a fatal signal.
 */
int umem_notify_space_wait(struct umem_notify_space *space, unsigned long start,
			   unsigned long last, unsigned long until)
{
	long left = until - jiffies;

	if (left <= 0)
		return -EAGAIN;
	left = wait_event_killable_timeout(space->ended, space_is_quiet(space, start, last),
					   left);
	if (left < 0)
		return -EINTR;
	return left ? 0 : -EAGAIN;
}

/**
 * umem_notify_space_insert - Have the events of its range come to a tracker
 * @space: The address space, its lock held
 * @n: The tracker, its range set
 */
void umem_notify_space_insert(struct umem_notify_space *space, struct ib_umem_notify *n)
{
	lockdep_assert_held(&space->lock);

	n->serial = ++space->serial;
	interval_tree_insert(&n->range, &space->trackers);
}

/*
 * The first tracker behind that visited last, which may have gone meanwhile.
 * interval_tree_insert() puts a tracker behind those with the same start, so the trackers
 * are in the order of (start, serial number).
 */
static struct interval_tree_node *space_after(struct umem_notify_space *space,
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
 * umem_notify_space_next - The next tracker of a walk
 * @space: The address space, its lock held
 * @walk: The walk: its range, and @sleeps
 * @n: The tracker visited last, or NULL: there is none yet, or the caller released the
 *     lock meanwhile
 *
 * A process may have a million trackers at one address, so the lock is released now and
 * then.
 *
 * Return: The tracker, or NULL at the end.
 */
struct ib_umem_notify *umem_notify_space_next(struct umem_notify_space *space,
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

static struct umem_notify_space *space_of(struct mmu_notifier *mn)
{
	return container_of(mn, struct umem_notify_space, mn);
}

/* The notifier's last callback */
void umem_notify_space_free(struct mmu_notifier *mn)
{
	kfree_rcu(space_of(mn), rcu);
	if (atomic_dec_and_test(&umem_notify_nr_spaces))
		wake_up_var(&umem_notify_nr_spaces);
}

static struct umem_notify_space *space_find(struct mm_struct *mm)
{
	struct umem_notify_space *space;

	rcu_read_lock();
	hash_for_each_possible_rcu(umem_notify_spaces, space, node, (unsigned long)mm)
		if (space->mn.mm == mm && refcount_inc_not_zero(&space->users))
			break;
	rcu_read_unlock();
	return space;
}

struct space_registration {
	struct work_struct work;
	struct mmu_notifier *mn;
	struct mm_struct *mm;
	int ret;
};

static void space_register_work(struct work_struct *work)
{
	struct space_registration *r = container_of(work, struct space_registration, work);

	r->ret = mmu_notifier_register(r->mn, r->mm);
}

/*
 * mm_take_all_locks() gives up as soon as the caller has something to do before it
 * returns to user mode: a signal, work of io_uring, a freezer, a debugger that interrupts
 * it. It takes long where there are many mappings, so it would never succeed beside an
 * interrupter that comes again and again. A kworker has no signals.
 */
static int space_register(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct space_registration r = { .mn = mn, .mm = mm };

	INIT_WORK_ONSTACK(&r.work, space_register_work);
	queue_work(system_unbound_wq, &r.work);
	flush_work(&r.work);
	destroy_work_on_stack(&r.work);
	return r.ret;
}

static struct umem_notify_space *space_alloc(const struct mmu_notifier_ops *ops)
{
	struct umem_notify_space *space;

	space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);
	if (!space)
		return NULL;
	space->mn.ops = ops;
	spin_lock_init(&space->lock);
	refcount_set(&space->users, 2); /* the address space, and the caller */
	space->trackers = RB_ROOT_CACHED;
	INIT_LIST_HEAD(&space->queues);
	init_waitqueue_head(&space->ended);
	return space;
}

static struct umem_notify_space *space_create(const struct mmu_notifier_ops *ops,
					      struct mm_struct *mm)
{
	struct umem_notify_space *space, *other;
	int ret;

	space = space_alloc(ops);
	if (!space)
		return ERR_PTR(-ENOMEM);
	atomic_inc(&umem_notify_nr_spaces);
	ret = space_register(&space->mn, mm);
	if (ret) {
		umem_notify_space_free(&space->mn);
		return ERR_PTR(ret);
	}
	spin_lock(&umem_notify_spaces_lock);
	other = space_find(mm);
	if (!other)
		hash_add_rcu(umem_notify_spaces, &space->node, (unsigned long)mm);
	spin_unlock(&umem_notify_spaces_lock);
	if (!other)
		return space;
	mmu_notifier_put(&space->mn);
	return other;
}

/**
 * umem_notify_space_get - The space of the current process
 * @ops: The callbacks of its MMU notifier
 *
 * The first call of a process takes all locks of its address space, so a space stays
 * until the address space ends or ib_uverbs is unloaded.
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The space, to be given to umem_notify_space_put(); ERR_PTR(-ENOMEM).
 */
struct umem_notify_space *umem_notify_space_get(const struct mmu_notifier_ops *ops)
{
	struct umem_notify_space *space = space_find(current->mm);

	return space ?: space_create(ops, current->mm);
}

/**
 * umem_notify_space_put - Let go of a space
 * @space: The space
 *
 * Context: Any but interrupts.
 */
void umem_notify_space_put(struct umem_notify_space *space)
{
	if (refcount_dec_and_test(&space->users))
		mmu_notifier_put(&space->mn);
}

/**
 * umem_notify_space_leave - Nobody finds a space any more
 * @space: The space, whose address space or module ends
 */
void umem_notify_space_leave(struct umem_notify_space *space)
{
	bool first;

	spin_lock(&umem_notify_spaces_lock);
	first = !hlist_unhashed(&space->node);
	if (first)
		hash_del_rcu(&space->node);
	spin_unlock(&umem_notify_spaces_lock);
	if (first)
		umem_notify_space_put(space);
}

/**
 * umem_notify_space_exit - ib_uverbs is unloaded; the processes that have used it may go on
 *
 * mmu_notifier_synchronize() waits for a grace period of SRCU, and not for the calls
 * that SRCU makes after it:
 *
 *   unloading                             SRCU
 *   puts the last space
 *                                         the grace period ends
 *   mmu_notifier_synchronize() returns
 *   the module is freed
 *                                         umem_notify_space_free() [freed code]
 *
 * So the spaces are counted. SRCU calls with bottom halves off, so the call that makes
 * the count 0 has returned after a grace period of RCU:
 *
 *                                         umem_notify_space_free(): the count is 0
 *   the count is 0; synchronize_rcu(): waits
 *                                         returns; bottom halves on
 *   the module is freed
 */
void umem_notify_space_exit(void)
{
	struct umem_notify_space *space;
	int bucket;

	for (;;) {
		spin_lock(&umem_notify_spaces_lock);
		hash_for_each(umem_notify_spaces, bucket, space, node)
			break;
		if (space)
			refcount_inc(&space->users);
		spin_unlock(&umem_notify_spaces_lock);
		if (!space)
			break;
		umem_notify_space_leave(space);
		umem_notify_space_put(space);
	}
	wait_var_event(&umem_notify_nr_spaces, !atomic_read(&umem_notify_nr_spaces));
	synchronize_rcu();
}
