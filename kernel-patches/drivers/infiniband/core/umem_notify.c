// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The tracker of a umem: knows whether the registered range still maps the
 * pinned pages, and says so in a word of user memory. Here are its life and its
 * arming; see umem_notify_tracker.h for the other files.
 *
 * A tracker is put into the tree of its address space either before the driver pins
 * the first page (IB_UVERBS_ACCESS_TRACK), or when the MR is armed. It stays until
 * the umem is released.
 *
 * Pinning first and watching later loses the changes in between:
 *
 *   ibv_reg_mr, then arm                  another thread
 *   pins page P
 *                                         munmap: unmaps P
 *                                         mmap: maps Q there
 *   the tracker is in the tree
 *   word = 0                              [never told: P stays registered]
 *
 * So the tracker is there before the pages, and is SUSPECT if an event is under way
 * then (umem_notify_space.c); or the whole range is SUSPECT from the start.
 *
 * Nothing here waits for an invalidation but a settle, nor for another process or
 * device. The mutex of a tracker is held by a call of the owner's process for as long
 * as that takes, and by a worker while it compares pages, for some pages at most once
 * another caller wants it (@hurry), or while the device takes the MR away.
 */

#include <linux/mm.h>
#include <linux/slab.h>

#include "umem_notify_tracker.h"
#include "umem_notify_trace.h"

/* In the place of a tracker that has ended: the pages are given back. */
#define UMEM_NOTIFY_REVOKED ERR_PTR(-EIO)

/* The tracker of a umem, or NULL. */
static struct ib_umem_notify *umem_notify_find(const struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	return IS_ERR(n) ? NULL : n;
}

/* For a caller that must not wait long: a worker that looks lets go soon. */
static void umem_notify_take(struct ib_umem_notify *n)
{
	WRITE_ONCE(n->hurry, true);
	mutex_lock(&n->mutex);
	WRITE_ONCE(n->hurry, false);
}

/* When ib_uverbs is loaded */
int ib_umem_notify_init(void)
{
	return umem_notify_reclaim_init();
}

/* When it is unloaded, and no umem is left */
void ib_umem_notify_exit(void)
{
	umem_notify_space_exit();
	umem_notify_reclaim_exit();
}

/* @umem is NULL if nothing is pinned yet. */
static struct ib_umem_notify *umem_notify_create(struct ib_ucontext *context,
						 struct ib_umem *umem,
						 unsigned long start, unsigned long last)
{
	struct umem_notify_queue *queue;
	struct ib_umem_notify *n;

	queue = umem_notify_queue_get(context, &umem_notify_event_ops);
	if (IS_ERR(queue))
		return ERR_CAST(queue);
	n = umem_notify_tracker_alloc();
	if (!n) {
		umem_notify_queue_put(queue);
		return ERR_PTR(-ENOMEM);
	}

	n->umem = umem;
	n->queue = queue;
	n->range.start = start;
	n->range.last = last;
	n->refs = 1;
	umem_notify_doubt_clear(&n->doubt);
	mutex_init(&n->mutex);
	INIT_LIST_HEAD(&n->link);

	umem_notify_lock(n);
	umem_notify_space_insert(queue->space, n);
	if (umem || umem_notify_space_changes(queue->space, start, last)) {
		umem_notify_doubt_range(n, start, last);
		n->state = SUSPECT;
	}
	umem_notify_unlock(n);
	return n;
}

static void umem_notify_disarm_locked(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	n->armed = false;
	n->reclaim = false;
	n->idle = 0;
	n->mr = NULL;
}

/*
 * The tracker touches neither device nor word any more, and no task goes on to the umem: see
 * umem_notify_queue.c.
 */
static void umem_notify_end(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;
	bool armed = n->armed;

	umem_notify_unlend(n);
	umem_notify_take(n);
	umem_notify_lock(n);
	if (armed && n->held == UMEM_NOTIFY_REREG) {
		umem_notify_mark_invalid(n);
		trace_mr_notify_gone(n->umem, umem_notify_id(n), n->state);
	}
	if (armed)
		trace_mr_notify_disarm(n->umem, umem_notify_id(n), n->state);
	umem_notify_disarm_locked(n);
	interval_tree_remove(&n->range, &umem_notify_space(n)->trackers);
	if (!n->own)
		list_del_init(&n->link);
	word_page = umem_notify_take_word(n);
	umem_notify_unlock(n);
	mutex_unlock(&n->mutex);
	if (armed)
		umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(word_page, n->word);
	if (n->queue->single)
		umem_notify_queue_stop(n->queue);
}

static void umem_notify_destroy(struct ib_umem_notify *n)
{
	umem_notify_end(n);
	umem_notify_queue_leave(n);
}

static unsigned long first_addr(struct ib_umem *umem)
{
	return untagged_addr(umem->address) & PAGE_MASK;
}

static unsigned long last_addr(struct ib_umem *umem)
{
	return first_addr(umem) + (ib_umem_num_pages(umem) << PAGE_SHIFT) - 1;
}

/* The tracker of a umem that was pinned without one: everything is SUSPECT. */
static struct ib_umem_notify *umem_notify_of(struct ib_umem *umem, struct ib_ucontext *context)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify), *other;

	if (IS_ERR(n))
		return ERR_PTR(-EBUSY);
	if (n)
		return n;

	n = umem_notify_create(context, umem, first_addr(umem), last_addr(umem));
	if (IS_ERR(n))
		return n;
	/* Two threads may arm one MR: the first tracker counts. */
	other = cmpxchg(&umem->notify, NULL, n);
	if (other) {
		umem_notify_destroy(n);
		n = other;
	}
	return n;
}

/**
 * umem_notify_track - Watch a range from before its pages are pinned
 * @context: The context that is about to register it
 * @addr: Its user address
 * @length: Its length
 *
 * One that can't be tracked now is checked page by page when it is armed, so failing
 * costs time and nothing else.
 *
 * Context: Process context of the owner, no mm lock held.
 *
 * Return: The tracker, to be given to umem_notify_tracked(), or NULL.
 */
struct ib_umem_notify *umem_notify_track(struct ib_ucontext *context, u64 addr, u64 length)
{
	unsigned long start = untagged_addr(addr) & PAGE_MASK;
	struct ib_umem_notify *n;
	unsigned long last;

	if (!length || check_add_overflow(untagged_addr(addr), length - 1, &last))
		return NULL;
	last |= ~PAGE_MASK;
	if ((last - start) >> PAGE_SHIFT >= U32_MAX)
		return NULL;
	n = umem_notify_create(context, NULL, start, last);
	return IS_ERR(n) ? NULL : n;
}

/**
 * umem_notify_tracked - The pages have been pinned, or not
 * @n: The tracker
 * @umem: The umem, of which no other thread knows yet; NULL if there is none
 */
void umem_notify_tracked(struct ib_umem_notify *n, struct ib_umem *umem)
{
	if (!umem || umem->owning_mm != current->mm ||
	    first_addr(umem) != umem_notify_start(n) ||
	    last_addr(umem) != umem_notify_last(n)) {
		umem_notify_destroy(n);
		return;
	}
	umem_notify_lock(n);
	n->umem = umem;
	umem_notify_unlock(n);
	umem->notify = n;
}

/**
 * ib_umem_untrack - The end of the tracker, before the pages are released
 * @umem: The umem; the driver doesn't use it any more
 *
 * Context: Process context, no mm lock held. Waits for the worker that has it.
 *
 * Return: true if the pages have already been given back.
 */
bool ib_umem_untrack(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem->notify;
	bool marked, revoked;

	if (IS_ERR_OR_NULL(n))
		return n;
	umem->notify = NULL;
	marked = n->reclaim;
	umem_notify_end(n);
	revoked = n->revoked;
	if (marked && !revoked) {
		umem_notify_unpin(n, true);
		revoked = true;
	}
	umem_notify_queue_leave(n);
	return revoked;
}

/**
 * ib_umem_is_revoked - Have the pages been given back for good?
 * @umem: The umem
 *
 * Such a umem is good for nothing but being released. One that is suspended gets
 * others.
 */
bool ib_umem_is_revoked(struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);
	bool revoked;

	if (IS_ERR_OR_NULL(n))
		return n;
	umem_notify_lock(n);
	revoked = n->revoked && n->state != SUSPENDED;
	umem_notify_unlock(n);
	return revoked;
}

/**
 * ib_umem_lost - The driver took the pages of an MR from the device by itself
 * @umem: The umem of the MR
 *
 * For one that could not re-register an MR and leaves it unusable: its word says
 * INVALID.
 */
void ib_umem_lost(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_find(umem);

	if (!n)
		return;
	umem_notify_lock(n);
	umem_notify_mark_invalid(n);
	umem_notify_unlock(n);
}
EXPORT_SYMBOL(ib_umem_lost);

/**
 * umem_notify_arm - Tell a word of user memory from now on
 * @umem: The umem of the MR, pinned by the current process
 * @mr: The MR, kept by the caller's lock on its uobject
 * @how: The word, its users, and who else is told
 *
 * A umem that is already stale is armed all the same: its word says INVALID. Beside
 * an event, or where a lock is not to be had at once, the word says SUSPECT: arming
 * does not wait.
 *
 * Arming reads the state without the lock first, and looks at nothing if it is 0. An
 * event between that and the word is not lost: whichever of the two takes the lock
 * second writes the word.
 *
 *   arm                                   another thread
 *   state is 0: no look
 *                                         lock; state |= SUSPECT; no word to
 *                                         tell; unlock
 *   lock; sets the word; state is not 0:
 *   tells the word, queues the worker;
 *   unlock
 *
 * The same event after the unlock finds the word, and queues the worker itself,
 * which retires an INVALID one: so does this call only with what it saw under the lock.
 *
 * Return: 0, or with nothing changed -EBUSY (armed already, or another MR has
 * the word), -EFAULT, -ENOMEM, -EINTR, or -EBADF or -EINVAL of the eventfd.
 */
int umem_notify_arm(struct ib_umem *umem, struct ib_mr *mr,
		    const struct umem_notify_arming *how)
{
	struct umem_notify_word_page *word_page;
	struct ib_umem_notify *n;
	int ret;
	u8 state;

	n = umem_notify_of(umem, mr->uobject->context);
	if (IS_ERR(n))
		return PTR_ERR(n);

	word_page = umem_notify_word_get(how);
	if (IS_ERR(word_page))
		return PTR_ERR(word_page);

	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		goto put_word;
	if (n->armed) {
		ret = -EBUSY;
		goto unlock;
	}
	ret = umem_notify_verify(n, UMEM_NOTIFY_ARM);
	if (ret && ret != -EAGAIN)
		goto unlock;

	umem_notify_lock(n);
	n->mr = mr;
	n->armed = true;
	n->reclaim = how->reclaim;
	n->word = offset_in_page(how->word);
	n->word_page = word_page;
	n->in_use = how->in_use;
	state = n->state;
	if (state) {
		umem_notify_word_set(word_page, n->word, state);
		umem_notify_queue_later(n);
	}
	if (state == INVALID)
		umem_notify_word_tell(word_page, n->word);
	umem_notify_first_look(n);
	umem_notify_set_idle(n, how->idle_ms);
	umem_notify_queue_time(n);
	trace_mr_notify_arm(umem, umem_notify_id(n), state);
	umem_notify_unlock(n);
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMED, 1);
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMS, 1);
	umem_notify_lend(n);
	if (state)
		umem_notify_queue_retire(n);
	mutex_unlock(&n->mutex);
	return 0;

unlock:
	mutex_unlock(&n->mutex);
put_word:
	umem_notify_word_put(word_page, offset_in_page(how->word));
	return ret;
}

static bool umem_notify_set_reclaim(struct ib_umem_notify *n, bool reclaim)
{
	bool was = n->reclaim;

	lockdep_assert_held(&n->mutex);

	umem_notify_lock(n);
	n->reclaim = reclaim;
	umem_notify_unlock(n);
	return was;
}

/*
 * Takes the word from an armed tracker and disarms it, at once. In two steps that
 * loses:
 *
 *   disarm                                another thread
 *   retire(): state is 0
 *                                         word |= INVALID; queues the worker
 *   armed = false; lets go of the word
 *                                         the worker: not armed
 *                                         [the device keeps the pages]
 *
 * So an event finds both or neither. Returns false if it has become INVALID since
 * retire() looked.
 */
static bool umem_notify_end_arming(struct ib_umem_notify *n, bool in_use,
				   struct umem_notify_word_page **word_page)
{
	bool ends;

	umem_notify_lock(n);
	ends = n->state != INVALID || !n->word_page || in_use;
	if (ends) {
		*word_page = umem_notify_take_word(n);
		umem_notify_disarm_locked(n);
	}
	umem_notify_unlock(n);
	return ends;
}

/* The tracker, its mutex held, if this process has armed it: -EINVAL if not, or -EINTR */
static struct ib_umem_notify *umem_notify_take_armed(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_find(umem);
	int ret;

	if (!n || umem->owning_mm != current->mm)
		return ERR_PTR(-EINVAL);
	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		return ERR_PTR(ret);
	if (n->armed)
		return n;
	mutex_unlock(&n->mutex);
	return ERR_PTR(-EINVAL);
}

/**
 * umem_notify_disarm - Leave the word alone from now on
 * @umem: The umem of the MR
 *
 * The range stays tracked, so arming it again is cheap. A suspended one gets its
 * pages first. An INVALID one loses them, unless its word is in use or the driver
 * refuses just now: then the device keeps them until the MR is deregistered, as those
 * of an MR that was never armed.
 *
 * Only the process that armed it: a child has a copy of the word, and its parent
 * would go on to look at one that is not told any more. When the owner has ended the
 * word is INVALID, and nothing is left to be disarmed.
 *
 * Return: 0, -EINVAL if it is not armed or the word is in another address space,
 * -EINTR; as umem_notify_restore(), and it is as armed as before.
 */
int umem_notify_disarm(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_take_armed(umem);
	struct umem_notify_word_page *word_page;
	bool reclaim, in_use;
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	umem_notify_unlend(n);
	reclaim = umem_notify_set_reclaim(n, false); /* restored, it is not lent again */
	ret = umem_notify_restore(n);
	if (ret) {
		umem_notify_set_reclaim(n, reclaim);
		goto unlock;
	}
	trace_mr_notify_disarm(umem, umem_notify_id(n), READ_ONCE(n->state));
	do {
		in_use = umem_notify_retire(n); /* no worker does it any more */
	} while (!umem_notify_end_arming(n, in_use, &word_page));
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(word_page, n->word);

unlock:
	mutex_unlock(&n->mutex);
	return ret;
}

/**
 * umem_notify_settle - Turn SUSPECT or SUSPENDED into a certain answer
 * @umem: The umem of the MR
 *
 * On return the word says INVALID or nothing, for all that happened before the
 * call: an event during it may have left it SUSPECT, and so does shared hugetlb
 * memory that can't be faulted in (userfaultfd, PROT_NONE). A device that can be
 * revoked has lost an INVALID registration, unless its word is in use or the driver
 * refuses just now: then the worker tries again. A suspended one has pages again.
 *
 * Return: 0, -EINVAL if it is not armed or the MR is another process's, -EINTR,
 * -ENOMEM, -EAGAIN if events went on, or a file was kept locked, for a second; as
 * umem_notify_restore().
 */
int umem_notify_settle(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_take_armed(umem);
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	umem_notify_counted(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
	ret = umem_notify_restore(n);
	if (!ret)
		ret = umem_notify_verify(n, UMEM_NOTIFY_USER);
	umem_notify_queue_retire(n);
	mutex_unlock(&n->mutex);
	return ret;
}

/* Returns -EBUSY if the word is in use. */
static int umem_notify_suspend_locked(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	if (n->state & (INVALID | SUSPENDED))
		return 0;
	return umem_notify_suspend(n) ? 0 : -EBUSY;
}

/**
 * umem_notify_suspend_now - Unpin the pages of a registration that nobody uses
 * @umem: The umem of the MR
 *
 * Return: 0, also if it is SUSPENDED or INVALID already. -EBUSY: its word is in use, or
 * changed during the call. -EINVAL: it is not armed, or not for reclaim, or the MR is another
 * process's. -EOPNOTSUPP: the device can't restore it. -EINTR.
 */
int umem_notify_suspend_now(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_take_armed(umem);
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	if (!n->reclaim) {
		ret = -EINVAL;
	} else if (!umem_notify_can_restore(n)) {
		ret = -EOPNOTSUPP;
	} else {
		umem_notify_lock(n);
		ret = umem_notify_suspend_locked(n);
		umem_notify_unlock(n);
		umem_notify_queue_retire(n);
	}
	mutex_unlock(&n->mutex);
	return ret;
}

/**
 * umem_notify_status - How it stands with a umem
 * @umem: The umem; the caller keeps its MR from being deregistered
 * @status: Filled if it is watched
 *
 * Context: Any; takes no lock whose holder sleeps.
 *
 * Return: Whether it is watched.
 */
bool umem_notify_status(struct ib_umem *umem, struct umem_notify_status *status)
{
	struct ib_umem_notify *n = umem_notify_find(umem);

	if (!n)
		return false;
	umem_notify_lock(n);
	status->armed = n->armed;
	status->revoked = n->revoked;
	status->state = n->state;
	umem_notify_unlock(n);
	return true;
}

/**
 * umem_notify_hold - Keep off the MR while the driver changes or frees it
 * @umem: The umem of the MR; the caller holds the uobject exclusively
 * @why: The driver's purpose
 */
void umem_notify_hold(struct ib_umem *umem, enum umem_notify_hold why)
{
	struct ib_umem_notify *n = umem_notify_find(umem);

	if (!n)
		return;
	umem_notify_take(n);
	umem_notify_lock(n);
	/* A re-registration with another MR in the end deregisters the old one. */
	if (n->held != UMEM_NOTIFY_REREG)
		n->held = why;
	if (why == UMEM_NOTIFY_GONE && n->armed) {
		umem_notify_mark_invalid(n);
		trace_mr_notify_gone(umem, umem_notify_id(n), n->state);
	}
	umem_notify_unlock(n);
	mutex_unlock(&n->mutex);
}

/**
 * umem_notify_abandon - The driver did not let go of an MR that must end
 * @umem: The umem of the MR; the caller holds the uobject exclusively
 *
 * The application's context or the device ends, and uverbs may drop the MR: then
 * the device goes, and MR and umem stay for good. So nothing of the tracker may come
 * to them any more; only whether the pages are given back is kept.
 *
 *   its context is closed                 the worker
 *   dereg_mr: -EBUSY, to the last
 *   uverbs drops the MR; frees the device
 *                                         retire(): n->mr->device [freed]
 *
 * The tracker ends here, before the device goes: its removal waits for uverbs.
 */
void umem_notify_abandon(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem_notify_find(umem);
	bool revoked;

	if (!n)
		return;
	umem_notify_take(n);
	revoked = n->revoked; /* held: it stays so */
	mutex_unlock(&n->mutex);
	umem->notify = revoked ? UMEM_NOTIFY_REVOKED : NULL;
	umem_notify_destroy(n);
}

/**
 * umem_notify_unhold - The driver is done, and the MR still exists
 * @umem: The umem of the MR
 * @mr: The MR
 */
void umem_notify_unhold(struct ib_umem *umem, struct ib_mr *mr)
{
	struct ib_umem_notify *n = umem_notify_find(umem);

	if (!n)
		return;
	umem_notify_take(n);
	umem_notify_lock(n);
	n->held = UMEM_NOTIFY_NOT_HELD;
	if (n->armed)
		n->mr = mr;
	umem_notify_queue_now(n);
	umem_notify_unlock(n);
	mutex_unlock(&n->mutex);
}
