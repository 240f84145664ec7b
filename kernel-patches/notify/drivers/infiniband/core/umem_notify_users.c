// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The functions of this file check whether the word of a registration counts users (@in_use),
 * and suspend a registration without users.
 *
 * Using a registration changes no list. A scan detects that the registration was used,
 * because the application's bits of the word have changed since the last scan.
 *
 * A SUSPENSION AND AN EVENT
 *
 * A suspension and an event both hold the space's lock. UNMAP and RELEASE turn SUSPENDED
 * into INVALID, and an INVALID tracker is never suspended. CLEAR and MIGRATE do not change
 * the word of a suspended tracker, because it no longer matters which pages the range maps.
 * But the pages stay pinned until the tracker is retired, and a settle may come first. So
 * these events still add to @suspects:
 *
 *   shrinker           another thread     settle
 *   state = SUSPENDED
 *                      @suspects has P;
 *                      replaces P
 *                                         the pages are still pinned: keeps them;
 *                                         @suspects is not empty: state = SUSPECT,
 *                                         and compares
 *
 * A thread that is comparing pages may have taken @suspects. The thread holds the tracker's mutex,
 * and retires the suspended tracker before it releases the mutex. So a later settle finds the
 * pages unpinned.
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
 * A tracker is unused if it has no word or no @in_use bits, or if its address space has ended.
 */
bool umem_notify_is_used(const struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	return n->word.page && n->in_use && umem_notify_word_read(n) & n->in_use &&
	       atomic_read(&n->umem->owning_mm->mm_users);
}

/**
 * umem_notify_is_idle - May the VM take the pages of a tracker?
 * @n: The tracker, its space's lock held
 */
bool umem_notify_is_idle(const struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	return n->reclaim && !n->held && !(n->state & (INVALID | SUSPENDED)) && n->word.page &&
	       !(umem_notify_word_read(n) & n->in_use);
}

/**
 * umem_notify_unused_for - Was a registration unused for some time?
 * @n: The tracker, its space's lock held; it has a word
 * @time: The time before this scan, in jiffies
 *
 * The time of a use is the time of the first scan after the use.
 */
bool umem_notify_unused_for(struct ib_umem_notify *n, u32 time)
{
	u64 word = umem_notify_word_read(n);
	u16 seen = users_hash(word);

	umem_notify_assert_locked(n);

	if (word & n->in_use || seen != n->word.lru_hash) {
		n->word.lru_hash = seen;
		n->word.lru_time = jiffies;
	}
	return (u32)jiffies - n->word.lru_time >= time;
}

/**
 * umem_notify_first_scan - Start recording the uses of a registration that got pages
 * @n: The tracker, its space's lock held; it has a word
 * @used: true if the next scan has to count the registration as used
 */
void umem_notify_first_scan(struct ib_umem_notify *n, bool used)
{
	umem_notify_assert_locked(n);

	n->word.lru_hash = users_hash(umem_notify_word_read(n)) ^ (used ? U16_MAX : 0);
	n->word.lru_time = (u32)jiffies - UMEM_NOTIFY_SCANS_APART;
}

/* @n must be armed. */
bool umem_notify_can_restore(const struct ib_umem_notify *n)
{
	return n->mr->device->ops.restore_user_mr;
}

/**
 * umem_notify_suspend - Suspend a registration if it is idle
 * @n: The tracker, its space's lock held; the caller has to retire it next
 *
 * The bit is set by a compare-and-swap of the whole word. If the word were read first and
 * the bit set afterwards, a transfer could fail:
 *
 *   shrinker                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= SUSPENDED
 *   revokes                               [its transfer fails]
 *
 * The application takes a reference by an atomic addition that returns the old value. So
 * either the reference or the suspension comes first:
 *
 *   word & in_use is 0
 *                                         adds a reference: valid
 *   compare-and-swap fails: not suspended
 *
 *   compare-and-swap
 *                                         adds a reference, sees SUSPENDED: settles
 *
 * Return: true if the registration was idle, and is suspended now.
 */
bool umem_notify_suspend(struct ib_umem_notify *n)
{
	u8 bit;
	u64 word;

	if (!umem_notify_is_idle(n))
		return false;
	word = umem_notify_word_read(n);
	bit = umem_notify_can_restore(n) ? SUSPENDED : INVALID;
	if (word & n->in_use || !umem_notify_word_cmpxchg(n, word, (word & ~(u64)SUSPECT) | bit))
		return false;
	n->state = bit;
	if (bit == INVALID)
		umem_notify_word_count(n);
	umem_notify_count(n, bit == SUSPENDED ? IB_MR_NOTIFY_STAT_SUSPENSIONS :
						IB_MR_NOTIFY_STAT_INVALID, 1);
	trace_mr_notify_suspend(n, 0);
	return true;
}
