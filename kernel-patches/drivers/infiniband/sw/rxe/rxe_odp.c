// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging in soft-RoCE.
 *
 * An MR with on-demand paging knows an address space and where it begins in
 * there, and nothing else: no page table of its own, no page that is kept, no
 * notifier. Each packet is copied through the page tables of the process that
 * registered, as the process would do it. Where that can't be, the page is looked
 * up there, held for the time of one memcpy, and let go.
 *
 * WHY NOTHING CAN BE STALE
 *
 * The copy runs under mmap_lock, taken for reading.
 *
 *   rxe                                   the process
 *   mmap_read_lock; copies to page A
 *                                         munmap: waits
 *   unlock
 *                                         A is unmapped, B is mapped; munmap
 *                                         and mmap return
 *   the next packet: finds B
 *
 * So a page that is written can't become shared meanwhile. Without mmap_lock this
 * loses:
 *
 *   rxe                                   the process
 *   finds page A, which may be written
 *                                         fork: A is the child's, too
 *                                         writes to B, its copy of A
 *   copies to A: only the child sees it
 *
 * Calls that do not need mmap_lock for writing (MADV_DONTNEED, truncation,
 * reclaim, migration) may take A out of the page tables while it is written.
 * Then the write came before, as one by the process: A is not given away before
 * this CPU has forgotten it, and a page that is held isn't reclaimed or
 * migrated. A transfer that begins after such a call has returned finds the
 * page that is there then.
 *
 * The process may end while a worker has its address space on. A look-up
 * without a reference to the users of it (rxe_odp_copy_fast()) finds a page
 * that is held, or nothing:
 *
 *   rxe                                   the process
 *   mmap_read_lock
 *                                         exit: unmaps page A
 *   the page tables have no A: false
 *   [or holds A first, copies, lets go]
 *   unlock
 *                                         mmap_write_lock; frees page tables
 *
 * WORKERS AND FAULTS
 *
 * rxe's workers serve memory that they can serve without waiting: anonymous and
 * shared memory. All else, and a page that would have to be waited for after
 * all (swap, userfaultfd), is met with -EINPROGRESS, and the queue pair waits
 * for a fault of its own: rxe_odp_fault.c.
 */

#include <linux/backing-dev.h>
#include <linux/cred.h>
#include <linux/highmem.h>
#include <linux/kthread.h>
#include <linux/libnvdimm.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>
#include <linux/uaccess.h>
#include <rdma/rdma_netlink.h>

#include "rxe.h"

/**
 * rxe_odp_init_caps - Report the abilities of on-demand paging
 * @attr: The attributes of a new device
 */
void rxe_odp_init_caps(struct ib_device_attr *attr)
{
	u32 ud = IB_ODP_SUPPORT_SEND | IB_ODP_SUPPORT_RECV |
		 IB_ODP_SUPPORT_SRQ_RECV;
	u32 uc = ud | IB_ODP_SUPPORT_WRITE;
	u32 rc = uc | IB_ODP_SUPPORT_READ | IB_ODP_SUPPORT_ATOMIC;

	attr->kernel_cap_flags |= IBK_ON_DEMAND_PAGING;
	attr->odp_caps.general_caps = IB_ODP_SUPPORT | IB_ODP_SUPPORT_IMPLICIT;
	attr->odp_caps.per_transport_caps.rc_odp_caps = rc;
	attr->odp_caps.per_transport_caps.uc_odp_caps = uc;
	attr->odp_caps.per_transport_caps.ud_odp_caps = ud;
}

/**
 * rxe_odp_init_mr - Make a new MR one with on-demand paging
 * @mr: The MR, initialized, with its access rights
 * @start: Where it begins in the address space of the caller
 * @length: Its length; with @start 0 and U64_MAX it is all of the address space
 *
 * Nothing need be mapped there. The address space is the caller's for good, and
 * is not kept alive: an access after its end fails.
 *
 * Return: 0; -EINVAL when the range wraps around, or persistence is asked for
 * all memory; -ENOMEM.
 */
int rxe_odp_init_mr(struct rxe_mr *mr, u64 start, u64 length)
{
	bool all = !start && length == U64_MAX;
	u64 end;

	if (check_add_overflow(start, length, &end))
		return -EINVAL;
	if (all && (mr->access & IB_ACCESS_FLUSH_PERSISTENT))
		return -EINVAL;

	mr->odp = kzalloc(sizeof(*mr->odp), GFP_KERNEL);
	if (!mr->odp)
		return -ENOMEM;
	mr->odp->user = rxe_odp_get_user(current_uid());
	if (!mr->odp->user) {
		kfree(mr->odp);
		mr->odp = NULL;
		return -ENOMEM;
	}

	mmgrab(current->mm);
	mr->odp->mm = current->mm;
	mr->odp->start = start;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;
	return 0;
}

/* An MR is on demand or pinned from its beginning to its end */
int rxe_odp_check_rereg(struct rxe_mr *mr, int flags, int access)
{
	if (!(flags & IB_MR_REREG_ACCESS) ||
	    !(access & IB_ACCESS_ON_DEMAND) == !mr->odp)
		return 0;
	return -EOPNOTSUPP;
}

void rxe_odp_cleanup_mr(struct rxe_mr *mr)
{
	if (!mr->odp)
		return;

	mmdrop(mr->odp->mm);
	rxe_odp_put_user(mr->odp->user);
	kfree(mr->odp);
	mr->odp = NULL;
}

static unsigned long rxe_odp_addr(struct rxe_mr *mr, u64 iova)
{
	return mr->odp->start + (iova - mr->ibmr.iova);
}

/* A writer of mmap_lock is short, unless it waits itself */
static bool rxe_odp_trylock(struct mm_struct *mm)
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
static int rxe_odp_enter(struct mm_struct *mm)
{
	if (!mmget_not_zero(mm))
		return -EFAULT;
	if (rxe_odp_borrow(mm) || rxe_odp_trylock(mm))
		return 0;
	mmput_async(mm);
	return -EBUSY;
}

static void rxe_odp_leave(struct mm_struct *mm)
{
	if (!rxe_odp_give_back(mm))
		mmap_read_unlock(mm);
	mmput_async(mm);
}

/*
 * Is a fault there served without waiting for anybody? In the memory of a file
 * it may wait for the file system: for a FUSE server, a dead network.
 */
static bool rxe_odp_served_at_once(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ||
	       (vma->vm_file && shmem_mapping(vma->vm_file->f_mapping));
}

static bool rxe_odp_may_access(struct vm_area_struct *vma, bool write)
{
	return !(vma->vm_flags & (VM_IO | VM_PFNMAP)) &&
	       (vma->vm_flags & (write ? VM_WRITE : VM_READ));
}

/* Does a file system write it to its file? */
static bool rxe_odp_is_file(struct folio *folio)
{
	struct address_space *mapping = READ_ONCE(folio->mapping);

	return mapping && !folio_test_anon(folio) &&
	       mapping_can_writeback(mapping);
}

/* May that page still be written there? */
static bool rxe_odp_is_writable(struct mm_struct *mm, unsigned long addr,
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
static int rxe_odp_lock_file(struct mm_struct *mm, unsigned long addr,
			     struct page *page)
{
	struct folio *folio = page_folio(page);
	int tries;

	if (!rxe_odp_is_file(folio))
		return 0;

	for (tries = 0; tries < 8; tries++) {
		if (folio_trylock(folio)) {
			if (folio->mapping &&
			    rxe_odp_is_writable(mm, addr, page))
				return 0;
			folio_unlock(folio);
			break;
		}
		cond_resched();
	}
	rxe_odp_put_page(page, true);
	return -EBUSY;
}

/* Let go of the page that rxe_odp_get_page() has found */
static void rxe_odp_release_page(struct page *page, bool write)
{
	struct folio *folio = page_folio(page);

	if (write && rxe_odp_is_file(folio))
		folio_unlock(folio);
	rxe_odp_put_page(page, write);
}

static void rxe_odp_copy_page(struct page *page, unsigned int offset, void *buf,
			      unsigned int bytes, bool write)
{
	if (write) {
		memcpy_to_page(page, offset, buf, bytes);
		set_page_dirty(page);
	} else {
		memcpy_from_page(buf, page, offset, bytes);
	}
}

static unsigned int rxe_odp_bytes_in_page(unsigned long addr,
					  unsigned int length)
{
	return min_t(unsigned int, length, PAGE_SIZE - offset_in_page(addr));
}

static void rxe_odp_leave_task_mm(void)
{
	if (current->mm)
		kthread_unuse_mm(current->mm);
}

/*
 * Take an address space on for the rest of the task of a queue pair, which has
 * many packets. All copying is done by such tasks, and do_work() ends each with
 * rxe_odp_end_task().
 */
static bool rxe_odp_take_on(struct mm_struct *mm)
{
	if (!(current->flags & PF_KTHREAD))
		return false;
	if (current->mm == mm)
		return true;

	rxe_odp_leave_task_mm();
	if (!mmget_not_zero(mm))
		return false;
	kthread_use_mm(mm);
	mmput_async(mm);
	return true;
}

/* Called for each task; its queue pair may have gone. Leave the address space */
void rxe_odp_end_task(void)
{
	rxe_odp_leave_task_mm();
	rxe_odp_end_loans();
}

/*
 * Copy as the process itself would, but through the kernel's addresses, to or
 * from the present pages of anonymous and shared memory. That does not yield to
 * the worker of the other end after each packet, as get_user_pages_remote()
 * does: then most of the time would go by in the scheduler. The process may
 * have ended: it takes its memory away under mmap_lock, too.
 *
 * Return: false when something is not mapped, or not so, or the architecture
 * can't look pages up without a lock (User Mode Linux); part may be copied.
 */
static bool rxe_odp_copy_fast(struct mm_struct *mm, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	unsigned int flags = write ? FOLL_WRITE : 0;
	unsigned int bytes;
	struct page *page;
	bool known = true;

	if (!rxe_odp_take_on(mm) || !mmap_read_trylock(mm))
		return false;

	for (; length && known; addr += bytes, buf += bytes, length -= bytes) {
		if (get_user_pages_fast_only(addr, 1, flags, &page) != 1)
			break;
		bytes = rxe_odp_bytes_in_page(addr, length);
		known = folio_test_swapbacked(page_folio(page));
		if (known)
			rxe_odp_copy_page(page, offset_in_page(addr), buf,
					  bytes, write);
		put_page(page);
	}
	mmap_read_unlock(mm);
	return !length && known;
}

/*
 * The same through the addresses of the process, which has not ended. (At its
 * end an architecture may give pages away and leave their translations to the
 * threads that have taken the address space on.)
 */
static bool rxe_odp_copy_user(struct mm_struct *mm, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	void __user *user = (void __user *)addr;
	struct vm_area_struct *vma;

	if (!rxe_odp_take_on(mm))
		return false;

	vma = vma_lookup(mm, addr);
	if (!vma || vma->vm_end - addr < length ||
	    !rxe_odp_may_access(vma, write) || !rxe_odp_served_at_once(vma))
		return false;
	return !(write ? copy_to_user_nofault(user, buf, length) :
			 copy_from_user_nofault(buf, user, length));
}

/*
 * Find a page, under mmap_lock; a page that is there costs a walk, and a fault
 * is served if that can be done at once. So is the mark of NUMA balancing: a page
 * that keeps it would come here with each packet.
 *
 * Return: 0, and the page is held, to be let go by rxe_odp_release_page();
 * -EBUSY: it must be waited for; -EFAULT: no such access is possible there.
 */
static int rxe_odp_get_page(struct rxe_odp_mr *odp, unsigned long addr,
			    bool write, struct page **page)
{
	struct vm_area_struct *vma = vma_lookup(odp->mm, addr);
	unsigned int marks;
	bool at_once;
	long got;

	if (!vma)
		return -EFAULT;

	at_once = rxe_odp_served_at_once(vma);
	marks = at_once ? FOLL_HONOR_NUMA_FAULT : 0;
	if (rxe_odp_gup(odp->mm, addr, write, FOLL_NOFAULT | marks, page,
			NULL) == 1)
		return write ? rxe_odp_lock_file(odp->mm, addr, *page) : 0;

	if (!rxe_odp_may_access(vma, write))
		return -EFAULT;

	atomic64_inc(&odp->faults);
	if (!at_once)
		return -EBUSY;

	got = rxe_odp_gup(odp->mm, addr, write, FOLL_NOWAIT | marks, page,
			  NULL);
	if (got == 1)
		return 0;
	return got ? -EFAULT : -EBUSY;
}

static int rxe_odp_copy_pages(struct rxe_odp_mr *odp, unsigned long addr,
			      void *buf, unsigned int length, bool write)
{
	struct page *page;
	int err;

	if (rxe_odp_copy_fast(odp->mm, addr, buf, length, write))
		return 0;

	err = rxe_odp_enter(odp->mm);
	if (err)
		goto out;

	if (rxe_odp_copy_user(odp->mm, addr, buf, length, write))
		length = 0;

	while (length) {
		unsigned int bytes = rxe_odp_bytes_in_page(addr, length);

		err = rxe_odp_get_page(odp, addr, write, &page);
		if (err)
			break;

		rxe_odp_copy_page(page, offset_in_page(addr), buf, bytes,
				  write);
		rxe_odp_release_page(page, write);

		addr += bytes;
		buf += bytes;
		length -= bytes;
	}
	rxe_odp_leave(odp->mm);
out:
	return err == -EBUSY ? rxe_odp_meet(odp, addr, write) : err;
}

/**
 * rxe_odp_copy - Copy between a packet and memory that is paged on demand
 * @mr: An MR with on-demand paging
 * @iova: Where in @mr; the caller has checked the range
 * @buf: The packet's data
 * @length: Bytes, one packet's
 * @dir: RXE_TO_MR_OBJ or RXE_FROM_MR_OBJ
 *
 * Context: Process context, a task of a queue pair.
 *
 * Return: 0; -EFAULT when the memory can't be accessed so; -EINPROGRESS when a
 * page must be waited for: then the caller tells which side waits
 * (rxe_odp_req_waits(), rxe_odp_comp_waits(), rxe_odp_resp_state()), and copies
 * all of it again later.
 */
int rxe_odp_copy(struct rxe_mr *mr, u64 iova, void *buf, unsigned int length,
		 enum rxe_mr_copy_dir dir)
{
	unsigned long addr = rxe_odp_addr(mr, iova);
	bool write = dir == RXE_TO_MR_OBJ;
	int err;

	err = rxe_odp_copy_pages(mr->odp, addr, buf, length, write);
	if (!err)
		rxe_odp_accessed(mr->odp->mm, addr, length, write);
	return err;
}

/* 0: the page at @iova is held and the address space entered, both to be left */
static int rxe_odp_open_page(struct rxe_mr *mr, u64 iova, bool write,
			     struct page **page)
{
	struct rxe_odp_mr *odp = mr->odp;
	unsigned long addr = rxe_odp_addr(mr, iova);
	int err;

	err = rxe_odp_enter(odp->mm);
	if (!err) {
		err = rxe_odp_get_page(odp, addr, write, page);
		if (err)
			rxe_odp_leave(odp->mm);
		else
			rxe_odp_accessed(odp->mm, addr, 1, write);
	}
	return err == -EBUSY ? rxe_odp_meet(odp, addr, write) : err;
}

static void rxe_odp_close_page(struct rxe_mr *mr, struct page *page, bool write)
{
	if (write)
		set_page_dirty(page);
	rxe_odp_release_page(page, write);
	rxe_odp_leave(mr->odp->mm);
}

/*
 * Open the page of a remote atomic operation, and name it for the functions of
 * rxe_mr.c: @dma is an MR of all memory of the kernel, in which the page is at
 * @dma_addr. So all atomic operations of rxe go through the same lines, under
 * the same lock.
 */
static enum resp_states rxe_odp_open_atomic(struct rxe_qp *qp,
					    struct rxe_mr *mr, u64 iova,
					    struct page **page,
					    struct rxe_mr *dma, u64 *dma_addr)
{
	int err;

	if (mr->state != RXE_MR_STATE_VALID ||
	    mr_check_range(mr, iova, sizeof(u64)))
		return RESPST_ERR_RKEY_VIOLATION;
	if (iova & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;

	err = rxe_odp_open_page(mr, iova, true, page);
	if (err)
		return rxe_odp_resp_state(qp, err, RESPST_ERR_RKEY_VIOLATION);

	rxe_mr_init_dma(0, dma);
	*dma_addr = (uintptr_t)page_address(*page) +
		    offset_in_page(rxe_odp_addr(mr, iova));
	return RESPST_NONE;
}

/* rxe_mr_do_atomic_op() for any MR */
enum resp_states rxe_qp_do_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr,
				     u64 iova, int opcode, u64 compare,
				     u64 swap_add, u64 *orig_val)
{
	struct rxe_mr dma = {};
	enum resp_states state;
	struct page *page;
	u64 addr;

	if (!mr->odp)
		return rxe_mr_do_atomic_op(mr, iova, opcode, compare, swap_add,
					   orig_val);

	state = rxe_odp_open_atomic(qp, mr, iova, &page, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_op(&dma, addr, opcode, compare, swap_add,
				    orig_val);
	rxe_odp_close_page(mr, page, true);
	return state;
}

/* rxe_mr_do_atomic_write() for any MR */
enum resp_states rxe_qp_do_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
					u64 iova, u64 value)
{
	struct rxe_mr dma = {};
	enum resp_states state;
	struct page *page;
	u64 addr;

	if (!mr->odp)
		return rxe_mr_do_atomic_write(mr, iova, value);

	state = rxe_odp_open_atomic(qp, mr, iova, &page, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_write(&dma, addr, value);
	rxe_odp_close_page(mr, page, true);
	return state;
}

/*
 * A pinned MR for persistent flushes is of persistent memory only. Here it is
 * known when it is flushed.
 */
static bool rxe_odp_is_pmem(struct page *page)
{
	return region_intersects(page_to_phys(page), PAGE_SIZE, IORESOURCE_MEM,
				 IORES_DESC_PERSISTENT_MEMORY) ==
	       REGION_INTERSECTS;
}

/* rxe_flush_pmem_iova() for any MR */
enum resp_states rxe_odp_flush(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova,
			       u64 length)
{
	int err = 0;

	if (!mr->odp)
		err = rxe_flush_pmem_iova(mr, iova, length);
	else if (length)
		err = mr_check_range(mr, iova, length);

	while (mr->odp && length && !err) {
		unsigned int offset = offset_in_page(rxe_odp_addr(mr, iova));
		unsigned int bytes = min_t(u64, length, PAGE_SIZE - offset);
		struct page *page;

		err = rxe_odp_open_page(mr, iova, false, &page);
		if (err)
			break;
		if (rxe_odp_is_pmem(page))
			arch_wb_cache_pmem(page_address(page) + offset, bytes);
		else
			err = -EINVAL;
		rxe_odp_close_page(mr, page, false);

		iova += bytes;
		length -= bytes;
		cond_resched();
	}
	return rxe_odp_resp_state(qp, err, RESPST_ERR_RKEY_VIOLATION);
}

/* The counters of an MR, for "rdma statistic show mr" */
int rxe_odp_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct rxe_odp_mr *odp = to_rmr(ibmr)->odp;
	struct nlattr *table;

	if (!odp)
		return 0;

	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);
	if (!table)
		return -EMSGSIZE;
	if (rdma_nl_stat_hwcounter_entry(msg, "page_faults",
					 atomic64_read(&odp->faults)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_fault_waits",
					 atomic64_read(&odp->waits)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_prefetch",
					 atomic64_read(&odp->prefetched))) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}
