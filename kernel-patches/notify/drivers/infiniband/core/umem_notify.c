// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The tracker of a umem: knows whether the registered range still maps the
 * pinned pages, and says so in a word of user memory. Here are its life and its
 * arming; see umem_notify.h for the other files.
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
 * then (umem_notify_mm.c); or the whole range is SUSPECT from the start.
 *
 * Nothing here waits for an invalidation but a settle, nor for another process or
 * device. The mutex of a tracker is held by a call of the owner's process for as long
 * as that takes, and by a worker while it compares pages, for some pages at most once
 * another caller wants it (@hurry), or while the device takes the MR away.
 */

#include <linux/mm.h>
#include <linux/slab.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

/* In the place of a tracker that has ended: the pages are given back. */
#define UMEM_NOTIFY_REVOKED ERR_PTR(-EIO)

/* The tracker of a umem, or NULL. */
static struct ib_umem_notify *umem_notify_find(const struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	return IS_ERR(n) ? NULL : n;
}

/* The umem of a user's MR that can be watched: of ODP, dmabuf and device memory there is none. */
static struct ib_umem *umem_notify_umem(struct ib_mr *mr)
{
	struct ib_umem *umem;

	if (mr->type != IB_MR_TYPE_USER || !mr->device->ops.mr_umem)
		return NULL;
	umem = mr->device->ops.mr_umem(mr);
	return umem && !umem->is_odp && !umem->is_dmabuf ? umem : NULL;
}

/**
 * umem_notify_of_mr - The tracker of an MR
 * @mr: The MR, which the caller keeps from being deregistered
 *
 * Return: The tracker, or NULL.
 */
struct ib_umem_notify *umem_notify_of_mr(struct ib_mr *mr)
{
	struct ib_umem *umem = umem_notify_umem(mr);

	return umem ? umem_notify_find(umem) : NULL;
}

/* For a caller that must not wait long: a worker that looks lets go soon. */
static void umem_notify_take(struct ib_umem_notify *n)
{
	WRITE_ONCE(n->hurry, true);
	mutex_lock(&n->mutex);
	WRITE_ONCE(n->hurry, false);
}

DEFINE_GUARD(umem_notify_take, struct ib_umem_notify *, umem_notify_take(_T),
	     mutex_unlock(&_T->mutex))

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

	guard(umem_notify)(n);
	umem_notify_mm_insert(queue->space, n);
	if (umem || umem_notify_mm_changes(queue->space, start, last)) {
		umem_notify_doubt_range(n, start, last);
		n->state = SUSPECT;
	}
	return n;
}

/*
 * The tracker touches neither device nor word any more, and no task goes on to the umem: see
 * umem_notify_queue.c. The word says INVALID unless the owner deregisters the MR.
 */
static void umem_notify_end(struct ib_umem_notify *n)
{
	struct umem_notify_word_page *word_page;
	bool armed = n->armed;

	umem_notify_unlend(n);
	umem_notify_take(n);
	umem_notify_lock(n);
	if (armed && !n->quiet) {
		umem_notify_mark_invalid(n);
		trace_mr_notify_gone(n, 0);
	}
	if (armed)
		trace_mr_notify_disarm(n, 0);
	n->armed = false;
	n->mr = NULL;
	interval_tree_remove(&n->range, &umem_notify_mm(n)->trackers);
	if (!n->own)
		list_del_init(&n->link);
	word_page = umem_notify_take_word(n);
	umem_notify_unlock(n);
	mutex_unlock(&n->mutex);
	if (armed)
		umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(word_page, n->word);
	if (n->queue->single)
		cancel_delayed_work_sync(&n->queue->worker);
}

static void umem_notify_destroy(struct ib_umem_notify *n)
{
	umem_notify_end(n);
	umem_notify_queue_leave(n);
}

static bool is_own(const struct ib_umem *umem)
{
	return umem->owning_mm == current->mm;
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
 * ib_mr_notify_track - Before a driver registers user memory
 * @context: The context that registers
 * @addr: Its user address
 * @length: Its length
 * @access: The access flags; IB_UVERBS_ACCESS_TRACK, which is the core's own, is
 *	    taken out
 *
 * One that can't be tracked now is checked page by page when it is armed, so failing
 * costs time and nothing else.
 *
 * Context: Process context of the owner, no mm lock held.
 *
 * Return: The argument for ib_mr_notify_tracked(), even if the registration fails.
 */
struct ib_umem_notify *ib_mr_notify_track(struct ib_ucontext *context, u64 addr,
					  u64 length, u32 *access)
{
	bool track = *access & IB_UVERBS_ACCESS_TRACK && context->device->ops.mr_umem;
	unsigned long start = untagged_addr(addr) & PAGE_MASK;
	struct ib_umem_notify *n;
	unsigned long last;

	*access &= ~IB_UVERBS_ACCESS_TRACK;
	if (!track || !length || check_add_overflow(untagged_addr(addr), length - 1, &last))
		return NULL;
	last |= ~PAGE_MASK;
	if ((last - start) >> PAGE_SHIFT >= U32_MAX)
		return NULL;
	n = umem_notify_create(context, NULL, start, last);
	return IS_ERR(n) ? NULL : n;
}
EXPORT_SYMBOL(ib_mr_notify_track);

/**
 * ib_mr_notify_tracked - A driver has registered user memory, or failed to
 * @device: The device
 * @mr: The MR, of which no other thread knows yet, or ERR_PTR()
 * @n: Of ib_mr_notify_track()
 */
void ib_mr_notify_tracked(struct ib_device *device, struct ib_mr *mr,
			  struct ib_umem_notify *n)
{
	struct ib_umem *umem = NULL;

	if (!n)
		return;
	if (!IS_ERR(mr)) {
		mr->device = device; /* not all drivers set these two, before uverbs does */
		mr->type = IB_MR_TYPE_USER;
		umem = umem_notify_umem(mr);
	}
	if (!umem || !is_own(umem) || first_addr(umem) != umem_notify_start(n) ||
	    last_addr(umem) != umem_notify_last(n)) {
		umem_notify_destroy(n);
		return;
	}
	scoped_guard(umem_notify, n)
		n->umem = umem;
	umem->notify = n;
}
EXPORT_SYMBOL(ib_mr_notify_tracked);

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

	if (IS_ERR_OR_NULL(n))
		return n;
	guard(umem_notify)(n);
	return n->revoked && n->state != SUSPENDED;
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
	guard(umem_notify)(n);
	umem_notify_mark_invalid(n);
}
EXPORT_SYMBOL(ib_umem_lost);

/**
 * umem_notify_arm - Tell a word of user memory from now on
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
 * the word), -EOPNOTSUPP, -EINVAL (another process's MR, or no eventfd), -EFAULT,
 * -ENOMEM, -EINTR, -EBADF.
 */
int umem_notify_arm(struct ib_mr *mr, const struct umem_notify_arming *how)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	struct umem_notify_word_page *word_page;
	struct ib_umem_notify *n;
	int ret;
	u8 state;

	if (!umem)
		return -EOPNOTSUPP;
	if (!is_own(umem))
		return -EINVAL;
	if (how->reclaim && !mr->device->ops.revoke_user_mr)
		return -EOPNOTSUPP;
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
	ret = umem_notify_verify(n, 0);
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
		umem_notify_word_change(n, state, 0);
		umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
	}
	if (state == INVALID)
		umem_notify_word_tell(n);
	umem_notify_first_look(n, false);
	n->idle = msecs_to_jiffies(how->idle_ms);
	umem_notify_queue_time(n);
	trace_mr_notify_arm(n, 0);
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
EXPORT_SYMBOL(umem_notify_arm);

/* The tracker, its mutex held, if this process has armed the MR: -EINVAL if not */
static struct ib_umem_notify *umem_notify_take_armed(struct ib_mr *mr)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	struct ib_umem_notify *n;
	int ret;

	if (!umem)
		return ERR_PTR(-EOPNOTSUPP);
	n = umem_notify_find(umem);
	if (!n || !is_own(umem))
		return ERR_PTR(-EINVAL);
	ret = mutex_lock_killable(&n->mutex);
	if (ret)
		return ERR_PTR(ret);
	if (n->armed)
		return n;
	mutex_unlock(&n->mutex);
	return ERR_PTR(-EINVAL);
}

static void umem_notify_let_go(struct ib_umem_notify *n)
{
	if (!IS_ERR(n))
		mutex_unlock(&n->mutex);
}

DEFINE_CLASS(umem_notify_armed, struct ib_umem_notify *, umem_notify_let_go(_T),
	     umem_notify_take_armed(mr), struct ib_mr *mr)

/*
 * Restores a tracker and takes the lock: the VM may take its pages again in between. Returns
 * with the lock held if it returns 0.
 */
static int umem_notify_lock_restored(struct ib_umem_notify *n)
{
	int ret;

	while (!(ret = umem_notify_restore(n))) {
		umem_notify_lock(n);
		if (n->state != SUSPENDED)
			break;
		umem_notify_unlock(n);
	}
	return ret;
}

/**
 * umem_notify_disarm - Leave the word alone from now on
 * @mr: The MR, kept by the caller's lock on its uobject
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
 * No worker comes to a tracker that is not armed, so an INVALID one is retired here. To
 * retire it first loses an event:
 *
 *   disarm                                another thread
 *   retire(): state is 0
 *                                         word |= INVALID; queues the worker
 *   armed = false; lets go of the word
 *                                         the worker: not armed
 *                                         [the device keeps the pages]
 *
 * From armed = false on no event makes it INVALID.
 *
 * Return: 0, -EINVAL if it is not armed or the word is in another address space,
 * -EINTR, -EOPNOTSUPP; as umem_notify_restore(), and it is as armed as before.
 */
int umem_notify_disarm(struct ib_mr *mr)
{
	CLASS(umem_notify_armed, n)(mr);
	struct umem_notify_word_page *word_page;
	bool is_used;
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	ret = umem_notify_lock_restored(n);
	if (ret)
		return ret;
	trace_mr_notify_disarm(n, 0);
	is_used = umem_notify_is_used(n);
	word_page = umem_notify_take_word(n);
	n->armed = false;
	umem_notify_unlock(n);
	umem_notify_unlend(n);
	if (!is_used)
		umem_notify_retire(n);
	scoped_guard(umem_notify, n) {
		n->mr = NULL;
		n->reclaim = false;
	}
	umem_notify_counted(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(word_page, n->word);
	return 0;
}
EXPORT_SYMBOL(umem_notify_disarm);

/**
 * umem_notify_settle - Turn SUSPECT or SUSPENDED into a certain answer
 * @mr: The MR, kept by the caller's lock on its uobject
 *
 * On return the word says INVALID or nothing, for all that happened before the
 * call: an event during it may have left it SUSPECT, and so does shared hugetlb
 * memory that can't be faulted in (userfaultfd, PROT_NONE). A device that can be
 * revoked has lost an INVALID registration, unless its word is in use or the driver
 * refuses just now: then the worker tries again. A suspended one has pages again.
 *
 * Return: 0, -EINVAL if it is not armed or the MR is another process's, -EINTR,
 * -ENOMEM, -EOPNOTSUPP, -EAGAIN if events went on, or a file was kept locked, for a second;
 * as umem_notify_restore().
 */
int umem_notify_settle(struct ib_mr *mr)
{
	CLASS(umem_notify_armed, n)(mr);
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	umem_notify_counted(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
	ret = umem_notify_restore(n);
	if (!ret)
		ret = umem_notify_verify(n, UMEM_NOTIFY_PATIENCE);
	umem_notify_queue_retire(n);
	return ret;
}
EXPORT_SYMBOL(umem_notify_settle);

/**
 * umem_notify_suspend_now - Unpin the pages of a registration that nobody uses
 * @mr: The MR, kept by the caller's lock on its uobject
 *
 * Return: 0, also if it is SUSPENDED or INVALID already. -EBUSY: its word is in use, or
 * changed during the call. -EINVAL: it is not armed, or not for reclaim, or the MR is another
 * process's. -EOPNOTSUPP: the device can't restore it. -EINTR.
 */
int umem_notify_suspend_now(struct ib_mr *mr)
{
	CLASS(umem_notify_armed, n)(mr);

	if (IS_ERR(n))
		return PTR_ERR(n);
	if (!n->reclaim)
		return -EINVAL;
	if (!umem_notify_can_restore(n))
		return -EOPNOTSUPP;
	scoped_guard(umem_notify, n)
		if (!(n->state & (INVALID | SUSPENDED)) && !umem_notify_suspend(n))
			return -EBUSY;
	umem_notify_queue_retire(n);
	return 0;
}
EXPORT_SYMBOL(umem_notify_suspend_now);

/*
 * Keep off an MR while its driver changes or frees it. Unless the owner's process asked for
 * that (@own), the word says INVALID. If the owner re-registers the MR, it says so if that
 * ends the umem.
 */
static void umem_notify_hold(struct ib_umem_notify *n, bool own, bool ends)
{
	guard(umem_notify_take)(n);
	guard(umem_notify)(n);
	/* A re-registration with another MR in the end deregisters the old one. */
	n->quiet = own && ends && !n->held;
	n->held = true;
	if (!own && n->armed)
		umem_notify_mark_invalid(n);
}

/**
 * ib_mr_notify_hold - Before the driver re-registers an MR
 * @mr: The MR, its uobject held exclusively
 * @access: The new access flags; IB_UVERBS_ACCESS_TRACK is taken out
 */
void ib_mr_notify_hold(struct ib_mr *mr, u32 *access)
{
	struct ib_umem_notify *n = umem_notify_of_mr(mr);

	*access &= ~IB_UVERBS_ACCESS_TRACK;
	if (n)
		umem_notify_hold(n, is_own(n->umem), false);
}
EXPORT_SYMBOL(ib_mr_notify_hold);

/**
 * ib_mr_notify_unhold - After the driver re-registered an MR, or failed to
 * @mr: The same MR, or the one that has taken its place and, as far as other
 *	access rights or another PD are concerned, its umem: that is still armed
 *	and revoked as ever. Another umem is not armed, and the word of the old
 *	one says INVALID.
 */
void ib_mr_notify_unhold(struct ib_mr *mr)
{
	struct ib_umem_notify *n = umem_notify_of_mr(mr);

	if (!n)
		return;
	guard(umem_notify_take)(n);
	guard(umem_notify)(n);
	n->held = false;
	n->quiet = false;
	if (n->armed)
		n->mr = mr;
	umem_notify_queue_add(n, 0);
}
EXPORT_SYMBOL(ib_mr_notify_unhold);

/*
 * The driver did not let go of an MR that must end. The application's context or the device
 * ends, and uverbs may drop the MR: then the device goes, and MR and umem stay for good. So
 * nothing of the tracker may come to them any more; only whether the pages are given back is
 * kept.
 *
 *   its context is closed                 the worker
 *   dereg_mr: -EBUSY, to the last
 *   uverbs drops the MR; frees the device
 *                                         retire(): n->mr->device [freed]
 *
 * The tracker ends here, before the device goes: its removal waits for uverbs.
 */
static void umem_notify_abandon(struct ib_umem_notify *n)
{
	/* It is held: that the pages are given back, or not, stays so. */
	n->umem->notify = n->revoked ? UMEM_NOTIFY_REVOKED : NULL;
	umem_notify_destroy(n);
}

/**
 * ib_mr_notify_dereg - Deregister an MR that may be armed
 * @why: The reason; unless it is a call of the process that registered it, the word
 *	 of an armed MR says INVALID
 * @mr: The MR, its uobject held exclusively
 * @udata: As for ib_dereg_mr_user()
 *
 * Another process may have the file: a forked child, or the receiver of a message. Its
 * owner goes on to look at the word.
 *
 * If the driver refuses (a memory window is bound to the MR), the MR stays
 * armed, unless its context or its device ends.
 *
 * Return: The result of ib_dereg_mr_user().
 */
int ib_mr_notify_dereg(enum rdma_remove_reason why, struct ib_mr *mr,
		       struct ib_udata *udata)
{
	struct ib_umem_notify *n = umem_notify_of_mr(mr);
	int ret;

	if (n)
		umem_notify_hold(n, why == RDMA_REMOVE_DESTROY && is_own(n->umem), true);
	ret = ib_dereg_mr_user(mr, udata);
	if (!ret || !n)
		return ret;
	/* A registration that can't be aborted is there as if nothing had failed. */
	if (why == RDMA_REMOVE_DESTROY || why == RDMA_REMOVE_ABORT)
		ib_mr_notify_unhold(mr);
	else
		umem_notify_abandon(n);
	return ret;
}
EXPORT_SYMBOL(ib_mr_notify_dereg);
