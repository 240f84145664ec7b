// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The state of a tracker (umem_notify.state, and while it is armed the same bits in
 * its word): events raise it, settling lowers it.
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
 * hugetlb.
 */

#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

/* Passes after which a call leaves the rest to the next one. */
#define MOST_ROUNDS 2

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

/* Cut it off before a page */
static void doubt_trim(struct umem_notify_doubt *doubt, u32 page,
		       unsigned int shift)
{
	doubt->first = max(doubt->first, page);
	doubt->chunks &= U64_MAX << (page >> shift);
}

/**
 * umem_notify_doubt_range - Some pages of a tracker may not be the pinned ones
 * @n: The tracker, its space's lock held
 * @start: The first address, which may be before the tracker's
 * @last: The last address, which may be behind the tracker's
 */
void umem_notify_doubt_range(struct ib_umem_notify *n, unsigned long start,
			     unsigned long last)
{
	unsigned long first = umem_notify_start(n);
	struct umem_notify_doubt more;
	unsigned int shift;

	if (start <= first && last >= umem_notify_last(n)) {
		n->doubt.chunks = U64_MAX;
		n->doubt.first = 0;
		n->doubt.end = umem_notify_pages(n);
		return;
	}
	shift = shift_of(n);
	more.first = (max(start, first) - first) >> PAGE_SHIFT;
	more.end = ((min(last, umem_notify_last(n)) - first) >> PAGE_SHIFT) + 1;
	more.chunks = GENMASK_ULL((more.end - 1) >> shift, more.first >> shift);
	doubt_add(&n->doubt, &more);
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
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_INVALID, 1);
	umem_notify_word_change(n, INVALID, was);
	umem_notify_word_tell(n);
}

/**
 * umem_notify_mark_suspect - Something may have changed in a tracker's range
 * @n: The tracker, its space's lock held
 * @start: The first address
 * @last: The last address
 */
void umem_notify_mark_suspect(struct ib_umem_notify *n, unsigned long start,
			      unsigned long last)
{
	umem_notify_assert_locked(n);

	if (n->state & INVALID)
		return;
	umem_notify_doubt_range(n, start, last);
	if (n->state)
		return;
	n->state = SUSPECT;
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_SUSPECT, 1);
	umem_notify_word_change(n, SUSPECT, 0);
}

/*
 * Takes the doubt, all of whose events have ended; a system call waits for them. Returns
 * whether there is one; -EAGAIN if events are under way, -EINTR.
 *
 * To look first and clear then wipes out a later event:
 *
 *   settle                                another thread
 *   looks: page P is mapped
 *                                         state |= SUSPECT (already set)
 *                                         unmaps P
 *   state = 0                             [the word says valid: stale]
 *
 * The doubt is taken before the look, so a later event leaves one of its own:
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
 * The event is counted from before it takes the lock to after its end:
 *
 *                                         counter = 1; lock; @doubt has P; unlock
 *   lock; the counter is not 0: takes
 *   nothing, and comes again; unlock
 *                                         unmaps P; counter = 0
 *
 *   [Required: a doubt is taken only if all its events have ended]
 *
 * The same for a page that looks changed: in the middle of a split or a migration it
 * looks like one that is gone. It is, unless a new doubt has it.
 */
static int take_doubt(struct ib_umem_notify *n, struct umem_notify_question *what)
{
	struct umem_notify_mm *space = umem_notify_mm(n);
	unsigned long start, last;
	int ret;

	for (;;) {
		umem_notify_lock(n);
		what->doubt = n->doubt;
		start = umem_notify_start(n) + ((unsigned long)n->doubt.first << PAGE_SHIFT);
		last = umem_notify_start(n) + ((unsigned long)n->doubt.end << PAGE_SHIFT) - 1;
		ret = n->state == SUSPECT;
		if (!ret || !umem_notify_mm_changes(space, start, last))
			break;
		umem_notify_unlock(n);
		ret = what->worker ? -EAGAIN :
				     umem_notify_mm_wait(space, start, last, what->until);
		if (ret)
			return ret;
	}
	if (ret) {
		what->exclusive = n->exclusive;
		umem_notify_doubt_clear(&n->doubt);
	}
	umem_notify_unlock(n);
	return ret;
}

/* Apply the answer, as far as it is still valid. Returns whether SUSPECT is left for good. */
static bool conclude(struct ib_umem_notify *n, int verdict,
		     struct umem_notify_question *what)
{
	unsigned int shift = shift_of(n);

	guard(umem_notify)(n);
	/* Suspended meanwhile: the caller retires it. */
	if (n->state != SUSPECT)
		return true;
	if (!verdict) {
		if (n->doubt.chunks)
			return false;
		n->state = 0;
		umem_notify_word_change(n, 0, SUSPECT);
		umem_notify_counted(n, IB_MR_NOTIFY_STAT_INTACT, 1);
		return true;
	}
	if (verdict == UMEM_NOTIFY_CHANGED && what->exclusive == n->exclusive &&
	    !doubt_has(&n->doubt, what->at, shift)) {
		umem_notify_mark_invalid(n);
		return true;
	}
	doubt_trim(&what->doubt, what->at, shift);
	doubt_add(&n->doubt, &what->doubt);
	return false;
}

/*
 * From SUSPECT to 0 or INVALID.
 *
 * One pass settles all that happened before the call, even while events go on. What they left
 * is looked at once more, so a call ends, and mostly with a certain word.
 */
static int verify(struct ib_umem_notify *n, int patience)
{
	struct umem_notify_question what = {
		.worker = patience == UMEM_NOTIFY_WORKER,
		.until = jiffies + max(patience, 0),
		.hurry = &n->hurry,
	};
	unsigned int shift = shift_of(n);
	unsigned int round;
	int verdict, ret;

	lockdep_assert_held(&n->mutex);

	for (round = 0; round < MOST_ROUNDS; round++) {
		ret = take_doubt(n, &what);
		if (ret <= 0)
			return ret;
		verdict = umem_notify_check(n->umem, umem_notify_start(n), shift, &what);
		if (conclude(n, verdict, &what))
			return 0;
		if (verdict < 0)
			return verdict == -EOPNOTSUPP ? 0 : verdict;
	}
	return patience > 0 ? 0 : -EAGAIN;
}

/**
 * umem_notify_verify - Turn SUSPECT into a certain answer, if that can be had
 * @n: The tracker, its mutex held
 * @patience: How long it waits: UMEM_NOTIFY_PATIENCE, 0, or UMEM_NOTIFY_WORKER
 *
 * Return: 0; -EAGAIN: events are under way, or a lock was not to be had, and it is
 * as SUSPECT as before; -EINTR, -ENOMEM.
 */
int umem_notify_verify(struct ib_umem_notify *n, int patience)
{
	int ret;

	/* A later event tells by itself: see umem_notify_arm(). */
	if (umem_notify_state(n) != SUSPECT)
		return 0;
	ret = verify(n, patience);
	trace_mr_notify_settle(n, ret);
	return ret;
}
