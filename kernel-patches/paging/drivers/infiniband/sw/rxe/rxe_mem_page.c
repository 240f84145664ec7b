// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An access to one page of the registering process. The access enters the address
 * space with or without mmap_lock, looks the page up in the page tables, and locks
 * the page if it belongs to a file. The page is held for one access only.
 *
 * Usually the access holds mmap_lock for reading. The access uses a trylock, because
 * the holder of mmap_lock may wait for a file of a dead server. If other threads
 * always hold mmap_lock or queue for it, the trylock always fails. Then the access
 * finds a present page without the lock, as get_user_pages_fast() does. If the page
 * is absent, a thread queues for mmap_lock and faults the page in. Without the lock,
 * other calls can change the mapping during the access: see rxe_mem_copy.c for
 * copies, and rxe_mem_atomic.c for atomic operations.
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
#include "rxe_mem_page.h"

/* Try a few times, because a writer that does not sleep soon releases mmap_lock */
static bool rxe_mem_page_trylock(struct mm_struct *mm)
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
 * Enter the address space. Return: 0, -EFAULT if the address space has ended, or -EBUSY
 * if entering might take long.
 */
int rxe_mem_page_enter(struct mm_struct *mm)
{
	if (!mmget_not_zero(mm))
		return -EFAULT;
	if (rxe_mem_page_trylock(mm))
		return 0;
	mmput_async(mm);
	return -EBUSY;
}

void rxe_mem_page_leave(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
	mmput_async(mm);
}

static void rxe_mem_page_leave_task_mm(void)
{
	if (current->mm)
		kthread_unuse_mm(current->mm);
}

/*
 * Use an address space for the rest of the task of a queue pair, because a task
 * processes many packets. Only such tasks copy, and do_work() ends each task
 * with rxe_mem_end_task().
 */
bool rxe_mem_page_take_on(struct mm_struct *mm)
{
	if (!(current->flags & PF_KTHREAD))
		return false;
	if (current->mm == mm)
		return true;

	rxe_mem_page_leave_task_mm();
	if (!mmget_not_zero(mm))
		return false;
	kthread_use_mm(mm);
	mmput_async(mm);
	return true;
}

/* Leave the address space. Runs after each task; its queue pair may be freed already */
void rxe_mem_end_task(void)
{
	rxe_mem_page_leave_task_mm();
}

bool rxe_mem_page_may_access(struct vm_area_struct *vma, bool write)
{
	return !(vma->vm_flags & (VM_IO | VM_PFNMAP)) &&
	       (vma->vm_flags & (write ? VM_WRITE : VM_READ));
}

/* Does a file system write the page back to a file? */
bool rxe_mem_page_is_file(struct folio *folio)
{
	struct address_space *mapping = READ_ONCE(folio->mapping);

	return mapping && !folio_test_anon(folio) &&
	       mapping_can_writeback(mapping);
}

/* May the page still be written at this address? */
static bool rxe_mem_page_is_writable(struct mm_struct *mm, unsigned long addr,
				     struct page *page)
{
	struct page *now;

	if (rxe_mem_gup(mm, addr, true, FOLL_NOFAULT, &now, NULL) != 1)
		return false;
	rxe_mem_put_page(now, true);
	return now == page;
}

/*
 * Lock a page of a file while rxe writes to it. Without the lock the file system may
 * clean the page during the write, and warn when the page gets dirty. The lock is
 * usually held for a short time, but its holder may have cleaned the page. Then the
 * file system needs a fault before the next write.
 *
 *   rxe                                   writeback
 *   finds a page, which may be written
 *                                         locks and cleans it: now read-only;
 *                                         writes it to its file; unlocks
 *   locks it; looks it up: not writable
 *
 * Return: 0; or -EBUSY, and the page is released.
 */
static int rxe_mem_page_lock_file(struct mm_struct *mm, unsigned long addr,
				  struct page *page)
{
	struct folio *folio = page_folio(page);
	int tries;

	if (!rxe_mem_page_is_file(folio))
		return 0;

	for (tries = 0; tries < 8; tries++) {
		if (folio_trylock(folio)) {
			if (folio->mapping &&
			    rxe_mem_page_is_writable(mm, addr, page))
				return 0;
			folio_unlock(folio);
			break;
		}
		cond_resched();
	}
	rxe_mem_put_page(page, true);
	return -EBUSY;
}

/* Unlock and release a page */
void rxe_mem_page_release(struct page *page, bool write)
{
	struct folio *folio = page_folio(page);

	if (write && rxe_mem_page_is_file(folio))
		folio_unlock(folio);
	rxe_mem_put_page(page, write);
}

/*
 * Look up a present page under mmap_lock. A page with a NUMA hint counts as absent:
 * without a fault each packet would take this slow path.
 *
 * Return: 0, and rxe_mem_page_release() releases the page; -EBUSY if the queue pair
 * must wait for the page; -EFAULT if the access is not possible.
 */
int rxe_mem_page_get(struct rxe_mem_mr *odp, unsigned long addr, bool write,
		     struct page **page)
{
	struct vm_area_struct *vma = vma_lookup(odp->pool->mm, addr);

	if (!vma)
		return -EFAULT;

	if (rxe_mem_gup(odp->pool->mm, addr, write,
			FOLL_NOFAULT | FOLL_HONOR_NUMA_FAULT, page, NULL) == 1)
		return write ? rxe_mem_page_lock_file(odp->pool->mm, addr, *page) : 0;

	if (!rxe_mem_page_may_access(vma, write))
		return -EFAULT;

	atomic64_inc(&odp->faults);
	return -EBUSY;
}

/*
 * Protection keys belong to a thread and do not restrict a device: a look-up under
 * mmap_lock ignores them (FOLL_REMOTE). A look-up without mmap_lock uses the keys
 * of the calling task. A worker has key 0 only, so memory with another key would
 * always need mmap_lock. So allow all keys during this look-up. The register of the
 * keys belongs to the task: the scheduler switches the register, and interrupts do
 * not access user memory with it.
 */
static u32 rxe_mem_page_allow_keys(void)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	u32 before = read_pkru();

	write_pkru(0);
	return before;
#else
	return 0;
#endif
}

static void rxe_mem_page_restore_keys(u32 before)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	write_pkru(before);
#endif
}

/*
 * Look up a page without mmap_lock in the address space that the worker uses.
 * Return: NULL if the page is absent or does not allow the access, or if the
 * architecture has no lockless look-up (User Mode Linux).
 */
struct page *rxe_mem_page_lookup(unsigned long addr, bool write)
{
	u32 keys = rxe_mem_page_allow_keys();
	struct page *page;
	int got;

	got = get_user_pages_fast_only(addr, 1, write ? FOLL_WRITE : 0, &page);
	rxe_mem_page_restore_keys(keys);
	return got == 1 ? page : NULL;
}
