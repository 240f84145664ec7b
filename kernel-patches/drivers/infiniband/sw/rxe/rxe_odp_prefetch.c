// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_advise_mr(): have pages faulted in before a transfer needs them.
 *
 * There is nothing to fill but the page tables of the process itself, so it is
 * done by the caller, at once: with IB_UVERBS_ADVISE_MR_FLAG_FLUSH as a touch of
 * each page would do it, else without waiting for anybody (I/O is started).
 */

#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "rxe.h"
#include "rxe_odp_page.h"

/* The MR to prefetch, or an error; the reference is the caller's */
static struct rxe_mr *
rxe_odp_prefetch_find_mr(struct ib_pd *ibpd,
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

/* One page, without waiting: it counts if it is there */
static bool rxe_odp_prefetch_touch(struct mm_struct *mm, unsigned long addr, bool write)
{
	struct page *page;
	long got = 0;

	if (mmap_read_lock_killable(mm))
		return false;
	if (vma_lookup(mm, addr))
		got = rxe_odp_gup(mm, addr, write, FOLL_NOWAIT, &page, NULL);
	if (got == 1)
		rxe_odp_put_page(page, write);
	mmap_read_unlock(mm);
	return got == 1;
}

/*
 * One page. A caller that waited for a page of another process would keep all
 * that one's memory while it is killed: its pages are only started.
 */
static int rxe_odp_prefetch_page(struct mm_struct *mm, unsigned long addr,
				 bool write, bool wait, u64 *done)
{
	int err = 0;

	if (wait && mm == current->mm) {
		err = rxe_odp_fault_in(mm, addr, write);
		*done += !err;
	} else if (!mmget_not_zero(mm)) {
		err = -EFAULT;
	} else {
		*done += rxe_odp_prefetch_touch(mm, addr, write);
		mmput_async(mm);
	}
	return err;
}

/* Return: 0 or an error; the number of pages that are there now in @done */
static int rxe_odp_prefetch(struct mm_struct *mm, unsigned long addr, u64 length,
			    bool write, bool wait, u64 *done)
{
	/* Not an end: behind the last page there is none. */
	u64 pages = DIV_ROUND_UP_ULL(offset_in_page(addr) + length, PAGE_SIZE);
	int err = 0;

	for (addr &= PAGE_MASK; pages && !err; pages--, addr += PAGE_SIZE) {
		if (fatal_signal_pending(current))
			return -EINTR;
		err = rxe_odp_prefetch_page(mm, addr, write, wait, done);
		cond_resched();
	}
	return err;
}

/*
 * Prefetch one part. A fault may take for ever, and deregistering waits for
 * references to the MR: so none is held meanwhile.
 */
static int rxe_odp_prefetch_sge(struct ib_pd *ibpd,
				enum ib_uverbs_advise_mr_advice advice,
				const struct ib_sge *sge, bool wait)
{
	bool write = advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	struct mm_struct *mm;
	unsigned long addr;
	struct rxe_mr *mr;
	u64 done = 0;
	int err;

	mr = rxe_odp_prefetch_find_mr(ibpd, advice, sge);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	mm = mr->odp->pool->mm;
	mmgrab(mm);
	addr = mr->odp->start + (sge->addr - mr->ibmr.iova);
	rxe_put(mr);

	err = rxe_odp_prefetch(mm, addr, sge->length, write, wait, &done);
	mmdrop(mm);

	mr = rxe_odp_prefetch_find_mr(ibpd, advice, sge);
	if (!IS_ERR(mr)) {
		atomic64_add(done, &mr->odp->prefetched);
		rxe_put(mr);
	}
	return err;
}

/**
 * rxe_odp_advise_mr - Prefetch parts of MRs with on-demand paging
 * @ibpd: The PD of all of them
 * @advice: Whether for reading or writing, or without a fault at all
 * @flags: IB_UVERBS_ADVISE_MR_FLAG_FLUSH: return when it is done
 * @sg_list: The parts
 * @num_sge: Their number
 * @attrs: Not used
 *
 * Return: 0, also when without the flag some pages are not there; -EOPNOTSUPP
 * for other advice; -ENOENT for an unknown key; -EPERM for another PD or a
 * write to read-only memory; -EINVAL for an MR that is pinned; -EFAULT when the
 * range is not the MR's or can't be accessed so; -EINTR when the caller is
 * being killed. All keys are checked before anything is done.
 */
int rxe_odp_advise_mr(struct ib_pd *ibpd,
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
		mr = rxe_odp_prefetch_find_mr(ibpd, advice, &sg_list[i]);
		if (IS_ERR(mr))
			return PTR_ERR(mr);
		rxe_put(mr);
	}
	/* There is no table of mapped pages to enter them in */
	if (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return 0;

	for (i = 0; i < num_sge && !err; i++)
		err = rxe_odp_prefetch_sge(ibpd, advice, &sg_list[i], wait);
	return err;
}
