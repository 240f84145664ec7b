// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in siw.
 *
 * siw receives into an MR's pages in softirq. siw sends in process context: it
 * copies the pages, or passes them to TCP. siw checks a key only when a DDP
 * segment or a work request starts. This leaves a race:
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
 *                                         P unpinned, freed, reused
 *   TCP copies P                          [sends another owner's memory]
 *
 * So a send takes a reference to each page under revoke_lock, and drops it when
 * TCP has copied the page or has its own reference (zero copy). Until then P gets
 * no other owner. TCP still sends, or sends again, the data that it got before the
 * revoke, with the content that P has at that time. After the revoke TCP gets no
 * data of the MR.
 *
 * stag_valid can't replace the flag revoked, because registering the key again
 * sets stag_valid. The reference count of the siw_mem can't replace revoked,
 * because a work request holds a reference until the peer reads from its socket.
 * A softirq may even drop the last reference, and a softirq must not remove a
 * notifier or unpin a dirty page:
 *
 *   siw_dereg_mr()                        softirq
 *   siw_mem_put(): not the last one
 *                                         work request completes
 *                                         siw_mem_put(): the last one
 *                                         ib_umem_release()    [must not sleep]
 *
 * So deregistration revokes the MR and releases the umem itself, in process
 * context. The last reference frees siw's own memory only.
 *
 * revoke_lock is a leaf, and no thread takes it twice. Softirqs take it for
 * reading, so its holders disable softirqs.
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
 * siw_revoke_user_mr - End the device's access to the pages of an MR
 * @ibmr: A user MR
 *
 * The STag stays reserved. Until the MR is restored, a remote access through the
 * STag ends the connection with a TERMINATE message that names the STag as the
 * reason. A local access ends the connection with a local protection error.
 *
 * Context: Process context; waits for the copy of at most one DDP segment.
 *
 * Return: 0. After the return siw does not write to the pages. Only TCP may still
 * read them, to send data that it got before.
 */
int siw_revoke_user_mr(struct ib_mr *ibmr)
{
	revoke(to_siw_mr(ibmr)->mem);
	return 0;
}

/**
 * siw_restore_user_mr - Let a revoked MR use the current pages of its umem
 * @ibmr: A user MR, with as many pages as before
 *
 * While the MR is revoked, siw copies nothing from or to the MR. So this function
 * fills the list of pages without the lock.
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
 * siw_mem_release_umem - Release the pages when a registration ends
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
