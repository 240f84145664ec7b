// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The users of a registration, which its word counts (@in_use), and its suspension while
 * it has none.
 *
 * A use of a registration touches no list. Whether one was shows in its word: application
 * bits that are not those of the last look were changed in between.
 *
 * A SUSPENSION AGAINST AN EVENT
 *
 * Both are under @lock. UNMAP and RELEASE turn SUSPENDED into INVALID, and a
 * tracker that is INVALID is not suspended. CLEAR and MIGRATE leave the word
 * alone, as the mapping of the range does not matter any more. But the pages
 * are there until they are unpinned, and settle may come first; so these
 * events leave their doubt all the same:
 *
 *   shrinker           another thread     settle
 *   state = SUSPENDED
 *                      @doubt has P;
 *                      replaces P
 *                                         the pages are still pinned: keeps them;
 *                                         @doubt is not empty: state = SUSPECT,
 *                                         and looks
 *
 * A look that is under way may have taken a doubt. The looking thread has the tracker,
 * and retires it before another settle comes: then the pages have gone.
 */

#include <linux/hash.h>
#include <linux/mm.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

static u16 users_hash(u64 word)
{
	return hash_64(word & ~(u64)IB_UVERBS_MR_NOTIFY_KERNEL_MASK, 16);
}

/**
 * umem_notify_is_used - Does the word of a tracker say that it is in use?
 * @n: The tracker, its space's lock held
 *
 * Without a word, a count or an address space nobody says so.
 */
bool umem_notify_is_used(const struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	return n->word_page && n->in_use && umem_notify_word_read(n) & n->in_use &&
	       atomic_read(&n->umem->owning_mm->mm_users);
}

/**
 * umem_notify_is_idle - Has the VM a claim to the pages of a tracker?
 * @n: The tracker, its space's lock held
 */
bool umem_notify_is_idle(const struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	return n->reclaim && !n->held && !(n->state & (INVALID | SUSPENDED)) && n->word_page &&
	       !(umem_notify_word_read(n) & n->in_use);
}

/**
 * umem_notify_unused_for - Was a registration not used for a while?
 * @n: The tracker, its space's lock held, its word known
 * @time: For how many jiffies before this look
 *
 * A use in between is dated to the look that finds it.
 */
bool umem_notify_unused_for(struct ib_umem_notify *n, u32 time)
{
	u64 word = umem_notify_word_read(n);
	u16 seen = users_hash(word);

	umem_notify_assert_locked(n);

	if (word & n->in_use || seen != n->lru_hash) {
		n->lru_hash = seen;
		n->lru_time = jiffies;
	}
	return (u32)jiffies - n->lru_time >= time;
}

/**
 * umem_notify_first_look - A registration has pages, and has not been looked at
 * @n: The tracker, its space's lock held, its word known
 * @used: Whether the next look finds that it was used
 */
void umem_notify_first_look(struct ib_umem_notify *n, bool used)
{
	umem_notify_assert_locked(n);

	n->lru_hash = users_hash(umem_notify_word_read(n)) ^ (used ? U16_MAX : 0);
	n->lru_time = (u32)jiffies - UMEM_NOTIFY_LOOKS_APART;
}

/* While it is armed */
bool umem_notify_can_restore(const struct ib_umem_notify *n)
{
	return n->mr->device->ops.restore_user_mr;
}

/**
 * umem_notify_suspend - An idle registration has no pages any more
 * @n: The tracker, its space's lock held; it has to be retired next
 *
 * The bit is set by a compare-and-swap of the whole word. To read the word and then to
 * set the bit loses:
 *
 *   shrinker                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= SUSPENDED
 *   revokes                               [its transfer fails]
 *
 * A reference is taken by an atomic addition that returns the word before, so one of the
 * two is first:
 *
 *   word & in_use is 0
 *                                         adds a reference: valid
 *   compare-and-swap fails: it stays
 *
 *   compare-and-swap
 *                                         adds a reference, sees SUSPENDED: settles
 *
 * Return: Whether it was idle.
 */
bool umem_notify_suspend(struct ib_umem_notify *n)
{
	u8 bit;
	u64 word;

	if (!umem_notify_is_idle(n))
		return false;
	word = umem_notify_word_read(n);
	bit = umem_notify_can_restore(n) ? SUSPENDED : INVALID;
	if (word & n->in_use ||
	    !umem_notify_word_cmpxchg(n, word, (word & ~(u64)SUSPECT) | bit))
		return false;
	n->state = bit;
	if (bit == INVALID)
		umem_notify_word_tell(n);
	umem_notify_counted(n, bit == SUSPENDED ? IB_MR_NOTIFY_STAT_SUSPENSIONS :
						  IB_MR_NOTIFY_STAT_INVALID, 1);
	trace_mr_notify_suspend(n, 0);
	return true;
}
