/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Accesses of the device to one page of the registering process, see
 * rxe_mem_page.c.
 */
#ifndef RXE_MEM_PAGE_H
#define RXE_MEM_PAGE_H

int rxe_mem_page_enter(struct mm_struct *mm);
void rxe_mem_page_leave(struct mm_struct *mm);
bool rxe_mem_page_take_on(struct mm_struct *mm);
bool rxe_mem_page_may_access(struct vm_area_struct *vma, bool write);
bool rxe_mem_page_is_file(struct folio *folio);
struct page *rxe_mem_page_lookup(unsigned long addr, bool write);
int rxe_mem_page_get(struct rxe_mem_mr *odp, unsigned long addr, bool write,
		     struct page **page);
void rxe_mem_page_release(struct page *page, bool write);

static inline unsigned long rxe_mem_addr(struct rxe_mr *mr, u64 iova)
{
	return mr->odp->start + (iova - mr->ibmr.iova);
}

static inline long rxe_mem_gup(struct mm_struct *mm, unsigned long addr,
			       bool write, unsigned int flags,
			       struct page **page, int *locked)
{
	if (write)
		return pin_user_pages_remote(mm, addr, 1, flags | FOLL_WRITE,
					     page, locked);
	return get_user_pages_remote(mm, addr, 1, flags, page, locked);
}

static inline void rxe_mem_put_page(struct page *page, bool write)
{
	if (write)
		unpin_user_page(page);
	else
		put_page(page);
}

#endif /* RXE_MEM_PAGE_H */
