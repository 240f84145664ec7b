// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One page of the process that registered: the address space, by lock or without,
 * the look at its page tables, a file's page. It is held for the time of one
 * access and let go.
 *
 * Mostly mmap_lock is held, for reading, and was only tried for: its holder may
 * wait for a dead server's file. Where others always hold it or queue for it that
 * never works. Then a page that is there is found without it, as
 * get_user_pages_fast() does, and one that can't be found so is faulted in by a
 * thread that queues. Calls that mmap_lock would keep away may come meanwhile:
 * see rxe_odp_copy.c for a copy, rxe_odp_page_open() for an atomic operation.
 */

#include <linux/backing-dev.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
#include <asm/pkru.h>
#endif

#include "rxe.h"
#include "rxe_odp_page.h"

/* A writer of mmap_lock is short, unless it waits itself */
static bool rxe_odp_page_trylock(struct mm_struct *mm)
{
	int tries;

	for (tries = 0; tries < 8; tries++) {
		if (mmap_read_trylock(mm))
			return true;
		cond_resched();
	}
	return false;
}

/*
 * Enter the address space; 0, or -EFAULT when it has ended, or -EBUSY when that
 * might take long.
 */
int rxe_odp_page_enter(struct mm_struct *mm)
{
	if (!mmget_not_zero(mm))
		return -EFAULT;
	if (rxe_odp_page_trylock(mm))
		return 0;
	mmput_async(mm);
	return -EBUSY;
}

void rxe_odp_page_leave(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
	mmput_async(mm);
}

static void rxe_odp_page_leave_task_mm(void)
{
	if (current->mm)
		kthread_unuse_mm(current->mm);
}

/*
 * Take an address space on for the rest of the task of a queue pair, which has
 * many packets. All copying is done by such tasks, and do_work() ends each with
 * rxe_odp_end_task().
 */
bool rxe_odp_page_take_on(struct mm_struct *mm)
{
	if (!(current->flags & PF_KTHREAD))
		return false;
	if (current->mm == mm)
		return true;

	rxe_odp_page_leave_task_mm();
	if (!mmget_not_zero(mm))
		return false;
	kthread_use_mm(mm);
	mmput_async(mm);
	return true;
}

/* Called for each task; its queue pair may have gone. Leave the address space */
void rxe_odp_end_task(void)
{
	rxe_odp_page_leave_task_mm();
}

bool rxe_odp_page_may_access(struct vm_area_struct *vma, bool write)
{
	return !(vma->vm_flags & (VM_IO | VM_PFNMAP)) &&
	       (vma->vm_flags & (write ? VM_WRITE : VM_READ));
}

/* Does a file system write it to its file? */
bool rxe_odp_page_is_file(struct folio *folio)
{
	struct address_space *mapping = READ_ONCE(folio->mapping);

	return mapping && !folio_test_anon(folio) &&
	       mapping_can_writeback(mapping);
}

/* May that page still be written there? */
static bool rxe_odp_page_is_writable(struct mm_struct *mm, unsigned long addr,
				     struct page *page)
{
	struct page *now;

	if (rxe_odp_gup(mm, addr, true, FOLL_NOFAULT, &now, NULL) != 1)
		return false;
	rxe_odp_put_page(now, true);
	return now == page;
}

/*
 * A file system may clean a page that is being written, unless that is locked,
 * and warns of one that gets dirty then. The holder of the lock is short
 * mostly, but may have cleaned it: then the file system wants to be told of the
 * next write, by a fault, before there is one.
 *
 *   rxe                                   writeback
 *   finds a page, which may be written
 *                                         locks and cleans it: not any more;
 *                                         writes it to its file; unlocks
 *   locks it; looks again: not writable
 *
 * Return: 0; -EBUSY, and the page is let go.
 */
static int rxe_odp_page_lock_file(struct mm_struct *mm, unsigned long addr,
				  struct page *page)
{
	struct folio *folio = page_folio(page);
	int tries;

	if (!rxe_odp_page_is_file(folio))
		return 0;

	for (tries = 0; tries < 8; tries++) {
		if (folio_trylock(folio)) {
			if (folio->mapping &&
			    rxe_odp_page_is_writable(mm, addr, page))
				return 0;
			folio_unlock(folio);
			break;
		}
		cond_resched();
	}
	rxe_odp_put_page(page, true);
	return -EBUSY;
}

/* Let go of a page, and of its lock */
void rxe_odp_page_release(struct page *page, bool write)
{
	struct folio *folio = page_folio(page);

	if (write && rxe_odp_page_is_file(folio))
		folio_unlock(folio);
	rxe_odp_put_page(page, write);
}

/*
 * Find a page that is there, under mmap_lock. One with a mark of NUMA balancing is
 * not: it would come here with each packet while it keeps that.
 *
 * Return: 0, and the page is held, to be let go by rxe_odp_page_release();
 * -EBUSY: it must be waited for; -EFAULT: no such access is possible there.
 */
int rxe_odp_page_get(struct rxe_odp_mr *odp, unsigned long addr, bool write,
		     struct page **page)
{
	struct vm_area_struct *vma = vma_lookup(odp->pool->mm, addr);

	if (!vma)
		return -EFAULT;

	if (rxe_odp_gup(odp->pool->mm, addr, write,
			FOLL_NOFAULT | FOLL_HONOR_NUMA_FAULT, page, NULL) == 1)
		return write ? rxe_odp_page_lock_file(odp->pool->mm, addr, *page) : 0;

	if (!rxe_odp_page_may_access(vma, write))
		return -EFAULT;

	atomic64_inc(&odp->faults);
	return -EBUSY;
}

/*
 * Protection keys are each thread's own, and say nothing about a device: a look
 * under mmap_lock passes over them (FOLL_REMOTE). One without it asks for the
 * calling task's keys, and a worker has the first one only; so memory with another
 * was found under mmap_lock or not at all. The register is the task's: it is
 * switched with the task, and an interrupt does not look at memory by it.
 */
static u32 rxe_odp_page_allow_keys(void)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	u32 before = read_pkru();

	write_pkru(0);
	return before;
#else
	return 0;
#endif
}

static void rxe_odp_page_restore_keys(u32 before)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	write_pkru(before);
#endif
}

/*
 * Look a page up without mmap_lock, in the address space that the calling worker
 * has taken on: it is there, and may be accessed so. NULL: it is not, or the
 * architecture can't look pages up so (User Mode Linux).
 */
struct page *rxe_odp_page_look(unsigned long addr, bool write)
{
	u32 keys = rxe_odp_page_allow_keys();
	struct page *page;
	int got;

	got = get_user_pages_fast_only(addr, 1, write ? FOLL_WRITE : 0, &page);
	rxe_odp_page_restore_keys(keys);
	return got == 1 ? page : NULL;
}

/* Is it still the page there? Then a file's is locked */
static bool rxe_odp_page_is_mapped(struct page *page, unsigned long addr)
{
	struct folio *folio = page_folio(page);
	bool file = rxe_odp_page_is_file(folio);
	struct page *now;

	if (file && !folio_trylock(folio))
		return false;
	now = rxe_odp_page_look(addr, true);
	if (now)
		put_page(now);
	if (now == page && (!file || folio->mapping))
		return true;
	if (file)
		folio_unlock(folio);
	return false;
}

/* rxe_odp_page_get() without mmap_lock */
static struct page *rxe_odp_page_get_unlocked(struct rxe_odp_mr *odp,
					      unsigned long addr, bool write)
{
	struct mm_struct *mm = odp->pool->mm;
	struct page *page = NULL;

	if (!rxe_odp_page_take_on(mm) || !mmget_not_zero(mm))
		return NULL;

	if (!write) {
		page = rxe_odp_page_look(addr, false);
	} else {
		page = rxe_odp_fault_take_page(odp, addr);
		if (page && !rxe_odp_page_is_mapped(page, addr)) {
			rxe_odp_put_page(page, true);
			page = NULL;
		}
	}
	mmput_async(mm);
	return page;
}

/**
 * rxe_odp_page_open - Hold a page for an access that is no copy
 * @mr: The MR
 * @iova: Where in @mr
 * @write: For writing
 * @opened: The page, to be closed by rxe_odp_page_close()
 *
 * A page that is written must not become a child's by a fork meanwhile. That
 * is kept off by mmap_lock; or, where it can't be had, by the pin of the thread
 * that has faulted the page in. It is lent to the access that has met the
 * fault, if it is still the page there:
 *
 *   rxe                      a thread            the process
 *   adds: -EINPROGRESS
 *                            pins page A
 *                                                fork: A stays the parent's, the
 *                                                child gets a copy
 *   finds A; adds to A
 *
 *   adds: -EINPROGRESS
 *                            pins page A
 *                                                munmap; mmap: page B
 *   finds B: lets A go, and
 *   meets a fault anew
 *
 * Return: 0; -EFAULT: no such access is possible; -EINPROGRESS: it must be
 * waited for.
 */
int rxe_odp_page_open(struct rxe_mr *mr, u64 iova, bool write,
		      struct rxe_odp_opened *opened)
{
	struct rxe_odp_mr *odp = mr->odp;
	unsigned long addr = rxe_odp_addr(mr, iova);
	bool locked;
	int err;

	opened->write = write;
	opened->mm = NULL;
	err = rxe_odp_page_enter(odp->pool->mm);
	locked = !err;
	if (!err) {
		err = rxe_odp_page_get(odp, addr, write, &opened->page);
		if (err)
			rxe_odp_page_leave(odp->pool->mm);
		else
			opened->mm = odp->pool->mm;
	} else if (err == -EBUSY) {
		opened->page = rxe_odp_page_get_unlocked(odp, addr, write);
		if (opened->page)
			err = 0;
	}
	if (!err)
		rxe_odp_fault_accessed(odp, addr, 1, write);
	return err == -EBUSY ? rxe_odp_fault_meet(odp, addr, write, write, locked) :
			       err;
}

void rxe_odp_page_close(struct rxe_odp_opened *opened)
{
	if (opened->write)
		set_page_dirty(opened->page);
	rxe_odp_page_release(opened->page, opened->write);
	if (opened->mm)
		rxe_odp_page_leave(opened->mm);
}
