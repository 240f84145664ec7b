// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in siw.
 *
 * Receiving copies into an MR's pages in softirq; sending copies out of them in
 * process context, or hands them to TCP. siw checks a key when a DDP segment or
 * a work request starts, which is not enough:
 *
 *   softirq                               revoke
 *   siw_check_mem(): valid
 *                                         stag_valid = 0
 *                                         pages unpinned, given to another
 *   skb_copy_bits() into the page         [writes another owner's memory]
 *
 * So each copy runs under revoke_lock, which revoking takes for writing:
 *
 *   read_lock_bh; revoked? no; copy
 *                                         write_lock_bh: waits
 *   read_unlock_bh
 *                                         revoked = 1; write_unlock_bh
 *                                         pages unpinned
 *   read_lock_bh; revoked? yes: refused
 *
 * A send can't keep the lock, because TCP sleeps:
 *
 *   siw_tx_hdt()                          revoke
 *   page P, revoked? no
 *                                         revoked = 1
 *                                         P unpinned, freed, another's
 *   TCP copies P                          [sends another owner's memory]
 *
 * It takes a reference to each page instead, under revoke_lock, and drops it
 * when TCP has copied the page or has a reference of its own (zero copy). P is
 * given to no other owner before. So data that TCP was given before the revoke
 * is still sent, or sent again, with the contents of P by then; nothing is
 * given to it after the revoke.
 *
 * stag_valid can't take the place of revoked: registering a key anew sets it
 * again. Nor can the reference count of the siw_mem, which a work request holds
 * for as long as the peer does not read from its socket. It may even drop the
 * last one, in softirq, where no notifier can be removed and no dirty page be
 * unpinned:
 *
 *   siw_dereg_mr()                        softirq
 *   siw_mem_put(): not the last one
 *                                         work request completes
 *                                         siw_mem_put(): the last one
 *                                         ib_umem_release()    [may not sleep]
 *
 * So deregistration takes the pages away and releases the umem itself, in
 * process context. The last reference frees siw's own memory only.
 *
 * revoke_lock is a leaf, and no thread takes it twice. Softirqs take it for
 * reading, so its holders keep them off.
 */

#include <rdma/ib_umem.h>

#include "siw.h"
#include "siw_mem.h"
#include "siw_mr_notify.h"

static void revoke(struct siw_mem *mem)
{
	write_lock_bh(&mem->revoke_lock);
	mem->stag_valid = 0;
	mem->revoked = 1;
	write_unlock_bh(&mem->revoke_lock);
}

struct ib_umem *siw_mr_umem(struct ib_mr *ibmr)
{
	struct siw_mem *mem = to_siw_mr(ibmr)->mem;

	return siw_is_user_mem(mem) ? mem->umem->base_mem : NULL;
}

/**
 * siw_revoke_user_mr - Take the pages of an MR away from the device
 * @ibmr: A user MR
 *
 * The STag stays reserved. Until it is restored a remote access through it ends the
 * connection with a TERMINATE message that names the STag as the reason, and a
 * local one ends it with a local protection error.
 *
 * Context: Process context; waits for the copy of at most one DDP segment.
 *
 * Return: 0. When it returns nothing writes to the pages any more, and nothing
 * reads them but TCP, to send data that it was given before.
 */
int siw_revoke_user_mr(struct ib_mr *ibmr)
{
	revoke(to_siw_mr(ibmr)->mem);
	return 0;
}

/**
 * siw_restore_user_mr - Give a revoked MR the pages that its umem has now
 * @ibmr: A user MR, and as many pages as before
 *
 * No copy looks at the list of pages while the MR is revoked, so it is filled
 * without the lock.
 *
 * Context: Process context.
 *
 * Return: 0.
 */
int siw_restore_user_mr(struct ib_mr *ibmr)
{
	struct siw_mem *mem = to_siw_mr(ibmr)->mem;
	struct siw_umem *umem = mem->umem;
	struct sg_page_iter iter;
	unsigned int i = 0;

	for_each_sgtable_page(&umem->base_mem->sgt_append.sgt, &iter, 0) {
		umem->page_chunk[i >> CHUNK_SHIFT].plist[i & ~CHUNK_MASK] =
			sg_page_iter_page(&iter);
		i++;
	}

	write_lock_bh(&mem->revoke_lock);
	mem->stag_valid = 1;
	mem->revoked = 0;
	write_unlock_bh(&mem->revoke_lock);
	return 0;
}

/**
 * siw_mem_release_umem - Give the pages back when a registration ends
 * @mem: The memory object, which can't be looked up any more; work requests may
 *	 still refer to it
 *
 * Context: Process context, may sleep.
 */
void siw_mem_release_umem(struct siw_mem *mem)
{
	if (!siw_is_user_mem(mem))
		return;
	revoke(mem);
	ib_umem_release(mem->umem->base_mem);
	mem->umem->base_mem = NULL;
}
