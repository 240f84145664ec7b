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
 *  SUSPECT  Something may have changed in the pages of @doubt. Left by settling:
 *           to 0 if the pages are the same, else to INVALID.
 *  INVALID  Final. The word has been told, and is not changed any more; the
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
 * So it takes the doubt away first, and looks at what it took. What comes later
 * leaves a doubt of its own:
 *
 *   lock; takes @doubt; unlock
 *   looks: page P is mapped
 *                                         lock; state |= SUSPECT; @doubt has P;
 *                                         unlock; unmaps P
 *   lock; @doubt is not empty: state
 *   stays SUSPECT; unlock
 *
 *   [Required: SUSPECT is cleared only if no event came since the doubt was taken]
 *
 * An event says so before it happens. To take the doubt of one that is still
 * under way is to lose it:
 *
 *                                         lock; @doubt has P; unlock
 *   lock; takes @doubt; unlock
 *   looks: page P is mapped
 *                                         unmaps P
 *   lock; @doubt is empty: state = 0      [stale]
 *
 * Both sides set and test the sequence of the interval under @lock:
 *
 *   seq = mmu_interval_read_begin(),
 *   which waits for what is under way
 *                                         lock; mmu_interval_set_seq();
 *                                         @doubt has P; unlock
 *   lock; mmu_interval_read_retry() is
 *   true: takes nothing, begins again
 *
 *   [Required: a doubt is taken only if all its events have ended]
 *
 * The same for what looks changed: a page in the middle of a split or a
 * migration looks like one that is gone. It is, unless a new doubt has it.
 *
 * One such pass settles all that happened before the call, whatever goes on
 * meanwhile. What is new is looked at too while that is less than the first pass
 * was, so a call ends, and mostly with a certain word.
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
 * USERS OF THE WORD
 *
 * An application that counts its users in the word names the bits (@in_use).
 * Then INVALID is told at once, but the device keeps the pages while somebody
 * uses the registration: the part of it that they use may be intact.
 *
 *   retire()                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= INVALID
 *   revokes                               [its transfer fails]
 *
 * The word says INVALID before it is read, and a reference is taken by an atomic
 * addition that returns what the word was:
 *
 *   word |= INVALID
 *                                         adds a reference, sees INVALID: gives
 *                                         it back, and registers anew
 *   word & in_use is 0: revokes
 *
 *                                         adds a reference: valid
 *   word |= INVALID
 *   word & in_use is not 0: later
 *
 * All are atomic operations on one word, so an addition that the read does not
 * see comes after INVALID. The read comes after INVALID, as both are under @lock.
 *
 * Nobody tells the kernel when the last reference goes. Whoever gives it back
 * sees INVALID and deregisters. For those who don't the worker reads the word
 * again, after 20 ms, 40 ms, and so on to some seconds, and so does every settle
 * and, soon, every event; until the address space has no users any more. The
 * word keeps its page until then.
 *
 * THE WORKER
 *
 * It runs on a workqueue of its own, because the pages of a process that reclaim
 * wants to see again come back through it, and it waits for no lock: who keeps
 * mmap_lock for long (a page fault that FUSE answers) would make it one of
 * hundreds of blocked workers. It tries again later instead.
 *
 * Only mmu_interval_read_begin() may make it wait, as long as one invalidation
 * of the address space follows the other. So of one address space one worker
 * looks at a time, and no more than LOOKERS of all. Revoking does without, and
 * finds the other workers.
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

#include <linux/hash.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

#define INVALID IB_UVERBS_MR_NOTIFY_INVALID
#define SUSPECT IB_UVERBS_MR_NOTIFY_SUSPECT

/*
 * How long the worker leaves a SUSPECT range alone: events come in bursts, and
 * an application that is about to use the registration settles it sooner. The
 * first event's time counts: others don't push it out.
 */
#define SETTLE_DELAY (HZ / 50)
/* How often the delay may double: to some seconds. */
#define MOST_DOUBLINGS 7
/* Passes after which a call leaves the rest to the next one. */
#define MOST_ROUNDS 8
/* Workers that look at the same time: fewer than a workqueue has. */
#define LOOKERS_SHIFT 6
#define LOOKERS BIT(LOOKERS_SHIFT)

/* One per armed MR: 256 bytes on a 64-bit kernel without lock debugging. */
struct ib_umem_notify {
	struct mmu_interval_notifier mni;
	struct ib_umem *umem;
	/* Not a delayed_work, which is larger */
	struct work_struct work;
	struct timer_list timer;

	struct mutex mutex; /* see LOCKS; guards these, but one */
	struct ib_mr *mr; /* what to revoke while armed */
	u8 suspended; /* the driver is busy with the MR, and why */
	bool armed;
	bool revoked; /* the pages are given back */
	bool exclusive; /* @lock's: a device has once kept the CPU off a page */
	u32 id; /* the MR's in restrack, as of the last arming */

	spinlock_t lock; /* see LOCKS; guards armed to id, and the rest */
	u16 word; /* offset in @word_page */
	u8 state;
	u8 doublings; /* of the delay, until something happens */
	struct umem_notify_doubt doubt;
	struct umem_notify_word_page *word_page; /* NULL: nobody to tell */
	u64 in_use; /* bits of the word */
};

static struct workqueue_struct *umem_notify_wq;
static DECLARE_BITMAP(looking, LOOKERS);

static void count(struct ib_umem_notify *n, enum ib_mr_notify_stat stat, s64 nr)
{
	umem_notify_count(n->umem->ibdev, stat, nr);
}

static unsigned long start_of(const struct ib_umem_notify *n)
{
	return n->mni.interval_tree.start;
}

static u32 pages_of(const struct ib_umem_notify *n)
{
	return (n->mni.interval_tree.last - start_of(n)) / PAGE_SIZE + 1;
}

/* 64 chunks, as small as they can be */
static unsigned int shift_of(const struct ib_umem_notify *n)
{
	return max(order_base_2(pages_of(n)), 6) - 6;
}

static void doubt_clear(struct umem_notify_doubt *doubt)
{
	doubt->chunks = 0;
	doubt->first = U32_MAX;
	doubt->end = 0;
}

static void doubt_add(struct umem_notify_doubt *doubt,
		      const struct umem_notify_doubt *more)
{
	doubt->chunks |= more->chunks;
	doubt->first = min(doubt->first, more->first);
	doubt->end = max(doubt->end, more->end);
}

static bool doubt_has(const struct umem_notify_doubt *doubt, u32 page,
		      unsigned int shift)
{
	return page >= doubt->first && page < doubt->end &&
	       doubt->chunks & BIT_ULL(page >> shift);
}

/* What is left of it from a page on */
static void doubt_trim(struct umem_notify_doubt *doubt, u32 page,
		       unsigned int shift)
{
	doubt->first = max(doubt->first, page);
	doubt->chunks &= U64_MAX << (page >> shift);
}

static u64 doubt_size(const struct umem_notify_doubt *doubt, unsigned int shift)
{
	return min_t(u64, doubt->end - doubt->first,
		     (u64)hweight64(doubt->chunks) << shift);
}

/* From the address @start to @end, which may reach beyond the umem. */
static void suspect(struct ib_umem_notify *n, unsigned long start,
		    unsigned long end)
{
	unsigned long first = start_of(n);
	unsigned long last = n->mni.interval_tree.last;
	unsigned int shift = shift_of(n);
	struct umem_notify_doubt more;

	more.first = (max(start, first) - first) >> PAGE_SHIFT;
	more.end = ((min(end - 1, last) - first) >> PAGE_SHIFT) + 1;
	more.chunks = GENMASK_ULL((more.end - 1) >> shift, more.first >> shift);
	doubt_add(&n->doubt, &more);
	n->state |= SUSPECT;
}

static void work_soon(struct ib_umem_notify *n)
{
	timer_reduce(&n->timer, jiffies + SETTLE_DELAY);
}

/* What can't be done now is tried again, less and less often. */
static void work_later(struct ib_umem_notify *n)
{
	unsigned long delay;

	spin_lock(&n->lock);
	delay = SETTLE_DELAY << n->doublings;
	n->doublings = min(n->doublings + 1, MOST_DOUBLINGS);
	spin_unlock(&n->lock);
	timer_reduce(&n->timer, jiffies + delay);
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
	n->doublings = 0;
	if (bit == INVALID) {
		umem_notify_word_clear(n->word_page, n->word, SUSPECT);
		queue_work(umem_notify_wq, &n->work);
	} else {
		work_soon(n);
	}
}

static void clear_suspect(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	n->state &= ~SUSPECT;
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
	case MMU_NOTIFY_EXCLUSIVE:
		spin_lock(&n->lock);
		n->exclusive = true;
		spin_unlock(&n->lock);
		return true;
	default:
		return true;
	}

	spin_lock(&n->lock);
	mmu_interval_set_seq(mni, cur_seq);
	if (!(n->state & INVALID)) {
		mark(n, n->armed ? bit : SUSPECT, range->start, range->end);
		trace_mr_notify_mark(n->umem, n->id, n->state, n->armed, range);
	} else if (n->in_use) {
		work_soon(n);
	}
	spin_unlock(&n->lock);
	return true;
}

static const struct mmu_interval_notifier_ops umem_notify_ops = {
	.invalidate = umem_notify_invalidate,
};

/*
 * Takes the doubt, all of whose events have ended. Returns whether there is one;
 * -EAGAIN if events come so fast that the worker had better come back.
 */
static int take_doubt(struct ib_umem_notify *n,
		      struct umem_notify_question *what)
{
	unsigned int tries = 0;
	unsigned long seq;
	int ret;

	do {
		if (what->asker == UMEM_NOTIFY_WORKER && tries++ == MOST_ROUNDS)
			return -EAGAIN;
		if (what->asker == UMEM_NOTIFY_USER &&
		    fatal_signal_pending(current))
			return -EINTR;
		cond_resched();

		seq = mmu_interval_read_begin(&n->mni);
		spin_lock(&n->lock);
		ret = n->state == SUSPECT;
		if (ret && mmu_interval_read_retry(&n->mni, seq)) {
			ret = -EAGAIN;
		} else if (ret) {
			what->doubt = n->doubt;
			what->exclusive = n->exclusive;
			doubt_clear(&n->doubt);
		}
		spin_unlock(&n->lock);
	} while (ret < 0);
	return ret;
}

/* What the answer is worth by now. Returns whether SUSPECT is left for good. */
static bool conclude(struct ib_umem_notify *n, enum umem_notify_verdict verdict,
		     struct umem_notify_question *what)
{
	unsigned int shift = shift_of(n);
	bool sure = true;

	spin_lock(&n->lock);
	if (n->state != SUSPECT)
		goto unlock;
	if (verdict == UMEM_NOTIFY_INTACT) {
		sure = !n->doubt.chunks;
		if (sure) {
			clear_suspect(n);
			count(n, IB_MR_NOTIFY_STAT_INTACT, 1);
		}
	} else if (verdict == UMEM_NOTIFY_CHANGED &&
		   what->exclusive == n->exclusive &&
		   !doubt_has(&n->doubt, what->at, shift)) {
		mark(n, INVALID, 0, 0);
	} else {
		sure = false;
		doubt_trim(&what->doubt, what->at, shift);
		doubt_add(&n->doubt, &what->doubt);
	}
unlock:
	spin_unlock(&n->lock);
	return sure;
}

/* From SUSPECT to 0 or INVALID. */
static int look(struct ib_umem_notify *n, enum umem_notify_asker asker)
{
	struct umem_notify_question what = { .asker = asker };
	unsigned int shift = shift_of(n);
	enum umem_notify_verdict verdict;
	unsigned int round;
	u64 looked = 0;
	int ret;

	lockdep_assert_held(&n->mutex);

	for (round = 0; round < MOST_ROUNDS; round++) {
		ret = take_doubt(n, &what);
		if (ret <= 0)
			return ret;
		looked += doubt_size(&what.doubt, shift);
		verdict = umem_notify_check(n->umem, start_of(n), shift, &what);
		if (conclude(n, verdict, &what))
			return 0;
		switch (verdict) {
		case UMEM_NOTIFY_INTERRUPTED:
			return -EINTR;
		case UMEM_NOTIFY_NO_MEMORY:
			return -ENOMEM;
		case UMEM_NOTIFY_BUSY:
			return -EAGAIN;
		case UMEM_NOTIFY_UNKNOWN:
			return 0;
		default:
			break;
		}
		if (looked >= 2 * (u64)pages_of(n))
			break;
	}
	return asker == UMEM_NOTIFY_WORKER ? -EAGAIN : 0;
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

static void revoke(struct ib_umem_notify *n)
{
	size_t pages = ib_umem_num_pages(n->umem);
	struct ib_device *device = n->mr->device;
	int ret;

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

/* Does anybody use the registration, as far as its word tells? */
static bool in_use(const struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	return n->in_use && n->word_page &&
	       umem_notify_word_read(n->word_page, n->word) & n->in_use &&
	       atomic_read(&n->umem->owning_mm->mm_users);
}

/* Leaves the word alone from now on. Returns its page. */
static struct umem_notify_word_page *leave_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;

	spin_lock(&n->lock);
	word_page = n->word_page;
	n->word_page = NULL;
	n->in_use = 0;
	spin_unlock(&n->lock);
	return word_page;
}

/*
 * Once INVALID: the device loses the pages, and the word has heard it all.
 * Returns whether it has to be tried again, because the word is in use.
 */
static bool retire(struct ib_umem_notify *n)
{
	bool can_revoke, wait;

	lockdep_assert_held(&n->mutex);

	if (!n->armed || n->suspended)
		return false;
	can_revoke = n->mr->device->ops.revoke_user_mr && !n->revoked;
	spin_lock(&n->lock);
	if (n->state != INVALID) {
		spin_unlock(&n->lock);
		return false;
	}
	wait = can_revoke && in_use(n);
	spin_unlock(&n->lock);
	if (wait)
		return true;

	if (can_revoke)
		revoke(n);
	umem_notify_word_put_later(leave_word(n), n->word);
	return false;
}

static int verify_by_worker(struct ib_umem_notify *n)
{
	unsigned int bit = hash_ptr(n->umem->owning_mm, LOOKERS_SHIFT);
	int ret;

	if (READ_ONCE(n->state) != SUSPECT)
		return 0;
	if (test_and_set_bit_lock(bit, looking))
		return -EAGAIN;
	ret = verify(n, UMEM_NOTIFY_WORKER);
	clear_bit_unlock(bit, looking);
	return ret;
}

static void umem_notify_work(struct work_struct *work)
{
	struct ib_umem_notify *n =
		container_of(work, struct ib_umem_notify, work);
	bool again;

	if (!mutex_trylock(&n->mutex)) {
		work_later(n);
		return;
	}
	again = verify_by_worker(n) == -EAGAIN;
	again |= retire(n);
	mutex_unlock(&n->mutex);
	if (again)
		work_later(n);
}

static void umem_notify_timer(struct timer_list *timer)
{
	struct ib_umem_notify *n =
		container_of(timer, struct ib_umem_notify, timer);

	queue_work(umem_notify_wq, &n->work);
}

/* When ib_uverbs is loaded */
int ib_umem_notify_init(void)
{
	umem_notify_wq = alloc_workqueue("ib_mr_notify",
					 WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	return umem_notify_wq ? 0 : -ENOMEM;
}

/* When it is unloaded, and no umem is left */
void ib_umem_notify_exit(void)
{
	umem_notify_word_exit();
	destroy_workqueue(umem_notify_wq);
}

static struct ib_umem_notify *tracker_create(struct ib_umem *umem)
{
	unsigned long start = untagged_addr(umem->address) & PAGE_MASK;
	struct ib_umem_notify *n;
	int ret;

	ret = umem_notify_stats_get(umem->ibdev);
	if (ret)
		return ERR_PTR(ret);
	n = kzalloc(sizeof(*n), GFP_KERNEL_ACCOUNT);
	if (!n)
		return ERR_PTR(-ENOMEM);

	n->umem = umem;
	doubt_clear(&n->doubt);
	mutex_init(&n->mutex);
	spin_lock_init(&n->lock);
	INIT_WORK(&n->work, umem_notify_work);
	timer_setup(&n->timer, umem_notify_timer, 0);

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

	if (n->suspended == UMEM_NOTIFY_REREG && n->armed) {
		spin_lock(&n->lock);
		mark(n, INVALID, 0, 0);
		trace_mr_notify_gone(n->umem, n->id, n->state);
		spin_unlock(&n->lock);
	}
	mmu_interval_notifier_remove(&n->mni);
	timer_shutdown_sync(&n->timer);
	cancel_work_sync(&n->work);
	tracker_disarm(n);
	revoked = n->revoked;
	umem_notify_word_put(n->word_page, n->word);
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

	if (!(access & IB_UVERBS_ACCESS_TRACK) || !umem->ibdev->ops.mr_umem)
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
	spin_lock(&n->lock);
	revoked = n->revoked;
	spin_unlock(&n->lock);
	return revoked;
}

/**
 * ib_umem_lost - The driver took the pages of an MR from the device by itself
 * @umem: The umem of the MR
 *
 * For one that could not re-register an MR and leaves it unusable: its word says
 * INVALID.
 */
void ib_umem_lost(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	spin_lock(&n->lock);
	mark(n, INVALID, 0, 0);
	spin_unlock(&n->lock);
}
EXPORT_SYMBOL(ib_umem_lost);

/**
 * umem_notify_arm - Tell a word of user memory from now on
 * @umem: The umem of the MR, pinned by the current process
 * @mr: The MR, kept by the caller's lock on its uobject
 * @addr: User address of the word, a multiple of eight
 * @in_use: The bits of the word that are not 0 while the application uses the
 *	    MR, or 0 if it does not say
 *
 * A umem that is already stale is armed all the same: its word says INVALID.
 *
 * Return: 0, or with nothing changed -EBUSY (armed already, or another MR has
 * the word), -EFAULT, -ENOMEM, -EINTR, -EAGAIN (somebody keeps a file locked).
 */
int umem_notify_arm(struct ib_umem *umem, struct ib_mr *mr, unsigned long addr,
		    u64 in_use)
{
	struct umem_notify_word_page *word_page;
	struct ib_umem_notify *n;
	bool again;
	int ret;

	word_page = umem_notify_word_get(addr);
	if (IS_ERR(word_page))
		return PTR_ERR(word_page);

	n = tracker_of(umem);
	if (IS_ERR(n)) {
		ret = PTR_ERR(n);
		goto put_word;
	}

	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		goto put_word;
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
	n->in_use = in_use;
	n->doublings = 0;
	if (n->state) {
		/* INVALID, or SUSPECT by an event since verify() */
		umem_notify_word_set(word_page, n->word, n->state);
		work_soon(n);
	}
	trace_mr_notify_arm(umem, n->id, n->state);
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_ARMED, 1);
	count(n, IB_MR_NOTIFY_STAT_ARMS, 1);
	again = retire(n);
	mutex_unlock(&n->mutex);
	if (again)
		work_later(n);
	return 0;

unlock:
	mutex_unlock(&n->mutex);
put_word:
	umem_notify_word_put(word_page, offset_in_page(addr));
	return ret;
}

/**
 * umem_notify_disarm - Leave the word alone from now on
 * @umem: The umem of the MR
 *
 * The range stays tracked, so arming it again is cheap.
 *
 * Return: 0, -EINVAL if it is not armed, -EINTR.
 */
int umem_notify_disarm(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	struct umem_notify_word_page *word_page;
	unsigned int offset;
	int ret;

	if (!n)
		return -EINVAL;

	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		return ret;
	if (!n->armed) {
		mutex_unlock(&n->mutex);
		return -EINVAL;
	}
	tracker_disarm(n);
	n->mr = NULL;
	word_page = leave_word(n);
	offset = n->word;
	mutex_unlock(&n->mutex);

	umem_notify_word_put(word_page, offset);
	return 0;
}

/**
 * umem_notify_settle - Turn SUSPECT into a certain answer
 * @umem: The umem of the MR
 *
 * On return the word says INVALID or nothing, for all that happened before the
 * call: what happened during it may have left it SUSPECT. A device that can be
 * revoked has lost an INVALID registration, unless its word is in use.
 *
 * Return: 0, -EINVAL if it is not armed, -EINTR, -ENOMEM, -EAGAIN if somebody
 * kept a file locked for a second.
 */
int umem_notify_settle(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	bool again = false;
	int ret;

	if (!n)
		return -EINVAL;

	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		return ret;
	ret = -EINVAL;
	if (n->armed) {
		count(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
		ret = verify(n, UMEM_NOTIFY_USER);
		again = retire(n);
	}
	mutex_unlock(&n->mutex);
	if (again)
		work_later(n);
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
 * @why: What the driver does to it
 */
void umem_notify_suspend(struct ib_umem *umem, enum umem_notify_suspension why)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	mutex_lock(&n->mutex);
	/* A re-registration with another MR in the end deregisters the old one. */
	if (n->suspended != UMEM_NOTIFY_REREG)
		n->suspended = why;
	if (why == UMEM_NOTIFY_GONE && n->armed) {
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
	n->suspended = UMEM_NOTIFY_NOT_SUSPENDED;
	if (n->armed) {
		n->mr = mr;
		spin_lock(&n->lock);
		n->id = mr->res.id;
		spin_unlock(&n->lock);
	}
	mutex_unlock(&n->mutex);
	queue_work(umem_notify_wq, &n->work);
}
