// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Idle registrations whose pages are due: taken from the device and unpinned by a
 * worker, soon. Some callers wait for that, so that a registration that is idle is not
 * felt:
 *
 *  munmap    until the MRs that it made INVALID have given their pages back. Else the
 *	      pages were still missing from the pool of huge pages, or charged to the
 *	      memory cgroup, when it returns, and the program that maps them anew has both.
 *  fork      suspends idle MRs before it copies the page tables, and waits: pages
 *	      that are pinned are copied at once for the child, all of them.
 *  reclaim   of a user's own task: the memory cgroup is out of memory only if there is
 *	      nothing left that is about to come.
 *
 * HOW LONG
 *
 * The caller holds mmap_lock, or any lock that may be held in reclaim. The worker needs
 * no lock of the address space, and no memory; but it waits for the device, and unpinning
 * a clean page takes the lock of its folio, which a caller in reclaim might hold. So no
 * caller waits for longer than PATIENCE; a fatal signal ends it before. And after a wait
 * in vain no caller waits at all (@stuck) until nothing is due any more: a device that does
 * not answer costs the process one wait, whatever its other devices do.
 *
 * No caller waits with a lock of rmap held: of the events only an UNMAP and a fork do,
 * which have mmap_lock alone, and not those that may not block (the OOM reaper).
 * A caller in reclaim waits for its own process and its own memory cgroup: another's
 * registrations could hold it up once for each cgroup.
 *
 * FORK
 *
 * There is no event for it. dup_mmap() has mmap_lock for writing and tells the parent's
 * notifiers PROTECTION_PAGE of each private mapping, or CLEAR if it has huge pages of
 * hugetlbfs. Both are told by the holder of mmap_lock for writing, of its own address space.
 * A task that writes back, migrates or poisons a page tells the same two with its folio and
 * i_mmap_rwsem locked, which the worker may need to unpin: it has mmap_lock for reading
 * at most, whatever other threads have. MADV_COLLAPSE tells CLEAR as the writer: it has
 * no page of hugetlbfs. So does a split of a shared mapping of hugetlbfs (mprotect() or
 * munmap() of a part), with i_mmap_rwsem locked: of a shared mapping a fork tells nothing.
 *
 *   fork                                  another thread
 *   word & in_use is 0: SUSPENDED;
 *   waits for the worker
 *                                         adds a reference, sees SUSPENDED: settles;
 *                                         pins without mmap_lock
 *   copies page tables: these pages, too
 *
 * That child has copies, as of MRs in use; nothing is lost but time.
 */

#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>

#include "umem_notify_tracker.h"

#define PATIENCE HZ

/**
 * umem_notify_due_add - The pages of a tracker are due
 * @n: The tracker, its space's lock held, about to be on the queue's first list
 */
void umem_notify_due_add(struct ib_umem_notify *n)
{
	struct umem_notify_space *space = umem_notify_space(n);

	umem_notify_assert_locked(n);

	/* Without a mask it is not known whether anybody uses them. */
	if (n->due_now || !n->in_use)
		return;
	n->due_now = true;
	WRITE_ONCE(space->due, space->due + 1);
}

/**
 * umem_notify_due_take - A worker takes a tracker, or it ends
 * @n: The tracker, its space's lock held
 *
 * Return: Whether umem_notify_due_end() has to be called when that is done.
 */
bool umem_notify_due_take(struct ib_umem_notify *n)
{
	bool due = n->due_now;

	umem_notify_assert_locked(n);

	n->due_now = false;
	return due;
}

/**
 * umem_notify_due_end - Pages that were due have come, or can't now
 * @space: The address space, its lock held
 */
void umem_notify_due_end(struct umem_notify_space *space)
{
	lockdep_assert_held(&space->lock);

	WRITE_ONCE(space->due, space->due - 1);
	if (space->due)
		return;
	WRITE_ONCE(space->stuck, false);
	if (wq_has_sleeper(&space->ended))
		wake_up_all(&space->ended);
}

/**
 * umem_notify_due_wait - Wait until no pages of an address space are due
 * @space: The address space
 *
 * Context: Process context; mmap_lock may be held, and locks that reclaim may hold.
 */
void umem_notify_due_wait(struct umem_notify_space *space)
{
	long left;

	if (!READ_ONCE(space->due) || READ_ONCE(space->stuck))
		return;
	left = wait_event_killable_timeout(space->ended, !READ_ONCE(space->due),
					   PATIENCE);
	if (left)
		return;
	spin_lock(&space->lock);
	if (space->due) /* else it stayed so until others are due, and done */
		WRITE_ONCE(space->stuck, true);
	spin_unlock(&space->lock);
}

static bool has_tracker(struct umem_notify_space *space,
			const struct mmu_notifier_range *range)
{
	bool has;

	spin_lock(&space->lock);
	has = interval_tree_iter_first(&space->trackers, range->start, range->end - 1);
	spin_unlock(&space->lock);
	return has;
}

/**
 * umem_notify_due_ended - An event has ended
 * @space: Its address space
 * @range: The event
 *
 * If it was an unmap it waits for the pages of the MRs that it hit.
 */
void umem_notify_due_ended(struct umem_notify_space *space,
			   const struct mmu_notifier_range *range)
{
	if (range->event == MMU_NOTIFY_UNMAP && READ_ONCE(space->due) &&
	    mmu_notifier_range_blockable(range) && has_tracker(space, range))
		umem_notify_due_wait(space);
}

/* Whether the current task has mmap_lock for writing */
static bool has_write_lock(struct mm_struct *mm)
{
#ifdef CONFIG_PREEMPT_RT
	/* Bit 0: there are waiters. */
	unsigned long owner = (unsigned long)READ_ONCE(mm->mmap_lock.rwbase.rtmutex.owner) & ~1UL;
#else
	/* Bit 0: readers have it. Bit 1: waiters don't spin. */
	unsigned long owner = atomic_long_read(&mm->mmap_lock.owner) & ~2UL;
#endif

	return owner == (unsigned long)current;
}

/* Does a fork make its pages read-only? With mmap_lock held. */
static bool is_copied(const struct mmu_notifier_range *range)
{
	struct vm_area_struct *vma = vma_lookup(range->mm, range->start);

	return vma && is_cow_mapping(vma->vm_flags);
}

/**
 * umem_notify_due_is_fork - May an event be a fork's?
 * @range: The event
 */
bool umem_notify_due_is_fork(const struct mmu_notifier_range *range)
{
	return (range->event == MMU_NOTIFY_PROTECTION_PAGE ||
		range->event == MMU_NOTIFY_CLEAR) &&
	       range->mm == current->mm && mmu_notifier_range_blockable(range) &&
	       has_write_lock(range->mm) && is_copied(range);
}

/* Before its state is SUSPENDED or INVALID the pages are there. */
static bool has_hugetlb_pages(const struct ib_umem_notify *n)
{
	return folio_test_hugetlb(page_folio(sg_page(n->umem->sgt_append.sgt.sgl)));
}

/**
 * umem_notify_due_fork - A fork is about to copy the page tables of a tracker's range
 * @node: The tracker's, its space's lock held
 * @range: The event of the fork
 */
void umem_notify_due_fork(struct umem_notify_node *node,
			  const struct mmu_notifier_range *range)
{
	struct ib_umem_notify *n = container_of(node, struct ib_umem_notify, node);
	bool idle = umem_notify_is_idle(n);

	if (range->event == MMU_NOTIFY_CLEAR && !(idle && has_hugetlb_pages(n)))
		return;
	if (idle)
		umem_notify_take_back(n);
	/* Those too that others have made so, and the worker has now. */
	if (n->due_now || (n->state == SUSPENDED && !n->revoked))
		umem_notify_space(n)->forks++;
}
