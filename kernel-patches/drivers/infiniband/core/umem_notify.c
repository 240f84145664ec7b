// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The tracker of a umem: knows whether the registered range still maps the
 * pinned pages, and says so in a word of user memory.
 *
 * One interval notifier per umem. It is inserted either by ib_umem_get(),
 * before the first page is pinned (IB_UVERBS_ACCESS_TRACK), or when the MR is
 * armed. It stays until the umem is released.
 *
 * STATE (umem_notify.state, and while armed the same bits in the word)
 *
 *  0        The range maps the pinned pages.
 *  SUSPECT  Something may have changed in [first, end). Left by settling: to 0
 *           if the pages are the same, else to INVALID.
 *  INVALID  Final. The word has been told, and is not touched any more; the
 *           worker revokes the device's access and gives the pages back.
 *
 * An event raises the state inside mmu_notifier_invalidate_range_start(), that
 * is before the page tables change and before the system call returns. UNMAP
 * and RELEASE are certain. CLEAR and MIGRATE are not (a split of a huge page
 * is a CLEAR too). All others leave a pinned page where it is: mprotect, fork,
 * NUMA hints, soft-dirty.
 *
 * WHY NO CHANGE IS MISSED
 *
 * Pinning first and watching later loses what happens in between:
 *
 *   ibv_reg_mr, then arm                  another thread
 *   pin page P
 *                                         munmap: unmaps P
 *                                         mmap: maps Q there
 *   insert notifier
 *   word = 0                              [never told: P stays registered]
 *
 * So the notifier is there before the pages, or the whole range is SUSPECT
 * from the start. A node that is inserted while an invalidation runs is not
 * called for that one. mmu_interval_read_begin() waits for it to end:
 *
 *   ib_umem_track()                       another thread
 *                                         invalidate_range_start()
 *   insert: deferred, no call
 *   mmu_interval_read_begin(): waits
 *                                         page tables change
 *                                         invalidate_range_end()
 *   pin: sees the new page tables
 *
 * While the pages are being pinned it is not known which side of an UNMAP they
 * are from. So until the range is armed, which looks, it only makes it SUSPECT.
 *
 * Settling must not wipe out a later event:
 *
 *   settle                                another thread
 *   looks: page P is mapped
 *                                         state |= SUSPECT (already set)
 *                                         unmaps P
 *   state = 0                             [the word says valid: stale]
 *
 * Both sides set and test the sequence of the interval under @lock:
 *
 *   seq = mmu_interval_read_begin()
 *   looks: page P is mapped
 *                                         lock; mmu_interval_set_seq();
 *                                         state |= SUSPECT; unlock
 *   lock; mmu_interval_read_retry() is true; unlock, look again
 *
 *   [Required: SUSPECT is cleared only if no event came after read_begin()]
 *
 * Arming reads the state without @lock first, and looks at nothing if it is 0.
 * An event between that and the word is not lost: who comes second under @lock
 * tells the word.
 *
 *   arm                                   another thread
 *   state is 0: no look
 *                                         lock; state |= SUSPECT; no word to
 *                                         tell; unlock
 *   lock; sets the word; state is not 0:
 *   tells the word, queues the worker;
 *   unlock
 *
 * The same event after arm's unlock finds the word, and queues the worker
 * itself: retire() may miss an INVALID that comes after its unlocked read, for
 * the worker calls it again.
 *
 * LOCKS
 *
 * @mutex serializes arm, disarm, settle and revoke. Process context; nests
 * outside mmap_lock, the inode locks and @lock. Never taken by the callback.
 * @lock is a leaf. The callback runs with mmap_lock or rmap locks held, inside
 * reclaim, possibly unable to sleep: it takes @lock only, and allocates
 * nothing.
 * What is guarded by both is written under both and read under either: so who
 * only looks (a trace event, netlink) does not wait for a settle that faults
 * pages in.
 */

#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

#define INVALID IB_UVERBS_MR_NOTIFY_INVALID
#define SUSPECT IB_UVERBS_MR_NOTIFY_SUSPECT

/*
 * How long the worker leaves a SUSPECT range alone: events come in bursts, and
 * an application that is about to use the registration settles it sooner.
 */
#define SETTLE_DELAY (HZ / 50)
/* Rounds of collision-retry after which the worker lets others run. */
#define WORKER_ROUNDS 8

/* One per armed MR: 256 bytes on a 64-bit kernel without lock debugging. */
struct ib_umem_notify {
	struct mmu_interval_notifier mni;
	struct ib_umem *umem;
	struct delayed_work work;

	struct mutex mutex; /* see LOCKS; guards the next five */
	struct ib_mr *mr; /* what to revoke while armed */
	bool suspended; /* the driver is busy with the MR */
	bool armed;
	bool revoked; /* the pages are given back */
	u32 id; /* the MR's in restrack, as of the last arming */

	spinlock_t lock; /* see LOCKS; guards the last three and the rest */
	u32 first; /* which pages are SUSPECT: [first, end) */
	u32 end;
	u16 word; /* offset in @word_page */
	u8 state;
	struct umem_notify_word_page *word_page; /* NULL: nobody to tell */
};

static void count(struct ib_umem_notify *n, enum ib_mr_notify_stat stat, s64 nr)
{
	umem_notify_count(n->umem->ibdev, stat, nr);
}

/* From the address @start to @end, which may reach beyond the umem. */
static void suspect(struct ib_umem_notify *n, unsigned long start,
		    unsigned long end)
{
	unsigned long first = n->mni.interval_tree.start;
	unsigned long last = n->mni.interval_tree.last;

	start = max(start, first) - first;
	end = min(end - 1, last) - first;
	n->first = min_t(unsigned long, n->first, start >> PAGE_SHIFT);
	n->end = max_t(unsigned long, n->end, (end >> PAGE_SHIFT) + 1);
	n->state |= SUSPECT;
}

static void mark(struct ib_umem_notify *n, u8 bit, unsigned long start,
		 unsigned long end)
{
	lockdep_assert_held(&n->lock);

	if (n->state & INVALID)
		return;

	if (bit == INVALID) {
		n->state = INVALID;
		count(n, IB_MR_NOTIFY_STAT_INVALID, 1);
	} else {
		if (!n->state)
			count(n, IB_MR_NOTIFY_STAT_SUSPECT, 1);
		suspect(n, start, end);
	}

	if (!n->word_page)
		return;
	umem_notify_word_set(n->word_page, n->word, bit);
	if (bit == INVALID)
		umem_notify_word_clear(n->word_page, n->word, SUSPECT);
	mod_delayed_work(system_unbound_wq, &n->work,
			 bit == INVALID ? 0 : SETTLE_DELAY);
}

static void clear_suspect(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	n->state &= ~SUSPECT;
	n->first = U32_MAX;
	n->end = 0;
	if (n->word_page)
		umem_notify_word_clear(n->word_page, n->word, SUSPECT);
}

/*
 * Always returns true, also to those who can't wait: the pages are pinned, so
 * nothing can be freed under the device before it is revoked.
 */
static bool umem_notify_invalidate(struct mmu_interval_notifier *mni,
				   const struct mmu_notifier_range *range,
				   unsigned long cur_seq)
{
	struct ib_umem_notify *n =
		container_of(mni, struct ib_umem_notify, mni);
	u8 bit;

	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_RELEASE:
		bit = INVALID;
		break;
	case MMU_NOTIFY_CLEAR:
	case MMU_NOTIFY_MIGRATE:
		bit = SUSPECT;
		break;
	default:
		return true;
	}

	spin_lock(&n->lock);
	mmu_interval_set_seq(mni, cur_seq);
	if (!(n->state & INVALID)) {
		mark(n, n->armed ? bit : SUSPECT, range->start, range->end);
		trace_mr_notify_mark(n->umem, n->id, n->state, n->armed, range);
	}
	spin_unlock(&n->lock);
	return true;
}

static const struct mmu_interval_notifier_ops umem_notify_ops = {
	.invalidate = umem_notify_invalidate,
};

/* From SUSPECT to 0 or INVALID. */
static int look(struct ib_umem_notify *n, enum umem_notify_asker asker)
{
	enum umem_notify_verdict verdict;
	unsigned int round;
	unsigned long seq;
	u32 first, end;
	u8 state;

	lockdep_assert_held(&n->mutex);

	for (round = 0;; round++) {
		if (asker == UMEM_NOTIFY_WORKER && round == WORKER_ROUNDS)
			return -EAGAIN;
		if (asker == UMEM_NOTIFY_USER && fatal_signal_pending(current))
			return -EINTR;
		cond_resched();

		seq = mmu_interval_read_begin(&n->mni);
		spin_lock(&n->lock);
		state = n->state;
		first = n->first;
		end = n->end;
		spin_unlock(&n->lock);
		if (state != SUSPECT)
			return 0;

		verdict = umem_notify_check(n->umem, first, end, asker);
		if (verdict == UMEM_NOTIFY_INTERRUPTED)
			return -EINTR;
		if (verdict == UMEM_NOTIFY_NO_MEMORY)
			return -ENOMEM;
		if (verdict == UMEM_NOTIFY_BUSY)
			return -EAGAIN;
		if (verdict == UMEM_NOTIFY_UNKNOWN)
			return 0;

		spin_lock(&n->lock);
		if (mmu_interval_read_retry(&n->mni, seq)) {
			spin_unlock(&n->lock);
			continue;
		}
		if (verdict == UMEM_NOTIFY_INTACT) {
			clear_suspect(n);
			count(n, IB_MR_NOTIFY_STAT_INTACT, 1);
		} else {
			mark(n, INVALID, 0, 0);
		}
		spin_unlock(&n->lock);
		return 0;
	}
}

static int verify(struct ib_umem_notify *n, enum umem_notify_asker asker)
{
	int ret;

	/* What comes later is told: see WHY NO CHANGE IS MISSED. */
	if (READ_ONCE(n->state) != SUSPECT)
		return 0;
	ret = look(n, asker);
	trace_mr_notify_settle(n->umem, n->id, READ_ONCE(n->state), asker, ret);
	return ret;
}

/* Once INVALID: the word has heard it all, and the device loses the pages. */
static void retire(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;
	struct ib_device *device;
	size_t pages;
	int ret;

	lockdep_assert_held(&n->mutex);

	if (READ_ONCE(n->state) != INVALID)
		return;
	spin_lock(&n->lock);
	word_page = n->word_page;
	n->word_page = NULL;
	spin_unlock(&n->lock);
	umem_notify_word_put(word_page);

	if (!n->armed || n->suspended || n->revoked)
		return;
	device = n->mr->device;
	if (!device->ops.revoke_user_mr)
		return;
	pages = ib_umem_num_pages(n->umem);
	ret = device->ops.revoke_user_mr(n->mr);
	if (ret) {
		trace_mr_notify_revoke(n->umem, n->id, 0, ret);
		ibdev_err_ratelimited(device,
				      "MR %u can't be revoked, its pages stay pinned\n",
				      n->mr->res.id);
		return;
	}
	ib_umem_give_back(n->umem);
	spin_lock(&n->lock);
	n->revoked = true;
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_REVOKES, 1);
	count(n, IB_MR_NOTIFY_STAT_PAGES, pages);
	trace_mr_notify_revoke(n->umem, n->id, pages, 0);
}

static void umem_notify_work(struct work_struct *work)
{
	struct ib_umem_notify *n =
		container_of(to_delayed_work(work), struct ib_umem_notify, work);
	int ret;

	mutex_lock(&n->mutex);
	ret = verify(n, UMEM_NOTIFY_WORKER);
	retire(n);
	mutex_unlock(&n->mutex);
	if (ret == -EAGAIN)
		queue_delayed_work(system_unbound_wq, &n->work, SETTLE_DELAY);
}

static struct ib_umem_notify *tracker_create(struct ib_umem *umem)
{
	unsigned long start = umem->address & PAGE_MASK;
	struct ib_umem_notify *n;
	int ret;

	ret = umem_notify_stats_get(umem->ibdev);
	if (ret)
		return ERR_PTR(ret);
	n = kzalloc(sizeof(*n), GFP_KERNEL);
	if (!n)
		return ERR_PTR(-ENOMEM);

	n->umem = umem;
	n->first = U32_MAX;
	mutex_init(&n->mutex);
	spin_lock_init(&n->lock);
	INIT_DELAYED_WORK(&n->work, umem_notify_work);

	ret = mmu_interval_notifier_insert(&n->mni, umem->owning_mm, start,
					   ib_umem_num_pages(umem) << PAGE_SHIFT,
					   &umem_notify_ops);
	if (ret) {
		kfree(n);
		return ERR_PTR(ret);
	}
	return n;
}

/* The MR is not armed any more, or not there. */
static void tracker_disarm(struct ib_umem_notify *n)
{
	if (!n->armed)
		return;
	spin_lock(&n->lock);
	n->armed = false;
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	trace_mr_notify_disarm(n->umem, n->id, READ_ONCE(n->state));
}

/* Returns whether the pages are given back. */
static bool tracker_destroy(struct ib_umem_notify *n)
{
	bool revoked;

	mmu_interval_notifier_remove(&n->mni);
	cancel_delayed_work_sync(&n->work);
	tracker_disarm(n);
	revoked = n->revoked;
	umem_notify_word_put(n->word_page);
	mutex_destroy(&n->mutex);
	kfree(n);
	return revoked;
}

/* The tracker of a umem that was pinned without one: everything is SUSPECT. */
static struct ib_umem_notify *tracker_of(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify), *other;

	if (n)
		return n;

	n = tracker_create(umem);
	if (IS_ERR(n))
		return n;
	spin_lock(&n->lock);
	suspect(n, 0, ULONG_MAX); /* not armed: it is not INVALID */
	spin_unlock(&n->lock);

	/* Two threads may arm one MR: the first tracker counts. */
	other = cmpxchg(&umem->notify, NULL, n);
	if (other) {
		tracker_destroy(n);
		n = other;
	}
	return n;
}

/**
 * ib_umem_track - Watch a range from before its pages are pinned
 * @umem: The umem; address, length and owning_mm are set, no page is pinned
 * @access: Its access flags; nothing happens without IB_UVERBS_ACCESS_TRACK
 *
 * The flag is a hint. A umem that can't be tracked now is checked page by page
 * when it is armed, so failing costs time and nothing else.
 *
 * Context: Process context of the owner, no mm lock held.
 */
void ib_umem_track(struct ib_umem *umem, int access)
{
	struct ib_umem_notify *n;

	if (!(access & IB_UVERBS_ACCESS_TRACK))
		return;
	n = tracker_create(umem);
	if (IS_ERR(n))
		return;
	/* Waits for the invalidations that this notifier came too late for. */
	mmu_interval_read_begin(&n->mni);
	umem->notify = n;
}

/**
 * ib_umem_untrack - The end of the tracker, before the pages are released
 * @umem: The umem; the driver doesn't use it any more
 *
 * Context: Process context, no mm lock held. Waits for running callbacks and
 * the worker.
 *
 * Return: true if the pages have already been given back.
 */
bool ib_umem_untrack(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem->notify;

	if (!n)
		return false;
	umem->notify = NULL;
	return tracker_destroy(n);
}

/**
 * ib_umem_is_revoked - Have the pages been given back?
 * @umem: The umem
 *
 * Such a umem is good for nothing but being released.
 */
bool ib_umem_is_revoked(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	bool revoked;

	if (!n)
		return false;
	mutex_lock(&n->mutex);
	revoked = n->revoked;
	mutex_unlock(&n->mutex);
	return revoked;
}

/**
 * umem_notify_arm - Tell a word of user memory from now on
 * @umem: The umem of the MR, pinned by the current process
 * @mr: The MR, kept by the caller's lock on its uobject
 * @addr: User address of the word, a multiple of eight
 *
 * A umem that is already stale is armed all the same: its word says INVALID.
 *
 * Return: 0, or with nothing changed -EBUSY (armed already), -EFAULT, -ENOMEM,
 * -EINTR.
 */
int umem_notify_arm(struct ib_umem *umem, struct ib_mr *mr, unsigned long addr)
{
	struct umem_notify_word_page *word_page;
	struct ib_umem_notify *n;
	int ret;

	word_page = umem_notify_word_get(addr);
	if (IS_ERR(word_page))
		return PTR_ERR(word_page);

	n = tracker_of(umem);
	if (IS_ERR(n)) {
		ret = PTR_ERR(n);
		goto put_word;
	}

	mutex_lock(&n->mutex);
	if (n->armed) {
		ret = -EBUSY;
		goto unlock;
	}
	ret = verify(n, UMEM_NOTIFY_USER);
	if (ret)
		goto unlock;

	n->mr = mr;
	spin_lock(&n->lock);
	n->armed = true;
	n->id = mr->res.id;
	n->word = offset_in_page(addr);
	n->word_page = word_page;
	if (n->state) {
		/* INVALID, or SUSPECT by an event since verify() */
		umem_notify_word_set(word_page, n->word, n->state);
		mod_delayed_work(system_unbound_wq, &n->work, SETTLE_DELAY);
	}
	trace_mr_notify_arm(umem, n->id, n->state);
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_ARMED, 1);
	count(n, IB_MR_NOTIFY_STAT_ARMS, 1);
	retire(n);
	mutex_unlock(&n->mutex);
	return 0;

unlock:
	mutex_unlock(&n->mutex);
put_word:
	umem_notify_word_put(word_page);
	return ret;
}

/**
 * umem_notify_disarm - Leave the word alone from now on
 * @umem: The umem of the MR
 *
 * The range stays tracked, so arming it again is cheap.
 *
 * Return: 0, -EINVAL if it is not armed.
 */
int umem_notify_disarm(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	struct umem_notify_word_page *word_page;

	if (!n)
		return -EINVAL;

	mutex_lock(&n->mutex);
	if (!n->armed) {
		mutex_unlock(&n->mutex);
		return -EINVAL;
	}
	tracker_disarm(n);
	n->mr = NULL;
	spin_lock(&n->lock);
	word_page = n->word_page;
	n->word_page = NULL;
	spin_unlock(&n->lock);
	mutex_unlock(&n->mutex);

	umem_notify_word_put(word_page);
	return 0;
}

/**
 * umem_notify_settle - Turn SUSPECT into a certain answer
 * @umem: The umem of the MR
 *
 * On return the word says INVALID or nothing, unless something happened since;
 * and a device that can be revoked has lost an INVALID registration.
 *
 * Return: 0, -EINVAL if it is not armed, -EINTR, -ENOMEM.
 */
int umem_notify_settle(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	int ret = -EINVAL;

	if (!n)
		return ret;

	mutex_lock(&n->mutex);
	if (n->armed) {
		count(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
		ret = verify(n, UMEM_NOTIFY_USER);
		retire(n);
	}
	mutex_unlock(&n->mutex);
	return ret;
}

/**
 * umem_notify_status - How it stands with a umem
 * @umem: The umem; the caller keeps its MR from being deregistered
 * @status: Filled if it is watched
 *
 * Context: Any; waits for nobody who sleeps.
 *
 * Return: Whether it is watched.
 */
bool umem_notify_status(struct ib_umem *umem, struct umem_notify_status *status)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return false;
	spin_lock(&n->lock);
	status->armed = n->armed;
	status->revoked = n->revoked;
	status->state = n->state;
	spin_unlock(&n->lock);
	return true;
}

/**
 * umem_notify_suspend - Keep off the MR while the driver changes or frees it
 * @umem: The umem of the MR; the caller holds the uobject exclusively
 * @gone: The registration ends without the application's doing (its device was
 *	  removed, its context closed): the word says INVALID
 */
void umem_notify_suspend(struct ib_umem *umem, bool gone)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	mutex_lock(&n->mutex);
	n->suspended = true;
	if (gone && n->armed) {
		spin_lock(&n->lock);
		mark(n, INVALID, 0, 0);
		trace_mr_notify_gone(umem, n->id, n->state);
		spin_unlock(&n->lock);
	}
	mutex_unlock(&n->mutex);
}

/**
 * umem_notify_resume - The driver is done, and the MR still exists
 * @umem: The umem of the MR
 * @mr: The MR
 */
void umem_notify_resume(struct ib_umem *umem, struct ib_mr *mr)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	mutex_lock(&n->mutex);
	n->suspended = false;
	if (n->armed) {
		n->mr = mr;
		spin_lock(&n->lock);
		n->id = mr->res.id;
		spin_unlock(&n->lock);
	}
	mutex_unlock(&n->mutex);
	mod_delayed_work(system_unbound_wq, &n->work, 0);
}
