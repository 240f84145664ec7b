// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Retiring a tracker that is INVALID or SUSPENDED: the driver revokes the device's
 * access, and the pages are unpinned.
 *
 * USERS OF THE WORD
 *
 * An application that counts its users in the word names the bits (@in_use). An event
 * still sets INVALID immediately, but the device keeps the pages while the registration
 * is in use, because the pages of a running transfer may be intact. If the kernel read
 * the word before it set INVALID, a transfer could fail:
 *
 *   retire()                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= INVALID
 *   revokes                               [its transfer fails]
 *
 * So the kernel sets INVALID before it reads the word, and the application takes a
 * reference by an atomic addition that returns the old value:
 *
 *   word |= INVALID
 *                                         adds a reference, sees INVALID: gives
 *                                         it back, and registers again
 *   word & in_use is 0: revokes
 *
 *                                         adds a reference: valid
 *   word |= INVALID
 *   word & in_use is not 0: tries later
 *
 * The kernel first sets INVALID and then reads the word, both under the lock. The
 * addition, too, is an atomic operation on this word. So an addition that the read does
 * not see comes after INVALID.
 *
 * The kernel does not learn when the last reference is dropped. The last user sees
 * INVALID in the instruction that drops the reference, and should deregister. As long as
 * the word is in use, the worker reads it again after 20 ms, 40 ms and so on, up to
 * 2.56 s. Each settle reads the word, too, and each event makes the worker read it soon.
 * The worker stops when the address space ends. Until then the page of the word stays
 * pinned.
 *
 * DIRTY PAGES
 *
 * The device may have written to the pages of a writable MR, and only PG_dirty records
 * this. ib_umem_release() sets PG_dirty under the folio's lock, but an unmap, a fork or a
 * task in reclaim can't wait for this lock. A page with a long-term pin for writing is an
 * anonymous page, or belongs to shmem, hugetlbfs, or a file system that never writes it
 * back. For such a page it is enough to set PG_dirty, without the lock.
 *
 * The user of an idle registration may have freed the memory by MADV_FREE. Without a cache
 * the registration would have ended before MADV_FREE, and the VM could drop the pages when
 * memory is short. If unpinning set PG_dirty, the VM could not drop the pages. So for a
 * registration whose pages the VM may take, PG_dirty is set when the pages are pinned, and
 * not when they are unpinned. Only MADV_FREE makes a pinned page clean, and MADV_FREE is an
 * event:
 *
 *  - If the event finds the word in use, the device may write to the page later. So all
 *    pages are marked dirty when they are unpinned (@written).
 *  - If the event finds the word idle, the tracker becomes SUSPECT. The next user
 *    settles, and settling marks the intact pages dirty. This undoes MADV_FREE, as a new
 *    registration would.
 *  - If there is no next user, the worker suspends the tracker, and the page stays clean.
 */

#include <linux/mm.h>

#include "umem_notify.h"
#include "umem_notify_compat.h"
#include "umem_notify_trace.h"

/* May the call succeed later, for example if a window is bound, or the device is in reset? */
static bool is_temporary(int err)
{
	return err && err != -EOPNOTSUPP && err != -EIO;
}

/**
 * umem_notify_mark_dirty - Mark the pages of a writable umem dirty
 * @umem: The umem, pinned
 *
 * Context: Any; does not sleep.
 */
void umem_notify_mark_dirty(struct ib_umem *umem)
{
	struct scatterlist *sg;
	unsigned long nr, done;
	struct folio *folio;
	struct page *page;
	unsigned int i;

	if (!umem->writable)
		return;
	for_each_sgtable_sg(&umem->sgt_append.sgt, sg, i) {
		nr = DIV_ROUND_UP(sg->length, PAGE_SIZE);
		for (done = 0; done < nr;
		     done += folio_nr_pages(folio) - folio_page_idx(folio, page)) {
			page = nth_page(sg_page(sg), done);
			folio = page_folio(page);
			if (!folio_test_dirty(folio))
				folio_set_dirty(folio);
		}
	}
}

/**
 * umem_notify_unpin - Unpin the pages of a tracker
 * @n: The tracker: its mutex is held, or it has ended. The device can't access the pages
 *
 * Context: Any but interrupts; does not sleep.
 */
void umem_notify_unpin(struct ib_umem_notify *n)
{
	struct ib_umem *umem = n->umem;
	bool writable = umem->writable;

	if (!n->reclaim || n->written)
		umem_notify_mark_dirty(umem);
	umem->writable = false; /* so that ib_umem_give_back() does not mark the pages dirty */
	ib_umem_give_back(umem);
	umem->writable = writable;
}

/**
 * umem_notify_retires_atomically - Can a tracker be retired in a context that must not sleep?
 * @n: The tracker, armed, its space's lock held
 */
bool umem_notify_retires_atomically(const struct ib_umem_notify *n)
{
	return n->mr->device->ops.revoke_is_atomic && !n->refused;
}

static int revoke(struct ib_umem_notify *n)
{
	struct ib_device *device = n->mr->device;
	int ret;

	ret = device->ops.revoke_user_mr(n->mr);
	if (ret) {
		trace_mr_notify_revoke(n, ret);
		if (is_temporary(ret))
			return ret;
		ibdev_err_ratelimited(device, "MR %u can't be revoked, its pages stay pinned\n",
				      n->mr->res.id);
		scoped_guard(umem_notify, n)
			n->refused = true;
		return ret;
	}
	umem_notify_unpin(n);
	scoped_guard(umem_notify, n) {
		n->revoked = true;
		n->written = false;
	}
	umem_notify_count(n, IB_MR_NOTIFY_STAT_REVOKES, 1);
	umem_notify_count(n, IB_MR_NOTIFY_STAT_PAGES, umem_notify_pages(n));
	trace_mr_notify_revoke(n, 0);
	return 0;
}

/**
 * umem_notify_take_word - Take the word from a tracker
 * @n: The tracker, its space's lock held
 *
 * Return: The word, which the caller gives to umem_notify_word_put(). It may have no page.
 */
struct umem_notify_word umem_notify_take_word(struct ib_umem_notify *n)
{
	struct umem_notify_word word = n->word;

	umem_notify_assert_locked(n);

	n->word = (struct umem_notify_word){};
	n->in_use = 0;
	return word;
}

/**
 * umem_notify_retire - Revoke and unpin a tracker that is INVALID or SUSPENDED
 * @n: The tracker, its mutex held
 *
 * An INVALID tracker also releases its word. But if the driver can revoke and the word is
 * in use, the revoke and the release of the word have to wait.
 *
 * Return: true if the caller has to try again, because the word is in use, or the
 * driver failed for the moment.
 */
bool umem_notify_retire(struct ib_umem_notify *n)
{
	bool can_revoke, wait, busy;
	struct umem_notify_word word;
	u8 state;

	lockdep_assert_held(&n->mutex);

	if (!n->mr || n->held)
		return false;
	can_revoke = n->mr->device->ops.revoke_user_mr && !n->revoked && !n->refused;
	scoped_guard(umem_notify, n) {
		state = n->state;
		wait = state == INVALID && can_revoke && umem_notify_is_used(n);
	}
	if (!(state & (INVALID | SUSPENDED)))
		return false;
	if (state == INVALID)
		umem_notify_word_signal(n->word.listener);
	if (wait)
		return true;

	busy = can_revoke && is_temporary(revoke(n));
	if (state == INVALID) {
		scoped_guard(umem_notify, n)
			word = umem_notify_take_word(n);
		umem_notify_word_put(&word);
		return busy;
	}
	if (n->revoked)
		return false;
	/* After a failed revoke the driver's state of the MR is unknown: don't restore the MR. */
	guard(umem_notify)(n);
	umem_notify_mark_invalid(n);
	return true;
}
