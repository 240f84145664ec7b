/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The internals of MR notification. Each file calls only files that are listed before it:
 *
 *  umem_notify_word.c     the word in user memory
 *  umem_notify_stats.c    the counters and the workqueue of a device
 *  umem_notify_check.c    the comparison of mapped and pinned pages
 *  umem_notify_mm.c       the address space: its tree, lock, and events in progress; references
 *  umem_notify_state.c    the state of a tracker
 *  umem_notify_users.c    whether a tracker is in use, and its suspension
 *  umem_notify_retire.c   revoking and unpinning an INVALID or SUSPENDED tracker
 *  umem_notify_queue.c    the worker
 *  umem_notify_event.c    the MMU notifier
 *  umem_notify_reclaim.c  the shrinker
 *  umem_notify.c          creating, arming, settling and ending a tracker
 *  uverbs_std_types_mr_notify.c  the methods
 */
#ifndef UMEM_NOTIFY_H
#define UMEM_NOTIFY_H

#include <linux/interval_tree.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/task_work.h>
#include <linux/workqueue.h>

#include <rdma/ib_umem_notify.h>

#define INVALID IB_UVERBS_MR_NOTIFY_INVALID
#define SUSPECT IB_UVERBS_MR_NOTIFY_SUSPECT
#define SUSPENDED IB_UVERBS_MR_NOTIFY_SUSPENDED

/* The pinned page of a word. The word is eight bytes at an offset in the page. */
struct umem_notify_word_page;

/* How an MR is armed */
struct umem_notify_arming {
	u64 word; /* user address, a multiple of eight */
	u64 in_use; /* the bits of the word that count users; 0: users are not counted */
	bool reclaim; /* the VM may take the pages while these bits are 0 */
	u32 idle_ms; /* suspend after this time without use; 0: never */
	u64 changes; /* user address of a counter of INVALID words; 0: none */
	int event_fd; /* an eventfd for INVALID words; -1: none */
};

/* The word of a tracker, and what the shrinker and the worker remember of it */
struct umem_notify_word {
	struct umem_notify_word_page *page; /* NULL: there is no word */
	struct umem_notify_listener *listener; /* its counter and its eventfd, or NULL */
	u16 offset; /* in @page */
	u16 lru_hash; /* hash of the application's bits at the last scan that found a use */
	u32 lru_time; /* the time of this scan, in jiffies */
};

int umem_notify_word_get(struct umem_notify_word *word, const struct umem_notify_arming *how);
void umem_notify_word_put(const struct umem_notify_word *word);
void umem_notify_word_change(const struct ib_umem_notify *n, u64 set, u64 clear);
void umem_notify_word_count(const struct ib_umem_notify *n);
void umem_notify_word_signal(struct umem_notify_listener *listener);
bool umem_notify_word_cmpxchg(const struct ib_umem_notify *n, u64 old, u64 value);
u64 umem_notify_word_read(const struct ib_umem_notify *n);

/*
 * The time in jiffies that a caller of umem_notify_verify() waits for events and for locks of
 * files. A caller that passes 0 waits only for mmap_lock of its own process. The worker waits
 * for no lock.
 */
#define UMEM_NOTIFY_WORKER (-1)
#define UMEM_NOTIFY_PATIENCE HZ

/*
 * The suspect pages of a range. The range has at most 64 chunks of 1 << shift pages. A page is
 * suspect if it is in [first, end) and the bit of its chunk is set. So one event marks exactly
 * its pages, and two distant events do not mark the chunks between them.
 */
struct umem_notify_suspects {
	u64 chunks;
	u32 first;
	u32 end;
};

/* The pages that umem_notify_check() compares */
struct umem_notify_comparison {
	struct umem_notify_suspects suspects;
	bool worker; /* the caller is the worker, which does not wait for locks or fault pages in */
	/* A device may have exclusive access to a page, so the page is not mapped. */
	bool exclusive;
	u32 at; /* the first page that was not found intact */
};

/* umem_notify_check() returns this if a page is mapped that is not the pinned page. */
#define UMEM_NOTIFY_CHANGED 1

int umem_notify_check(struct ib_umem_notify *n, unsigned int shift,
		      struct umem_notify_comparison *cmp);

int umem_notify_device_get(struct ib_device *device);
void umem_notify_count(const struct ib_umem_notify *n, enum ib_mr_notify_stat stat, s64 nr);

/*
 * The worker runs this number of jiffies after an event. Events come in bursts, and the
 * application may settle or deregister the registration first.
 */
#define UMEM_NOTIFY_LATER max(HZ / 50, 1)
/*
 * The shrinker suspends a registration that was unused for this time, in jiffies. Scans within
 * this time count as one scan, because reclaim runs on all CPUs at the same time.
 */
#define UMEM_NOTIFY_SCANS_APART (2 * UMEM_NOTIFY_LATER)

/* An event in progress that may replace pages */
struct umem_notify_event {
	unsigned long start;
	unsigned long last;
};

/*
 * An address space. MMU callbacks, also those of reclaim, take its lock with mmap_lock or rmap
 * locks held. Some callbacks must not sleep. So the lock is a leaf, and no function allocates
 * memory under the lock. [lock] marks the fields that the lock protects.
 */
struct umem_notify_mm {
	struct mmu_notifier mn;
	spinlock_t lock; /* a leaf: see above */
	struct rb_root_cached trackers; /* @lock */
	unsigned long rest; /* @lock: no worker compares pages before this time */

	unsigned int nr; /* @lock: the slots in use */
	unsigned int beyond; /* @lock: events that found no slot */
	struct umem_notify_event events[64]; /* @lock */
};

/* A walk through the trackers that overlap [start, last] */
struct umem_notify_walk {
	unsigned long start;
	unsigned long last;
	bool sleeps; /* the caller may sleep */
	unsigned int nr; /* trackers visited since the walk last paused */
};

/*
 * The queue of a context, for the address space that first registers with the context. If
 * another address space (a child) registers, too, each of its registrations has its own
 * queue. The space's lock protects all fields but @refs.
 */
struct umem_notify_queue {
	struct umem_notify_mm *space;
	struct ib_device *device;
	refcount_t refs; /* the context, and the trackers */
	bool single; /* the queue belongs to one tracker, not to a context */
	struct list_head work; /* trackers that the worker has to visit */
	struct delayed_work worker;
	unsigned long next; /* the time of the worker's next run; only valid if @waiting */
	bool waiting; /* a run of the worker is planned */
	u8 doublings; /* how often the delay before the next try was doubled */
	unsigned long scan_at; /* the time of the worker's next search for idle trackers */
	u32 idle; /* the shortest idle time, in jiffies; 0: none */
};

/*
 * The tracker. Each watched MR has a tracker. @mutex is taken before mmap_lock and the inode
 * locks. Only system calls wait for @mutex: all other callers use trylock.
 *
 * [lock] marks a field that the lock of the address space protects. A field marked [both] is
 * written under this lock and @mutex together, and is read under either. So a trace event does
 * not wait for a settle that faults pages in.
 *
 * An unmap may visit 10,000 trackers in a row. So the fields that an unmap uses come first:
 * reading @umem, for example, costs another cache line.
 */
struct ib_umem_notify {
	struct interval_tree_node range; /* lock */

	u8 state; /* lock */
	bool mutex_wanted; /* a caller waits for @mutex: the worker releases it soon */
	bool armed : 1; /* mutex and lock: an event may make it INVALID */
	bool revoked : 1; /* mutex and lock: the pages are unpinned */
	bool refused : 1; /* mutex and lock: the driver does not revoke it */
	bool reclaim : 1; /* mutex and lock: the VM may take the pages of an idle MR */
	bool held : 1; /* mutex and lock: the driver is busy with the MR */
	bool quiet : 1; /* mutex and lock: the end of the tracker does not set INVALID */
	bool exclusive : 1; /* lock: a device once had exclusive access to a page */
	bool written : 1; /* lock: the word was in use during an event that may be MADV_FREE */
	bool reserved : 1; /* lock: it is INVALID, and @task_work will retire it */
	u8 refs : 7; /* lock: of the umem, and of each walk or task that is visiting the tracker */
	u32 idle; /* lock: suspend after so many jiffies without use; 0: never */
	struct umem_notify_word word; /* lock; @page and @listener: mutex and lock */
	struct umem_notify_queue *queue;
	u64 in_use; /* lock: bits of the word that count its users */
	struct umem_notify_suspects suspects; /* lock */
	union {
		struct list_head link; /* lock: of its queue */
		struct callback_head task_work; /* while @reserved */
	};

	struct ib_umem *umem; /* NULL until the pages are pinned; the lock protects it until then */
	struct ib_mr *mr; /* [both] NULL if the tracker is not armed, and so can't be retired */
	struct mutex mutex;
	struct list_head lru; /* protected by the lock of the list in umem_notify_reclaim.c */
};

/* Debugging and PREEMPT_RT enlarge the locks. */
#if !defined(CONFIG_DEBUG_LOCK_ALLOC) && !defined(CONFIG_DEBUG_SPINLOCK) && \
	!defined(CONFIG_DEBUG_MUTEXES) && !defined(CONFIG_PREEMPT_RT)
static_assert(sizeof(struct ib_umem_notify) <= 192);
static_assert(offsetofend(struct ib_umem_notify, link) <= 128);
#endif

static inline u32 umem_notify_pages(const struct ib_umem_notify *n)
{
	return (n->range.last - n->range.start) / PAGE_SIZE + 1;
}

/* umem_notify_mm.c */
void umem_notify_queue_put(struct umem_notify_queue *q);
void umem_notify_unref(struct ib_umem_notify *n);
void umem_notify_put(struct ib_umem_notify *n);
struct ib_umem_notify *umem_notify_mm_next(struct umem_notify_mm *space,
					   struct umem_notify_walk *walk, struct ib_umem_notify *n);
void umem_notify_mm_begin(struct umem_notify_mm *space, unsigned long start, unsigned long last);
void umem_notify_mm_end(struct umem_notify_mm *space, unsigned long start, unsigned long last);
bool umem_notify_mm_changes(const struct umem_notify_mm *space, unsigned long start,
			    unsigned long last);

/* umem_notify_state.c */
void umem_notify_suspects_clear(struct umem_notify_suspects *suspects);
void umem_notify_suspects_add(struct ib_umem_notify *n, unsigned long start, unsigned long last);
void umem_notify_mark_invalid(struct ib_umem_notify *n);
void umem_notify_mark_suspect(struct ib_umem_notify *n, unsigned long start, unsigned long last);
int umem_notify_verify(struct ib_umem_notify *n, int patience);

/* umem_notify_users.c */
bool umem_notify_is_used(const struct ib_umem_notify *n);
bool umem_notify_is_idle(const struct ib_umem_notify *n);
bool umem_notify_unused_for(struct ib_umem_notify *n, u32 time);
void umem_notify_first_scan(struct ib_umem_notify *n, bool used);
bool umem_notify_can_restore(const struct ib_umem_notify *n);
bool umem_notify_suspend(struct ib_umem_notify *n);

/* umem_notify_retire.c */
struct umem_notify_word umem_notify_take_word(struct ib_umem_notify *n);
void umem_notify_mark_dirty(struct ib_umem *umem);
void umem_notify_unpin(struct ib_umem_notify *n);
bool umem_notify_retire(struct ib_umem_notify *n);
bool umem_notify_retires_atomically(const struct ib_umem_notify *n);

/* umem_notify_queue.c */
void umem_notify_queue_work(struct work_struct *work);
void umem_notify_queue_add(struct ib_umem_notify *n, unsigned long delay);
void umem_notify_queue_set_idle(struct ib_umem_notify *n);
bool umem_notify_queue_current(struct ib_umem_notify *n);
void umem_notify_queue_retire(struct ib_umem_notify *n);
void umem_notify_queue_visit(struct ib_umem_notify *n, u64 *took);

/* umem_notify_event.c */
struct umem_notify_mm *umem_notify_event_space(void);
void umem_notify_event_exit(void);

/* umem_notify_reclaim.c */
struct ib_umem_notify *umem_notify_tracker_alloc(void);
void umem_notify_lru_add(struct ib_umem_notify *n);
void umem_notify_lru_del(struct ib_umem_notify *n);
int umem_notify_restore(struct ib_umem_notify *n);

/* umem_notify.c */
int umem_notify_arm(struct ib_mr *mr, const struct umem_notify_arming *how);
int umem_notify_disarm(struct ib_mr *mr);
int umem_notify_settle(struct ib_mr *mr);
int umem_notify_suspend_now(struct ib_mr *mr);
struct ib_umem_notify *umem_notify_of_mr(struct ib_mr *mr);

static inline struct umem_notify_mm *umem_notify_mm_of(struct mmu_notifier *mn)
{
	return container_of(mn, struct umem_notify_mm, mn);
}

static inline struct umem_notify_mm *umem_notify_mm(const struct ib_umem_notify *n)
{
	return n->queue->space;
}

static inline void umem_notify_lock(struct ib_umem_notify *n)
	__acquires(&umem_notify_mm(n)->lock)
{
	spin_lock(&umem_notify_mm(n)->lock);
}

static inline void umem_notify_unlock(struct ib_umem_notify *n)
	__releases(&umem_notify_mm(n)->lock)
{
	spin_unlock(&umem_notify_mm(n)->lock);
}

DEFINE_GUARD(umem_notify, struct ib_umem_notify *, umem_notify_lock(_T), umem_notify_unlock(_T))

/*
 * The word may change before the state. So a caller that has seen a bit in the word needs the
 * lock to find this bit in the state.
 */
static inline u8 umem_notify_state(struct ib_umem_notify *n)
{
	guard(umem_notify)(n);
	return n->state;
}

static inline void umem_notify_assert_locked(const struct ib_umem_notify *n)
{
	lockdep_assert_held(&umem_notify_mm(n)->lock);
}

#endif /* UMEM_NOTIFY_H */
