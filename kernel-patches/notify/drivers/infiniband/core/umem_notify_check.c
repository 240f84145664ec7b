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
 *                         (see unlock_mm()).
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
 */

#include <linux/fs.h>
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

/* Of check_locked() alone: see lock_mm(). */
#define ASK_ALONE 2

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

static bool is_shared_hugetlb(const struct vm_area_struct *vma)
{
	return is_vm_hugetlb_page(vma) && vma->vm_flags & VM_MAYSHARE;
}

/*
 * Shared memory that is not mapped: moves @iter over the pages that are the file's.
 * mmap_lock keeps the mapping, and so the file. No caller waits for the file's locks with
 * it: their holder may wait for a page fault.
 *
 * A file is not kept either. To put its last reference is to close it:
 *
 *   the worker                            exit of the owner
 *   get_file()
 *                                         closes and unmaps the file; its
 *                                         parent's wait() returns
 *   fput(): the last one                  [flock, leases, the mount: only now]
 *
 * So the inode's locks are only tried, with mmap_lock, under which the mapping keeps the
 * file; a system call that does not get them lets mmap_lock go and tries again.
 */
static int check_file(const struct vm_area_struct *vma, struct pinned_iter *iter,
		      unsigned long end)
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
 * @alone: No other thread has mmap_lock. PAGEMAP_SCAN and userfaultfd take a page of private
 * hugetlb memory away for a moment to change its rights, with mmap_lock for reading. So one
 * that was found absent is looked for again with @alone: then an absent page is gone.
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
static void unlock_mm(struct mm_struct *mm, bool alone)
{
	if (alone)
		up_write(&mm->mmap_lock);
	else
		mmap_read_unlock(mm);
}

/*
 * Not mmap_write_lock(), which has no trylock: no mapping is changed.
 *
 * It takes no reference to the users: mmget() while looking would make others see an exit too
 * early:
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
	/* The address space has no users any more: it describes nothing. */
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
	/* Remote: a protection key of the caller's says nothing about the page. */
	ret = fixup_user_fault(mm, addr, FAULT_FLAG_REMOTE, &unlocked);
	mmput_async(mm);
	/* Mapped: which page? No memory, or a signal: that says nothing. */
	return !ret || ret == -ENOMEM || ret == -EINTR ? ret : UMEM_NOTIFY_CHANGED;
}

/*
 * Shared hugetlb memory, a huge page at a time: those that are the file's are faulted in, and
 * then have to be the file's. The worker can't tell.
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
 * Looks at the pages up to @end, moves @iter over those that are intact. Returns ASK_ALONE at
 * a page that has to be looked for with @alone.
 */
static int check_locked(struct mm_struct *mm, struct pinned_iter *iter, unsigned long end,
			const struct umem_notify_question *what, bool alone)
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
		/* It has changed meanwhile: no page is faulted in alone. */
		if (alone && (!huge || shared))
			return 0;
		nr = min_t(long, CHECK_BATCH, (min(end, vma->vm_end) - addr) >> PAGE_SHIFT);
		nr = huge && shared ? 0 :
				      get_user_pages_remote(mm, addr, nr,
							    FOLL_FORCE | FOLL_NOFAULT, pages, NULL);
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
			return -EINTR;
		if (huge && !shared)
			return alone ? UMEM_NOTIFY_CHANGED : ASK_ALONE;
		if (shared && (huge || shmem_mapping(vma->vm_file->f_mapping))) {
			ret = huge ? check_huge(mm, vma, iter, end, what->worker) :
				     check_file(vma, iter, end);
			if (ret)
				return ret;
			continue;
		}
		if (!shared && !what->exclusive)
			return UMEM_NOTIFY_CHANGED;
		if (what->worker)
			return -EOPNOTSUPP;
		if (faults++ == MOST_FAULTS)
			return UMEM_NOTIFY_CHANGED;
		ret = fault_back(mm, addr);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * A file's locks were kept. Their holder may be waiting for a page that the caller's own
 * process has to supply (userfaultfd, FUSE), so no caller waits for them without end.
 */
static int wait_for_file(const struct umem_notify_question *what)
{
	if (what->worker || time_after_eq(jiffies, what->until))
		return -EAGAIN;
	if (fatal_signal_pending(current))
		return -EINTR;
	schedule_timeout_killable(1);
	return 0;
}

/* The same from @addr to @end, a batch at a time. @at is moved on. */
static int check_run(struct ib_umem *umem, unsigned long start, unsigned long addr,
		     unsigned long end, struct umem_notify_question *what)
{
	struct mm_struct *mm = umem->owning_mm;
	struct pinned_iter iter;
	bool alone = false;
	int ret;

	pinned_iter_start(&iter, umem, start, addr);
	do {
		unsigned long batch = alone ? CHECK_BATCH : LOCK_BATCH;

		cond_resched();
		if (what->worker && READ_ONCE(*what->hurry)) {
			ret = -EAGAIN;
			break;
		}
		ret = lock_mm(mm, what->worker, alone);
		if (ret)
			break;
		ret = check_locked(mm, &iter, min(end, iter.next + batch * PAGE_SIZE), what, alone);
		unlock_mm(mm, alone);
		alone = ret == ASK_ALONE;
		if (alone)
			ret = 0;
		else if (ret == -EAGAIN)
			ret = wait_for_file(what);
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
 *
 * Return: 0, or UMEM_NOTIFY_CHANGED: the page @what->at. -EAGAIN: a lock was kept, ask again
 * later. -EOPNOTSUPP: only a system call can tell. -EINTR. -ENOMEM: a page fault failed for
 * want of memory, which says nothing.
 */
int umem_notify_check(struct ib_umem *umem, unsigned long start, unsigned int shift,
		      struct umem_notify_question *what)
{
	const struct umem_notify_doubt *doubt = &what->doubt;
	int ret = 0;
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
