// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The state of a tracker. While the tracker is armed, its word has the same bits. Events
 * raise the state, settling lowers it.
 *
 *  0          The range maps the pinned pages.
 *  SUSPECT    The pages in @suspects may have changed. Settling compares the mapped pages
 *             with the pinned pages. If all are the same, the new state is 0. Otherwise
 *             the new state is INVALID.
 *  SUSPENDED  The tracker was idle, and the VM has unpinned its pages or will unpin them
 *             (umem_notify_reclaim.c). Settling pins the pages that the range maps at
 *             that time. The new state is 0 or SUSPECT. If the pages can't be pinned,
 *             the new state is INVALID.
 *  INVALID    Final. The kernel does not change the word any more. The
 *             device's access is revoked, and the pages are unpinned.
 *
 * An event raises the state in mmu_notifier_invalidate_range_start(): before the page
 * tables change, and before the system call returns. UNMAP and RELEASE certainly change
 * the pages. CLEAR and MIGRATE may leave the pages mapped (splitting a huge page is also a
 * CLEAR). mprotect() of a large range may unmap shared page tables of hugetlb memory. So it
 * is also an event, and may also leave the pages mapped.
 */

#include <linux/delay.h>
#include <linux/log2.h>
#include <linux/sched/signal.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

/* How often one settle compares while events continue. The next settle continues. */
#define MOST_PASSES 2

/* Base-2 logarithm of the pages in a chunk. 64 of the smallest possible chunks cover the range. */
static unsigned int shift_of(const struct ib_umem_notify *n)
{
	return max(order_base_2(umem_notify_pages(n)), 6) - 6;
}

void umem_notify_suspects_clear(struct umem_notify_suspects *suspects)
{
	suspects->chunks = 0;
	suspects->first = U32_MAX;
	suspects->end = 0;
}

static void suspects_merge(struct umem_notify_suspects *suspects,
			   const struct umem_notify_suspects *more)
{
	suspects->chunks |= more->chunks;
	suspects->first = min(suspects->first, more->first);
	suspects->end = max(suspects->end, more->end);
}

static bool suspects_have(const struct umem_notify_suspects *suspects, u32 page, unsigned int shift)
{
	return page >= suspects->first && page < suspects->end &&
	       suspects->chunks & BIT_ULL(page >> shift);
}

/* Removes the pages before @page */
static void suspects_trim(struct umem_notify_suspects *suspects, u32 page, unsigned int shift)
{
	suspects->first = max(suspects->first, page);
	suspects->chunks &= U64_MAX << (page >> shift);
}

/**
 * umem_notify_suspects_add - Add a range to the suspect pages of a tracker
 * @n: The tracker, its space's lock held
 * @start: The first address, which may be before the tracker's range
 * @last: The last address, which may be after the tracker's range
 */
void umem_notify_suspects_add(struct ib_umem_notify *n, unsigned long start, unsigned long last)
{
	unsigned long first = n->range.start;
	unsigned int shift = shift_of(n);
	struct umem_notify_suspects more;

	more.first = (max(start, first) - first) >> PAGE_SHIFT;
	more.end = ((min(last, n->range.last) - first) >> PAGE_SHIFT) + 1;
	more.chunks = GENMASK_ULL((more.end - 1) >> shift, more.first >> shift);
	suspects_merge(&n->suspects, &more);
}

/**
 * umem_notify_mark_invalid - A tracker's range does not map its pages any more
 * @n: The tracker, its space's lock held
 */
void umem_notify_mark_invalid(struct ib_umem_notify *n)
{
	u8 was = n->state;

	umem_notify_assert_locked(n);

	if (was & INVALID)
		return;
	n->state = INVALID;
	umem_notify_count(n, IB_MR_NOTIFY_STAT_INVALID, 1);
	umem_notify_word_change(n, INVALID, was);
	umem_notify_word_count(n);
}

/**
 * umem_notify_mark_suspect - The pages in a tracker's range may have changed
 * @n: The tracker, its space's lock held
 * @start: The first address
 * @last: The last address
 */
void umem_notify_mark_suspect(struct ib_umem_notify *n, unsigned long start, unsigned long last)
{
	umem_notify_assert_locked(n);

	if (n->state & INVALID)
		return;
	umem_notify_suspects_add(n, start, last);
	if (n->state)
		return;
	n->state = SUSPECT;
	umem_notify_count(n, IB_MR_NOTIFY_STAT_SUSPECT, 1);
	umem_notify_word_change(n, SUSPECT, 0);
}

/*
 * Takes the suspect pages (@suspects) from the tracker, after all their events have ended. Returns
 * 0; 1 if the tracker is not SUSPECT; -EAGAIN if events are in progress.
 *
 * Comparing before @suspects is cleared would lose a later event:
 *
 *   settle                                another thread
 *   compares: page P is mapped
 *                                         state |= SUSPECT (already set)
 *                                         unmaps P
 *   state = 0                             [the word says valid: stale]
 *
 * So @suspects is taken before the comparison, and a later event fills it again:
 *
 *   lock; takes @suspects; unlock
 *   compares: page P is mapped
 *                                         lock; state |= SUSPECT; @suspects has P;
 *                                         unlock; unmaps P
 *   lock; @suspects is not empty: state
 *   stays SUSPECT; unlock
 *
 *   [Required: SUSPECT is cleared only if no event came since @suspects was taken]
 *
 * An event fills @suspects before the page tables change. If @suspects were taken while the
 * event is in progress, the event would be lost:
 *
 *                                         lock; @suspects has P; unlock
 *   lock; takes @suspects; unlock
 *   compares: page P is mapped
 *                                         unmaps P
 *   lock; @suspects is empty: state = 0      [stale]
 *
 * So the event has a slot (umem_notify_mm_begin()) until it has ended:
 *
 *                                         lock; takes a slot; @suspects has P; unlock
 *   lock; a slot overlaps @suspects: takes
 *   nothing, and tries again; unlock
 *                                         unmaps P; frees the slot
 *
 *   [Required: @suspects is taken only if all its events have ended]
 *
 * A page looks absent while it is split or migrated. So an absent page counts as
 * changed only if no event added it to @suspects during the comparison.
 */
static int take_suspects(struct ib_umem_notify *n, struct umem_notify_comparison *cmp)
{
	unsigned long start = n->range.start;

	guard(umem_notify)(n);
	if (n->state != SUSPECT)
		return 1;
	if (umem_notify_mm_changes(umem_notify_mm(n),
				   start + ((unsigned long)n->suspects.first << PAGE_SHIFT),
				   start + ((unsigned long)n->suspects.end << PAGE_SHIFT) - 1))
		return -EAGAIN;
	cmp->suspects = n->suspects;
	cmp->exclusive = n->exclusive;
	umem_notify_suspects_clear(&n->suspects);
	return 0;
}

/* Applies @verdict, unless a later event concerns its pages. Returns true if the call is done. */
static bool conclude(struct ib_umem_notify *n, int verdict, struct umem_notify_comparison *cmp)
{
	unsigned int shift = shift_of(n);

	guard(umem_notify)(n);
	/* If the tracker became INVALID or SUSPENDED meanwhile, the caller retires it. */
	if (n->state != SUSPECT)
		return true;
	if (!verdict) {
		if (n->suspects.chunks)
			return false;
		n->state = 0;
		umem_notify_word_change(n, 0, SUSPECT);
		umem_notify_count(n, IB_MR_NOTIFY_STAT_INTACT, 1);
		return true;
	}
	if (verdict == UMEM_NOTIFY_CHANGED && cmp->exclusive == n->exclusive &&
	    !suspects_have(&n->suspects, cmp->at, shift)) {
		umem_notify_mark_invalid(n);
		return true;
	}
	suspects_trim(&cmp->suspects, cmp->at, shift);
	suspects_merge(&n->suspects, &cmp->suspects);
	return false;
}

/*
 * Turns SUSPECT into 0 or INVALID.
 *
 * The first pass compares the pages of all events before the call. The second pass compares the
 * pages of the events during the first pass. So a call ends, and usually clears SUSPECT.
 *
 * A pass can't begin during an event, and can't go on while another task holds a lock of a file.
 * That task may wait for a page that the caller's own process has to supply (userfaultfd, FUSE).
 * So the caller tries again for @patience, and for no longer. It sleeps in between, because an
 * event that woke it would pay for its wait.
 */
static int verify(struct ib_umem_notify *n, int patience)
{
	struct umem_notify_comparison cmp = { .worker = patience == UMEM_NOTIFY_WORKER };
	unsigned long until = jiffies + max(patience, 0);
	unsigned int passes = 0;
	int ret;

	lockdep_assert_held(&n->mutex);

	while (passes < MOST_PASSES) {
		ret = take_suspects(n, &cmp);
		if (!ret) {
			ret = umem_notify_check(n, shift_of(n), &cmp);
			passes += ret >= 0;
			ret = conclude(n, ret, &cmp) ? 1 : min(ret, 0);
		}
		if (ret > 0 || ret == -EOPNOTSUPP)
			return 0;
		if (ret < 0 && (ret != -EAGAIN || time_after_eq(jiffies, until)))
			return ret;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (ret)
			usleep_range_state(100, 200, TASK_KILLABLE);
	}
	return patience > 0 ? 0 : -EAGAIN;
}

/**
 * umem_notify_verify - Turn SUSPECT into 0 or INVALID, if possible
 * @n: The tracker, its mutex held
 * @patience: How long to wait: UMEM_NOTIFY_PATIENCE, 0, or UMEM_NOTIFY_WORKER
 *
 * Return:
 * * 0
 * * -EAGAIN: the tracker is still SUSPECT, because events are in progress or another task
 *   holds a lock
 * * -EINTR or -ENOMEM
 */
int umem_notify_verify(struct ib_umem_notify *n, int patience)
{
	int ret;

	/* An event after this check writes the word itself: see umem_notify_arm(). */
	if (umem_notify_state(n) != SUSPECT)
		return 0;
	ret = verify(n, patience);
	trace_mr_notify_settle(n, ret);
	return ret;
}
