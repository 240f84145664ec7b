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
 *                         child, swap, migration and KSM leave it alone). Only
 *                         a device that wants it for itself may keep the CPU
 *                         off it for a while: once one did, fault it back. A huge page
 *                         of hugetlb is away for a moment when its rights are changed
 *                         (see look_alone()).
 *  absent, shared memory  intact if the pinned page is still the file's page
 *                         at that offset. It is looked up under the inode's
 *                         locks, which wait for a truncation or hole punch
 *                         that is under way; a later one sends its own event,
 *                         of hugetlb pages only where they are mapped: so a
 *                         system call maps them, and a worker can't tell.
 *  absent, other file     such a mapping can only be pinned for reading, and
 *                         an unmapped clean page may leave the page cache
 *                         without an event: fault it back, and see.
 *
 * The answer is valid for the moment of looking. The caller knows the events
 * since.
 *
 * No lock is kept for more than LOCK_BATCH pages: mmap_lock keeps the owner's
 * other threads from mmap and munmap, the inode's locks keep others from
 * writing the file. A change in between sends an event.
 *
 * WITHOUT A REFERENCE TO THE ADDRESS SPACE'S USERS
 *
 * mmget() while looking would make others see an exit too early:
 *
 *   the worker                            exit of the owner
 *   mmget_not_zero()
 *                                         mmput(): not the last one
 *                                         its parent's wait() returns
 *   mmput_async(): the last one
 *                                         [exit_mmap(), and only now the words
 *                                         of all its MRs say INVALID]
 *
 * The umem keeps struct mm_struct; mmap_lock and mm_users keep the rest. With
 * no user left exit_mmap() frees VMAs and page tables under mmap_lock, for
 * writing:
 *
 *   the worker                            exit of the owner
 *   mmap_read_trylock()
 *   mm_users is not 0
 *                                         mmput(): the last one
 *                                         exit_mmap(): RELEASE, unmaps pages
 *   walks the page tables                 (as beside any zap)
 *                                         mmap_write_lock(): waits
 *   mmap_read_unlock()
 *                                         frees page tables and VMAs
 *
 * Only a page fault needs a user: a page that it maps after the unmapping would stay.
 *
 * A file is not kept by the worker either. To put its last reference is to close it:
 *
 *   the worker                            exit of the owner
 *   get_file()
 *                                         closes and unmaps the file; its
 *                                         parent's wait() returns
 *   fput(): the last one                  [flock, leases, the mount: only now]
 *
 * The worker only tries the inode's locks, so it may do that with mmap_lock, under
 * which the mapping keeps the file.
 *
 * Shared hugetlb memory is not walked. Each such mapping has a lock of its own:
 *
 *   the worker                            exit of the owner
 *   mmap_read_trylock()
 *   mm_users is not 0
 *                                         mmput(): the last one
 *                                         mmap_read_lock(): beside the worker
 *   GUP finds vma->vm_private_data
 *                                         hugetlb_zap_end(): frees that lock
 *   down_read() of freed memory
 *
 * It maps nothing but its file's pages, so it is as if none of it were mapped: the
 * pinned pages are compared with the file's. Those that are the file's are faulted in
 * before they are intact. Punching a hole sends no event to a mapping whose lock it
 * can't have at once, unless that maps the page:
 *
 *   the owner drops another page          hole punch
 *   hugetlb_zap_begin(): has the lock
 *                                         trylock fails: skips the mapping
 *                                         no mapping maps the page: frees it
 */

#include <linux/fs.h>
#include <linux/file.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/userfaultfd_k.h>

#include "umem_notify.h"

/* Pages that one walk of the page tables looks at. */
#define CHECK_BATCH 32
/* Pages that are looked at under one hold of a lock. */
#define LOCK_BATCH 512
/*
 * How often a page is faulted back and then is not there. It may be reclaimed; but there are
 * mappings that are faulted in and never looked up, as they can't be pinned.
 */
#define MOST_FAULTS 8

/* A run of pages of one shared mapping, the first of which is absent. */
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
	bool writable;
};

static void pinned_iter_start(struct pinned_iter *iter, struct ib_umem *umem,
			      unsigned long start, unsigned long addr)
{
	struct sg_table *sgt = &umem->sgt_append.sgt;

	__sg_page_iter_start(&iter->sg, sgt->sgl, sgt->orig_nents,
			     (addr - start) >> PAGE_SHIFT);
	iter->next = addr;
	iter->writable = umem->writable;
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

/*
 * How many of the mapped pages are the pinned ones, up to the first that isn't. The event
 * may have been MADV_FREE of them; the device goes on writing: see umem_notify_retire.c.
 */
static long same_pages(struct pinned_iter *iter, struct page **pages, long nr)
{
	struct folio *folio;
	long same = 0;
	long i;

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

static bool can_be_absent(struct file *file)
{
	return shmem_mapping(file->f_mapping) || is_file_hugepages(file);
}

static bool may_be_walked(const struct vm_area_struct *vma)
{
	return !is_vm_hugetlb_page(vma) || !(vma->vm_flags & VM_MAYSHARE);
}

static bool is_private_hugetlb(const struct vm_area_struct *vma)
{
	return is_vm_hugetlb_page(vma) && may_be_walked(vma);
}

/*
 * Collects the pages from @addr on. Such a mapping maps nothing but its file's pages, so
 * those that are mapped are no exception. mmap_lock keeps the file.
 */
static void absent_run_collect(struct absent_run *run, struct vm_area_struct *vma,
			       unsigned long addr, unsigned long end)
{
	run->file = vma->vm_file;
	run->pgoff = vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT);
	run->start = addr;
	run->end = min(end, vma->vm_end);
}

/*
 * The holder of the locks may be waiting for a page that the caller's own
 * process has to supply (userfaultfd, FUSE), so no caller waits for them
 * without end.
 */
static enum umem_notify_verdict lock_inode(struct address_space *mapping,
					   const struct umem_notify_question *what)
{
	for (;;) {
		if (inode_trylock_shared(mapping->host)) {
			if (filemap_invalidate_trylock_shared(mapping))
				return UMEM_NOTIFY_INTACT;
			inode_unlock_shared(mapping->host);
		}
		if (what->asker != UMEM_NOTIFY_USER || time_after(jiffies, what->until))
			return UMEM_NOTIFY_BUSY;
		if (fatal_signal_pending(current))
			return UMEM_NOTIFY_INTERRUPTED;
		schedule_timeout_killable(1);
	}
}

/* Moves @iter over the pages that are intact. */
static enum umem_notify_verdict absent_run_check(const struct absent_run *run,
						 struct pinned_iter *iter,
						 const struct umem_notify_question *what)
{
	struct address_space *mapping = run->file->f_mapping;
	enum umem_notify_verdict ret;
	pgoff_t pgoff = run->pgoff;

	ret = lock_inode(mapping, what);
	if (ret)
		return ret;

	for (; iter->next < run->end; pgoff++) {
		struct page *page = pinned_iter_next(iter);
		struct folio *folio = page_folio(page);

		if (READ_ONCE(folio->mapping) != mapping ||
		    folio->index + folio_page_idx(folio, page) != pgoff ||
		    is_page_hwpoison(page)) {
			iter->next -= PAGE_SIZE;
			ret = UMEM_NOTIFY_CHANGED;
			break;
		}
	}

	filemap_invalidate_unlock_shared(mapping);
	inode_unlock_shared(mapping->host);
	return ret;
}

/* The same by the worker, which can't tell of hugetlb pages that are the file's. */
static enum umem_notify_verdict absent_run_ask(struct absent_run *run,
					       struct pinned_iter *iter,
					       const struct umem_notify_question *what)
{
	struct pinned_iter before = *iter;
	enum umem_notify_verdict ret;

	ret = absent_run_check(run, iter, what);
	if (!ret && is_file_hugepages(run->file)) {
		*iter = before;
		ret = UMEM_NOTIFY_UNKNOWN;
	}
	run->file = NULL;
	return ret;
}

static enum umem_notify_verdict lock_mm(struct mm_struct *mm,
					enum umem_notify_asker asker)
{
	if (asker == UMEM_NOTIFY_WORKER) {
		if (!mmap_read_trylock(mm))
			return UMEM_NOTIFY_BUSY;
	} else if (mmap_read_lock_killable(mm)) {
		return UMEM_NOTIFY_INTERRUPTED;
	}
	if (atomic_read(&mm->mm_users))
		return UMEM_NOTIFY_INTACT;
	/* The address space has no users any more: it describes nothing. */
	mmap_read_unlock(mm);
	return UMEM_NOTIFY_CHANGED;
}

/*
 * Private hugetlb memory that was found absent. PAGEMAP_SCAN and userfaultfd take a page
 * away for a moment to change its rights, with mmap_lock for reading. So it is looked for
 * again while no other thread has mmap_lock: then an absent page is gone.
 *
 * To keep i_mmap_rwsem instead, under which they do that, is a deadlock:
 *
 *   settle                                another thread
 *   mmap_lock for reading
 *                                         MADV_DONTNEED: mmap_lock for reading
 *                                         hugetlb_zap_begin(): has the mapping's lock
 *   i_mmap_lock_read()
 *                                         i_mmap_lock_write(): waits
 *   GUP: hugetlb_vma_lock_read(): waits
 */
static enum umem_notify_verdict look_alone(struct mm_struct *mm, struct pinned_iter *iter,
					   unsigned long end, enum umem_notify_asker asker)
{
	enum umem_notify_verdict ret = UMEM_NOTIFY_CHANGED;
	unsigned long addr = iter->next;
	struct page *pages[CHECK_BATCH];
	struct vm_area_struct *vma;
	long nr, same;

	/* Not mmap_write_lock(), which has no trylock: no mapping is changed. */
	if (asker == UMEM_NOTIFY_WORKER) {
		if (!down_write_trylock(&mm->mmap_lock))
			return UMEM_NOTIFY_BUSY;
	} else if (down_write_killable(&mm->mmap_lock)) {
		return UMEM_NOTIFY_INTERRUPTED;
	}
	vma = find_vma(mm, addr);
	if (!atomic_read(&mm->mm_users) || !vma || vma->vm_start > addr)
		goto unlock;
	if (!is_private_hugetlb(vma)) {
		/* It has changed meanwhile, and is looked at anew. */
		ret = UMEM_NOTIFY_INTACT;
		goto unlock;
	}
	nr = mapped_pages(mm, addr, min_t(unsigned long, CHECK_BATCH,
					  (min(end, vma->vm_end) - addr) >> PAGE_SHIFT), pages);
	if (nr > 0) {
		same = same_pages(iter, pages, nr);
		iter->next = addr + (same << PAGE_SHIFT);
		if (same == nr)
			ret = UMEM_NOTIFY_INTACT;
	} else if (nr == -EINTR) {
		ret = UMEM_NOTIFY_INTERRUPTED;
	}
unlock:
	up_write(&mm->mmap_lock);
	return ret;
}

static enum umem_notify_verdict fault_back(struct mm_struct *mm,
					   unsigned long addr)
{
	bool unlocked;
	int ret;

	if (fatal_signal_pending(current))
		return UMEM_NOTIFY_INTERRUPTED;
	if (!mmget_not_zero(mm))
		return UMEM_NOTIFY_CHANGED;
	/* Remote: a protection key of the caller's says nothing about the page. */
	ret = fixup_user_fault(mm, addr, FAULT_FLAG_REMOTE, &unlocked);
	mmput_async(mm);
	switch (ret) {
	case 0:
		return UMEM_NOTIFY_INTACT; /* it is mapped: which page? */
	case -ENOMEM:
		return UMEM_NOTIFY_NO_MEMORY;
	case -EINTR:
		return UMEM_NOTIFY_INTERRUPTED;
	default:
		return UMEM_NOTIFY_CHANGED;
	}
}

/* Faults the pages of a run of hugetlb memory in. */
static enum umem_notify_verdict map_run(struct mm_struct *mm,
					const struct absent_run *run,
					enum umem_notify_asker asker)
{
	enum umem_notify_verdict ret = UMEM_NOTIFY_INTACT;
	unsigned long addr = run->start;
	struct vm_area_struct *vma;

	while (!ret && addr < run->end) {
		ret = lock_mm(mm, asker);
		if (ret)
			break;
		vma = find_vma(mm, addr);
		if (!vma || vma->vm_start > addr) {
			ret = UMEM_NOTIFY_CHANGED;
		} else if (!is_vm_hugetlb_page(vma) || userfaultfd_armed(vma) ||
			   !(vma->vm_flags & VM_READ)) {
			ret = UMEM_NOTIFY_UNKNOWN;
		} else {
			unsigned long size = vma_kernel_pagesize(vma);

			ret = fault_back(mm, addr);
			addr = ALIGN(addr + 1, size);
		}
		mmap_read_unlock(mm);
	}
	return ret;
}

/*
 * Looks at the pages up to @end, moves @iter over those that are intact. Leaves
 * absent pages of a file in @run, for when mmap_lock is not held; not the worker. Sets
 * @alone and ends at a page for look_alone().
 */
static enum umem_notify_verdict
check_locked(struct mm_struct *mm, struct pinned_iter *iter, unsigned long end,
	     const struct umem_notify_question *what, struct absent_run *run, bool *alone)
{
	struct page *pages[CHECK_BATCH];
	enum umem_notify_verdict ret;
	struct vm_area_struct *vma;
	unsigned int faults = 0;
	long nr, same;

	while (iter->next < end) {
		unsigned long addr = iter->next;
		unsigned long most;

		vma = find_vma(mm, addr);
		if (!vma || vma->vm_start > addr)
			return UMEM_NOTIFY_CHANGED;
		most = min_t(unsigned long, CHECK_BATCH,
			     (min(end, vma->vm_end) - addr) >> PAGE_SHIFT);
		nr = may_be_walked(vma) ? mapped_pages(mm, addr, most, pages) : 0;
		if (nr > 0) {
			same = same_pages(iter, pages, nr);
			iter->next = addr + (same << PAGE_SHIFT);
			if (same < nr)
				return UMEM_NOTIFY_CHANGED;
			faults = 0;
			continue;
		}
		/* The caller is being killed: nothing was looked at. */
		if (nr == -EINTR)
			return UMEM_NOTIFY_INTERRUPTED;
		if (is_private_hugetlb(vma)) {
			*alone = true;
			return UMEM_NOTIFY_INTACT;
		}

		if ((vma->vm_flags & VM_MAYSHARE) && vma->vm_file) {
			if (can_be_absent(vma->vm_file)) {
				absent_run_collect(run, vma, addr, end);
				if (what->asker != UMEM_NOTIFY_WORKER) {
					get_file(run->file);
					return UMEM_NOTIFY_INTACT;
				}
				ret = absent_run_ask(run, iter, what);
				if (ret)
					return ret;
				continue;
			}
		} else if (!what->exclusive) {
			return UMEM_NOTIFY_CHANGED;
		}

		if (what->asker == UMEM_NOTIFY_WORKER)
			return UMEM_NOTIFY_UNKNOWN;
		if (faults++ == MOST_FAULTS)
			return UMEM_NOTIFY_CHANGED;
		ret = fault_back(mm, addr);
		if (ret)
			return ret;
	}
	return UMEM_NOTIFY_INTACT;
}

/* The same from @addr to @end, a batch at a time. @at is moved on. */
static enum umem_notify_verdict
check_run(struct ib_umem *umem, unsigned long start, unsigned long addr,
	  unsigned long end, struct umem_notify_question *what)
{
	struct mm_struct *mm = umem->owning_mm;
	enum umem_notify_verdict ret;
	struct pinned_iter iter;

	pinned_iter_start(&iter, umem, start, addr);
	do {
		struct absent_run run = {};
		bool alone = false;

		cond_resched();
		if (what->asker == UMEM_NOTIFY_WORKER && READ_ONCE(*what->hurry)) {
			ret = UMEM_NOTIFY_BUSY;
			break;
		}
		ret = lock_mm(mm, what->asker);
		if (ret)
			break;
		ret = check_locked(mm, &iter,
				   min(end, iter.next + LOCK_BATCH * PAGE_SIZE),
				   what, &run, &alone);
		mmap_read_unlock(mm);
		if (alone)
			ret = look_alone(mm, &iter, end, what->asker);
		if (run.file) {
			struct pinned_iter again = iter;

			ret = absent_run_check(&run, &iter, what);
			if (!ret && is_file_hugepages(run.file)) {
				iter = again;
				ret = map_run(mm, &run, what->asker);
				if (!ret)
					ret = absent_run_check(&run, &iter, what);
			}
			fput(run.file);
		}
	} while (!ret && iter.next < end);
	what->at = (iter.next - start) >> PAGE_SHIFT;
	return ret;
}

/**
 * umem_notify_check - Compare mapped with pinned pages
 * @umem: The umem, its pages pinned
 * @start: The address of its first page
 * @shift: How many pages a chunk of a doubt has, as a power of two
 * @what: The pages, and the asker; tells how far they are intact
 *
 * Context: Process context, no mm or inode lock held.
 */
enum umem_notify_verdict umem_notify_check(struct ib_umem *umem,
					   unsigned long start,
					   unsigned int shift,
					   struct umem_notify_question *what)
{
	const struct umem_notify_doubt *doubt = &what->doubt;
	enum umem_notify_verdict ret = UMEM_NOTIFY_INTACT;
	unsigned int from, to = 0;
	u64 others;

	what->at = doubt->end;
	while (!ret && to < 64 && doubt->chunks >> to) {
		from = to + __ffs64(doubt->chunks >> to);
		others = ~(doubt->chunks >> from);
		to = others ? from + __ffs64(others) : 64;
		ret = check_run(umem, start,
				start + (max_t(u64, doubt->first,
					       (u64)from << shift) << PAGE_SHIFT),
				start + (min_t(u64, doubt->end,
					       (u64)to << shift) << PAGE_SHIFT),
				what);
	}
	return ret;
}
