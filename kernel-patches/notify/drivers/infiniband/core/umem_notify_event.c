// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The MMU notifier of an address space: an event comes to the trackers of its range,
 * before the page tables change.
 *
 * A callback takes leaf locks, sets bits, and waits for nobody. The pages of an unused
 * registration come back soon all the same, and the process that made the event does the
 * work:
 *
 *  munmap  the calling task revokes and unpins what it made INVALID, on its way back to
 *          user mode, without a lock of the mm. So the pages are free when it returns: for
 *          the pool of huge pages, say, or within a memory cgroup's limit.
 *  fork    copies pinned pages for the child. Idle pages are unpinned before that,
 *          in the callback, by devices whose revoke does not sleep. Nothing of a
 *          registration that can't be restored.
 *
 * An event of another process, and a task that does not return to user mode, leave the
 * work to the worker.
 *
 * There is no event for a fork. dup_mmap() sends PROTECTION_PAGE of each private mapping,
 * or CLEAR if the mapping has huge pages of hugetlbfs. Another sender of the same events
 * only has an idle registration suspended a little early.
 *
 *   fork                                  another thread
 *   word & in_use is 0: SUSPENDED;
 *   revokes, unpins
 *                                         adds a reference, sees SUSPENDED: settles;
 *                                         pins without mmap_lock
 *   copies page tables: these pages, too
 *
 * That child has copies, as of MRs in use; nothing is lost but time.
 */

#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

static bool event_is_own(const struct mmu_notifier_range *range)
{
	return range->mm == current->mm && mmu_notifier_range_blockable(range);
}

/* May it replace pages? All others leave a pinned page where it is. */
static bool event_changes(const struct mmu_notifier_range *range)
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

/* Before it is SUSPENDED or INVALID the pages are there. */
static bool event_may_copy(const struct ib_umem_notify *n,
			   const struct mmu_notifier_range *range)
{
	struct folio *folio;

	if (!umem_notify_is_idle(n) || !umem_notify_can_restore(n) ||
	    !umem_notify_retires_at_once(n))
		return false;
	folio = page_folio(sg_page(n->umem->sgt_append.sgt.sgl));
	return folio_test_anon(folio) &&
	       (range->event == MMU_NOTIFY_PROTECTION_PAGE || folio_test_hugetlb(folio));
}

/* The tracker has become INVALID, and its word says so. */
static void event_invalid(struct ib_umem_notify *n, const struct mmu_notifier_range *range)
{
	if (n->held)
		return; /* when the driver is done with the MR the worker comes */
	/* Its users give it back, or the task that takes the memory. */
	if (umem_notify_is_used(n) || !event_is_own(range) || !umem_notify_queue_current(n))
		umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
}

/*
 * While the pages are being pinned it is not known on which side of an UNMAP they
 * were. So until it is armed, which looks, an UNMAP only makes the range SUSPECT.
 */
static void event_changed(struct ib_umem_notify *n, const struct mmu_notifier_range *range)
{
	if (range->event == MMU_NOTIFY_EXCLUSIVE) {
		n->exclusive = true;
		return;
	}
	if (n->state & INVALID) {
		if (n->in_use)
			umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
		return;
	}
	if (n->armed && (range->event == MMU_NOTIFY_UNMAP ||
			 range->event == MMU_NOTIFY_RELEASE)) {
		umem_notify_mark_invalid(n);
		event_invalid(n, range);
	} else {
		if (umem_notify_is_used(n))
			n->written = true;
		umem_notify_mark_suspect(n, range->start, range->end - 1);
		if (n->state == SUSPECT)
			umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
	}
	if (trace_mr_notify_mark_enabled() && n->umem)
		trace_mr_notify_mark(n, range);
}

/*
 * @changes: it may replace pages. @fork: it may come before pages are copied, so idle ones are
 * unpinned.
 *
 * A CLEAR may be both. To suspend a tracker and to leave no doubt loses it:
 *
 *   MADV_DONTNEED of a huge page          another thread
 *   SUSPENDED; the pages are there
 *                                         settles: has the mutex
 *   can't have the mutex, goes on
 *                                         the pages are there: keeps them;
 *                                         @doubt is empty: state = 0
 *   unmaps the page                       [the word says valid: stale]
 */
static void event_walk(struct umem_notify_mm *space, const struct mmu_notifier_range *range,
		       bool changes, bool fork)
{
	struct umem_notify_walk walk = {
		.start = range->start,
		.last = range->end - 1,
		.sleeps = mmu_notifier_range_blockable(range),
	};
	struct ib_umem_notify *n = NULL;

	while ((n = umem_notify_mm_next(space, &walk, n))) {
		if (changes)
			event_changed(n, range);
		if (fork && !n->own && event_may_copy(n, range) && umem_notify_suspend(n)) {
			umem_notify_queue_visit(n, NULL);
			n = NULL; /* it may be freed */
		}
	}
}

/*
 * Never fails, not for callers either that can't wait: the pages are pinned, so
 * nothing can be freed under the device before it is revoked.
 */
static int umem_notify_event_start(struct mmu_notifier *mn, const struct mmu_notifier_range *range)
{
	struct umem_notify_mm *space = umem_notify_mm_of(mn);
	bool changes = event_changes(range);
	bool fork = (range->event == MMU_NOTIFY_PROTECTION_PAGE ||
		     range->event == MMU_NOTIFY_CLEAR) && event_is_own(range);

	if (!changes && !fork)
		return 0;

	guard(spinlock)(&space->lock);
	if (changes)
		umem_notify_mm_begin(space, range->start, range->end - 1);
	event_walk(space, range, changes, fork);
	return 0;
}

/* The page tables have changed. */
static void umem_notify_event_end(struct mmu_notifier *mn, const struct mmu_notifier_range *range)
{
	struct umem_notify_mm *space = umem_notify_mm_of(mn);

	if (!event_changes(range))
		return;
	spin_lock(&space->lock);
	umem_notify_mm_end(space, range->start, range->end - 1);
	spin_unlock(&space->lock);
	if (wq_has_sleeper(&space->ended))
		wake_up_all(&space->ended);
}

/* The end of the address space: its users have gone, and its memory goes. */
static void umem_notify_event_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct umem_notify_mm *space = umem_notify_mm_of(mn);
	struct mmu_notifier_range all;

	mmu_notifier_range_init(&all, MMU_NOTIFY_RELEASE,
				MMU_NOTIFIER_RANGE_BLOCKABLE, mm, 0, ULONG_MAX);
	guard(spinlock)(&space->lock);
	event_walk(space, &all, true, false);
}

const struct mmu_notifier_ops umem_notify_event_ops = {
	.invalidate_range_start = umem_notify_event_start,
	.invalidate_range_end = umem_notify_event_end,
	.release = umem_notify_event_release,
	.alloc_notifier = umem_notify_mm_alloc,
	.free_notifier = umem_notify_mm_free,
};
