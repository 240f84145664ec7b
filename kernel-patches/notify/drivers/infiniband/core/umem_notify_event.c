// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The callbacks of the MMU notifier of an address space. An event visits the trackers of
 * its range before the page tables change.
 *
 * A callback takes leaf locks, sets bits, and does not wait. The pages of an unused
 * registration are unpinned soon afterwards, by the process that caused the event:
 *
 *  munmap  before the calling task returns to user mode, it revokes and unpins the MRs that
 *          it made INVALID. At that time it holds no lock of the mm. So the pages are free
 *          when munmap() returns, for example for the pool of huge pages, or in a memory
 *          cgroup at its limit.
 *  fork    copies pinned pages for the child. So the callback unpins idle MRs before the
 *          copy, if the device's revoke does not sleep and the device can restore the
 *          MRs.
 *
 * If the cause of the event is another process, or a task that does not return to user
 * mode, the worker revokes and unpins.
 *
 * There is no event for a fork. dup_mmap() sends PROTECTION_PAGE for each private mapping,
 * or CLEAR if the mapping has huge pages of hugetlbfs. If these events have another cause,
 * the callback only suspends an idle registration early.
 *
 * A settle during the fork may pin pages again before the copy:
 *
 *   fork                                  another thread
 *   word & in_use is 0: SUSPENDED;
 *   revokes, unpins
 *                                         adds a reference, sees SUSPENDED: settles;
 *                                         pins without mmap_lock
 *   copies page tables: these pages, too
 *
 * Then the fork copies these pages, as it copies the pages of MRs in use. Copying only costs time.
 */

#include <linux/hugetlb.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

static bool event_is_own(const struct mmu_notifier_range *range)
{
	return range->mm == current->mm && mmu_notifier_range_blockable(range);
}

/* May the event replace pages? All other events leave a pinned page where it is. */
static bool event_changes(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_CLEAR:
	case MMU_NOTIFY_MIGRATE:
	case MMU_NOTIFY_EXCLUSIVE:
		return true;
	case MMU_NOTIFY_PROTECTION_VMA:
		/* mprotect() of hugetlb memory may unmap shared page tables. */
		return range->end - range->start >= PUD_SIZE;
	default:
		return false;
	}
}

/* Is the tracker idle, and may the event be a fork that is about to copy its pinned pages? */
static bool event_may_copy(const struct ib_umem_notify *n, const struct mmu_notifier_range *range)
{
	struct folio *folio;

	if (!umem_notify_is_idle(n) || !umem_notify_can_restore(n) ||
	    !umem_notify_retires_atomically(n))
		return false;
	folio = page_folio(sg_page(n->umem->sgt_append.sgt.sgl));
	return folio_test_anon(folio) &&
	       (range->event == MMU_NOTIFY_PROTECTION_PAGE || folio_test_hugetlb(folio));
}

/* The tracker has become INVALID, and its word says so. */
static void event_invalid(struct ib_umem_notify *n, const struct mmu_notifier_range *range)
{
	if (n->held)
		return; /* the worker visits it when the driver is done with the MR */
	/*
	 * If the tracker is unused and this process caused the event, this task retires the
	 * tracker. If not, the worker retires it.
	 */
	if (umem_notify_is_used(n) || !event_is_own(range) || !umem_notify_queue_current(n))
		umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
}

/*
 * While pages are being pinned, it is unknown whether a page was pinned before or after an UNMAP.
 * So until the MR is armed, an UNMAP only makes the range SUSPECT. Arming compares the pages.
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
	if (n->armed && (range->event == MMU_NOTIFY_UNMAP || range->event == MMU_NOTIFY_RELEASE)) {
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
 * @changes says that the event may replace pages. @fork says that a fork may copy pages next: then
 * idle MRs are unpinned.
 *
 * A CLEAR of this process has both flags. If a CLEAR suspended a tracker, but did not add to
 * @suspects, the event would be lost:
 *
 *   MADV_DONTNEED of a huge page          another thread
 *   SUSPENDED; still pinned
 *                                         settles: has the mutex
 *   trylock of the mutex fails: goes on
 *                                         still pinned: keeps the pages;
 *                                         @suspects is empty: state = 0
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
		if (fork && event_may_copy(n, range) && umem_notify_suspend(n))
			umem_notify_queue_visit(n, NULL);
	}
}

/*
 * Always succeeds, also for callers that must not sleep: the pages are pinned, so no page
 * is freed before the device is revoked.
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
	guard(spinlock)(&space->lock);
	umem_notify_mm_end(space, range->start, range->end - 1);
}

/* The address space has no users any more, and the kernel frees its memory next. */
static void umem_notify_event_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct umem_notify_mm *space = umem_notify_mm_of(mn);
	struct mmu_notifier_range all;

	mmu_notifier_range_init(&all, MMU_NOTIFY_RELEASE,
				MMU_NOTIFIER_RANGE_BLOCKABLE, mm, 0, ULONG_MAX);
	guard(spinlock)(&space->lock);
	event_walk(space, &all, true, false);
}

/* Spaces whose callbacks may still run */
static atomic_t event_nr_spaces;

static struct mmu_notifier *event_alloc_space(struct mm_struct *mm)
{
	struct umem_notify_mm *space = kzalloc(sizeof(*space), GFP_KERNEL);

	if (!space)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&space->lock);
	space->trackers = RB_ROOT_CACHED;
	space->rest = jiffies;
	atomic_inc(&event_nr_spaces);
	return &space->mn;
}

static void event_free_space(struct mmu_notifier *mn)
{
	kfree(umem_notify_mm_of(mn));
	if (atomic_dec_and_test(&event_nr_spaces))
		wake_up_var(&event_nr_spaces);
}

static const struct mmu_notifier_ops event_ops = {
	.invalidate_range_start = umem_notify_event_start,
	.invalidate_range_end = umem_notify_event_end,
	.release = umem_notify_event_release,
	.alloc_notifier = event_alloc_space,
	.free_notifier = event_free_space,
};

struct event_registration {
	struct work_struct work;
	struct mm_struct *mm;
	struct mmu_notifier *mn;
};

static void event_register(struct work_struct *work)
{
	struct event_registration *r = container_of(work, struct event_registration, work);

	r->mn = mmu_notifier_get(&event_ops, r->mm);
}

/**
 * umem_notify_event_space - The space of the current process
 *
 * The first call for an address space takes all its locks. mm_take_all_locks() gives up if
 * the calling task has to do something before it returns to user mode (a signal, io_uring
 * work, the freezer, a debugger). It takes long in an address space with many mappings, so
 * frequent signals would make it fail each time. So a kworker calls it, which gets no signals.
 *
 * Context: Process context, no mm lock held.
 *
 * Return: The space, which umem_notify_queue_put() puts, or NULL: no memory.
 */
struct umem_notify_mm *umem_notify_event_space(void)
{
	struct event_registration r = { .mm = current->mm };

	INIT_WORK_ONSTACK(&r.work, event_register);
	queue_work(system_unbound_wq, &r.work);
	flush_work(&r.work);
	destroy_work_on_stack(&r.work);
	return IS_ERR(r.mn) ? NULL : umem_notify_mm_of(r.mn);
}

/**
 * umem_notify_event_exit - Wait for the last callbacks of all spaces
 *
 * ib_uverbs is unloaded next, and no space is in use. mmu_notifier_synchronize()
 * waits for a grace period of SRCU, but not for the callbacks that SRCU calls after
 * the grace period:
 *
 *   unloading                             SRCU
 *   [the last space was put]
 *                                         the grace period ends
 *   mmu_notifier_synchronize() returns
 *   the module is freed
 *                                         event_free_space() [freed code]
 *
 * So the spaces are counted. SRCU calls its callbacks with bottom halves disabled, so
 * when the count is 0, the last callback returns within a grace period of RCU:
 *
 *                                         event_free_space(): the count is 0
 *   the count is 0; synchronize_rcu(): waits
 *                                         returns; enables bottom halves
 *   the module is freed
 */
void umem_notify_event_exit(void)
{
	wait_var_event(&event_nr_spaces, !atomic_read(&event_nr_spaces));
	synchronize_rcu();
}
