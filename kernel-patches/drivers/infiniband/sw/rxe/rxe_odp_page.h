/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * One page of the registering process, as a device reads or writes it, see
 * rxe_odp_page.c.
 */
#ifndef RXE_ODP_PAGE_H
#define RXE_ODP_PAGE_H

#include "rxe_odp_pool.h"

struct rxe_odp_opened {
	struct page		*page;
	struct mm_struct	*mm;	/* NULL: not entered */
	bool			write;
};

int rxe_odp_page_enter(struct mm_struct *mm);
void rxe_odp_page_leave(struct mm_struct *mm);
bool rxe_odp_page_take_on(struct mm_struct *mm);
bool rxe_odp_page_may_access(struct vm_area_struct *vma, bool write);
bool rxe_odp_page_is_file(struct folio *folio);
struct page *rxe_odp_page_look(unsigned long addr, bool write);
int rxe_odp_page_get(struct rxe_odp_mr *odp, unsigned long addr, bool write,
		     struct page **page);
void rxe_odp_page_release(struct page *page, bool write);
int rxe_odp_page_open(struct rxe_mr *mr, u64 iova, bool write,
		      struct rxe_odp_opened *opened);
void rxe_odp_page_close(struct rxe_odp_opened *opened);

static inline unsigned long rxe_odp_addr(struct rxe_mr *mr, u64 iova)
{
	return mr->odp->start + (iova - mr->ibmr.iova);
}

static inline long rxe_odp_gup(struct mm_struct *mm, unsigned long addr,
			       bool write, unsigned int flags,
			       struct page **page, int *locked)
{
	if (write)
		return pin_user_pages_remote(mm, addr, 1, flags | FOLL_WRITE,
					     page, locked);
	return get_user_pages_remote(mm, addr, 1, flags, page, locked);
}

static inline void rxe_odp_put_page(struct page *page, bool write)
{
	if (write)
		unpin_user_page(page);
	else
		put_page(page);
}

#endif /* RXE_ODP_PAGE_H */
