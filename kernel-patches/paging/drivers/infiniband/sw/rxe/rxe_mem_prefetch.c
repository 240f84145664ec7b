// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_advise_mr() faults pages in before a transfer needs them.
 *
 * The device has no page table to fill: only the page tables of the process
 * change. So the calling thread itself faults the pages in. With
 * IB_UVERBS_ADVISE_MR_FLAG_FLUSH the thread waits for each page, as an access by
 * the CPU would. Without the flag the thread starts I/O but does not wait.
 */

#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "rxe.h"
#include "rxe_mem_page.h"

/* The MR to prefetch, with a reference for the caller; or an error */
static struct rxe_mr *
rxe_mem_prefetch_find_mr(struct ib_pd *ibpd,
			 enum ib_uverbs_advise_mr_advice advice,
			 const struct ib_sge *sge)
{
	struct rxe_mr *mr;
	int err;

	mr = rxe_pool_get_index(&to_rdev(ibpd->device)->mr_pool,
				sge->lkey >> 8);
	if (!mr)
		return ERR_PTR(-ENOENT);

	if (mr->lkey != sge->lkey)
		err = -ENOENT;
	else if (mr->ibmr.pd != ibpd)
		err = -EPERM;
	else if (!mr->odp)
		err = -EINVAL;
	else if (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
		 !ib_access_writable(mr->access))
		err = -EPERM;
	else if (mr_check_range(mr, sge->addr, sge->length))
		err = -EFAULT;
	else
		return mr;

	rxe_put(mr);
	return ERR_PTR(err);
}

/* Touch one page without waiting. Return: true if the page is present */
static bool rxe_mem_prefetch_touch(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct page *page;
	long got = 0;

	if (mmap_read_lock_killable(mm))
		return false;
	if (vma_lookup(mm, addr))
		got = rxe_mem_gup(mm, addr, write, FOLL_NOWAIT, &page, NULL);
	if (got == 1)
		rxe_mem_put_page(page, write);
	mmap_read_unlock(mm);
	return got == 1;
}

/*
 * Prefetch one page. A caller that waited for a page of another process would hold
 * all memory of that process until the wait ends, even if the caller is killed. So
 * for such a page the caller starts I/O and does not wait.
 */
static int rxe_mem_prefetch_page(struct mm_struct *mm, unsigned long addr,
				 bool write, bool wait, u64 *done)
{
	int err = 0;

	if (wait && mm == current->mm) {
		err = rxe_mem_fault_in(mm, addr, write);
		*done += !err;
	} else if (!mmget_not_zero(mm)) {
		err = -EFAULT;
	} else {
		*done += rxe_mem_prefetch_touch(mm, addr, write);
		mmput_async(mm);
	}
	return err;
}

/* Return: 0 or an error; @done gets the number of pages that are present */
static int rxe_mem_prefetch(struct mm_struct *mm, unsigned long addr, u64 length,
			    bool write, bool wait, u64 *done)
{
	/* Count pages instead of computing an end address, which could wrap to 0 */
	u64 pages = DIV_ROUND_UP_ULL(offset_in_page(addr) + length, PAGE_SIZE);
	int err = 0;

	for (addr &= PAGE_MASK; pages && !err; pages--, addr += PAGE_SIZE) {
		if (fatal_signal_pending(current))
			return -EINTR;
		err = rxe_mem_prefetch_page(mm, addr, write, wait, done);
		cond_resched();
	}
	return err;
}

/*
 * Prefetch one part. A fault may take forever, and deregistering waits for all
 * references to the MR. So the fault runs without a reference.
 */
static int rxe_mem_prefetch_sge(struct ib_pd *ibpd,
				enum ib_uverbs_advise_mr_advice advice,
				const struct ib_sge *sge, bool wait)
{
	bool write = advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct mm_struct *mm;
	unsigned long addr;
	struct rxe_mr *mr;
	u64 done = 0;
	int err;

	mr = rxe_mem_prefetch_find_mr(ibpd, advice, sge);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	mm = mr->odp->pool->mm;
	mmgrab(mm);
	addr = mr->odp->start + (sge->addr - mr->ibmr.iova);
	rxe_put(mr);

	err = rxe_mem_prefetch(mm, addr, sge->length, write, wait, &done);
	mmdrop(mm);

	mr = rxe_mem_prefetch_find_mr(ibpd, advice, sge);
	if (!IS_ERR(mr)) {
		atomic64_add(done, &mr->odp->prefetched);
		rxe_put(mr);
	}
	return err;
}

/**
 * rxe_mem_advise_mr - Prefetch parts of MRs with on-demand paging
 * @ibpd: The PD of all MRs
 * @advice: For reading, for writing, or without faults
 * @flags: With IB_UVERBS_ADVISE_MR_FLAG_FLUSH, return when the pages are present
 * @sg_list: The parts
 * @num_sge: The number of parts
 * @attrs: Not used
 *
 * All keys are checked first.
 *
 * Return:
 * * 0: if the flag is not set, some pages may still be absent
 * * -EOPNOTSUPP: the advice is unknown
 * * -ENOENT: a key is unknown
 * * -EPERM: the MR belongs to another PD, or a write is to a read-only MR
 * * -EINVAL: the MR is pinned
 * * -EFAULT: the range is outside the MR, or its memory does not allow the access
 * * -EINTR: the caller is being killed
 */
int rxe_mem_advise_mr(struct ib_pd *ibpd,
		      enum ib_uverbs_advise_mr_advice advice, u32 flags,
		      struct ib_sge *sg_list, u32 num_sge,
		      struct uverbs_attr_bundle *attrs)
{
	bool wait = flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
	struct rxe_mr *mr;
	int err = 0;
	u32 i;

	if (advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH &&
	    advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
	    advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return -EOPNOTSUPP;

	for (i = 0; i < num_sge; i++) {
		mr = rxe_mem_prefetch_find_mr(ibpd, advice, &sg_list[i]);
		if (IS_ERR(mr))
			return PTR_ERR(mr);
		rxe_put(mr);
	}
	/* This advice fills the device's page table with present pages; rxe has no page table */
	if (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return 0;

	for (i = 0; i < num_sge && !err; i++)
		err = rxe_mem_prefetch_sge(ibpd, advice, &sg_list[i], wait);
	return err;
}
