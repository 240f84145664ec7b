/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Inside of MR notification: the address space (umem_notify_space.c), the tracker of a
 * umem (umem_notify.c: its life and arming, umem_notify_state.c: the knowledge of its
 * range, umem_notify_retire.c: how the device loses it), the queue that brings workers to
 * it (umem_notify_queue.c), and the pages that it lends to the VM
 * (umem_notify_reclaim.c), and the waits for them (umem_notify_due.c).
 */
#ifndef UMEM_NOTIFY_TRACKER_H
#define UMEM_NOTIFY_TRACKER_H

#include <linux/atomic.h>
#include <linux/interval_tree.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "umem_notify.h"

#define INVALID IB_UVERBS_MR_NOTIFY_INVALID
#define SUSPECT IB_UVERBS_MR_NOTIFY_SUSPECT
#define SUSPENDED IB_UVERBS_MR_NOTIFY_SUSPENDED

#define UMEM_NOTIFY_BLOCKS 256

/* Events under way, by blocks of addresses, and those that cover very many. */
struct umem_notify_counts {
	atomic_t wide;
	atomic_t blocks[UMEM_NOTIFY_BLOCKS];
};

/*
 * An address space. Its lock is taken by MMU callbacks, with mmap_lock or rmap locks
 * held, inside reclaim, possibly unable to sleep: it is a leaf, and nothing is
 * allocated under it.
 */
struct umem_notify_space {
	struct mmu_notifier mn;
	refcount_t users; /* one of the address space, one of each queue and page */
	spinlock_t lock;
	struct rb_root_cached trackers; /* @lock */
	struct rb_root_cached words; /* @lock: pages of words, see umem_notify_word.c */
	struct rb_root frames; /* @lock: of private pages of words */
	struct list_head queues; /* @lock: one for each device */
	bool unmapped; /* @lock: a queue has something for the end of an event */
	unsigned int due; /* @lock: trackers that are @due_now, or at a worker since */
	unsigned int forks; /* @lock: trackers that forks found with pages that are due */
	bool stuck; /* no caller waits for @due, as the worker does not come */
	bool released; /* all trackers have been told that the address space ends */

	struct umem_notify_counts events;
	struct umem_notify_counts changes; /* of those that may replace pages */
	wait_queue_head_t ended; /* such an event has ended, or nothing is due */

	struct hlist_node node; /* umem_notify_spaces */
	struct rcu_head rcu;
};

/* A delay may double so often: to some seconds. */
#define UMEM_NOTIFY_MOST_DOUBLINGS 7
/* Behind the lists of the delays, that of the idle time. */
#define UMEM_NOTIFY_IDLE_LIST (UMEM_NOTIFY_MOST_DOUBLINGS + 2)

/* Of a device, in an address space. All but the works is under the space's lock. */
struct umem_notify_queue {
	struct umem_notify_space *space;
	struct ib_device *device;
	struct list_head siblings; /* the queues of the space */
	unsigned int users; /* trackers */
	struct list_head delayed[UMEM_NOTIFY_IDLE_LIST + 1]; /* the first: not at all */
	unsigned long idle; /* in jiffies */
	struct list_head look; /* SUSPECT for long enough */
	struct delayed_work revoker;
	struct work_struct looker;
	unsigned long wake; /* when the revoker runs next, if it is @waiting */
	bool waiting;
	bool unmapped; /* something is due when the event has ended */
};

/* A range in one of the trees of a space; all of it is under the space's lock. */
struct umem_notify_node {
	struct interval_tree_node range;
	u32 walkers; /* events that let go of the lock there: of as many threads at most */
	bool ended; /* none comes any more; the last of them takes it out */
	bool left; /* by its owner; the last of them frees it */
};

/*
 * One per watched MR. @mutex is outside of mmap_lock and the inode locks; MMU callbacks
 * do not take it, and workers only try to. A field that is "mutex and lock" is written
 * under both and read under either, so a look at the tracker (a trace event, netlink)
 * does not wait for a settle that faults pages in.
 *
 * An unmap may come to 10,000 of them in a row. The fields that it uses come first:
 * @umem, for one, would cost it the fetch of a cache line.
 */
struct ib_umem_notify {
	struct umem_notify_node node;

	u8 state; /* lock */
	u8 doublings; /* lock: of the delay, until something happens */
	u8 workers; /* lock: that have it */
	bool hurry; /* a caller waits for @mutex that must not wait for long */
	bool armed : 1; /* mutex and lock */
	bool revoked : 1; /* mutex and lock: the pages are given back */
	bool refused : 1; /* mutex and lock: the driver will not */
	bool reclaim : 1; /* mutex and lock: the VM may have idle pages */
	u8 held : 2; /* mutex and lock: the driver is busy with the MR, and why */
	bool exclusive : 1; /* lock: a device has once kept the CPU off a page */
	bool dead : 1; /* lock: no worker may have it any more */
	bool timed : 1; /* lock: suspended once it has been idle for a while */
	bool due_now : 1; /* lock: @due of the space counts it */
	u16 word; /* lock: offset in @word_page */
	u16 seen; /* lock: the application's bits at the last look for idle ones */
	u16 look; /* lock: when that was */
	u32 due; /* lock: in jiffies */
	struct umem_notify_queue *queue;
	struct umem_notify_word_page *word_page; /* lock; NULL: no word to tell */
	u64 in_use; /* lock: bits of the word that count its users */
	struct umem_notify_doubt doubt; /* lock */
	struct list_head link; /* lock: of its queue */

	struct ib_umem *umem; /* NULL while it is being pinned; lock: until then */
	struct ib_mr *mr; /* mutex and lock: while armed */
	struct mutex mutex;
	struct list_head lru; /* the list's lock, see umem_notify_reclaim.c */
};

/* With the locks as they are where nothing is debugged. */
#if !defined(CONFIG_DEBUG_LOCK_ALLOC) && !defined(CONFIG_DEBUG_SPINLOCK) && \
	!defined(CONFIG_DEBUG_MUTEXES) && !defined(CONFIG_PREEMPT_RT)
static_assert(sizeof(struct ib_umem_notify) <= 192);
static_assert(offsetofend(struct ib_umem_notify, link) <= 128);
#endif

static inline unsigned long umem_notify_start(const struct ib_umem_notify *n)
{
	return n->node.range.start;
}

static inline unsigned long umem_notify_last(const struct ib_umem_notify *n)
{
	return n->node.range.last;
}

static inline u32 umem_notify_pages(const struct ib_umem_notify *n)
{
	return (umem_notify_last(n) - umem_notify_start(n)) / PAGE_SIZE + 1;
}

/* umem_notify_space.c */
struct umem_notify_space *umem_notify_space_get(void);
void umem_notify_space_put(struct umem_notify_space *space);
void umem_notify_space_leave(struct umem_notify_space *space);
void umem_notify_space_exit(void);
void umem_notify_space_insert(struct umem_notify_space *space,
			      struct rb_root_cached *tree,
			      struct umem_notify_node *node);
bool umem_notify_space_erase(struct umem_notify_space *space,
			     struct rb_root_cached *tree,
			     struct umem_notify_node *node);
bool umem_notify_space_drop(struct umem_notify_space *space,
			    struct umem_notify_node *node);
bool umem_notify_space_changes(const struct umem_notify_space *space,
			       unsigned long start, unsigned long last);
bool umem_notify_space_events(const struct umem_notify_space *space,
			      unsigned long start, unsigned long last);
int umem_notify_space_wait(struct umem_notify_space *space, unsigned long start,
			   unsigned long last, unsigned long until);

/* umem_notify_word.c: as a space calls it */
void umem_notify_word_event(struct umem_notify_node *node,
			    const struct mmu_notifier_range *range);
void umem_notify_word_free(struct umem_notify_node *node);

/* umem_notify_state.c */
void umem_notify_tracker_event(struct umem_notify_node *node,
			       const struct mmu_notifier_range *range);
void umem_notify_doubt_clear(struct umem_notify_doubt *doubt);
void umem_notify_doubt_all(struct ib_umem_notify *n);
void umem_notify_mark(struct ib_umem_notify *n, u8 bit, unsigned long start,
		      unsigned long end);
int umem_notify_verify(struct ib_umem_notify *n, enum umem_notify_asker asker);

/* umem_notify_retire.c */
struct umem_notify_word_page *umem_notify_take_word(struct ib_umem_notify *n);
bool umem_notify_retire(struct ib_umem_notify *n);

/* umem_notify_queue.c */
struct umem_notify_queue *umem_notify_queue_get(struct ib_device *device);
void umem_notify_queue_put(struct umem_notify_queue *q);
void umem_notify_queue_now(struct ib_umem_notify *n);
void umem_notify_queue_invalid(struct ib_umem_notify *n);
void umem_notify_queue_later(struct ib_umem_notify *n);
void umem_notify_queue_again(struct ib_umem_notify *n);
void umem_notify_queue_time(struct ib_umem_notify *n, u32 idle_ms);
void umem_notify_queue_idle(struct ib_umem_notify *n);
void umem_notify_queue_forget(struct ib_umem_notify *n);
void umem_notify_queue_unmapped(struct umem_notify_space *space);

/* umem_notify_due.c */
void umem_notify_due_add(struct ib_umem_notify *n);
bool umem_notify_due_take(struct ib_umem_notify *n);
void umem_notify_due_end(struct umem_notify_space *space);
void umem_notify_due_wait(struct umem_notify_space *space);
void umem_notify_due_ended(struct umem_notify_space *space,
			   const struct mmu_notifier_range *range);
bool umem_notify_due_is_fork(const struct mmu_notifier_range *range);
void umem_notify_due_fork(struct umem_notify_node *node,
			  const struct mmu_notifier_range *range);

/* umem_notify_reclaim.c */
int umem_notify_reclaim_init(void);
void umem_notify_reclaim_exit(void);
struct ib_umem_notify *umem_notify_tracker_alloc(void);
void umem_notify_tracker_free(struct umem_notify_node *node);
void umem_notify_lend(struct ib_umem_notify *n);
void umem_notify_unlend(struct ib_umem_notify *n);
void umem_notify_first_look(struct ib_umem_notify *n);
bool umem_notify_is_idle(const struct ib_umem_notify *n);
bool umem_notify_take_back(struct ib_umem_notify *n);
void umem_notify_look_idle(struct ib_umem_notify *n, unsigned long idle);
int umem_notify_restore(struct ib_umem_notify *n);

static inline struct umem_notify_space *
umem_notify_space(const struct ib_umem_notify *n)
{
	return n->queue->space;
}

static inline void umem_notify_lock(struct ib_umem_notify *n)
	__acquires(&umem_notify_space(n)->lock)
{
	spin_lock(&umem_notify_space(n)->lock);
}

static inline void umem_notify_unlock(struct ib_umem_notify *n)
	__releases(&umem_notify_space(n)->lock)
{
	spin_unlock(&umem_notify_space(n)->lock);
}

/*
 * For a caller that has seen the word, which may be changed before the state is: without
 * the lock a bit that was seen there might not be in the state yet.
 */
static inline u8 umem_notify_state(struct ib_umem_notify *n)
{
	u8 state;

	umem_notify_lock(n);
	state = n->state;
	umem_notify_unlock(n);
	return state;
}

static inline void umem_notify_assert_locked(const struct ib_umem_notify *n)
{
	lockdep_assert_held(&umem_notify_space(n)->lock);
}

static inline void umem_notify_counted(const struct ib_umem_notify *n,
				       enum ib_mr_notify_stat stat, s64 nr)
{
	umem_notify_count(n->queue->device, stat, nr);
}

/*
 * The MR's number in restrack, for traces. Under the lock, or of a worker, for
 * which the end of the MR waits.
 */
static inline u32 umem_notify_id(const struct ib_umem_notify *n)
{
	const struct ib_mr *mr = READ_ONCE(n->mr);

	return mr ? mr->res.id : 0;
}

#endif /* UMEM_NOTIFY_TRACKER_H */
