// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The shrinker: the VM takes the pages of idle registrations, and settling pins pages
 * again.
 *
 * If the word of a tracker counts its users (@in_use), and the MR was armed for reclaim
 * (@reclaim), the tracker is on a list of its memory cgroup. The shrinker goes through
 * the list, least recently used first, and suspends idle trackers: the device loses
 * access to the pages, and they are unpinned. Then the VM can swap, move or free them like
 * other pages of the process. Settling pins the pages that the range maps at that time,
 * and gives them to the device under the same keys.
 *
 * If the device's revoke does not sleep, the shrinker revokes and unpins: these steps take
 * no lock that a task in reclaim may hold. If the revoke sleeps, the worker revokes and
 * unpins.
 *
 * The shrinker skips a registration that was used since the last scan. If the word of a
 * process always says "in use", only this process is affected: its pages stay pinned
 * and charged.
 *
 * When a memory block goes offline, the VM tries to move pinned pages, again and again. The
 * first try is an event, and the worker suspends the idle trackers.
 *
 * LOCKS
 *
 * The list's lock is taken before the space's lock. So no MMU callback changes the list.
 * An INVALID tracker leaves the list when the tracker ends, or when the shrinker finds that
 * the tracker has no word any more. A tracker that a fork suspended leaves the list when the
 * shrinker finds the tracker.
 */

#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

#include "umem_notify.h"
#include "umem_notify_compat.h"
#include "umem_notify_trace.h"

/* The number of registrations from which the pages of the whole list are estimated */
#define SAMPLE 32
/* The size in pages up to which the shrinker itself unpins a registration of another process */
#define MOST_OF_OTHERS 1024

static struct kmem_cache *trackers;
static struct list_lru idle;
static struct shrinker *shrinker;

/* For the shrinker's walk along a list */
struct shrink_walk {
	const struct shrink_control *sc;
	unsigned long scanned; /* pages */
	unsigned long taken;
	bool waits; /* another task is about to unpin pages */
	unsigned long nr; /* trackers to visit; 0 stops the walk */
	unsigned long later; /* trackers to visit after @suspended was retired */
	struct ib_umem_notify *suspended; /* to retire without the list's lock, or NULL */
};

/*
 * Does the caller unpin the pages itself? Unpinning 64 GiB takes long, so a process should not
 * unpin for another process. There are two exceptions: the pages are few, or the caller's process
 * is in the memory cgroup that is short of memory.
 */
static bool shrink_retires(const struct ib_umem_notify *n, const struct shrink_control *sc)
{
	struct mm_struct *mm = current->mm;

	return umem_notify_pages(n) <= MOST_OF_OTHERS || umem_notify_mm(n)->mn.mm == mm ||
	       (mm && sc->memcg && parent_mem_cgroup(sc->memcg) && mm_match_cgroup(mm, sc->memcg));
}

/*
 * Suspends a tracker that is idle and was not used since the last scan. A SUSPECT tracker was
 * not used since its event: a user would have settled it.
 */
static bool shrink_suspend(struct ib_umem_notify *n, struct shrink_walk *walk)
{
	if (!umem_notify_is_idle(n) ||
	    (n->state != SUSPECT && !umem_notify_unused_for(n, UMEM_NOTIFY_SCANS_APART)) ||
	    !umem_notify_suspend(n))
		return false;
	walk->taken += umem_notify_pages(n);
	if (umem_notify_retires_atomically(n) && shrink_retires(n, walk->sc)) {
		n->refs++;
		walk->suspended = n;
		swap(walk->nr, walk->later);
	} else {
		umem_notify_queue_add(n, 0);
	}
	return true;
}

static enum lru_status shrink_one(UMEM_NOTIFY_LRU_ARGS)
{
	struct ib_umem_notify *n = container_of(item, struct ib_umem_notify, lru);
	struct shrink_walk *walk = arg;
	bool gone;

	guard(umem_notify)(n);
	gone = !n->word.page || (n->state & SUSPENDED && n->revoked);
	walk->scanned += gone ? 1 : umem_notify_pages(n);
	walk->waits |= !gone && !n->held && n->state & SUSPENDED && shrink_retires(n, walk->sc);
	if (n->state & INVALID && !n->held && !umem_notify_is_used(n))
		umem_notify_queue_add(n, 0); /* the worker would come later */
	if (walk->scanned >= walk->sc->nr_to_scan)
		walk->nr = 0;
	if (!gone && !shrink_suspend(n, walk))
		return LRU_ROTATE;
	list_lru_isolate(list, item);
	return LRU_REMOVED;
}

static enum lru_status sample_one(UMEM_NOTIFY_LRU_ARGS)
{
	unsigned long *pages = arg;

	*pages += umem_notify_pages(container_of(item, struct ib_umem_notify, lru));
	return LRU_SKIP;
}

/* Counts pages: a registration of 1 GiB must count more than one of 4 KiB. */
static unsigned long count_idle(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long nr = list_lru_shrink_count(&idle, sc);
	unsigned long left = SAMPLE, pages = 0;

	if (!nr)
		return SHRINK_EMPTY;
	list_lru_walk_one(&idle, sc->nid, sc->memcg, sample_one, &pages, &left);
	return left < SAMPLE ? mult_frac(pages, nr, SAMPLE - left) : SHRINK_EMPTY;
}

/*
 * A task that is short of memory may find trackers that another task is unpinning:
 *
 *   the worker                            a charge beyond memory.max
 *   state = SUSPENDED
 *   [loses its CPU]
 *                                         16 times: finds nothing idle
 *                                         [the OOM killer]
 *   revokes, unpins
 *
 * So the task waits for a tick each time. It can't wait for the tracker's mutex, because it may
 * hold mmap_lock. A kernel thread does not wait: it may be the worker, or kswapd.
 */
static unsigned long shrink_idle(struct shrinker *s, struct shrink_control *sc)
{
	struct shrink_walk walk = { .sc = sc, .nr = list_lru_shrink_count(&idle, sc) };
	struct ib_umem_notify *n;

	while (walk.nr) {
		walk.suspended = NULL;
		walk.later = 0;
		list_lru_walk_one(&idle, sc->nid, sc->memcg, shrink_one, &walk, &walk.nr);
		walk.nr = walk.later;
		n = walk.suspended;
		if (!n)
			break;
		scoped_guard(umem_notify, n)
			umem_notify_queue_visit(n, NULL);
		umem_notify_put(n);
	}
	if (walk.waits && !walk.taken && current->mm)
		schedule_timeout_uninterruptible(1);
	if (!walk.scanned)
		return SHRINK_STOP;
	sc->nr_scanned = walk.scanned;
	return walk.taken;
}

/**
 * umem_notify_lru_add - From now on the VM may take the pages of a tracker that is idle
 * @n: The tracker, armed, its mutex held; an INVALID tracker may have no pages
 */
void umem_notify_lru_add(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->mutex);

	if (!n->reclaim || n->revoked)
		return;
	umem_notify_mark_dirty(n->umem);
	list_lru_add_obj(&idle, &n->lru);
}

/**
 * umem_notify_lru_del - From now on the VM does not take the pages of a tracker
 * @n: The tracker; its mutex is held, or it is about to end
 *
 * The tracker may be SUSPENDED when this returns.
 */
void umem_notify_lru_del(struct ib_umem_notify *n)
{
	if (n->reclaim)
		list_lru_del_obj(&idle, &n->lru);
}

/*
 * Pins the pages that the range maps now, charges them as a registration does, and gives them to
 * the device.
 */
static int give_pages(struct ib_umem_notify *n)
{
	struct ib_umem *umem = n->umem, *fresh;
	int ret;

	scoped_guard(umem_notify, n) {
		umem_notify_suspects_clear(&n->suspects);
		if (umem_notify_mm_changes(umem_notify_mm(n), n->range.start,
					   n->range.last))
			umem_notify_suspects_add(n, 0, ULONG_MAX);
	}

	fresh = ib_umem_get(umem->ibdev, umem->address, umem->length,
			    umem->writable ? IB_ACCESS_LOCAL_WRITE : 0);
	if (IS_ERR(fresh))
		return PTR_ERR(fresh);
	/* Keep the pages of @fresh, free @fresh itself. */
	umem->sgt_append = fresh->sgt_append;
	mmdrop(fresh->owning_mm);
	kfree(fresh);
	ret = umem_notify_state(n) == INVALID ? -EFAULT : umem->ibdev->ops.restore_user_mr(n->mr);
	if (ret)
		ib_umem_give_back(umem);
	return ret;
}

/**
 * umem_notify_restore - Give a suspended registration pages again
 * @n: The tracker; a system call of its owner holds @mutex, and @held is not set
 *
 * If an event came after the pages were pinned, the word becomes SUSPECT.
 *
 * Return: 0 if the tracker is not SUSPENDED any more. If the pages that the range maps
 * can't be pinned, the tracker is INVALID. After -ENOMEM (also: RLIMIT_MEMLOCK), -EINTR or
 * -EAGAIN the tracker is still SUSPENDED.
 */
int umem_notify_restore(struct ib_umem_notify *n)
{
	int ret;

	lockdep_assert_held(&n->mutex);

	if (umem_notify_state(n) != SUSPENDED)
		return 0;

	/* If the tracker was not retired yet, the pages are still pinned. */
	ret = n->revoked ? give_pages(n) : 0;
	trace_mr_notify_restore(n, ret);
	if (ret == -EPERM) /* RLIMIT_MEMLOCK is 0 */
		ret = -ENOMEM;
	if (ret == -EBUSY)
		ret = -EAGAIN;
	if (ret == -ENOMEM || ret == -EINTR || ret == -EAGAIN)
		return ret;
	scoped_guard(umem_notify, n) {
		if (ret) {
			umem_notify_mark_invalid(n);
			return 0;
		}
		n->revoked = false;
		if (n->state == SUSPENDED) {
			n->state = n->suspects.chunks ? SUSPECT : 0;
			umem_notify_word_change(n, n->state, SUSPENDED);
			if (n->state)
				umem_notify_queue_add(n, UMEM_NOTIFY_LATER);
			umem_notify_first_scan(n, true);
			umem_notify_queue_set_idle(n);
			umem_notify_count(n, IB_MR_NOTIFY_STAT_RESTORES, 1);
		}
	}
	umem_notify_lru_add(n);
	return 0;
}

/*
 * Allocates from a slab cache, so that the list can find the tracker's memory cgroup.
 * kmem_cache_alloc_lru() makes sure that the list has a part for this memory cgroup.
 */
struct ib_umem_notify *umem_notify_tracker_alloc(void)
{
	struct ib_umem_notify *n;

	n = kmem_cache_alloc_lru(trackers, &idle, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (n)
		INIT_LIST_HEAD(&n->lru);
	return n;
}

/*
 * Called when ib_uverbs is unloaded and no umem is left, and when ib_umem_notify_init()
 * fails. So each function called here must accept NULL or an empty object.
 */
void ib_umem_notify_exit(void)
{
	umem_notify_event_exit();
	shrinker_free(shrinker);
	list_lru_destroy(&idle);
	kmem_cache_destroy(trackers);
}
EXPORT_SYMBOL(ib_umem_notify_exit);

/* Called when ib_uverbs is loaded. */
int ib_umem_notify_init(void)
{
	trackers = KMEM_CACHE(ib_umem_notify, 0);
	shrinker = shrinker_alloc(SHRINKER_MEMCG_AWARE | SHRINKER_NUMA_AWARE, "ib-mr-notify");
	if (!trackers || !shrinker || list_lru_init_memcg(&idle, shrinker)) {
		ib_umem_notify_exit();
		return -ENOMEM;
	}
	shrinker->count_objects = count_idle;
	shrinker->scan_objects = shrink_idle;
	/* As for the page cache, because getting the pages back costs as much. */
	shrinker->seeks = 2 * DEFAULT_SEEKS;
	shrinker_register(shrinker);
	return 0;
}
EXPORT_SYMBOL(ib_umem_notify_init);
