/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The tracker of a umem, for those files that work on one: what happens to it
 * (umem_notify.c), the workers that come back to it (umem_notify_queue.c), and
 * the pages that it lends to the VM (umem_notify_reclaim.c).
 */
#ifndef UMEM_NOTIFY_TRACKER_H
#define UMEM_NOTIFY_TRACKER_H

#include <linux/list.h>
#include <linux/llist.h>
#include <linux/lockdep.h>
#include <linux/mmu_notifier.h>
#include <linux/spinlock.h>

#include "umem_notify.h"

#define INVALID IB_UVERBS_MR_NOTIFY_INVALID
#define SUSPECT IB_UVERBS_MR_NOTIFY_SUSPECT
#define SUSPENDED IB_UVERBS_MR_NOTIFY_SUSPENDED

/*
 * One per watched MR. Who has set @taken has the tracker: that and @lock are
 * what guards it, see LOCKS in umem_notify.c.
 *
 * An unmap may call 10,000 callbacks in a row. What they use comes first, in 128
 * bytes: @umem, for one, costs them the fetch of a cache line that they can spare.
 */
struct ib_umem_notify {
	struct mmu_interval_notifier mni;

	spinlock_t lock; /* a leaf, but for the queue's */
	bool taken; /* @lock */
	bool armed; /* taken and @lock */
	bool revoked; /* taken and @lock: the pages are given back */
	u8 held; /* taken and @lock: the driver is busy with the MR, and why */

	u8 state; /* @lock */
	u8 doublings; /* @lock: of the delay, until something happens */
	u16 word; /* @lock: offset in @word_page */
	u32 due; /* the queue's lock: in jiffies */
	struct umem_notify_word_page *word_page; /* @lock; NULL: nobody to tell */
	union { /* @lock */
		u64 in_use; /* with a @word_page: bits of the word */
		struct umem_notify_word_page *retired; /* without: still to be ended */
	};
	union {
		struct umem_notify_doubt doubt; /* @lock; unless INVALID */
		struct llist_node fresh; /* INVALID: see umem_notify_queue.c */
	};

	struct ib_umem *umem;
	struct ib_mr *mr; /* taken and @lock: while armed */
	bool exclusive; /* @lock: a device has once kept the CPU off a page */
	bool reclaim; /* taken and @lock: the VM may have idle pages */
	u16 seen; /* @lock: the application's bits at the last look */
	u16 look; /* @lock: when that was */
	u8 workers; /* the queue's lock: that have it */
	bool dead; /* the queue's lock: no worker may have it any more */
	struct list_head lru; /* the list's lock, see umem_notify_reclaim.c */
	struct list_head link; /* the queue's lock, see umem_notify_queue.c */
#ifdef CONFIG_DEBUG_LOCK_ALLOC
	struct lockdep_map dep_map;
#endif
};

/* Of the spinlock that all who are in a hurry use; another is larger */
#if !defined(CONFIG_DEBUG_LOCK_ALLOC) && !defined(CONFIG_DEBUG_SPINLOCK) && \
	!defined(CONFIG_PREEMPT_RT)
static_assert(sizeof(struct ib_umem_notify) <= 192);
static_assert(offsetofend(struct ib_umem_notify, fresh) <= 128);
#endif

static inline unsigned long umem_notify_start(const struct ib_umem_notify *n)
{
	return n->mni.interval_tree.start;
}

static inline u32 umem_notify_pages(const struct ib_umem_notify *n)
{
	return (n->mni.interval_tree.last - umem_notify_start(n)) / PAGE_SIZE +
	       1;
}

/*
 * The MR's number in restrack, for whoever watches. Under @lock, or of a worker,
 * for which the end of the MR waits.
 */
static inline u32 umem_notify_id(const struct ib_umem_notify *n)
{
	const struct ib_mr *mr = READ_ONCE(n->mr);

	return mr ? mr->res.id : 0;
}

/* umem_notify.c */
void umem_notify_doubt_clear(struct umem_notify_doubt *doubt);
void umem_notify_mark(struct ib_umem_notify *n, u8 bit, unsigned long start,
		      unsigned long end);
bool umem_notify_serve(struct ib_umem_notify *n, bool may_look);

/* umem_notify_queue.c */
int umem_notify_queue_init(void);
void umem_notify_queue_exit(void);
void umem_notify_queue_now(struct ib_umem_notify *n);
void umem_notify_queue_fresh(struct ib_umem_notify *n);
void umem_notify_queue_later(struct ib_umem_notify *n);
void umem_notify_queue_again(struct ib_umem_notify *n);
void umem_notify_queue_forget(struct ib_umem_notify *n);
void umem_notify_queue_count(void);

/* umem_notify_reclaim.c */
int umem_notify_reclaim_init(void);
void umem_notify_reclaim_exit(void);
struct ib_umem_notify *umem_notify_alloc(void);
void umem_notify_free(struct ib_umem_notify *n);
void umem_notify_lend(struct ib_umem_notify *n);
void umem_notify_unlend(struct ib_umem_notify *n);
void umem_notify_first_look(struct ib_umem_notify *n);
int umem_notify_restore(struct ib_umem_notify *n);

#endif /* UMEM_NOTIFY_TRACKER_H */
