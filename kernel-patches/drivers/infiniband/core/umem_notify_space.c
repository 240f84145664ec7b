// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An address space with watched memory: one struct mmu_notifier, the trees of
 * its trackers and of the pages of its words, and the lock of both.
 *
 * The MMU notifier is the only one of the address space, for any number of
 * registrations. To end a tracker is to erase it from the tree under the lock:
 * no end waits for an invalidation, and no registration does. An interval
 * notifier for each registration could be neither inserted nor removed while
 * any invalidations of the address space overlapped, and these may go on for as
 * long as a stranger likes that shares but a file with the process.
 *
 * INVALIDATIONS UNDER WAY
 *
 * An event is told before the page tables change. A node that is inserted in
 * between is not called for it:
 *
 *   ib_umem_track()                       another thread
 *                                         invalidate_range_start(): walks the tree
 *   inserts
 *   pins page P, which is still mapped
 *                                         unmaps P
 *                                         invalidate_range_end()
 *                                         [never told: P stays registered]
 *
 * So each event is counted from its start to its end, in the counters of the
 * blocks that it covers, and a node learns under the lock whether its range is
 * being changed: then a tracker is SUSPECT from the beginning.
 *
 *   inserts; the counters of its blocks   start: adds to the counters; then lock;
 *   are not 0: SUSPECT                    walks the tree; unlock
 *
 *   [Required: the counters are raised before the tree is walked, and a node reads
 *    them after it was inserted; both take the lock in between]
 *
 * Either the walk sees the node, or the node sees the counters.
 *
 * A start and its end have the same range, so both find the same counters, and
 * nothing of an event has to be kept in between. The mm calls the end of each start
 * that has succeeded, and ours always does. A notifier comes and goes between
 * events only: mm_take_all_locks() and SRCU see to that.
 *
 * Blocks share counters. A block that is taken for another makes a range look as if
 * it were being changed, which costs time and nothing else.
 *
 * A LONG WALK
 *
 * A process may have a million trackers at one address. The walk lets the lock go
 * every BATCH nodes, at a node that stays in the tree until the walk comes back:
 *
 *   a walk                                the end of a tracker
 *   node->walkers = 1; unlock
 *                                         lock; walkers is not 0: ended and left
 *                                         are set; does not free it; unlock
 *   lock; next node; walkers = 0: ended,
 *   so erases it; left, so frees it;
 *   unlock
 *
 * LIFE
 *
 * A space is made when the first tracker or word of an address space is, which takes
 * all locks of the address space, so it stays until that ends, or until ib_uverbs is
 * unloaded. It is found by RCU, without a lock that others share.
 */

#include <linux/hashtable.h>
#include <linux/mmu_notifier.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/threads.h>
#include <linux/wait_bit.h>

#include "umem_notify_tracker.h"

/* Nodes of a walk under one hold of the lock */
#define BATCH 64
/* A block is the range of one page table; so many have a counter of their own. */
#define BLOCK_SHIFT PMD_SHIFT

/* Found under RCU, changed under the lock */
static DEFINE_HASHTABLE(umem_notify_spaces, 8);
static DEFINE_SPINLOCK(umem_notify_spaces_lock);
/* Spaces, found or not, whose callbacks may come */
static atomic_t umem_notify_nr_spaces;

/* One that covers as many blocks as there are counters has one for itself. */
static void space_count(struct umem_notify_counts *counts,
			const struct mmu_notifier_range *range, int nr)
{
	unsigned long block = range->start >> BLOCK_SHIFT;
	unsigned long last = (range->end - 1) >> BLOCK_SHIFT;

	if (last - block >= UMEM_NOTIFY_BLOCKS) {
		atomic_add(nr, &counts->wide);
		return;
	}
	for (; block <= last; block++)
		atomic_add(nr, &counts->blocks[block % UMEM_NOTIFY_BLOCKS]);
}

static bool space_counts(const struct umem_notify_counts *counts,
			 unsigned long start, unsigned long last)
{
	unsigned long block = start >> BLOCK_SHIFT;

	if (atomic_read_acquire(&counts->wide))
		return true;
	last = min(last >> BLOCK_SHIFT, block + UMEM_NOTIFY_BLOCKS - 1);
	for (; block <= last; block++)
		if (atomic_read_acquire(&counts->blocks[block % UMEM_NOTIFY_BLOCKS]))
			return true;
	return false;
}

/**
 * umem_notify_space_changes - Is an event under way that may replace pages there?
 * @space: The address space
 * @start: The first address
 * @last: The last one
 *
 * Without the space's lock the answer is that of some moment during the call. Under
 * it, one of false means that all events that the trackers there were told of have
 * ended.
 */
bool umem_notify_space_changes(const struct umem_notify_space *space,
			       unsigned long start, unsigned long last)
{
	return space_counts(&space->changes, start, last);
}

/**
 * umem_notify_space_events - Is any event under way there, of protection too?
 * @space: The address space
 * @start: The first address
 * @last: The last one
 */
bool umem_notify_space_events(const struct umem_notify_space *space,
			      unsigned long start, unsigned long last)
{
	return space_counts(&space->events, start, last);
}

/**
 * umem_notify_space_wait - Wait until no event that may replace pages is under way
 * @space: The address space
 * @start: The first address
 * @last: The last one
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
	left = wait_event_killable_timeout(space->ended,
					   !umem_notify_space_changes(space, start, last),
					   left);
	if (left < 0)
		return -EINTR;
	return left ? 0 : -EAGAIN;
}

/**
 * umem_notify_space_insert - Have a node called for the events of its range
 * @space: The address space, its lock held
 * @tree: One of its trees
 * @node: The node, its range set
 */
void umem_notify_space_insert(struct umem_notify_space *space,
			      struct rb_root_cached *tree,
			      struct umem_notify_node *node)
{
	lockdep_assert_held(&space->lock);

	interval_tree_insert(&node->range, tree);
}

/**
 * umem_notify_space_erase - No event comes to a node any more
 * @space: The address space, its lock held
 * @tree: The tree that it is in
 * @node: The node
 *
 * Return: Whether no walk has it: then it is the caller's alone. Else its owner has to
 * call umem_notify_space_drop() when it is done with it.
 */
bool umem_notify_space_erase(struct umem_notify_space *space,
			     struct rb_root_cached *tree,
			     struct umem_notify_node *node)
{
	lockdep_assert_held(&space->lock);

	node->ended = true;
	if (node->walkers)
		return false;
	interval_tree_remove(&node->range, tree);
	return true;
}

/**
 * umem_notify_space_drop - The owner of a node that a walk had is done with it
 * @space: The address space
 * @node: The node
 *
 * Return: Whether the caller has to free it. If not, a walk that has it does.
 */
bool umem_notify_space_drop(struct umem_notify_space *space,
			    struct umem_notify_node *node)
{
	bool ours;

	spin_lock(&space->lock);
	node->left = true;
	ours = !node->walkers;
	spin_unlock(&space->lock);
	return ours;
}

/* Lets others have the lock. Returns the next node. */
static struct interval_tree_node *
space_break(struct umem_notify_space *space, struct rb_root_cached *tree,
	    struct umem_notify_node *node,
	    void (*free)(struct umem_notify_node *node),
	    unsigned long start, unsigned long last, bool blockable)
{
	struct interval_tree_node *next;

	/*
	 * Each thread of the process may be here, at the same node. If the count of them
	 * came round to 0, the end of the tracker would free it under them.
	 */
	static_assert(1ULL << BITS_PER_TYPE(node->walkers) > PID_MAX_LIMIT);
	node->walkers++;
	spin_unlock(&space->lock);
	if (blockable)
		cond_resched();
	spin_lock(&space->lock);
	next = interval_tree_iter_next(&node->range, start, last);
	if (!--node->walkers && node->ended) {
		interval_tree_remove(&node->range, tree);
		if (node->left)
			free(node);
	}
	return next;
}

/* Compiled thrice, with the visit of a node and its freeing: no calls by pointers. */
static __always_inline void
space_walk(struct umem_notify_space *space, struct rb_root_cached *tree,
	   void (*visit)(struct umem_notify_node *node,
			 const struct mmu_notifier_range *range),
	   void (*free)(struct umem_notify_node *node),
	   const struct mmu_notifier_range *range)
{
	unsigned long start = range->start, last = range->end - 1;
	struct interval_tree_node *next;
	struct umem_notify_node *node;
	unsigned int nr = 0;

	spin_lock(&space->lock);
	next = interval_tree_iter_first(tree, start, last);
	while (next) {
		node = container_of(next, struct umem_notify_node, range);
		if (!node->ended)
			visit(node, range);
		if (++nr % BATCH)
			next = interval_tree_iter_next(next, start, last);
		else
			next = space_break(space, tree, node, free, start, last,
					   mmu_notifier_range_blockable(range));
	}
	spin_unlock(&space->lock);
}

static void space_tell_words(struct umem_notify_space *space,
			     const struct mmu_notifier_range *range)
{
	space_walk(space, &space->words, umem_notify_word_event, umem_notify_word_free, range);
}

static void space_tell_trackers(struct umem_notify_space *space,
				const struct mmu_notifier_range *range)
{
	space_walk(space, &space->trackers, umem_notify_tracker_event,
		   umem_notify_tracker_free, range);
}

static void space_tell_fork(struct umem_notify_space *space,
			    const struct mmu_notifier_range *range)
{
	unsigned int forks = READ_ONCE(space->forks);

	space_walk(space, &space->trackers, umem_notify_due_fork,
		   umem_notify_tracker_free, range);
	if (READ_ONCE(space->forks) != forks)
		umem_notify_due_wait(space);
}

/* May it replace pages? All others leave a pinned page where it is. */
static bool space_may_change(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_CLEAR:
	case MMU_NOTIFY_MIGRATE:
	case MMU_NOTIFY_EXCLUSIVE:
		return true;
	case MMU_NOTIFY_PROTECTION_VMA:
		/* mprotect(): of hugetlb it may unmap page tables that were shared. */
		return range->end - range->start >= PUD_SIZE;
	default:
		return false;
	}
}

static struct umem_notify_space *space_of(struct mmu_notifier *mn)
{
	return container_of(mn, struct umem_notify_space, mn);
}

/*
 * Never fails, not for callers either that can't wait: the pages are pinned, so
 * nothing can be freed under the device before it is revoked.
 */
static int umem_notify_range_start(struct mmu_notifier *mn,
				   const struct mmu_notifier_range *range)
{
	struct umem_notify_space *space = space_of(mn);
	bool changes = space_may_change(range);

	if (umem_notify_due_is_fork(range))
		space_tell_fork(space, range);
	space_count(&space->events, range, 1);
	if (changes)
		space_count(&space->changes, range, 1);
	space_tell_words(space, range);
	if (changes && !READ_ONCE(space->released))
		space_tell_trackers(space, range);
	return 0;
}

static void umem_notify_range_end(struct mmu_notifier *mn,
				  const struct mmu_notifier_range *range)
{
	struct umem_notify_space *space = space_of(mn);

	smp_mb__before_atomic(); /* the page tables have changed before */
	space_count(&space->events, range, -1);
	if (!space_may_change(range))
		return;
	space_count(&space->changes, range, -1);
	if (wq_has_sleeper(&space->ended))
		wake_up_all(&space->ended);
	umem_notify_queue_unmapped(space);
	umem_notify_due_ended(space, range);
}

/* The end of the address space: its users have gone, and its memory goes. */
static void umem_notify_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct umem_notify_space *space = space_of(mn);
	struct mmu_notifier_range all;

	mmu_notifier_range_init(&all, MMU_NOTIFY_RELEASE,
				MMU_NOTIFIER_RANGE_BLOCKABLE, mm, 0, ULONG_MAX);
	space_tell_trackers(space, &all);
	WRITE_ONCE(space->released, true);
	umem_notify_queue_unmapped(space);
	umem_notify_space_leave(space);
}

static struct mmu_notifier *umem_notify_alloc_space(struct mm_struct *mm)
{
	struct umem_notify_space *space;

	space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);
	if (!space)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&space->lock);
	refcount_set(&space->users, 1);
	space->trackers = RB_ROOT_CACHED;
	space->words = RB_ROOT_CACHED;
	space->frames = RB_ROOT;
	INIT_LIST_HEAD(&space->queues);
	init_waitqueue_head(&space->ended);
	atomic_inc(&umem_notify_nr_spaces);
	return &space->mn;
}

static void umem_notify_free_space(struct mmu_notifier *mn)
{
	struct umem_notify_space *space = space_of(mn);

	kfree_rcu(space, rcu);
	if (atomic_dec_and_test(&umem_notify_nr_spaces))
		wake_up_var(&umem_notify_nr_spaces);
}

static const struct mmu_notifier_ops umem_notify_space_ops = {
	.invalidate_range_start = umem_notify_range_start,
	.invalidate_range_end = umem_notify_range_end,
	.release = umem_notify_release,
	.alloc_notifier = umem_notify_alloc_space,
	.free_notifier = umem_notify_free_space,
};

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

/*
 * mm_take_all_locks() gives up for work that io_uring has for the task, too, which no mask of
 * signals holds back. That work stays on the task's list until it returns to user mode, and
 * more of it sets no flag: so one more try is not disturbed.
 */
static struct mmu_notifier *notifier_get(struct mm_struct *mm)
{
	struct mmu_notifier *mn = mmu_notifier_get_locked(&umem_notify_space_ops, mm);

	if (mn != ERR_PTR(-EINTR) || !test_thread_flag(TIF_NOTIFY_SIGNAL))
		return mn;
	clear_notify_signal();
	mn = mmu_notifier_get_locked(&umem_notify_space_ops, mm);
	set_thread_flag(TIF_NOTIFY_SIGNAL);
	return mn;
}

/*
 * mm_take_all_locks() gives up for any signal, and takes long where there are many
 * mappings: under a profiler's timer it would never succeed.
 */
static struct umem_notify_space *space_create(struct mm_struct *mm)
{
	struct umem_notify_space *space;
	struct mmu_notifier *mn;
	sigset_t before, all;

	siginitsetinv(&all, sigmask(SIGKILL));
	sigprocmask(SIG_BLOCK, &all, &before);
	if (mmap_write_lock_killable(mm)) {
		space = ERR_PTR(-EINTR);
		goto restore;
	}
	space = space_find(mm);
	if (space)
		goto unlock;
	mn = notifier_get(mm);
	if (IS_ERR(mn)) {
		space = ERR_CAST(mn);
		goto unlock;
	}
	space = space_of(mn);
	refcount_inc(&space->users); /* the first is of the address space itself */
	spin_lock(&umem_notify_spaces_lock);
	hash_add_rcu(umem_notify_spaces, &space->node, (unsigned long)mm);
	spin_unlock(&umem_notify_spaces_lock);
unlock:
	mmap_write_unlock(mm);
restore:
	sigprocmask(SIG_SETMASK, &before, NULL);
	return space;
}

/**
 * umem_notify_space_get - The space of the current process
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The space, to be given to umem_notify_space_put(); ERR_PTR(): -ENOMEM,
 * -EINTR for a fatal signal.
 */
struct umem_notify_space *umem_notify_space_get(void)
{
	struct umem_notify_space *space = space_find(current->mm);

	return space ?: space_create(current->mm);
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
 * umem_notify_space_leave - Nothing of a space is made any more
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

/*
 * ib_uverbs is unloaded; the processes that have used it may go on.
 *
 * mmu_notifier_synchronize() waits for a grace period of SRCU, and not for the calls
 * that SRCU makes after it:
 *
 *   unloading                             SRCU
 *   puts the last space
 *                                         the grace period ends
 *   mmu_notifier_synchronize() returns
 *   the module is freed
 *                                         umem_notify_free_space() [freed code]
 *
 * So the spaces are counted. SRCU calls with bottom halves off, so the call that makes
 * the count 0 has returned after a grace period of RCU:
 *
 *                                         umem_notify_free_space(): the count is 0
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
