/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Revoking a user MR of siw (siw_revoke_user_mr()), restoring it
 * (siw_restore_user_mr()), the guard for accesses to the pages of an MR, and the
 * pages that a send holds.
 */
#ifndef SIW_MR_NOTIFY_H
#define SIW_MR_NOTIFY_H

#include <linux/bitops.h>
#include <linux/cleanup.h>
#include <linux/mm.h>

#include "siw.h"
#include "siw_mem.h"

struct ib_umem *siw_mr_umem(struct ib_mr *ibmr);
int siw_revoke_user_mr(struct ib_mr *ibmr);
int siw_restore_user_mr(struct ib_mr *ibmr);
void siw_mem_release_umem(struct siw_mem *mem);

static inline bool siw_is_user_mem(const struct siw_mem *mem)
{
	return mem->mem_obj && !mem->is_pbl;
}

static inline struct siw_mem *siw_mem_pages_enter(struct siw_mem *mem)
{
	read_lock_bh(&mem->revoke_lock);
	if (likely(!mem->revoked))
		return mem;
	read_unlock_bh(&mem->revoke_lock);
	return NULL;
}

static inline void siw_mem_pages_leave(struct siw_mem *mem)
{
	if (mem)
		read_unlock_bh(&mem->revoke_lock);
}

/*
 * CLASS(siw_mem_pages, held)(mem): @mem keeps its pages until the end of the
 * scope. @held is NULL if the pages were unpinned. The scope does not sleep.
 */
DEFINE_CLASS(siw_mem_pages, struct siw_mem *, siw_mem_pages_leave(_T),
	     siw_mem_pages_enter(mem), struct siw_mem *mem)

/*
 * The pages in @page that a send holds until TCP has copied them or has its own
 * references. Declared with __cleanup(siw_tx_put).
 */
struct siw_tx_pages {
	struct page **page;
	unsigned long held; /* bit i: page[i] */
};

/*
 * Hold the page at a user address in @mem, as page[@i]. Return: NULL if there is no
 * page, or if the page was unpinned. The look-up must be inside the guard:
 *
 *   a send                                the owner
 *   looks up page P
 *                                         MR revoked: P is unpinned, freed
 *                                         MR restored, with other pages
 *   not revoked: holds P                  [P has another owner]
 *
 * (A kernel client keeps its own pages.)
 */
static inline struct page *siw_tx_hold(struct siw_tx_pages *pages, int i,
				       struct siw_mem *mem, u64 addr)
{
	struct page *page;

	CLASS(siw_mem_pages, held)(mem);
	if (!held)
		return NULL;
	page = siw_get_upage(mem->umem, addr);
	if (!page)
		return NULL;
	get_page(page);
	pages->page[i] = page;
	pages->held |= BIT(i);
	return page;
}

static inline void siw_tx_put(struct siw_tx_pages *pages)
{
	unsigned int i;

	for_each_set_bit(i, &pages->held, BITS_PER_LONG)
		put_page(pages->page[i]);
}

#endif /* SIW_MR_NOTIFY_H */
