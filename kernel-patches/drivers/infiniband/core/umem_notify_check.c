// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Do the addresses of a umem still map the pages that it pinned?
 *
 * The MMU notifier tells of a zap before it happens and does not say why: a
 * transparent huge page that is merely split, a shared page that reclaim
 * unmapped for a moment, and a MADV_DONTNEED look the same. The difference is
 * read from the page tables afterwards, without faulting anything in: that
 * would allocate fresh pages for memory which was just dropped, fill punched
 * holes, or wait for a userfaultfd.
 *
 *  mapped, same page      intact.
 *  mapped, other page     changed.
 *  absent, private        changed: a pinned anonymous page is never unmapped
 *                         while it belongs to its address (fork copies for the
 *                         child, swap, migration and KSM leave it alone).
 *  absent, shared memory  intact if the pinned page is still the file's page
 *                         at that offset. It is looked up under the inode's
 *                         locks, which wait for a truncation or hole punch
 *                         that is under way; a later one sends its own event.
 *  absent, other file     such a mapping can only be pinned for reading, and
 *                         an unmapped clean page may leave the page cache
 *                         without an event: fault it back, and see.
 *
 * The answer is valid for the moment of looking. The caller holds the
 * collision-retry of the interval notifier around it.
 */

#include <linux/fs.h>
#include <linux/file.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>

#include "umem_notify.h"

/* Pages that one walk of the page tables looks at. */
#define CHECK_BATCH 32

/* A run of absent pages of one shared mapping. */
struct absent_run {
	struct file *file;
	pgoff_t pgoff;
	unsigned long start;
	unsigned long end;
};

/* Walks the pinned pages, from the one at an address on. */
struct pinned_iter {
	struct sg_page_iter sg;
	unsigned long next;
};

static void pinned_iter_start(struct pinned_iter *iter, struct ib_umem *umem,
			      unsigned long addr)
{
	struct sg_table *sgt = &umem->sgt_append.sgt;
	unsigned long first = umem->address & PAGE_MASK;

	__sg_page_iter_start(&iter->sg, sgt->sgl, sgt->orig_nents,
			     (addr - first) >> PAGE_SHIFT);
	iter->next = addr;
}

static struct page *pinned_iter_next(struct pinned_iter *iter)
{
	iter->next += PAGE_SIZE;
	return __sg_page_iter_next(&iter->sg) ? sg_page_iter_page(&iter->sg) :
						NULL;
}

/* As many pages as are mapped from @addr on, without faulting any in. */
static long mapped_pages(struct mm_struct *mm, unsigned long addr,
			 unsigned long nr, struct page **pages)
{
	return get_user_pages_remote(mm, addr, nr, FOLL_FORCE | FOLL_NOFAULT,
				     pages, NULL);
}

static bool same_pages(struct pinned_iter *iter, struct page **pages, long nr)
{
	bool same = true;
	long i;

	for (i = 0; i < nr; i++) {
		if (pages[i] != pinned_iter_next(iter))
			same = false;
		put_page(pages[i]);
	}
	return same;
}

static bool can_be_absent(struct file *file)
{
	return shmem_mapping(file->f_mapping) || is_file_hugepages(file);
}

/* Collects the absent pages from @addr on. Holds mmap_lock. */
static void absent_run_collect(struct absent_run *run, struct mm_struct *mm,
			       struct vm_area_struct *vma, unsigned long addr,
			       unsigned long end)
{
	struct page *page;

	run->file = get_file(vma->vm_file);
	run->pgoff = vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT);
	run->start = addr;
	end = min(end, vma->vm_end);
	for (addr += PAGE_SIZE; addr < end; addr += PAGE_SIZE) {
		if (mapped_pages(mm, addr, 1, &page) == 1) {
			put_page(page);
			break;
		}
	}
	run->end = addr;
}

static enum umem_notify_verdict absent_run_check(const struct absent_run *run,
						 struct pinned_iter *iter,
						 enum umem_notify_asker asker)
{
	struct address_space *mapping = run->file->f_mapping;
	enum umem_notify_verdict ret = UMEM_NOTIFY_INTACT;
	struct inode *inode = mapping->host;
	pgoff_t pgoff = run->pgoff;

	if (asker == UMEM_NOTIFY_WORKER) {
		if (!inode_trylock_shared(inode))
			return UMEM_NOTIFY_BUSY;
		if (!filemap_invalidate_trylock_shared(mapping)) {
			inode_unlock_shared(inode);
			return UMEM_NOTIFY_BUSY;
		}
	} else {
		if (down_read_killable(&inode->i_rwsem))
			return UMEM_NOTIFY_INTERRUPTED;
		filemap_invalidate_lock_shared(mapping);
	}

	for (; iter->next < run->end; pgoff++) {
		struct page *page = pinned_iter_next(iter);
		struct folio *folio = page_folio(page);

		if (READ_ONCE(folio->mapping) != mapping ||
		    folio->index + folio_page_idx(folio, page) != pgoff ||
		    PageHWPoison(page)) {
			ret = UMEM_NOTIFY_CHANGED;
			break;
		}
	}

	filemap_invalidate_unlock_shared(mapping);
	inode_unlock_shared(inode);
	return ret;
}

static enum umem_notify_verdict lock_mm(struct mm_struct *mm,
					enum umem_notify_asker asker)
{
	if (asker == UMEM_NOTIFY_WORKER)
		mmap_read_lock(mm);
	else if (mmap_read_lock_killable(mm))
		return UMEM_NOTIFY_INTERRUPTED;
	return UMEM_NOTIFY_INTACT;
}

/*
 * Looks at the pages from @addr to @end. Drops mmap_lock to look at a file, and
 * takes it again: what happens in between sends an event, and the caller's
 * retry sees it.
 */
static enum umem_notify_verdict check_locked(struct ib_umem *umem,
					     unsigned long addr,
					     unsigned long end,
					     enum umem_notify_asker asker)
{
	struct mm_struct *mm = umem->owning_mm;
	struct page *pages[CHECK_BATCH];
	enum umem_notify_verdict ret;
	struct vm_area_struct *vma;
	struct pinned_iter iter;
	struct absent_run run;
	bool unlocked;
	long nr;

	pinned_iter_start(&iter, umem, addr);
	while (iter.next < end) {
		cond_resched();
		nr = min_t(unsigned long, CHECK_BATCH,
			   (end - iter.next) >> PAGE_SHIFT);
		nr = mapped_pages(mm, iter.next, nr, pages);
		if (nr > 0) {
			if (!same_pages(&iter, pages, nr))
				return UMEM_NOTIFY_CHANGED;
			continue;
		}
		/* The caller is being killed: nothing was looked at. */
		if (nr == -EINTR)
			return UMEM_NOTIFY_INTERRUPTED;

		vma = find_vma(mm, iter.next);
		if (!vma || vma->vm_start > iter.next ||
		    !(vma->vm_flags & VM_MAYSHARE) || !vma->vm_file)
			return UMEM_NOTIFY_CHANGED;

		if (can_be_absent(vma->vm_file)) {
			absent_run_collect(&run, mm, vma, iter.next, end);
			mmap_read_unlock(mm);
			ret = absent_run_check(&run, &iter, asker);
			fput(run.file);
			if (lock_mm(mm, UMEM_NOTIFY_WORKER) || ret)
				return ret;
			continue;
		}

		if (asker == UMEM_NOTIFY_WORKER)
			return UMEM_NOTIFY_UNKNOWN;
		if (fatal_signal_pending(current))
			return UMEM_NOTIFY_INTERRUPTED;
		switch (fixup_user_fault(mm, iter.next, 0, &unlocked)) {
		case 0:
			break;
		case -ENOMEM:
			return UMEM_NOTIFY_NO_MEMORY;
		case -EINTR:
			return UMEM_NOTIFY_INTERRUPTED;
		default:
			return UMEM_NOTIFY_CHANGED;
		}
	}
	return UMEM_NOTIFY_INTACT;
}

/**
 * umem_notify_check - Compare what is mapped with what is pinned
 * @umem: The umem, its pages pinned
 * @first: First page of it to look at
 * @end: First page not to look at
 * @asker: How long it may block
 *
 * Context: Process context, no mm or inode lock held.
 */
enum umem_notify_verdict umem_notify_check(struct ib_umem *umem,
					   u32 first, u32 end,
					   enum umem_notify_asker asker)
{
	unsigned long start = umem->address & PAGE_MASK;
	struct mm_struct *mm = umem->owning_mm;
	enum umem_notify_verdict ret;

	/* Nobody uses the address space any more: it describes nothing. */
	if (!mmget_not_zero(mm))
		return UMEM_NOTIFY_CHANGED;

	ret = lock_mm(mm, asker);
	if (ret == UMEM_NOTIFY_INTACT) {
		ret = check_locked(umem, start + ((u64)first << PAGE_SHIFT),
				   start + ((u64)end << PAGE_SHIFT), asker);
		mmap_read_unlock(mm);
	}
	mmput_async(mm);
	return ret;
}
