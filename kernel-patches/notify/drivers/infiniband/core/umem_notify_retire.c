// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The end of a registration that is INVALID or SUSPENDED: the device loses its
 * access, and the pages go back.
 *
 * USERS OF THE WORD
 *
 * An application that counts its users in the word names the bits (@in_use).
 * Then INVALID is told at once, but the device keeps the pages while the
 * registration is in use: the part of it that a transfer reads may be intact.
 *
 *   retire()                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= INVALID
 *   revokes                               [its transfer fails]
 *
 * The word says INVALID before it is read, and a reference is taken by an
 * atomic addition that returns the word before:
 *
 *   word |= INVALID
 *                                         adds a reference, sees INVALID: gives
 *                                         it back, and registers anew
 *   word & in_use is 0: revokes
 *
 *                                         adds a reference: valid
 *   word |= INVALID
 *   word & in_use is not 0: later
 *
 * All are atomic operations on one word, so an addition that the read does not
 * see comes after INVALID. The read comes after INVALID, as both are under the lock.
 *
 * The kernel is not told when the last reference goes. The last user sees INVALID
 * in the same instruction and deregisters. For a user that does not, the worker reads
 * the word again, after 20 ms, 40 ms, and so on to some seconds, and so does every
 * settle and, soon, every event; until the address space has no users any more. The
 * word keeps its page until then.
 *
 * DIRTY PAGES
 *
 * The device may have written to the pages of a writable MR, and nothing but PG_dirty
 * says so. ib_umem_release() marks them, with the folio's lock, for which an unmap, a
 * fork or a task in reclaim could not wait. A page that can be pinned for long for
 * writing is anonymous, of shmem or of hugetlbfs, or of a file system that never writes it
 * back: to mark such a page is to set its bit, and takes no lock.
 *
 * The user of an idle registration may have given the memory back by MADV_FREE. Without
 * a cache the registration had ended before, and the pages are dropped when memory is
 * short. To mark them when they are unpinned would undo that. So the pages of a
 * registration that the VM may have are marked when they are pinned, and not again:
 * only MADV_FREE makes a pinned page clean, and that is an event.
 *
 *  - It finds the word in use: the device may write to the page later. All pages are
 *    marked when they are unpinned (@written).
 *  - It finds the word idle: SUSPECT. The next user settles, which marks the pages that
 *    are intact: MADV_FREE is undone, as by a new registration.
 *  - There is no next user: the worker suspends the registration, and the page stays clean.
 */

#include <linux/mm.h>

#include "umem_notify.h"
#include "umem_notify_compat.h"
#include "umem_notify_trace.h"

/* Not for good: a window is bound to it, the device is in reset, no memory just now */
static bool is_for_now(int err)
{
	return err && err != -EOPNOTSUPP && err != -EIO;
}

/**
 * umem_notify_mark_dirty - The device may write to the pages of a umem, or has
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
 * @n: The tracker, taken or ended; the device has lost them
 * @marked: Whether they were marked dirty when they were pinned
 *
 * Context: Any but interrupts; does not sleep.
 */
void umem_notify_unpin(struct ib_umem_notify *n, bool marked)
{
	struct ib_umem *umem = n->umem;
	bool writable = umem->writable;

	if (!marked || n->written)
		umem_notify_mark_dirty(umem);
	umem->writable = false; /* or the others were marked now */
	ib_umem_give_back(umem);
	umem->writable = writable;
}

/**
 * umem_notify_retires_at_once - May a tracker be retired where nobody may sleep?
 * @n: The tracker, armed, its space's lock held
 */
bool umem_notify_retires_at_once(const struct ib_umem_notify *n)
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
		if (is_for_now(ret))
			return ret;
		ibdev_err_ratelimited(device, "MR %u can't be revoked, its pages stay pinned\n",
				      n->mr->res.id);
		scoped_guard(umem_notify, n)
			n->refused = true;
		return ret;
	}
	umem_notify_unpin(n, n->reclaim);
	scoped_guard(umem_notify, n) {
		n->revoked = true;
		n->written = false;
	}
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_REVOKES, 1);
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_PAGES, umem_notify_pages(n));
	trace_mr_notify_revoke(n, 0);
	return 0;
}

/**
 * umem_notify_take_word - Leave the word of a tracker alone from now on
 * @n: The tracker, its space's lock held
 *
 * Return: The word's page, to be given to umem_notify_word_put(), or NULL.
 */
struct umem_notify_word_page *umem_notify_take_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page = n->word_page;

	umem_notify_assert_locked(n);

	n->word_page = NULL;
	n->in_use = 0;
	return word_page;
}

static void retire_word(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;

	scoped_guard(umem_notify, n)
		word_page = umem_notify_take_word(n);
	umem_notify_word_put(word_page, n->word);
}

/**
 * umem_notify_retire - Once INVALID or SUSPENDED, the device loses the pages
 * @n: The tracker, its mutex held
 *
 * Of INVALID the word has heard it all, then.
 *
 * Return: Whether it has to be tried again, because the word is in use, or the device
 * can't just now.
 */
bool umem_notify_retire(struct ib_umem_notify *n)
{
	bool can_revoke, wait, busy;
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
		umem_notify_word_signal(n);
	if (wait)
		return true;

	busy = can_revoke && is_for_now(revoke(n));
	if (state == INVALID) {
		retire_word(n);
		return busy;
	}
	if (n->revoked)
		return false;
	/* The driver's state of the MR is unknown: it is not offered again. */
	guard(umem_notify)(n);
	umem_notify_mark_invalid(n);
	return true;
}
