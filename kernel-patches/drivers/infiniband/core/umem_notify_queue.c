// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The workers that come back to a tracker when an MMU callback, which must not
 * wait, has left something to do.
 *
 * An unmap may call 10,000 callbacks in a row. To start a work item for each
 * costs more than the unmap itself, so a callback puts its tracker on a list, and
 * only the first one starts the timer of the one worker that empties it. To what
 * counts its users the worker comes after a while, for who finds INVALID deregisters.
 * What has no count loses its pages at once, that is as soon as the unmap is done:
 * beside it, the worker would take cache lines from it and leave it the freeing.
 *
 * What becomes INVALID does so once. So it goes on a list of its own (@fresh),
 * without the queue's lock, and whoever needs it on one of the others sorts it in.
 *
 * There is a set of lists for each address space, or, where their hashes
 * collide, for a few of them. Each has two workers, because only one of them may
 * have to wait:
 *
 *  revoker  takes pages from the device and gives them back. It waits for no
 *           lock, and so not for anybody's invalidations either.
 *  looker   finds out whether a SUSPECT range is the same. It waits in
 *           mmu_interval_read_begin() as long as one invalidation of the address
 *           space follows the other, which an application can bring about.
 *
 * Both run on a workqueue of their own, because the pages of a process that
 * reclaim wants to see again come back through it.
 *
 * There is a list for each delay: the lists are in order, and the revoker looks
 * at their heads only.
 *
 * LIFE
 *
 * Whoever ends a tracker takes it off its list, forbids that it comes back, and
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
 *
 * A tracker can't be taken off a list of fresh ones, as those are linked one way
 * only. To leave it there loses:
 *
 *   callback                              umem_notify_queue_forget()
 *   n is fresh
 *                                         lock; dead = true; unlock
 *                                         frees n
 *   [revoker: sorts n in]
 *
 * So who ends a tracker sorts in what is fresh first. No callback comes any more,
 * for its notifier was removed before; but a worker that has it may find it stale:
 *
 *   worker                                umem_notify_queue_forget()
 *   has n, and looks
 *                                         lock; sorts in; dead = true; unlock
 *                                         waits for workers == 0
 *   n is fresh
 *   lock; workers = 0; wakes; unlock
 *                                         frees n
 *   [revoker: sorts n in]
 *
 * So who had to wait begins again: it sorts in what is fresh now, which puts n on a
 * list once more. Each one is sorted in once, under the queue's lock: who has found
 * the lists empty and no worker under that has all of them where they can be taken
 * off.
 *
 * Its link lies where its doubt was, so a doubt is touched only of what is not
 * INVALID, under n->lock. To clear it unseen, as a restore begins, loses:
 *
 *   settle                                callback
 *   state is SUSPENDED
 *                                         lock; INVALID; n is fresh, before m; unlock
 *   lock; clears the doubt; unlock
 *                                         [revoker: finds n, and never m]
 *
 * The first one to be fresh starts the worker; those that come after it rely on it:
 *
 *   callback of A                         callback of B
 *   A is fresh, the first
 *                                         B is fresh, not the first
 *   starts the worker
 *                                         [revoker: sorts in B and A]
 *
 * If somebody has sorted A in before B comes, then B is the first. It may come
 * while the worker lets an unmap end. No timer is started then, as @wake is over:
 *
 *   revoker                               callback of B
 *   runs, waiting is set; sleeps
 *                                         B is fresh, the first; wake_at(): it comes
 *   lock; waiting = false; sorts in B
 *
 * LOCKS
 *
 * The lock of a queue is a leaf, taken inside of a tracker's @lock by MMU
 * callbacks and by the shrinker.
 */

#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/jiffies.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

#include "umem_notify_tracker.h"

/*
 * How long a registration is left alone after an event: events come in bursts,
 * and an application that is about to use or to deregister it does sooner what
 * there is to do. The first event's time counts: others don't push it out.
 */
#define SETTLE_DELAY max(HZ / 50, 1)
/* What a worker waits for the callbacks of an unmap at most: for all of it 20 ms. */
#define MOST_PATIENCE_US 5000
/* It may double so often: to some seconds. */
#define MOST_DOUBLINGS 7

#define QUEUES_SHIFT 6

struct queue {
	struct llist_head fresh[2]; /* without a count of users, and with one */
	/* The callbacks' line; this one guards what follows, but for the works. */
	spinlock_t lock ____cacheline_aligned_in_smp;
	struct llist_node *unsorted; /* fresh until somebody began to sort them in */
	struct list_head delayed[MOST_DOUBLINGS + 2]; /* the first: not at all */
	struct list_head look; /* SUSPECT for long enough */
	struct delayed_work revoker;
	struct work_struct looker;
	unsigned long wake; /* when the revoker runs next, if it is @waiting */
	bool waiting;
} ____cacheline_aligned_in_smp;

static struct workqueue_struct *umem_notify_wq;
static struct queue queues[1 << QUEUES_SHIFT];

static struct queue *queue_of(const struct ib_umem_notify *n)
{
	return &queues[hash_ptr(n->mni.mm, QUEUES_SHIFT)];
}

static void wake_at(struct queue *q, unsigned long when)
{
	long delay = when - jiffies;

	lockdep_assert_held(&q->lock);

	if (q->waiting && !time_before(when, q->wake))
		return;
	q->waiting = true;
	q->wake = when;
	mod_delayed_work(umem_notify_wq, &q->revoker, max(delay, 0L));
}

/* On a list, also from the looker's. Or else only if it comes sooner so. */
static void queue_after(struct ib_umem_notify *n, unsigned int list,
			unsigned long delay, bool anyhow)
{
	unsigned long due = jiffies + delay;
	struct queue *q = queue_of(n);

	spin_lock(&q->lock);
	if (!n->dead && (anyhow || list_empty(&n->link) ||
			 (s32)((u32)due - n->due) < 0)) {
		n->due = due;
		list_move_tail(&n->link, &q->delayed[list]);
		wake_at(q, due);
	}
	spin_unlock(&q->lock);
}

/**
 * umem_notify_queue_now - The device has to lose the pages of a tracker
 * @n: The tracker
 *
 * Context: Any but interrupts, @n's lock held or not.
 */
void umem_notify_queue_now(struct ib_umem_notify *n)
{
	queue_after(n, 0, 0, true);
}

/**
 * umem_notify_queue_fresh - A tracker has become INVALID, which its word has heard
 * @n: The tracker; the caller has its lock
 *
 * Its users give it back; without a count of them the device loses it at once.
 */
void umem_notify_queue_fresh(struct ib_umem_notify *n)
{
	struct queue *q = queue_of(n);
	bool counted = n->in_use;

	lockdep_assert_held(&n->lock);

	if (!llist_add(&n->fresh, &q->fresh[counted]))
		return;
	spin_lock(&q->lock);
	wake_at(q, jiffies + (counted ? SETTLE_DELAY : 0));
	spin_unlock(&q->lock);
}

static struct llist_node *next_fresh(struct queue *q)
{
	struct llist_node *next;
	unsigned int i;

	lockdep_assert_held(&q->lock);

	for (i = 0; !q->unsorted && i < ARRAY_SIZE(q->fresh); i++)
		if (!llist_empty(&q->fresh[i]))
			q->unsorted = llist_del_all(&q->fresh[i]);
	next = q->unsorted;
	if (next)
		q->unsorted = next->next;
	return next;
}

/* The first one that was fresh has started the revoker, so all are due by now. */
static void sort_in(struct queue *q)
{
	struct llist_node *next;
	struct ib_umem_notify *n;

	lockdep_assert_held(&q->lock);

	while ((next = next_fresh(q))) {
		n = llist_entry(next, struct ib_umem_notify, fresh);
		umem_notify_count(n->umem->ibdev, IB_MR_NOTIFY_STAT_INVALID, 1);
		n->due = jiffies;
		list_move_tail(&n->link, &q->delayed[0]);
		cond_resched_lock(&q->lock);
	}
}

/**
 * umem_notify_queue_count - Let the counters have all that happened before
 *
 * Context: Process context.
 */
void umem_notify_queue_count(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		spin_lock(&queues[i].lock);
		sort_in(&queues[i]);
		spin_unlock(&queues[i].lock);
	}
}

/**
 * umem_notify_queue_later - Something happened; see to it after a while
 * @n: The tracker; the caller has its lock
 */
void umem_notify_queue_later(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	n->doublings = 0;
	queue_after(n, 1, SETTLE_DELAY, false);
}

/**
 * umem_notify_queue_again - Try again what can't be done now, less and less often
 * @n: The tracker
 */
void umem_notify_queue_again(struct ib_umem_notify *n)
{
	spin_lock(&n->lock);
	queue_after(n, n->doublings + 1, SETTLE_DELAY << n->doublings, false);
	n->doublings = min(n->doublings + 1, MOST_DOUBLINGS);
	spin_unlock(&n->lock);
}

/* The first whose time has come. If there is none, the revoker comes again for it. */
static struct ib_umem_notify *first_due(struct queue *q)
{
	struct ib_umem_notify *n;
	unsigned int i;
	s32 left;

	lockdep_assert_held(&q->lock);

	for (i = 0; i < ARRAY_SIZE(q->delayed); i++) {
		n = list_first_entry_or_null(&q->delayed[i],
					     struct ib_umem_notify, link);
		if (!n)
			continue;
		left = n->due - (u32)jiffies;
		if (left <= 0)
			return n;
		wake_at(q, jiffies + left);
	}
	return NULL;
}

static void serve(struct queue *q, struct ib_umem_notify *n, bool may_look)
{
	lockdep_assert_held(&q->lock);

	list_del_init(&n->link);
	n->workers++;
	spin_unlock(&q->lock);

	if (umem_notify_serve(n, may_look))
		umem_notify_queue_again(n);

	spin_lock(&q->lock);
	if (!--n->workers && n->dead)
		wake_up_var(&n->workers);
}

/*
 * An unmap calls the callbacks of all that it hits, and then needs up to twice as
 * long for their pages. A guess: if it is wrong, that costs time and nothing else.
 */
static void let_unmap_end(struct llist_head *fresh)
{
	ktime_t begin = ktime_get();
	struct llist_node *first;
	s64 took;

	do {
		first = READ_ONCE(fresh->first);
		usleep_range(50, 100);
		took = ktime_us_delta(ktime_get(), begin);
	} while (READ_ONCE(fresh->first) != first && took < MOST_PATIENCE_US);
	/* This worker itself may have had no CPU for long. */
	took = min_t(s64, took, MOST_PATIENCE_US);
	usleep_range(2 * took, 3 * took);
}

static void revoker(struct work_struct *work)
{
	struct queue *q = container_of(work, struct queue, revoker.work);
	struct ib_umem_notify *n;

	if (!llist_empty(&q->fresh[0]))
		let_unmap_end(&q->fresh[0]);

	spin_lock(&q->lock);
	q->waiting = false;
	sort_in(q);
	while ((n = first_due(q))) {
		if (READ_ONCE(n->state) == SUSPECT) {
			list_move_tail(&n->link, &q->look);
			queue_work(umem_notify_wq, &q->looker);
		} else {
			serve(q, n, false);
		}
		cond_resched_lock(&q->lock);
	}
	spin_unlock(&q->lock);
}

static void looker(struct work_struct *work)
{
	struct queue *q = container_of(work, struct queue, looker);

	spin_lock(&q->lock);
	while (!list_empty(&q->look)) {
		serve(q, list_first_entry(&q->look, struct ib_umem_notify, link),
		      true);
		cond_resched_lock(&q->lock);
	}
	spin_unlock(&q->lock);
}

static bool is_left_alone(const struct ib_umem_notify *n)
{
	struct queue *q = queue_of(n);
	bool alone;

	spin_lock(&q->lock);
	alone = !n->workers;
	spin_unlock(&q->lock);
	return alone;
}

/* Returns whether nothing is left that knows the tracker. */
static bool take_off(struct ib_umem_notify *n)
{
	struct queue *q = queue_of(n);
	bool alone;

	spin_lock(&q->lock);
	n->dead = true;
	sort_in(q);
	list_del_init(&n->link);
	alone = !n->workers;
	spin_unlock(&q->lock);
	return alone;
}

/**
 * umem_notify_queue_forget - No worker comes to a tracker any more
 * @n: The tracker
 *
 * Context: Process context; waits for the worker that has it.
 */
void umem_notify_queue_forget(struct ib_umem_notify *n)
{
	while (!take_off(n))
		wait_var_event(&n->workers, is_left_alone(n));
}

int umem_notify_queue_init(void)
{
	unsigned int i, j;

	umem_notify_wq = alloc_workqueue("ib_mr_notify",
					 WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	if (!umem_notify_wq)
		return -ENOMEM;
	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		struct queue *q = &queues[i];

		spin_lock_init(&q->lock);
		for (j = 0; j < ARRAY_SIZE(q->delayed); j++)
			INIT_LIST_HEAD(&q->delayed[j]);
		INIT_LIST_HEAD(&q->look);
		INIT_DELAYED_WORK(&q->revoker, revoker);
		INIT_WORK(&q->looker, looker);
	}
	return 0;
}

/* No tracker is left. */
void umem_notify_queue_exit(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		cancel_delayed_work_sync(&queues[i].revoker);
		cancel_work_sync(&queues[i].looker);
	}
	destroy_workqueue(umem_notify_wq);
}
