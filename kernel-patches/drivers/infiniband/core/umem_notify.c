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
 *  SUSPENDED  Idle, and the VM has taken the pages back, or is about to
 *           (umem_notify_reclaim.c). Left by settling: to 0 or SUSPECT with the
 *           pages that the range maps then, or to INVALID.
 *  INVALID  Final. The word has been told, and is not changed any more; the
 *           worker revokes the device's access and gives the pages back.
 *
 * An event raises the state inside mmu_notifier_invalidate_range_start(), that
 * is before the page tables change and before the system call returns. UNMAP
 * and RELEASE are certain. CLEAR and MIGRATE are not (a split of a huge page
 * is a CLEAR too), nor is mprotect() of so much that it unmaps shared page tables of
 * hugetlb. All others leave a pinned page where it is: other mprotect(), fork,
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
 * itself: retire() may miss an INVALID that comes after its look, for the worker
 * calls it again.
 *
 * Not when it is disarmed, as the worker does nothing then:
 *
 *   disarm                                another thread
 *   retire(): state is 0
 *                                         word |= INVALID; queues the worker
 *   armed = false; lets go of the word
 *                                         the worker: not armed
 *                                         [the device keeps the pages]
 *
 * So disarming and letting go of the word is one step under @lock, which is not
 * taken if there is an INVALID that retire() has not seen.
 *
 * A device may be gone before an MR that its driver did not let go of:
 *
 *   its context is closed                 the worker
 *   dereg_mr: -EBUSY, to the last
 *   uverbs drops the MR; frees the device
 *                                         retire(): n->mr->device [freed]
 *
 * So the tracker ends when dereg_mr has failed (umem_notify_abandon()), before the
 * device goes: whoever removes it waits for uverbs.
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
 * LOCKS
 *
 * Arm, disarm, settle and the workers take the tracker: a lock that sleeps, and of
 * which there is one byte per tracker. A mutex is 32. Process context; nests
 * outside mmap_lock, the inode locks and @lock. Never taken by the callback, and by
 * the workers only if they need not wait for it.
 * @lock is a leaf, but for the lock of a queue. The callback runs with mmap_lock or
 * rmap locks held, inside reclaim, possibly unable to sleep: it takes these only,
 * and allocates nothing.
 * What is guarded by both is written under both and read under either: so who
 * only looks (a trace event, netlink) does not wait for a settle that faults
 * pages in.
 */

#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/signal.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/wait_bit.h>

#include "umem_notify_tracker.h"
#include "umem_notify_trace.h"
#include "uverbs_close.h"

/* Passes after which a call leaves the rest to the next one. */
#define MOST_ROUNDS 8

static void count(struct ib_umem_notify *n, enum ib_mr_notify_stat stat, s64 nr)
{
	umem_notify_count(n->umem->ibdev, stat, nr);
}

static bool try_take(struct ib_umem_notify *n)
{
	bool got;

	spin_lock(&n->lock);
	got = !n->taken;
	n->taken = true;
	spin_unlock(&n->lock);
	return got;
}

static void take(struct ib_umem_notify *n)
{
	lock_map_acquire(&n->dep_map);
	wait_var_event(&n->taken, try_take(n));
}

static int take_killable(struct ib_umem_notify *n)
{
	lock_map_acquire(&n->dep_map);
	if (!wait_var_event_killable(&n->taken, try_take(n)))
		return 0;
	lock_map_release(&n->dep_map);
	return -EINTR;
}

/* The wake-up goes by the address alone: the tracker may be gone by then. */
static void put(struct ib_umem_notify *n)
{
	lock_map_release(&n->dep_map);
	spin_lock(&n->lock);
	n->taken = false;
	spin_unlock(&n->lock);
	wake_up_var(&n->taken);
}

/* 64 chunks, as small as they can be */
static unsigned int shift_of(const struct ib_umem_notify *n)
{
	return max(order_base_2(umem_notify_pages(n)), 6) - 6;
}

void umem_notify_doubt_clear(struct umem_notify_doubt *doubt)
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
static void doubt_range(struct ib_umem_notify *n, unsigned long start,
			unsigned long end)
{
	unsigned long first = umem_notify_start(n);
	unsigned long last = n->mni.interval_tree.last;
	unsigned int shift = shift_of(n);
	struct umem_notify_doubt more;

	more.first = (max(start, first) - first) >> PAGE_SHIFT;
	more.end = ((min(end - 1, last) - first) >> PAGE_SHIFT) + 1;
	more.chunks = GENMASK_ULL((more.end - 1) >> shift, more.first >> shift);
	doubt_add(&n->doubt, &more);
}

/**
 * umem_notify_mark - Something happened to the range of a tracker
 * @n: The tracker, its lock held
 * @bit: INVALID or SUSPECT
 * @start: For SUSPECT: the first address that may have changed
 * @end: The one behind the last
 */
void umem_notify_mark(struct ib_umem_notify *n, u8 bit, unsigned long start,
		      unsigned long end)
{
	u8 was = n->state;

	lockdep_assert_held(&n->lock);

	if (was & INVALID)
		return;

	if (bit == INVALID) {
		n->state = INVALID;
		if (!n->word_page) {
			count(n, IB_MR_NOTIFY_STAT_INVALID, 1);
			return;
		}
		n->doublings = 0;
		umem_notify_word_set(n->word_page, n->word, INVALID);
		if (was)
			umem_notify_word_clear(n->word_page, n->word,
					       SUSPECT | SUSPENDED);
		umem_notify_queue_fresh(n); /* which counts it */
		return;
	}

	doubt_range(n, start, end);
	if (was)
		return;
	n->state = SUSPECT;
	count(n, IB_MR_NOTIFY_STAT_SUSPECT, 1);
	if (n->word_page)
		umem_notify_word_set(n->word_page, n->word, SUSPECT);
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
	case MMU_NOTIFY_PROTECTION_VMA:
		/* mprotect(): of hugetlb it may unmap page tables that were shared. */
		if (range->end - range->start < PUD_SIZE)
			return true;
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
		umem_notify_mark(n, n->armed ? bit : SUSPECT, range->start,
				 range->end);
		if (trace_mr_notify_mark_enabled())
			trace_mr_notify_mark(n->umem, umem_notify_id(n), n->state,
					     n->armed, range);
		if (n->state == SUSPECT && n->word_page)
			umem_notify_queue_later(n);
	} else if (n->word_page && n->in_use) {
		umem_notify_queue_later(n);
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
			umem_notify_doubt_clear(&n->doubt);
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
	/* Suspended meanwhile: who looks has the tracker, and retires it. */
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
		umem_notify_mark(n, INVALID, 0, 0);
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

	lockdep_assert_held(n);

	for (round = 0; round < MOST_ROUNDS; round++) {
		ret = take_doubt(n, &what);
		if (ret <= 0)
			return ret;
		looked += doubt_size(&what.doubt, shift);
		verdict = umem_notify_check(n->umem, umem_notify_start(n), shift, &what);
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
		if (looked >= 2 * (u64)umem_notify_pages(n))
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
	trace_mr_notify_settle(n->umem, umem_notify_id(n), READ_ONCE(n->state), asker, ret);
	return ret;
}

/* Not for good: a window is bound to it, the device is in reset, no memory just now */
static bool is_for_now(int err)
{
	return err == -EBUSY || err == -ENOMEM;
}

static int revoke(struct ib_umem_notify *n)
{
	size_t pages = ib_umem_num_pages(n->umem);
	struct ib_device *device = n->mr->device;
	int ret;

	ret = device->ops.revoke_user_mr(n->mr);
	if (ret) {
		trace_mr_notify_revoke(n->umem, umem_notify_id(n), 0, ret);
		if (!is_for_now(ret))
			ibdev_err_ratelimited(device,
					      "MR %u can't be revoked, its pages stay pinned\n",
					      n->mr->res.id);
		return ret;
	}
	ib_umem_give_back(n->umem);
	spin_lock(&n->lock);
	n->revoked = true;
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_REVOKES, 1);
	count(n, IB_MR_NOTIFY_STAT_PAGES, pages);
	trace_mr_notify_revoke(n->umem, umem_notify_id(n), pages, 0);
	return 0;
}

/* Does anybody use the registration, as far as its word tells? */
static bool in_use(const struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	return n->word_page && n->in_use &&
	       umem_notify_word_read(n->word_page, n->word) & n->in_use &&
	       atomic_read(&n->umem->owning_mm->mm_users);
}

static struct umem_notify_word_page *take_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page = n->word_page;

	lockdep_assert_held(&n->lock);

	if (word_page)
		n->in_use = 0;
	n->word_page = NULL;
	return word_page;
}

/* Leaves the word alone from now on. Returns its page. */
static struct umem_notify_word_page *leave_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;

	spin_lock(&n->lock);
	word_page = take_word(n);
	spin_unlock(&n->lock);
	return word_page;
}

/*
 * The word of a tracker that is INVALID, from a caller that must not wait for the
 * address space. The end of the tracker waits, or the next arming.
 */
static void retire_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page = leave_word(n);

	if (!word_page)
		return;
	word_page = umem_notify_word_retire(word_page, n->word);
	spin_lock(&n->lock);
	n->retired = word_page;
	spin_unlock(&n->lock);
}

static void end_retired_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *retired = NULL;

	spin_lock(&n->lock);
	if (!n->word_page)
		swap(n->retired, retired);
	spin_unlock(&n->lock);
	umem_notify_word_end(retired);
}

/*
 * Once INVALID or SUSPENDED: the device loses the pages. Of INVALID the word has
 * heard it all, then. Returns whether it has to be tried again, because the word is
 * in use, or the device can't just now.
 */
static bool retire(struct ib_umem_notify *n)
{
	bool can_revoke, wait, busy;
	u8 state;

	lockdep_assert_held(n);

	if (!n->armed || n->held)
		return false;
	can_revoke = n->mr->device->ops.revoke_user_mr && !n->revoked;
	spin_lock(&n->lock);
	state = n->state;
	wait = state == INVALID && can_revoke && in_use(n);
	spin_unlock(&n->lock);
	if (!(state & (INVALID | SUSPENDED)))
		return false;
	if (wait)
		return true;

	busy = can_revoke && is_for_now(revoke(n));
	if (state == INVALID) {
		retire_word(n);
		return busy;
	}
	if (n->revoked)
		return false;
	/* Who knows what the driver has done: it is not offered again. */
	spin_lock(&n->lock);
	umem_notify_mark(n, INVALID, 0, 0);
	spin_unlock(&n->lock);
	return true;
}

/**
 * umem_notify_serve - What a worker does when it comes to a tracker
 * @n: The tracker, kept by the queue
 * @may_look: Whether this worker may wait for invalidations
 *
 * Return: Whether it has to come back.
 */
bool umem_notify_serve(struct ib_umem_notify *n, bool may_look)
{
	bool again;

	if (!try_take(n))
		return true;
	lock_map_acquire_try(&n->dep_map);
	again = READ_ONCE(n->state) == SUSPECT &&
		(!may_look || verify(n, UMEM_NOTIFY_WORKER) == -EAGAIN);
	again |= retire(n);
	put(n);
	return again;
}

/* When ib_uverbs is loaded */
int ib_umem_notify_init(void)
{
	int ret = umem_notify_queue_init();

	if (ret)
		return ret;
	ret = umem_notify_reclaim_init();
	if (ret)
		goto out_queue;
	ret = ib_uverbs_close_init();
	if (ret)
		goto out_reclaim;
	return 0;

out_reclaim:
	umem_notify_reclaim_exit();
out_queue:
	umem_notify_queue_exit();
	return ret;
}

/* When it is unloaded, and no umem is left */
void ib_umem_notify_exit(void)
{
	ib_uverbs_close_exit();
	umem_notify_reclaim_exit();
	umem_notify_queue_exit();
}

static struct ib_umem_notify *tracker_create(struct ib_umem *umem)
{
	static struct lock_class_key __maybe_unused key;
	unsigned long start = untagged_addr(umem->address) & PAGE_MASK;
	struct ib_umem_notify *n;
	int ret;

	ret = umem_notify_stats_get(umem->ibdev);
	if (ret)
		return ERR_PTR(ret);
	n = umem_notify_alloc();
	if (!n)
		return ERR_PTR(-ENOMEM);

	n->umem = umem;
	umem_notify_doubt_clear(&n->doubt);
	lockdep_init_map(&n->dep_map, "umem_notify", &key, 0);
	spin_lock_init(&n->lock);
	INIT_LIST_HEAD(&n->link);

	ret = mmu_interval_notifier_insert(&n->mni, umem->owning_mm, start,
					   ib_umem_num_pages(umem) << PAGE_SHIFT,
					   &umem_notify_ops);
	if (ret) {
		umem_notify_free(n);
		return ERR_PTR(ret);
	}
	return n;
}

static void disarm_locked(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->lock);

	n->armed = false;
	n->reclaim = false;
	n->mr = NULL;
}

/* The MR is not there any more. */
static void tracker_disarm(struct ib_umem_notify *n)
{
	if (!n->armed)
		return;
	umem_notify_unlend(n);
	trace_mr_notify_disarm(n->umem, umem_notify_id(n), READ_ONCE(n->state));
	spin_lock(&n->lock);
	disarm_locked(n);
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_ARMED, -1);
}

/* Nobody comes to the tracker any more, and it touches neither device nor word. */
static void tracker_end(struct ib_umem_notify *n)
{
	if (n->held == UMEM_NOTIFY_REREG && n->armed) {
		spin_lock(&n->lock);
		umem_notify_mark(n, INVALID, 0, 0);
		trace_mr_notify_gone(n->umem, umem_notify_id(n), n->state);
		spin_unlock(&n->lock);
	}
	mmu_interval_notifier_remove(&n->mni);
	tracker_disarm(n);
	umem_notify_queue_forget(n);
	end_retired_word(n);
	umem_notify_word_put(leave_word(n), n->word);
}

/* Returns whether the pages are given back. */
static bool tracker_destroy(struct ib_umem_notify *n)
{
	bool revoked;

	if (!n->dead)
		tracker_end(n);
	revoked = n->revoked;
	umem_notify_free(n);
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
	doubt_range(n, 0, ULONG_MAX);
	n->state |= SUSPECT; /* not armed: it is not INVALID */
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
 * ib_umem_is_revoked - Have the pages been given back for good?
 * @umem: The umem
 *
 * Such a umem is good for nothing but being released. One that is suspended gets
 * others.
 */
bool ib_umem_is_revoked(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	bool revoked;

	if (!n)
		return false;
	spin_lock(&n->lock);
	revoked = n->revoked && n->state != SUSPENDED;
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
	umem_notify_mark(n, INVALID, 0, 0);
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
 * @reclaim: Whether the VM may have the pages while it does not
 *
 * A umem that is already stale is armed all the same: its word says INVALID.
 *
 * Return: 0, or with nothing changed -EBUSY (armed already, or another MR has
 * the word), -EFAULT, -ENOMEM, -EINTR, -EAGAIN (somebody keeps a file locked).
 */
int umem_notify_arm(struct ib_umem *umem, struct ib_mr *mr, unsigned long addr,
		    u64 in_use, bool reclaim)
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

	ret = take_killable(n);
	if (ret)
		goto put_word;
	if (n->armed || n->dead) {
		ret = -EBUSY;
		goto put;
	}
	end_retired_word(n);
	ret = verify(n, UMEM_NOTIFY_USER);
	if (ret)
		goto put;

	spin_lock(&n->lock);
	n->mr = mr;
	n->armed = true;
	n->reclaim = reclaim;
	n->word = offset_in_page(addr);
	n->word_page = word_page;
	n->in_use = in_use;
	n->doublings = 0;
	if (n->state) {
		/* INVALID, or SUSPECT by an event since verify() */
		umem_notify_word_set(word_page, n->word, n->state);
		umem_notify_queue_later(n);
	}
	umem_notify_first_look(n);
	trace_mr_notify_arm(umem, umem_notify_id(n), n->state);
	spin_unlock(&n->lock);
	count(n, IB_MR_NOTIFY_STAT_ARMED, 1);
	count(n, IB_MR_NOTIFY_STAT_ARMS, 1);
	umem_notify_lend(n);
	again = retire(n);
	put(n);
	if (again)
		umem_notify_queue_again(n);
	return 0;

put:
	put(n);
put_word:
	umem_notify_word_put(word_page, offset_in_page(addr));
	return ret;
}

static bool set_reclaim(struct ib_umem_notify *n, bool reclaim)
{
	bool was = n->reclaim;

	lockdep_assert_held(n);

	spin_lock(&n->lock);
	n->reclaim = reclaim;
	spin_unlock(&n->lock);
	return was;
}

/*
 * Takes the word from an armed tracker and disarms it, at once: an event finds both
 * or neither. Returns false if it has become INVALID since retire() looked.
 */
static bool end_arming(struct ib_umem_notify *n, bool in_use,
		       struct umem_notify_word_page **word_page)
{
	bool ends;

	spin_lock(&n->lock);
	ends = n->state != INVALID || !n->word_page || in_use;
	if (ends) {
		*word_page = take_word(n);
		disarm_locked(n);
	}
	spin_unlock(&n->lock);
	return ends;
}

/**
 * umem_notify_disarm - Leave the word alone from now on
 * @umem: The umem of the MR
 *
 * The range stays tracked, so arming it again is cheap. A suspended one gets its
 * pages first. An INVALID one loses them, unless its word is in use: then the device
 * keeps them until the MR is deregistered.
 *
 * Only the process that armed it: a child has a copy of the word, and its parent
 * would go on to look at one that nobody tells. When the owner has ended the word
 * is INVALID, and nothing is left to be disarmed.
 *
 * Return: 0, -EINVAL if it is not armed or the word is in another address space,
 * -EINTR; as umem_notify_restore(), and it is as armed as before.
 */
int umem_notify_disarm(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	struct umem_notify_word_page *word_page;
	unsigned int offset;
	bool reclaim, in_use;
	int ret;

	if (!n || umem->owning_mm != current->mm)
		return -EINVAL;

	ret = take_killable(n);
	if (ret)
		return ret;
	ret = -EINVAL;
	if (!n->armed)
		goto put;
	umem_notify_unlend(n);
	reclaim = set_reclaim(n, false); /* restored, it is not lent again */
	ret = umem_notify_restore(n);
	if (ret) {
		set_reclaim(n, reclaim);
		goto put;
	}
	trace_mr_notify_disarm(umem, umem_notify_id(n), READ_ONCE(n->state));
	do {
		in_use = retire(n); /* no worker does it any more */
	} while (!end_arming(n, in_use, &word_page));
	count(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	offset = n->word;
	put(n);

	umem_notify_word_put(word_page, offset);
	return 0;

put:
	put(n);
	return ret;
}

/**
 * umem_notify_settle - Turn SUSPECT or SUSPENDED into a certain answer
 * @umem: The umem of the MR
 *
 * On return the word says INVALID or nothing, for all that happened before the
 * call: what happened during it may have left it SUSPECT, and so does shared hugetlb
 * memory that can't be faulted in (userfaultfd, PROT_NONE). A device that can be
 * revoked has lost an INVALID registration, unless its word is in use. A suspended
 * one has pages again.
 *
 * Return: 0, -EINVAL if it is not armed, -EINTR, -ENOMEM, -EAGAIN if somebody
 * kept a file locked for a second; as umem_notify_restore().
 */
int umem_notify_settle(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	bool again = false;
	int ret;

	if (!n)
		return -EINVAL;

	ret = take_killable(n);
	if (ret)
		return ret;
	ret = -EINVAL;
	if (n->armed) {
		count(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
		ret = umem_notify_restore(n);
		if (!ret)
			ret = verify(n, UMEM_NOTIFY_USER);
		again = retire(n);
	}
	put(n);
	if (again)
		umem_notify_queue_again(n);
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
 * umem_notify_hold - Keep off the MR while the driver changes or frees it
 * @umem: The umem of the MR; the caller holds the uobject exclusively
 * @why: What the driver does to it
 */
void umem_notify_hold(struct ib_umem *umem, enum umem_notify_hold why)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	take(n);
	spin_lock(&n->lock);
	/* A re-registration with another MR in the end deregisters the old one. */
	if (n->held != UMEM_NOTIFY_REREG)
		n->held = why;
	if (why == UMEM_NOTIFY_GONE && n->armed) {
		umem_notify_mark(n, INVALID, 0, 0);
		trace_mr_notify_gone(umem, umem_notify_id(n), n->state);
	}
	spin_unlock(&n->lock);
	put(n);
}

/**
 * umem_notify_abandon - The driver did not let go of an MR that must end
 * @umem: The umem of the MR; the caller holds the uobject exclusively
 *
 * The application's context or the device ends, and uverbs may drop the MR: then
 * the device goes, and MR and umem stay for good. So nothing of the tracker may come
 * to them any more; only whether the pages are given back is kept.
 */
void umem_notify_abandon(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n || n->dead)
		return;
	tracker_end(n);
	if (n->revoked)
		return;
	umem->notify = NULL;
	umem_notify_free(n);
}

/**
 * umem_notify_unhold - The driver is done, and the MR still exists
 * @umem: The umem of the MR
 * @mr: The MR
 */
void umem_notify_unhold(struct ib_umem *umem, struct ib_mr *mr)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	if (!n)
		return;
	take(n);
	spin_lock(&n->lock);
	n->held = UMEM_NOTIFY_NOT_HELD;
	if (n->armed)
		n->mr = mr;
	spin_unlock(&n->lock);
	put(n);
	umem_notify_queue_now(n);
}
