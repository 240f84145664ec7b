/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Taking a user MR away from siw, siw_revoke_user_mr(), giving it back,
 * siw_restore_user_mr(), the guard under which siw looks at an MR's pages, and
 * the pages that a send holds.
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
 * CLASS(siw_mem_pages, held)(mem): until the end of the scope the pages of
 * @mem are its own; NULL if they were given back. Nothing in it sleeps.
 */
DEFINE_CLASS(siw_mem_pages, struct siw_mem *, siw_mem_pages_leave(_T),
	     siw_mem_pages_enter(mem), struct siw_mem *mem)

/*
 * Those pages of @page that a send holds until TCP has copied them or has taken
 * references of its own. Declared with __cleanup(siw_tx_put).
 */
struct siw_tx_pages {
	struct page **page;
	unsigned long held; /* bit i: page[i] */
};

/*
 * Hold the page of @mem at a user address as number @i. NULL if there is none,
 * or it was given back. A page that is looked up before the guard is entered
 * may be another owner's by then:
 *
 *   a send                                the owner
 *   looks up page P
 *                                         revoked: P is given back and freed
 *                                         restored, with other pages
 *   not revoked: holds P
 *
 * (The pages of a kernel client are the client's to keep, as ever.)
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
