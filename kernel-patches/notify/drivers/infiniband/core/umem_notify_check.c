// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Does a range still map the pages that its umem pinned?
 *
 * The MMU notifier is called before pages are unmapped, and does not learn the
 * reason: splitting a transparent huge page, unmapping a shared page for a
 * moment in reclaim, and MADV_DONTNEED look alike. So the page tables are read
 * afterwards, without faulting in a page: a fault would allocate new pages for
 * memory that was just dropped, fill a punched hole, or wait for a userfaultfd.
 *
 *  mapped, same page      intact.
 *  mapped, other page     changed.
 *  absent, private        changed: the kernel does not unmap a pinned anonymous
 *                         page from its address (fork copies it for the child;
 *                         swap, migration and KSM leave it alone). There are
 *                         two exceptions. If a device ever took exclusive
 *                         access to a page, the page is faulted in and compared.
 *                         A huge page of hugetlbfs is absent for a moment while
 *                         its access rights change (see unlock_mm()).
 *  absent, shared memory  intact if the pinned page is still the file's page
 *                         at this offset. The lookup holds the inode's locks. So
 *                         an earlier truncation or hole punch has ended, and a
 *                         later truncation or hole punch sends its own event.
 *                         But hugetlbfs sends this event only to mappings that
 *                         map the page. So for hugetlbfs a system call faults
 *                         the page in, and the worker leaves the tracker SUSPECT.
 *  absent, other file     the page is faulted in and compared. Such a mapping can
 *                         only be pinned for reading, and an unmapped clean page
 *                         may leave the page cache without an event.
 *
 * The answer holds at the time of the comparison. The caller handles later events.
 *
 * Each lock is held for at most LOCK_BATCH pages, because mmap_lock blocks mmap
 * and munmap of the owner's other threads, and the inode's locks block writers
 * of the file. If the mapping changes while the lock is released, this is an event.
 */

#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/userfaultfd_k.h>

#include "umem_notify.h"

/* One walk of the page tables compares this number of pages. */
#define CHECK_BATCH 32
/* A lock is released after this number of pages. */
#define LOCK_BATCH 512
/*
 * A page that is absent again after a fault is faulted in this many times. Reclaim may have taken
 * the page. But some mappings have pages that can't be pinned, and are absent after each fault.
 */
#define MOST_FAULTS 8

/* check_locked() asks to compare again with mmap_lock held for writing (see unlock_mm()). */
#define ASK_ALONE 2

/* Iterates over the pinned pages, starting at an address. */
struct pinned_iter {
	struct sg_page_iter sg;
	unsigned long next;
	bool writable;
};

static void pinned_iter_start(struct pinned_iter *iter, const struct ib_umem_notify *n,
			      unsigned long addr)
{
	struct sg_table *sgt = &n->umem->sgt_append.sgt;

	__sg_page_iter_start(&iter->sg, sgt->sgl, sgt->orig_nents,
			     (addr - n->range.start) >> PAGE_SHIFT);
	iter->next = addr;
	iter->writable = n->umem->writable;
}

static struct page *pinned_iter_next(struct pinned_iter *iter)
{
	iter->next += PAGE_SIZE;
	return __sg_page_iter_next(&iter->sg) ? sg_page_iter_page(&iter->sg) : NULL;
}

/*
 * Compares mapped pages (@pages) with pinned pages (@iter), and returns the number of equal pages
 * before the first difference. Marks the equal pages dirty, because the event may have been
 * MADV_FREE, and the device continues to write (umem_notify_retire.c).
 */
static long same_pages(struct pinned_iter *iter, struct page **pages, long nr)
{
	struct folio *folio;
	long same = 0, i;

	for (i = 0; i < nr; i++) {
		folio = page_folio(pages[i]);
		if (same == i && pages[i] == pinned_iter_next(iter)) {
			if (iter->writable && !folio_test_dirty(folio))
				folio_set_dirty(folio);
			same++;
		}
		put_page(pages[i]);
	}
	return same;
}

static bool is_shared_hugetlb(const struct vm_area_struct *vma)
{
	return is_vm_hugetlb_page(vma) && vma->vm_flags & VM_MAYSHARE;
}

/*
 * Compares shared memory that is not mapped. Moves @iter over the pages that the file still has
 * at their offsets. The caller holds mmap_lock, which protects the mapping, and so the file.
 * This function must not wait for the inode's locks, because the task that holds them may wait for
 * a page fault, which needs mmap_lock.
 *
 * No reference to the file is taken, because dropping the last reference closes the file:
 *
 *   the worker                            exit of the owner
 *   get_file()
 *                                         closes and unmaps the file; its
 *                                         parent's wait() returns
 *   fput(): the last one                  [flock, leases and the mount end only now]
 *
 * So the inode's locks are taken by trylock, and mmap_lock is held throughout. Then the mapping
 * keeps its reference to the file. If a trylock fails, a system call releases mmap_lock and
 * tries again.
 */
static int check_file(const struct vm_area_struct *vma, struct pinned_iter *iter, unsigned long end)
{
	struct address_space *mapping = vma->vm_file->f_mapping;
	pgoff_t pgoff = vma->vm_pgoff + ((iter->next - vma->vm_start) >> PAGE_SHIFT);
	int ret = -EAGAIN;
	struct folio *folio;
	struct page *page;

	if (!inode_trylock_shared(mapping->host))
		return ret;
	if (!filemap_invalidate_trylock_shared(mapping))
		goto unlock;
	ret = 0;
	for (end = min(end, vma->vm_end); iter->next < end; pgoff++) {
		page = pinned_iter_next(iter);
		folio = page_folio(page);
		if (READ_ONCE(folio->mapping) != mapping ||
		    folio->index + folio_page_idx(folio, page) != pgoff ||
		    is_page_hwpoison(page)) {
			iter->next -= PAGE_SIZE;
			ret = UMEM_NOTIFY_CHANGED;
			break;
		}
	}
	filemap_invalidate_unlock_shared(mapping);
unlock:
	inode_unlock_shared(mapping->host);
	return ret;
}

/*
 * @alone says that mmap_lock is held for writing. PAGEMAP_SCAN and userfaultfd unmap a page of
 * private hugetlb memory for a moment to change its access rights, and hold mmap_lock for
 * reading. So if such a page is absent, check_locked() compares it again with @alone. If the
 * page is still absent, it is not mapped any more.
 *
 * PAGEMAP_SCAN and userfaultfd also hold i_mmap_rwsem. Taking i_mmap_rwsem instead of @alone
 * would deadlock:
 *
 *   settle                                another thread
 *   mmap_lock for reading
 *                                         MADV_DONTNEED: mmap_lock for reading
 *                                         hugetlb_zap_begin(): has the mapping's lock
 *   i_mmap_lock_read()
 *                                         i_mmap_lock_write(): waits
 *   GUP: hugetlb_vma_lock_read(): waits
 */
static void unlock_mm(struct mm_struct *mm, bool alone)
{
	if (alone)
		up_write(&mm->mmap_lock);
	else
		mmap_read_unlock(mm);
}

/*
 * With @alone this function takes the rwsem of mmap_lock directly, because mmap_write_lock() has
 * no trylock. This is safe, because no mapping is changed under the lock.
 *
 * This function does not increment mm_users. With mmget() the parent would see the exit of the
 * owner too early:
 *
 *   the worker                            exit of the owner
 *   mmget_not_zero()
 *                                         mmput(): not the last one
 *                                         its parent's wait() returns
 *   mmput_async(): the last one
 *                                         [exit_mmap(), and only now the words
 *                                         of all its MRs say INVALID]
 *
 * The umem has a reference to struct mm_struct. If mm_users is not 0 after mmap_lock was
 * taken, VMAs and page tables stay until mmap_lock is released, because exit_mmap() frees
 * them with mmap_lock held for writing:
 *
 *   the worker                            exit of the owner
 *   mmap_read_trylock()
 *   mm_users is not 0
 *                                         mmput(): the last one
 *                                         exit_mmap(): RELEASE, unmaps pages
 *   walks the page tables                 (as during any zap)
 *                                         mmap_write_lock(): waits
 *   mmap_read_unlock()
 *                                         frees page tables and VMAs
 *
 * Only a page fault needs a reference to mm_users (fault_back()). Without this reference a fault
 * could map a page after exit_mmap() has unmapped all pages, and this page would stay mapped.
 */
static int lock_mm(struct mm_struct *mm, bool worker, bool alone)
{
	if (worker) {
		if (!(alone ? down_write_trylock(&mm->mmap_lock) : mmap_read_trylock(mm)))
			return -EAGAIN;
	} else if (alone ? down_write_killable(&mm->mmap_lock) : mmap_read_lock_killable(mm)) {
		return -EINTR;
	}
	if (atomic_read(&mm->mm_users))
		return 0;
	/* exit_mmap() has begun: the range maps nothing. */
	unlock_mm(mm, alone);
	return UMEM_NOTIFY_CHANGED;
}

static int fault_back(struct mm_struct *mm, unsigned long addr)
{
	bool unlocked;
	int ret;

	if (fatal_signal_pending(current))
		return -EINTR;
	if (!mmget_not_zero(mm))
		return UMEM_NOTIFY_CHANGED;
	/* FAULT_FLAG_REMOTE ignores the protection keys of the calling thread. */
	ret = fixup_user_fault(mm, addr, FAULT_FLAG_REMOTE, &unlocked);
	mmput_async(mm);
	/* After 0 the caller compares the page. After -ENOMEM or -EINTR the answer is unknown. */
	return !ret || ret == -ENOMEM || ret == -EINTR ? ret : UMEM_NOTIFY_CHANGED;
}

/*
 * Compares one huge page of shared hugetlb memory. If the pinned page is the file's page, a system
 * call faults it in and compares again. The worker must not fault the page in, so for the worker
 * the answer is unknown.
 *
 * The page tables of shared hugetlb memory are not walked. GUP would take a lock of the mapping
 * that an exit may free:
 *
 *   the worker                            exit of the owner
 *   mmap_read_trylock()
 *   mm_users is not 0
 *                                         mmput(): the last one
 *                                         mmap_read_lock(), as the worker
 *   GUP finds vma->vm_private_data
 *                                         hugetlb_zap_end(): frees that lock
 *   down_read() of freed memory
 *
 * A shared mapping maps only pages of its file. So the pinned pages are compared with the pages
 * of the file, as if no page were mapped. If a hole punch can't take the lock of a mapping, it
 * sends an event only if the mapping maps the page. So a page of the file counts as intact only
 * after it was faulted in:
 *
 *   the owner drops another page          hole punch
 *   hugetlb_zap_begin(): has the lock
 *                                         trylock fails: skips the mapping
 *                                         no mapping maps the page: frees it
 */
static int check_huge(struct mm_struct *mm, struct vm_area_struct *vma, struct pinned_iter *iter,
		      unsigned long end, bool worker)
{
	struct pinned_iter before = *iter;
	unsigned long addr = iter->next;
	int ret;

	end = min(end, ALIGN(addr + 1, vma_kernel_pagesize(vma)));
	ret = check_file(vma, iter, end);
	if (ret)
		return ret;
	*iter = before;
	if (worker || userfaultfd_armed(vma) || !(vma->vm_flags & VM_READ))
		return -EOPNOTSUPP;
	ret = fault_back(mm, addr);
	if (ret)
		return ret;
	vma = vma_lookup(mm, addr); /* mmap_lock may have been released */
	return vma && is_shared_hugetlb(vma) ? check_file(vma, iter, end) : 0;
}

/*
 * Compares the pages up to @end, and moves @iter over the intact pages. Returns ASK_ALONE at a
 * page that has to be compared with @alone.
 */
static int check_locked(struct mm_struct *mm, struct pinned_iter *iter, unsigned long end,
			const struct umem_notify_comparison *cmp, bool alone)
{
	struct page *pages[CHECK_BATCH];
	struct vm_area_struct *vma;
	unsigned int faults = 0;
	long nr, same;
	int ret;

	while (iter->next < end) {
		unsigned long addr = iter->next;
		bool huge, shared;

		vma = vma_lookup(mm, addr);
		if (!vma)
			return UMEM_NOTIFY_CHANGED;
		huge = is_vm_hugetlb_page(vma);
		shared = vma->vm_file && vma->vm_flags & VM_MAYSHARE;
		/*
		 * A mapping of another kind has replaced the mapping. The caller compares again
		 * without @alone, because with @alone this function must not fault in a page.
		 */
		if (alone && (!huge || shared))
			return 0;
		nr = min_t(long, CHECK_BATCH, (min(end, vma->vm_end) - addr) >> PAGE_SHIFT);
		nr = huge && shared ? 0 :
		     get_user_pages_remote(mm, addr, nr, FOLL_FORCE | FOLL_NOFAULT, pages, NULL);
		if (nr > 0) {
			same = same_pages(iter, pages, nr);
			iter->next = addr + (same << PAGE_SHIFT);
			if (same < nr)
				return UMEM_NOTIFY_CHANGED;
			faults = 0;
			continue;
		}
		/* The caller is being killed: no page was compared. */
		if (nr == -EINTR)
			return -EINTR;
		if (huge && !shared)
			return alone ? UMEM_NOTIFY_CHANGED : ASK_ALONE;
		if (shared && (huge || shmem_mapping(vma->vm_file->f_mapping))) {
			ret = huge ? check_huge(mm, vma, iter, end, cmp->worker) :
				     check_file(vma, iter, end);
			if (ret)
				return ret;
			continue;
		}
		if (!shared && !cmp->exclusive)
			return UMEM_NOTIFY_CHANGED;
		if (cmp->worker)
			return -EOPNOTSUPP;
		if (faults++ == MOST_FAULTS)
			return UMEM_NOTIFY_CHANGED;
		ret = fault_back(mm, addr);
		if (ret)
			return ret;
	}
	return 0;
}

/* Compares the pages from @addr to @end in batches, and sets @cmp->at. */
static int check_run(struct ib_umem_notify *n, unsigned long addr, unsigned long end,
		     struct umem_notify_comparison *cmp)
{
	struct mm_struct *mm = n->umem->owning_mm;
	struct pinned_iter iter;
	bool alone = false;
	int ret;

	pinned_iter_start(&iter, n, addr);
	do {
		unsigned long batch = alone ? CHECK_BATCH : LOCK_BATCH;

		cond_resched();
		if (cmp->worker && READ_ONCE(n->mutex_wanted)) {
			ret = -EAGAIN;
			break;
		}
		ret = lock_mm(mm, cmp->worker, alone);
		if (ret)
			break;
		ret = check_locked(mm, &iter, min(end, iter.next + batch * PAGE_SIZE), cmp, alone);
		unlock_mm(mm, alone);
		alone = ret == ASK_ALONE;
		if (alone)
			ret = 0;
	} while (!ret && iter.next < end);
	cmp->at = (iter.next - n->range.start) >> PAGE_SHIFT;
	return ret;
}

/**
 * umem_notify_check - Compare mapped with pinned pages
 * @n: The tracker, its pages pinned, its mutex held
 * @shift: Base-2 logarithm of the number of pages in a chunk of the suspect range
 * @cmp: The pages and the caller; @cmp->at is set to the first page that was not found
 *	 intact
 *
 * Context: Process context, no mm or inode lock held.
 *
 * Return:
 * * 0: all pages are intact
 * * UMEM_NOTIFY_CHANGED: the page @cmp->at is not the pinned page
 * * -EAGAIN: another task holds a lock; the caller has to try again later
 * * -EOPNOTSUPP: the answer needs a page fault, which only a system call may cause
 * * -ENOMEM: a page fault found no memory, and the answer is unknown
 * * -EINTR
 */
int umem_notify_check(struct ib_umem_notify *n, unsigned int shift,
		      struct umem_notify_comparison *cmp)
{
	const struct umem_notify_suspects *suspects = &cmp->suspects;
	unsigned long start = n->range.start;
	unsigned int from, to = 0;
	u64 others, first, end;
	int ret = 0;

	cmp->at = suspects->end;
	while (!ret && to < 64 && suspects->chunks >> to) {
		from = to + __ffs64(suspects->chunks >> to);
		others = ~(suspects->chunks >> from);
		to = others ? from + __ffs64(others) : 64;
		first = max_t(u64, suspects->first, (u64)from << shift);
		end = min_t(u64, suspects->end, (u64)to << shift);
		ret = check_run(n, start + (first << PAGE_SHIFT), start + (end << PAGE_SHIFT), cmp);
	}
	return ret;
}
