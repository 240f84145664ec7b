// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Accesses of the responder to memory that is paged on demand, other than copies:
 * atomic operations and flushes.
 */

#include <linux/libnvdimm.h>
#include <linux/mm.h>

#include "rxe.h"
#include "rxe_mem_page.h"

/*
 * Open the page of a remote atomic operation for the functions of rxe_mr.c: @dma
 * is a kernel MR for all memory, and the page is at @dma_addr in it. So all atomic
 * operations of rxe run the same code under the same lock.
 */
static enum resp_states rxe_mem_atomic_open(struct rxe_qp *qp,
					    struct rxe_mr *mr, u64 iova,
					    struct rxe_mem_opened *opened,
					    struct rxe_mr *dma, u64 *dma_addr)
{
	int err;

	if (mr->state != RXE_MR_STATE_VALID ||
	    mr_check_range(mr, iova, sizeof(u64)))
		return RESPST_ERR_RKEY_VIOLATION;
	if (iova & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;

	err = rxe_mem_page_open(mr, iova, true, opened);
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
	struct rxe_mem_opened opened;
	u64 addr;

	state = rxe_mem_atomic_open(qp, mr, iova, &opened, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_op(&dma, addr, opcode, compare, swap_add,
				    orig_val);
	rxe_mem_page_close(&opened);
	return state;
}

/* rxe_mr_do_atomic_write() for an MR that is paged on demand */
enum resp_states rxe_mem_atomic_write(struct rxe_qp *qp, struct rxe_mr *mr,
				      u64 iova, u64 value)
{
	struct rxe_mr dma = {};
	enum resp_states state;
	struct rxe_mem_opened opened;
	u64 addr;

	state = rxe_mem_atomic_open(qp, mr, iova, &opened, &dma, &addr);
	if (state)
		return state;
	state = rxe_mr_do_atomic_write(&dma, addr, value);
	rxe_mem_page_close(&opened);
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
	struct rxe_mem_opened opened;
	int err;

	err = rxe_mem_page_open(mr, iova, false, &opened);
	if (err)
		return err;
	if (rxe_mem_atomic_is_pmem(opened.page))
		arch_wb_cache_pmem(page_address(opened.page) + offset, bytes);
	else
		err = -EINVAL;
	rxe_mem_page_close(&opened);
	return err;
}

/*
 * rxe_flush_pmem_iova() for any MR. After waiting for a page, a flush continues at
 * that page: restarting from the beginning would visit n * n / 2 pages for n absent
 * pages.
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
