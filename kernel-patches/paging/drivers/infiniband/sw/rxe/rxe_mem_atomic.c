// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Atomic operations and flushes of memory that is paged on demand. See rxe_mem_copy.c
 * for the copies.
 */

#include <linux/libnvdimm.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>

#include "rxe.h"
#include "rxe_mem_page.h"

/* A page that an access holds */
struct rxe_mem_atomic_page {
	struct page		*page;
	struct mm_struct	*mm;	/* NULL if the access has no mmap_lock */
	bool			write;
};

/* Is the page still mapped at @addr? If it is, and it belongs to a file, locks the page */
static bool rxe_mem_atomic_is_mapped(struct page *page, unsigned long addr)
{
	struct folio *folio = page_folio(page);
	bool file = rxe_mem_page_is_file(folio);
	struct page *now;

	if (file && !folio_trylock(folio))
		return false;
	now = rxe_mem_page_lookup(addr, true);
	if (now)
		put_page(now);
	if (now == page && (!file || folio->mapping))
		return true;
	if (file)
		folio_unlock(folio);
	return false;
}

/* rxe_mem_page_get() without mmap_lock */
static struct page *rxe_mem_atomic_get_unlocked(struct rxe_mem_mr *odp,
						unsigned long addr, bool write)
{
	struct mm_struct *mm = odp->pool->mm;
	struct page *page = NULL;

	if (!rxe_mem_page_take_on(mm) || !mmget_not_zero(mm))
		return NULL;

	if (!write) {
		page = rxe_mem_page_lookup(addr, false);
	} else {
		page = rxe_mem_qp_take_page(odp, addr);
		if (page && !rxe_mem_atomic_is_mapped(page, addr)) {
			rxe_mem_put_page(page, true);
			page = NULL;
		}
	}
	mmput_async(mm);
	return page;
}

/**
 * rxe_mem_atomic_open_page - Hold a page for an access other than a copy
 * @mr: The MR
 * @iova: The address in @mr
 * @write: For writing
 * @opened: The page, to be closed by rxe_mem_atomic_close_page()
 *
 * A fork during a write must not give the page to the child. mmap_lock excludes
 * the fork. Without mmap_lock, the access needs a pin that keeps the page with the
 * parent: the thread that faulted the page in keeps its pin for the access. Only the
 * access that met the fault uses this pin, and only if the page is still mapped:
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
 *   finds B: releases A, and
 *   starts another fault
 *
 * Return: 0, -EFAULT if the access is not possible, or -EINPROGRESS if the queue pair
 * must wait for the page.
 */
static int rxe_mem_atomic_open_page(struct rxe_mr *mr, u64 iova, bool write,
				    struct rxe_mem_atomic_page *opened)
{
	struct rxe_mem_mr *odp = mr->odp;
	unsigned long addr = rxe_mem_addr(mr, iova);
	bool locked;
	int err;

	opened->write = write;
	opened->mm = NULL;
	err = rxe_mem_page_enter(odp->pool->mm);
	locked = !err;
	if (!err) {
		err = rxe_mem_page_get(odp, addr, write, &opened->page);
		if (err)
			rxe_mem_page_leave(odp->pool->mm);
		else
			opened->mm = odp->pool->mm;
	} else if (err == -EBUSY) {
		opened->page = rxe_mem_atomic_get_unlocked(odp, addr, write);
		if (opened->page)
			err = 0;
	}
	if (!err)
		rxe_mem_qp_accessed(odp, addr, 1, write);
	return err == -EBUSY ? rxe_mem_fault_meet(odp, addr, write, write, locked) :
			       err;
}

static void rxe_mem_atomic_close_page(struct rxe_mem_atomic_page *opened)
{
	if (opened->write)
		set_page_dirty(opened->page);
	rxe_mem_page_release(opened->page, opened->write);
	if (opened->mm)
		rxe_mem_page_leave(opened->mm);
}

/*
 * Open the page of a remote atomic operation for the functions of rxe_mr.c. @dma
 * becomes a kernel MR for all memory, and @dma_addr becomes the address of the data in
 * @dma. So all atomic operations of rxe run the same code under the same lock.
 */
static enum resp_states rxe_mem_atomic_open(struct rxe_qp *qp,
					    struct rxe_mr *mr, u64 iova,
					    struct rxe_mem_atomic_page *opened,
					    struct rxe_mr *dma, u64 *dma_addr)
{
	int err;

	if (mr->state != RXE_MR_STATE_VALID ||
	    mr_check_range(mr, iova, sizeof(u64)))
		return RESPST_ERR_RKEY_VIOLATION;
	if (iova & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;

	err = rxe_mem_atomic_open_page(mr, iova, true, opened);
	if (err)
		return rxe_mem_resp_state(qp, err, RESPST_ERR_RKEY_VIOLATION);

	rxe_mr_init_dma(0, dma);
	*dma_addr = (uintptr_t)page_address(opened->page) +
		    offset_in_page(rxe_mem_addr(mr, iova));
	return RESPST_NONE;
}

/* rxe_mr_do_atomic_op() for an MR that is paged on demand */
enum resp_states rxe_mem_atomic_op(struct rxe_qp *qp, struct rxe_mr *mr,
				   u64 iova, int opcode, u64 compare,
				   u64 swap_add, u64 *orig_val)
{
	struct rxe_mr dma = {};
	enum resp_states state;
	struct rxe_mem_atomic_page opened;
	u64 addr;

	state = rxe_mem_atomic_open(qp, mr, iova, &opened, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_op(&dma, addr, opcode, compare, swap_add,
				    orig_val);
	rxe_mem_atomic_close_page(&opened);
	return state;
}

/* rxe_mr_do_atomic_write() for an MR that is paged on demand */
enum resp_states rxe_mem_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
				      u64 iova, u64 value)
{
	struct rxe_mr dma = {};
	enum resp_states state;
	struct rxe_mem_atomic_page opened;
	u64 addr;

	state = rxe_mem_atomic_open(qp, mr, iova, &opened, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_write(&dma, addr, value);
	rxe_mem_atomic_close_page(&opened);
	return state;
}

/*
 * rxe checks at registration that a pinned MR for persistent flushes has persistent
 * memory only. With on-demand paging the flush checks each page.
 */
static bool rxe_mem_atomic_is_pmem(struct page *page)
{
	return region_intersects(page_to_phys(page), PAGE_SIZE, IORESOURCE_MEM,
				 IORES_DESC_PERSISTENT_MEMORY) ==
	       REGION_INTERSECTS;
}

static int rxe_mem_atomic_flush_page(struct rxe_mr *mr, u64 iova,
				     unsigned int offset, unsigned int bytes)
{
	struct rxe_mem_atomic_page opened;
	int err;

	err = rxe_mem_atomic_open_page(mr, iova, false, &opened);
	if (err)
		return err;
	if (rxe_mem_atomic_is_pmem(opened.page))
		arch_wb_cache_pmem(page_address(opened.page) + offset, bytes);
	else
		err = -EINVAL;
	rxe_mem_atomic_close_page(&opened);
	return err;
}

/*
 * rxe_flush_pmem_iova() for any MR. After waiting for a page, a flush continues at
 * this page. If it started again from the beginning, it would visit n * n / 2 pages
 * for n absent pages.
 */
enum resp_states rxe_mem_flush(struct rxe_qp *qp, struct rxe_mr *mr, u64 iova,
			       u64 length)
{
	u64 done;
	int err;

	if (!mr->odp)
		return rxe_mem_resp_state(qp, rxe_flush_pmem_iova(mr, iova, length),
					  RESPST_ERR_RKEY_VIOLATION);

	err = length ? mr_check_range(mr, iova, length) : 0;
	done = rxe_mem_flushed(qp);
	while (!err && done < length) {
		unsigned int offset =
			offset_in_page(rxe_mem_addr(mr, iova + done));
		unsigned int bytes =
			min_t(u64, length - done, PAGE_SIZE - offset);

		err = rxe_mem_atomic_flush_page(mr, iova + done, offset, bytes);
		if (!err)
			done += bytes;
		cond_resched();
	}
	qp->odp_flushed = err == -EINPROGRESS ? done : 0;
	return rxe_mem_resp_state(qp, err, RESPST_ERR_RKEY_VIOLATION);
}
