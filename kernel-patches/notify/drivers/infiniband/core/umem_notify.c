// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The tracker of a umem records whether the registered range still maps the pinned
 * pages, and sets bits in a word of user memory. This file creates, arms, settles and
 * ends trackers; umem_notify.h lists the other files.
 *
 * A tracker is put into the tree of its address space either before the driver pins
 * the first page (IB_UVERBS_ACCESS_TRACK), or when the MR is armed. The tracker stays
 * in the tree until the umem is released.
 *
 * If the pages were pinned first and tracked later, a change in between would be lost:
 *
 *   ibv_reg_mr, then arm                  another thread
 *   pins page P
 *                                         munmap: unmaps P
 *                                         mmap: maps Q there
 *   the tracker is in the tree
 *   word = 0                              [word never set: P stays registered]
 *
 * So the tracker is created before the pages are pinned, and starts as SUSPECT if an
 * event is in progress (umem_notify_mm.c). A tracker that is created later starts
 * with its whole range SUSPECT.
 *
 * Only settling waits for an invalidation. No function here waits for another process
 * or another device. A call of the owner's process holds the mutex of a tracker until the
 * call ends. The worker holds the mutex while the driver revokes the MR, and while the
 * worker compares pages. If another caller wants the mutex (@mutex_wanted), the worker
 * stops comparing after a batch.
 */

#include <linux/mm.h>
#include <linux/slab.h>

#include "umem_notify.h"
#include "umem_notify_trace.h"

/* The value of umem->notify if the tracker ended after its pages had been unpinned */
#define UMEM_NOTIFY_REVOKED ERR_PTR(-EIO)

/* The tracker of a umem, or NULL. */
static struct ib_umem_notify *umem_notify_find(const struct ib_umem *umem)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify);

	return IS_ERR(n) ? NULL : n;
}

/* The umem of a user MR, or NULL if it can't be tracked (ODP, dmabuf, device memory). */
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
 * @mr: The MR; the caller prevents its deregistration
 *
 * Return: The tracker, or NULL.
 */
struct ib_umem_notify *umem_notify_of_mr(struct ib_mr *mr)
{
	struct ib_umem *umem = umem_notify_umem(mr);

	return umem ? umem_notify_find(umem) : NULL;
}

/* Takes the mutex without a long wait: @mutex_wanted makes the worker release the mutex soon. */
static void umem_notify_take(struct ib_umem_notify *n)
{
	WRITE_ONCE(n->mutex_wanted, true);
	mutex_lock(&n->mutex);
	WRITE_ONCE(n->mutex_wanted, false);
}

DEFINE_GUARD(umem_notify_take, struct ib_umem_notify *, umem_notify_take(_T),
	     mutex_unlock(&_T->mutex))

static struct umem_notify_queue *create_queue(struct ib_device *device)
{
	struct umem_notify_queue *q = kzalloc(sizeof(*q), GFP_KERNEL_ACCOUNT);

	if (q && !umem_notify_device_get(device))
		q->space = umem_notify_event_space();
	if (!q || !q->space) {
		kfree(q);
		return NULL;
	}
	q->device = device;
	refcount_set(&q->refs, 1);
	INIT_LIST_HEAD(&q->work);
	INIT_DELAYED_WORK(&q->worker, umem_notify_queue_work);
	return q;
}

/*
 * The queue for a registration of the current process, or NULL. If two threads create the first
 * queue of a context at the same time, one of them gets a @single queue.
 */
static struct umem_notify_queue *get_queue(struct ib_ucontext *context)
{
	struct umem_notify_queue *q = READ_ONCE(context->notify);

	if (!q || q->space->mn.mm != current->mm) {
		q = create_queue(context->device);
		if (!q)
			return NULL;
		q->single = cmpxchg(&context->notify, NULL, q);
		if (q->single)
			return q;
	}
	refcount_inc(&q->refs);
	return q;
}

/* Returns NULL if memory is short. @umem is NULL if nothing is pinned yet. */
static struct ib_umem_notify *umem_notify_create(struct ib_ucontext *context, struct ib_umem *umem,
						 unsigned long start, unsigned long last)
{
	struct umem_notify_queue *queue = get_queue(context);
	struct ib_umem_notify *n = queue ? umem_notify_tracker_alloc() : NULL;

	if (!n) {
		if (queue)
			umem_notify_queue_put(queue);
		return NULL;
	}

	n->umem = umem;
	n->queue = queue;
	n->range.start = start;
	n->range.last = last;
	n->refs = 1;
	umem_notify_suspects_clear(&n->suspects);
	mutex_init(&n->mutex);
	INIT_LIST_HEAD(&n->link);

	guard(umem_notify)(n);
	interval_tree_insert(&n->range, &queue->space->trackers);
	if (umem || umem_notify_mm_changes(queue->space, start, last)) {
		umem_notify_suspects_add(n, start, last);
		n->state = SUSPECT;
	}
	return n;
}

/*
 * Ends a tracker. Afterwards no task uses the tracker to access the device, the word or the umem
 * (see umem_notify_queue.c). Unless the owner deregisters the MR, the word says INVALID.
 */
static void umem_notify_end(struct ib_umem_notify *n)
{
	struct umem_notify_word word;
	bool armed = n->armed;

	umem_notify_lru_del(n);
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
	if (!n->reserved)
		list_del_init(&n->link);
	word = umem_notify_take_word(n);
	n->state = INVALID; /* walks leave it alone: see umem_notify_mm_next() */
	umem_notify_unlock(n);
	mutex_unlock(&n->mutex);
	if (armed)
		umem_notify_count(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(&word);
	if (n->queue->single)
		cancel_delayed_work_sync(&n->queue->worker);
}

static void umem_notify_destroy(struct ib_umem_notify *n)
{
	umem_notify_end(n);
	umem_notify_put(n);
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

/* Returns the tracker of a umem, or creates a tracker whose whole range is SUSPECT. */
static struct ib_umem_notify *umem_notify_of(struct ib_umem *umem, struct ib_ucontext *context)
{
	struct ib_umem_notify *n = READ_ONCE(umem->notify), *other;

	if (IS_ERR(n))
		return ERR_PTR(-EBUSY);
	if (n)
		return n;

	n = umem_notify_create(context, umem, first_addr(umem), last_addr(umem));
	if (!n)
		return ERR_PTR(-ENOMEM);
	/* Two threads may arm one MR at the same time: the first tracker stays. */
	other = cmpxchg(&umem->notify, NULL, n);
	if (other) {
		umem_notify_destroy(n);
		n = other;
	}
	return n;
}

/**
 * ib_mr_notify_track - Start tracking, before a driver registers user memory
 * @context: The context that registers
 * @addr: The user address of the memory
 * @length: The length of the memory
 * @access: The access flags; IB_UVERBS_ACCESS_TRACK is removed, because it is only
 *	    for the core
 *
 * If this fails, arming the MR later creates the tracker and compares all pages. So a
 * failure costs only time.
 *
 * Context: Process context of the owner, no mm lock held.
 *
 * Return: The argument for ib_mr_notify_tracked(). The caller always has to call
 * ib_mr_notify_tracked().
 */
struct ib_umem_notify *ib_mr_notify_track(struct ib_ucontext *context, u64 addr,
					  u64 length, u32 *access)
{
	bool track = *access & IB_UVERBS_ACCESS_TRACK && context->device->ops.mr_umem;
	unsigned long start = untagged_addr(addr) & PAGE_MASK;
	unsigned long last;

	*access &= ~IB_UVERBS_ACCESS_TRACK;
	if (!track || !length || check_add_overflow(untagged_addr(addr), length - 1, &last))
		return NULL;
	last |= ~PAGE_MASK;
	if ((last - start) >> PAGE_SHIFT >= U32_MAX)
		return NULL;
	return umem_notify_create(context, NULL, start, last);
}
EXPORT_SYMBOL(ib_mr_notify_track);

/**
 * ib_mr_notify_tracked - Give the tracker to the umem, or destroy it if registering failed
 * @device: The device
 * @mr: The MR, which no other thread can find yet, or ERR_PTR()
 * @n: The result of ib_mr_notify_track()
 */
void ib_mr_notify_tracked(struct ib_device *device, struct ib_mr *mr, struct ib_umem_notify *n)
{
	struct ib_umem *umem = NULL;

	if (!n)
		return;
	if (!IS_ERR(mr)) {
		mr->device = device; /* some drivers leave these two fields to uverbs */
		mr->type = IB_MR_TYPE_USER;
		umem = umem_notify_umem(mr);
	}
	if (!umem || !is_own(umem) || first_addr(umem) != n->range.start ||
	    last_addr(umem) != n->range.last) {
		umem_notify_destroy(n);
		return;
	}
	scoped_guard(umem_notify, n)
		n->umem = umem;
	umem->notify = n;
}
EXPORT_SYMBOL(ib_mr_notify_tracked);

/**
 * ib_umem_untrack - End the tracker of a umem, before its pages are released
 * @umem: The umem; the driver doesn't use it any more
 *
 * Context: Process context, no mm lock held. Waits until the worker has released the
 * tracker.
 *
 * Return: true if the pages have already been unpinned.
 */
bool ib_umem_untrack(struct ib_umem *umem)
{
	struct ib_umem_notify *n = umem->notify;
	bool unpinned;

	if (IS_ERR_OR_NULL(n))
		return n;
	umem->notify = NULL;
	umem_notify_end(n);
	unpinned = n->revoked || n->reclaim;
	if (!n->revoked && n->reclaim)
		umem_notify_unpin(n);
	umem_notify_put(n);
	return unpinned;
}

/**
 * ib_umem_is_revoked - Have the pages of a umem been unpinned for good?
 * @umem: The umem
 *
 * Such a umem can only be released. A suspended umem gets pages again.
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
 * ib_umem_lost - The driver itself took the pages of an MR from the device
 * @umem: The umem of the MR
 *
 * A driver calls this if it could not re-register an MR and leaves the MR unusable.
 * Sets INVALID in the word.
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
 * umem_notify_arm - Give an MR a word of user memory
 * @mr: The MR, kept by the caller's lock on its uobject
 * @how: The word, the bits that count its users, its counter and eventfd
 *
 * If the umem is stale, arming succeeds, and the word says INVALID. Arming does not wait.
 * If an event is in progress, or another task holds a lock of a file, the word says
 * SUSPECT.
 *
 * Arming reads the state before it sets the word, and compares no pages if the state is
 * 0. An event between these two steps is not lost: arming and the event take the lock one
 * after the other, and the second of them writes the word.
 *
 *   arm                                   another thread
 *   state is 0: compares nothing
 *                                         lock; state |= SUSPECT; there is no
 *                                         word; unlock
 *   lock; sets the word; state is not 0:
 *   writes the state to the word, queues
 *   the worker; unlock
 *
 * An event after the unlock finds the word, and queues the worker, which retires an
 * INVALID tracker. So this call retires the tracker only if the state was not 0 under the
 * lock.
 *
 * Return: 0. After an error nothing has changed: -EBUSY (armed already, or another MR
 * has the word), -EOPNOTSUPP, -EINVAL (another process's MR, or no eventfd), -EFAULT,
 * -ENOMEM, -EINTR, -EBADF.
 */
int umem_notify_arm(struct ib_mr *mr, const struct umem_notify_arming *how)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	struct umem_notify_word word;
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

	ret = umem_notify_word_get(&word, how);
	if (ret)
		return ret;

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
	n->word = word;
	n->in_use = how->in_use;
	state = n->state;
	if (state) {
		umem_notify_word_change(n, state, 0);
		umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
	}
	if (state == INVALID)
		umem_notify_word_count(n);
	umem_notify_first_scan(n, false);
	n->idle = msecs_to_jiffies(how->idle_ms);
	umem_notify_queue_set_idle(n);
	trace_mr_notify_arm(n, 0);
	umem_notify_unlock(n);
	umem_notify_count(n, IB_MR_NOTIFY_STAT_ARMED, 1);
	umem_notify_count(n, IB_MR_NOTIFY_STAT_ARMS, 1);
	umem_notify_lru_add(n);
	if (state)
		umem_notify_queue_retire(n);
	mutex_unlock(&n->mutex);
	return 0;

unlock:
	mutex_unlock(&n->mutex);
put_word:
	umem_notify_word_put(&word);
	return ret;
}
EXPORT_SYMBOL(umem_notify_arm);

/* Returns the tracker with its mutex held; -EINVAL if this process has not armed the MR. */
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
 * Restores a tracker, then takes the lock. If the VM takes the pages between these two steps,
 * restores the tracker again. If the function returns 0, the lock is held.
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
 * umem_notify_disarm - Take the word from an MR
 * @mr: The MR, kept by the caller's lock on its uobject
 *
 * The range stays tracked, so arming the MR again is cheap. A suspended MR is restored
 * first. An INVALID MR is revoked and unpinned. But if the word of an INVALID MR is in
 * use, or if the driver fails for the moment, the device keeps the pages until the MR is
 * deregistered, as if the MR had never been armed.
 *
 * Only the process that armed the MR may disarm it. A child has only a copy of the word. If
 * the child disarmed the MR, the parent would go on reading a word that the kernel does not
 * change any more. When the owner ends, the word becomes INVALID, and there is nothing to
 * disarm.
 *
 * The worker visits only armed trackers, so an INVALID tracker is retired here. If the
 * tracker were retired before it is disarmed, an event would be lost:
 *
 *   disarm                                another thread
 *   retire(): state is 0
 *                                         word |= INVALID; queues the worker
 *   armed = false; releases the word
 *                                         the worker: not armed
 *                                         [the device keeps the pages]
 *
 * After armed = false no event makes the tracker INVALID.
 *
 * After an error an armed MR is still armed.
 *
 * Return:
 * * 0
 * * -EINVAL: the MR is not armed, or the word is in another address space
 * * -EINTR, -EOPNOTSUPP, or an error of umem_notify_restore()
 */
int umem_notify_disarm(struct ib_mr *mr)
{
	CLASS(umem_notify_armed, n)(mr);
	struct umem_notify_word word;
	bool is_used;
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	ret = umem_notify_lock_restored(n);
	if (ret)
		return ret;
	trace_mr_notify_disarm(n, 0);
	is_used = umem_notify_is_used(n);
	word = umem_notify_take_word(n);
	n->armed = false;
	umem_notify_unlock(n);
	umem_notify_lru_del(n);
	if (!is_used)
		umem_notify_retire(n);
	scoped_guard(umem_notify, n) {
		n->mr = NULL;
		n->reclaim = false;
	}
	umem_notify_count(n, IB_MR_NOTIFY_STAT_ARMED, -1);
	umem_notify_word_put(&word);
	return 0;
}
EXPORT_SYMBOL(umem_notify_disarm);

/**
 * umem_notify_settle - Compare the pages of a SUSPECT MR, restore a SUSPENDED MR
 * @mr: The MR, kept by the caller's lock on its uobject
 *
 * If this returns 0, the word shows the result of all events before the call: the word says
 * INVALID, or the kernel's bits are 0. There are two exceptions. An event during the call makes
 * the word SUSPECT again. If shared hugetlb memory can't be faulted in (userfaultfd, PROT_NONE),
 * the word stays SUSPECT. A suspended MR has pages again. If the device can revoke, an INVALID
 * MR has been revoked. But if the word of an INVALID MR is in use, or the driver failed for the
 * moment, the worker tries again.
 *
 * After -EAGAIN, -EINTR or -ENOMEM the MR is still SUSPECT or SUSPENDED, or an event has made it
 * INVALID.
 *
 * Return:
 * * 0
 * * -EINVAL: the MR is not armed, or belongs to another process
 * * -EAGAIN: an event was in progress, or a file was locked, for a whole second
 * * -EINTR, -ENOMEM, -EOPNOTSUPP, or an error of umem_notify_restore()
 */
int umem_notify_settle(struct ib_mr *mr)
{
	CLASS(umem_notify_armed, n)(mr);
	int ret;

	if (IS_ERR(n))
		return PTR_ERR(n);

	umem_notify_count(n, IB_MR_NOTIFY_STAT_SETTLES, 1);
	ret = umem_notify_restore(n);
	if (!ret)
		ret = umem_notify_verify(n, UMEM_NOTIFY_PATIENCE);
	umem_notify_queue_retire(n);
	return ret;
}
EXPORT_SYMBOL(umem_notify_settle);

/**
 * umem_notify_suspend_now - Unpin the pages of an idle registration
 * @mr: The MR, kept by the caller's lock on its uobject
 *
 * Return:
 * * 0, also if the MR is SUSPENDED or INVALID already
 * * -EBUSY: the word is in use, or changed during the call
 * * -EINVAL: the MR is not armed, is armed without reclaim, or belongs to another process
 * * -EOPNOTSUPP: the device can't restore the MR
 * * -EINTR
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
 * Stops the worker from touching an MR while its driver changes or frees the MR. If the caller is
 * not the owner's process (!@own), sets INVALID in the word. If the owner re-registers the MR and
 * the umem ends, umem_notify_end() sets INVALID.
 */
static void umem_notify_hold(struct ib_umem_notify *n, bool own, bool ends)
{
	guard(umem_notify_take)(n);
	guard(umem_notify)(n);
	/* If a re-registration returns a new MR, the old MR is deregistered while @held is set. */
	n->quiet = own && ends && !n->held;
	n->held = true;
	if (!own && n->armed)
		umem_notify_mark_invalid(n);
}

/**
 * ib_mr_notify_hold - Hold the tracker before the driver re-registers an MR
 * @mr: The MR, its uobject held exclusively
 * @access: The new access flags; IB_UVERBS_ACCESS_TRACK is removed
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
 * ib_mr_notify_unhold - Release the tracker after an attempt to re-register an MR
 * @mr: The same MR, or the MR that replaces it
 *
 * If only the access rights or the PD changed, @mr keeps its umem, and the umem stays armed
 * or revoked. If @mr has a new umem, the new umem is not armed, and the word of the old
 * umem says INVALID.
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
 * The context or the device of an MR ends, but the driver could not deregister the MR. uverbs may
 * drop the MR. Then the device is freed, and the MR and the umem are leaked. So the tracker must
 * end. If the pages are already unpinned, UMEM_NOTIFY_REVOKED replaces the tracker.
 *
 *   its context is closed                 the worker
 *   dereg_mr: -EBUSY, also the last time
 *   uverbs drops the MR; frees the device
 *                                         retire(): n->mr->device [freed]
 *
 * The removal of the device waits for uverbs. So the tracker, which ends here, ends
 * before the device is freed.
 */
static void umem_notify_abandon(struct ib_umem_notify *n)
{
	/* @revoked can't change, because the tracker is held. */
	n->umem->notify = n->revoked ? UMEM_NOTIFY_REVOKED : NULL;
	umem_notify_destroy(n);
}

/**
 * ib_mr_notify_dereg - Deregister an MR that may be armed
 * @why: The reason. Unless the owner's process destroys the MR (RDMA_REMOVE_DESTROY), the
 *	 word says INVALID
 * @mr: The MR, its uobject held exclusively
 * @udata: As for ib_dereg_mr_user()
 *
 * Another process that has the file may call this: a forked child, or a process that
 * received the file. The owner of the MR still reads the word, so INVALID is set.
 *
 * If a memory window is bound to the MR, the driver refuses. Then the MR stays
 * armed. But if its context or its device ends, the tracker ends.
 *
 * Return: The result of ib_dereg_mr_user().
 */
int ib_mr_notify_dereg(enum rdma_remove_reason why, struct ib_mr *mr, struct ib_udata *udata)
{
	struct ib_umem_notify *n = umem_notify_of_mr(mr);
	int ret;

	if (n)
		umem_notify_hold(n, why == RDMA_REMOVE_DESTROY && is_own(n->umem), true);
	ret = ib_dereg_mr_user(mr, udata);
	if (!ret || !n)
		return ret;
	/* If a registration can't be aborted, the MR stays, as if the registration succeeded. */
	if (why == RDMA_REMOVE_DESTROY || why == RDMA_REMOVE_ABORT)
		ib_mr_notify_unhold(mr);
	else
		umem_notify_abandon(n);
	return ret;
}
EXPORT_SYMBOL(ib_mr_notify_dereg);
