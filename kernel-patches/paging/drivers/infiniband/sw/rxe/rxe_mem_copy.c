// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Copies between packets and memory that is paged on demand.
 *
 * rxe copies a packet with the access rights of the registering process, through
 * kernel addresses (rxe_mem_copy_fast()) or through the addresses of the process
 * (rxe_mem_copy_user()). If neither is possible, rxe looks up one page at a time in
 * the page tables, and holds this page during one memcpy.
 *
 * WHY A COPY NEVER USES A STALE PAGE
 *
 * The copy runs under mmap_lock, taken for reading, if a trylock succeeds.
 *
 *   rxe                                   the process
 *   mmap_read_lock; copies to page A
 *                                         munmap: waits
 *   unlock
 *                                         A is unmapped, B is mapped; munmap
 *                                         and mmap return
 *   the next packet: finds B
 *
 * mmap_lock also stops a fork from sharing a page during a write. Without
 * mmap_lock the parent could lose a write:
 *
 *   rxe                                   the process
 *   finds page A, which may be written
 *                                         fork: parent and child share A
 *                                         writes to B, its copy of A
 *   copies to A: only the child sees it
 *
 * So a copy without mmap_lock checks write_protect_seq for a fork, and is repeated
 * if there was a fork. The child then sees the first copy, to A, like a write
 * before the fork.
 *
 * Without mmap_lock, the page is looked up and copied with interrupts disabled.
 * Some architectures change page tables by interrupting all CPUs that use them:
 *
 *   rxe                                   the process
 *   disables interrupts; finds page A
 *                                         munmap: takes A out of the page tables;
 *                                         waits for that CPU
 *   copies to A; enables interrupts
 *                                         munmap returns
 *
 * On other architectures (arm64) munmap may return before the copy ends. The rest
 * of the copy takes at most the time of one memcpy of a page. The copy holds A, so
 * A has no other owner.
 *
 * Calls that do not take mmap_lock for writing (MADV_DONTNEED, truncation,
 * reclaim, migration) may take A out of the page tables during the write. Then the
 * write has the same effect as a write by the process before the call. A gets no
 * other owner before this CPU has flushed its translation, and the kernel does not
 * reclaim or migrate a page with an extra reference. A transfer that begins after
 * the return of such a call finds the new page.
 *
 * The process may end while a worker uses its address space.
 * rxe_mem_copy_locked() has no reference to mm_users. It either finds no page A, or
 * finds A before the exit unmaps A, and holds A during the copy:
 *
 *   rxe                                   the process
 *   mmap_read_lock
 *                                         exit: unmaps page A
 *   finds no A: returns false
 *   unlock
 *                                         mmap_write_lock; frees page tables
 *
 * WORKERS AND FAULTS
 *
 * All users share rxe's workers, so a worker must not wait for a fault. Even a fault
 * of anonymous memory may have to wait for room in the memory cgroup. If a page is
 * absent, the copy returns -EINPROGRESS, and only the queue pair waits for the fault
 * (rxe_mem_fault.c).
 */

#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/seqlock.h>
#include <linux/shmem_fs.h>
#include <linux/uaccess.h>

#include "rxe.h"
#include "rxe_mem_page.h"

static void rxe_mem_copy_bytes(struct page *page, unsigned int offset, void *buf,
			       unsigned int bytes, bool write)
{
	if (write)
		memcpy_to_page(page, offset, buf, bytes);
	else
		memcpy_from_page(buf, page, offset, bytes);
}

static void rxe_mem_copy_page(struct page *page, unsigned int offset, void *buf,
			      unsigned int bytes, bool write)
{
	rxe_mem_copy_bytes(page, offset, buf, bytes, write);
	if (write)
		set_page_dirty(page);
}

static unsigned int rxe_mem_copy_in_page(unsigned long addr, unsigned int length)
{
	return min_t(unsigned int, length, PAGE_SIZE - offset_in_page(addr));
}

/* Copy within one page, under mmap_lock */
static bool rxe_mem_copy_page_locked(unsigned long addr, void *buf,
				     unsigned int bytes, bool write)
{
	struct page *page = rxe_mem_page_lookup(addr, write);
	bool known;

	if (!page)
		return false;
	known = folio_test_swapbacked(page_folio(page)) ||
		folio_test_hugetlb(page_folio(page));
	if (known)
		rxe_mem_copy_page(page, offset_in_page(addr), buf, bytes,
				  write);
	put_page(page);
	return known;
}

/* Copy within one page, without mmap_lock; see above, and rxe_mem_page_lock_file() */
static bool rxe_mem_copy_page_unlocked(unsigned long addr, void *buf,
				       unsigned int bytes, bool write)
{
	struct page *page = rxe_mem_page_lookup(addr, write);
	struct page *now = NULL;
	struct folio *folio;
	unsigned long flags;
	bool file, copied;

	if (!page)
		return false;

	folio = page_folio(page);
	file = write && rxe_mem_page_is_file(folio);
	copied = !file || folio_trylock(folio);
	if (!copied)
		goto out;

	local_irq_save(flags);
	now = rxe_mem_page_lookup(addr, write);
	copied = now == page && (!file || folio->mapping);
	if (copied)
		rxe_mem_copy_bytes(page, offset_in_page(addr), buf, bytes,
				   write);
	local_irq_restore(flags);

	if (now)
		put_page(now);
	if (copied && write)
		set_page_dirty(page);
	if (file)
		folio_unlock(folio);
out:
	put_page(page);
	return copied;
}

static bool rxe_mem_copy_locked(unsigned long addr, void *buf,
				unsigned int length, bool write)
{
	unsigned int bytes;

	for (; length; addr += bytes, buf += bytes, length -= bytes) {
		bytes = rxe_mem_copy_in_page(addr, length);
		if (!rxe_mem_copy_page_locked(addr, buf, bytes, write))
			return false;
	}
	return true;
}

static bool rxe_mem_copy_unlocked(struct mm_struct *mm, unsigned long addr,
				  void *buf, unsigned int length, bool write)
{
	unsigned int seq = raw_read_seqcount(&mm->write_protect_seq);
	unsigned int bytes;
	bool copied = true;

	if (seq & 1 || !mmget_not_zero(mm))
		return false;

	for (; length && copied; addr += bytes, buf += bytes, length -= bytes) {
		bytes = rxe_mem_copy_in_page(addr, length);
		copied = rxe_mem_copy_page_unlocked(addr, buf, bytes, write);
	}
	mmput_async(mm);
	return copied &&
	       !(write && read_seqcount_retry(&mm->write_protect_seq, seq));
}

/*
 * Copy with the access rights of the process, but through kernel addresses, to or
 * from present pages of anonymous memory, shared memory and hugetlb. If mmap_lock
 * is not available, also copy to or from present pages of files.
 *
 * This function does not use get_user_pages_remote(), which would yield to the peer's
 * worker after each packet, and spend most of the time in the scheduler. The copy is
 * safe after the end of the process: exit takes mmap_lock for writing before it frees
 * page tables.
 *
 * Return: false if a page is absent, if its protection does not allow the access,
 * or if the architecture has no lockless look-up (User Mode Linux). Part of the
 * data may have been copied.
 */
static bool rxe_mem_copy_fast(struct mm_struct *mm, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	bool copied;

	if (!rxe_mem_page_take_on(mm))
		return false;
	if (!mmap_read_trylock(mm))
		return rxe_mem_copy_unlocked(mm, addr, buf, length, write);

	copied = rxe_mem_copy_locked(addr, buf, length, write);
	mmap_read_unlock(mm);
	return copied;
}

static bool rxe_mem_copy_is_memory(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ||
	       (vma->vm_file && shmem_mapping(vma->vm_file->f_mapping));
}

/*
 * Copy through the addresses of the process. The process must not have ended,
 * because at exit an architecture may free pages while threads that use the address
 * space still have translations of these pages.
 */
static bool rxe_mem_copy_user(struct mm_struct *mm, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	void __user *user = (void __user *)addr;
	struct vm_area_struct *vma;

	if (!rxe_mem_page_take_on(mm))
		return false;

	vma = vma_lookup(mm, addr);
	if (!vma || vma->vm_end - addr < length ||
	    !rxe_mem_page_may_access(vma, write) || !rxe_mem_copy_is_memory(vma))
		return false;
	return !(write ? copy_to_user_nofault(user, buf, length) :
			 copy_from_user_nofault(buf, user, length));
}

static int rxe_mem_copy_pages(struct rxe_mem_mr *odp, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	struct mm_struct *mm = odp->pool->mm;
	struct page *page;
	bool locked;
	int err;

	if (rxe_mem_copy_fast(mm, addr, buf, length, write))
		return 0;

	err = rxe_mem_page_enter(mm);
	locked = !err;
	if (err)
		goto out;

	if (rxe_mem_copy_user(mm, addr, buf, length, write))
		length = 0;

	while (length) {
		unsigned int bytes = rxe_mem_copy_in_page(addr, length);

		err = rxe_mem_page_get(odp, addr, write, &page);
		if (err)
			break;

		rxe_mem_copy_page(page, offset_in_page(addr), buf, bytes,
				  write);
		rxe_mem_page_release(page, write);

		addr += bytes;
		buf += bytes;
		length -= bytes;
	}
	rxe_mem_page_leave(mm);
out:
	return err == -EBUSY ? rxe_mem_fault_meet(odp, addr, write, false, locked) :
			       err;
}

/**
 * rxe_mem_copy - Copy between a packet and memory that is paged on demand
 * @mr: An MR with on-demand paging
 * @iova: The address in @mr; the caller has checked the range
 * @buf: The packet's data
 * @length: The number of bytes, at most one packet
 * @dir: RXE_TO_MR_OBJ or RXE_FROM_MR_OBJ
 *
 * Context: Process context, a task of a queue pair.
 *
 * Return: 0, -EFAULT if the memory does not allow the access, or -EINPROGRESS if the
 * queue pair must wait for a page. After -EINPROGRESS the caller reports the side
 * that waits (rxe_mem_req_waits(), rxe_mem_comp_waits(), rxe_mem_resp_state()), and
 * copies all of the data again later.
 */
int rxe_mem_copy(struct rxe_mr *mr, u64 iova, void *buf, unsigned int length,
		 enum rxe_mr_copy_dir dir)
{
	unsigned long addr = rxe_mem_addr(mr, iova);
	bool write = dir == RXE_TO_MR_OBJ;
	int err;

	err = rxe_mem_copy_pages(mr->odp, addr, buf, length, write);
	if (!err)
		rxe_mem_qp_accessed(mr->odp, addr, length, write);
	return err;
}
