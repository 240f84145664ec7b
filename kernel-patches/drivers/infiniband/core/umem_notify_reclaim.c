// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Idle registrations lend their pages to the VM, and get others when they are
 * used again.
 *
 * A tracker whose word counts its users (@in_use) and was armed for it
 * (@reclaim) is on a list of its memory cgroup. The shrinker goes through the
 * list, least recently used first, and suspends those that are idle. The device loses
 * their pages, which are unpinned: from there on they are like any others of the process,
 * to be swapped, moved or freed. Settling pins the pages that the range maps then, and
 * gives them to the device under the same keys.
 *
 * Where the device's revoke does not sleep the shrinker does it all, as nothing of it
 * takes a lock that a task in reclaim may hold. Else the worker does.
 *
 * A registration that was used since the last look is passed over once. A memory block
 * that goes offline suspends the idle ones that have pages in it, however recently they
 * were used. A process whose word says that it is in use all the time keeps its own pages
 * pinned, and charged.
 *
 * LOCKS
 *
 * The list's lock is outside of the space's. So no MMU callback touches the list: a
 * tracker that is INVALID stays there until the shrinker meets it when its pages have
 * gone, or its end; and one that a fork suspended until the shrinker meets it.
 */

#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/memory.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

#include "umem_notify_tracker.h"
#include "umem_notify_trace.h"

/* So many registrations tell how large the others are. */
#define SAMPLE 32
/* Pages of another process's registration that the shrinker unpins itself */
#define MOST_OF_OTHERS 1024
/* A memory block lets a list's lock go after so many. */
#define BLOCK_BATCH 32
/* Pieces of one registration that a memory block looks at. */
#define MOST_PIECES 4096

static struct kmem_cache *trackers;
static struct list_lru idle;
static struct shrinker *shrinker;

/* For a walk along a list. */
struct walk {
	/* Of the shrinker: how many pages it is to look at, and those it did */
	unsigned long wanted;
	unsigned long looked;
	unsigned long taken;
	const struct shrink_control *sc;
	struct list_head suspended; /* trackers to be retired behind the walk */
	/* Of a memory block; @list has so many left to look at */
	unsigned long start_pfn;
	unsigned long end_pfn;
	struct list_lru_one *list;
	long left;
};

/*
 * Does the caller unpin the pages itself? Of its own process, of the memory cgroup that is
 * short because of both, or if they are not many: to unpin 64 GiB of another one's takes long.
 */
static bool retires(const struct ib_umem_notify *n, const struct shrink_control *sc)
{
	struct mm_struct *mm = current->mm;

	return umem_notify_pages(n) <= MOST_OF_OTHERS || umem_notify_space(n)->mn.mm == mm ||
	       (mm && sc->memcg && parent_mem_cgroup(sc->memcg) &&
		mm_match_cgroup(mm, sc->memcg));
}

/* Behind the walk, or by the worker. */
static void retire_later(struct ib_umem_notify *n, struct walk *walk)
{
	if (n->own || n->state != SUSPENDED || !umem_notify_retires_at_once(n) ||
	    !retires(n, walk->sc)) {
		umem_notify_queue_now(n);
		return;
	}
	umem_notify_queue_own(n);
	list_add_tail(&n->link, &walk->suspended);
}

/* An event may have hit it: it was not used since, or the word would not say so. */
static bool may_suspend(struct ib_umem_notify *n)
{
	return n->state == SUSPECT || (!umem_notify_was_used(n) && umem_notify_is_unused(n));
}

static enum lru_status look_at(struct ib_umem_notify *n, struct walk *walk)
{
	if (!n->word_page || n->state & SUSPENDED) {
		walk->looked++;
		return LRU_REMOVED;
	}
	walk->looked += umem_notify_pages(n);
	if (n->state & INVALID) {
		/* The worker is on its way, after a while. */
		if (!n->held && !umem_notify_is_used(n))
			umem_notify_queue_now(n);
		return LRU_ROTATE;
	}
	if (!umem_notify_is_idle(n) || !may_suspend(n) || !umem_notify_suspend(n))
		return LRU_ROTATE;
	retire_later(n, walk);
	walk->taken += umem_notify_pages(n);
	return LRU_REMOVED;
}

static enum lru_status shrink_one(struct list_head *item,
				  struct list_lru_one *list, spinlock_t *lock,
				  void *arg)
{
	struct ib_umem_notify *n =
		container_of(item, struct ib_umem_notify, lru);
	struct walk *walk = arg;
	enum lru_status status;

	if (walk->looked >= walk->wanted)
		return LRU_STOP;
	umem_notify_lock(n);
	status = look_at(n, walk);
	umem_notify_unlock(n);
	if (status == LRU_REMOVED)
		list_lru_isolate(list, item);
	return status;
}

static enum lru_status sample_one(struct list_head *item,
				  struct list_lru_one *list, spinlock_t *lock,
				  void *arg)
{
	unsigned long *pages = arg;

	*pages += umem_notify_pages(container_of(item, struct ib_umem_notify, lru));
	return LRU_SKIP;
}

/* In pages, or one of 1 GiB would count as little as one of 4 KiB. */
static unsigned long count_idle(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long nr = list_lru_shrink_count(&idle, sc);
	unsigned long left = SAMPLE;
	unsigned long pages = 0;

	if (!nr)
		return SHRINK_EMPTY;
	list_lru_walk_one(&idle, sc->nid, sc->memcg, sample_one, &pages, &left);
	return left < SAMPLE ? mult_frac(pages, nr, SAMPLE - left) : SHRINK_EMPTY;
}

static void retire_suspended(struct list_head *suspended)
{
	struct ib_umem_notify *n, *next;

	list_for_each_entry_safe(n, next, suspended, link)
		umem_notify_queue_come(n);
}

static unsigned long shrink_idle(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long nr = list_lru_shrink_count(&idle, sc);
	struct walk walk = {
		.wanted = sc->nr_to_scan,
		.sc = sc,
		.suspended = LIST_HEAD_INIT(walk.suspended),
	};

	list_lru_walk_one(&idle, sc->nid, sc->memcg, shrink_one, &walk, &nr);
	retire_suspended(&walk.suspended);
	if (!walk.looked)
		return SHRINK_STOP;
	sc->nr_scanned = walk.looked;
	return walk.taken;
}

/*
 * Its pages are there: the state is set before they are taken away. One in very
 * many pieces may be anywhere: to look at all under the locks would take too
 * long.
 */
static bool has_pages_in(const struct ib_umem_notify *n, const struct walk *walk)
{
	struct scatterlist *sg;
	unsigned long pfn;
	unsigned int i;

	if (n->umem->sgt_append.sgt.orig_nents > MOST_PIECES)
		return true;
	for_each_sgtable_sg(&n->umem->sgt_append.sgt, sg, i) {
		pfn = page_to_pfn(sg_page(sg));
		if (pfn < walk->end_pfn &&
		    pfn + DIV_ROUND_UP(sg->length, PAGE_SIZE) > walk->start_pfn)
			return true;
	}
	return false;
}

static bool leave_block(struct ib_umem_notify *n, const struct walk *walk)
{
	bool gone;

	umem_notify_lock(n);
	gone = n->state & (INVALID | SUSPENDED) || !n->word_page;
	if (!gone && umem_notify_is_idle(n) && has_pages_in(n, walk) &&
	    umem_notify_suspend(n)) {
		umem_notify_queue_now(n);
		gone = true;
	}
	umem_notify_unlock(n);
	return gone;
}

/*
 * Once round a list: each that stays goes to its end, so they are in the same order
 * afterwards, and the lock may be let go in between.
 */
static enum lru_status leave_block_one(struct list_head *item,
				       struct list_lru_one *list, spinlock_t *lock,
				       void *arg)
{
	struct walk *walk = arg;

	if (walk->list != list) {
		walk->list = list;
		walk->left = list->nr_items;
	}
	if (walk->left-- <= 0)
		return LRU_STOP;
	if (leave_block(container_of(item, struct ib_umem_notify, lru), walk)) {
		list_lru_isolate(list, item);
		return LRU_REMOVED;
	}
	if (walk->left % BLOCK_BATCH)
		return LRU_ROTATE;
	list_move_tail(item, &list->list);
	spin_unlock(lock);
	cond_resched();
	spin_lock(lock);
	return LRU_RETRY;
}

static int memory_event(struct notifier_block *nb, unsigned long event,
			void *data)
{
	const struct memory_notify *block = data;
	struct walk walk = {};

	/* Pages pinned for long are never in a movable zone. */
	if (event != MEM_GOING_OFFLINE ||
	    page_zonenum(pfn_to_page(block->start_pfn)) == ZONE_MOVABLE)
		return NOTIFY_OK;
	walk.start_pfn = block->start_pfn;
	walk.end_pfn = block->start_pfn + block->nr_pages;
	list_lru_walk(&idle, leave_block_one, &walk, ULONG_MAX);
	return NOTIFY_OK;
}

static struct notifier_block memory_block = {
	.notifier_call = memory_event,
};

/**
 * umem_notify_lend - The VM may have the pages of a tracker when it is idle
 * @n: The tracker, armed and taken; an INVALID one may have no pages
 */
void umem_notify_lend(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->mutex);

	if (!n->reclaim || n->revoked)
		return;
	umem_notify_mark_dirty(n->umem);
	list_lru_add_obj(&idle, &n->lru);
}

/**
 * umem_notify_unlend - The VM leaves a tracker alone
 * @n: The tracker, taken or about to end
 *
 * It may be SUSPENDED when this returns.
 */
void umem_notify_unlend(struct ib_umem_notify *n)
{
	if (n->reclaim)
		list_lru_del_obj(&idle, &n->lru);
}

/* Pins the pages that the range maps now. The charge is that of a registration. */
static int pin_again(struct ib_umem *umem)
{
	struct ib_umem *fresh;

	fresh = ib_umem_get(umem->ibdev, umem->address, umem->length,
			    umem->writable ? IB_ACCESS_LOCAL_WRITE : 0);
	if (IS_ERR(fresh))
		return PTR_ERR(fresh);
	/* Only its pages are wanted. */
	umem->sgt_append = fresh->sgt_append;
	mmdrop(fresh->owning_mm);
	kfree(fresh);
	return 0;
}

static int give_pages(struct ib_umem_notify *n)
{
	struct ib_umem *umem = n->umem;
	int ret;

	umem_notify_lock(n);
	umem_notify_doubt_clear(&n->doubt);
	if (umem_notify_space_changes(umem_notify_space(n), umem_notify_start(n),
				      umem_notify_last(n)))
		umem_notify_doubt_range(n, 0, ULONG_MAX);
	umem_notify_unlock(n);

	ret = pin_again(umem);
	if (ret)
		return ret;
	ret = umem_notify_state(n) == INVALID ? -EFAULT : umem->ibdev->ops.restore_user_mr(n->mr);
	if (ret) {
		ib_umem_give_back(umem);
		return ret;
	}
	umem_notify_lock(n);
	n->revoked = false;
	umem_notify_unlock(n);
	return 0;
}

/* The word says that it is valid again, or at most in doubt. */
static void end_suspension(struct ib_umem_notify *n)
{
	umem_notify_lock(n);
	if (n->state == SUSPENDED) {
		n->state = n->doubt.chunks ? SUSPECT : 0;
		umem_notify_word_change(n->word_page, n->word, n->state, SUSPENDED);
		if (n->state)
			umem_notify_queue_later(n);
		umem_notify_restored(n);
		umem_notify_queue_time(n);
		umem_notify_counted(n, IB_MR_NOTIFY_STAT_RESTORES, 1);
	}
	umem_notify_unlock(n);
	umem_notify_lend(n);
}

/**
 * umem_notify_restore - Give a suspended registration pages again
 * @n: The tracker, taken by a system call, and not held
 *
 * Return: 0, and it is not SUSPENDED any more; it is INVALID if the pages that
 * the range maps can't be pinned. -ENOMEM (also: RLIMIT_MEMLOCK), -EINTR,
 * -EAGAIN, -EINVAL (not the owner's process), and it is as SUSPENDED as before.
 */
int umem_notify_restore(struct ib_umem_notify *n)
{
	int ret = 0;

	lockdep_assert_held(&n->mutex);

	if (umem_notify_state(n) != SUSPENDED)
		return 0;
	if (n->umem->owning_mm != current->mm)
		return -EINVAL;

	/* The worker has not come yet: the pages are still there. */
	if (n->revoked)
		ret = give_pages(n);
	trace_mr_notify_restore(n, ret);
	switch (ret) {
	case 0:
		end_suspension(n);
		return 0;
	case -EPERM: /* RLIMIT_MEMLOCK is 0 */
		return -ENOMEM;
	case -EBUSY:
		return -EAGAIN;
	case -ENOMEM:
	case -EINTR:
	case -EAGAIN:
		return ret;
	default:
		umem_notify_lock(n);
		umem_notify_mark_invalid(n);
		umem_notify_unlock(n);
		return 0;
	}
}

/*
 * From a cache: the list finds the memory cgroup of an object by that, and has
 * a part for it since it was allocated for the list.
 */
struct ib_umem_notify *umem_notify_tracker_alloc(void)
{
	struct ib_umem_notify *n;

	n = kmem_cache_alloc_lru(trackers, &idle,
				 GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (n)
		INIT_LIST_HEAD(&n->lru);
	return n;
}

int umem_notify_reclaim_init(void)
{
	int ret = -ENOMEM;

	trackers = KMEM_CACHE(ib_umem_notify, 0);
	if (!trackers)
		return ret;
	shrinker = shrinker_alloc(SHRINKER_MEMCG_AWARE | SHRINKER_NUMA_AWARE,
				  "ib-mr-notify");
	if (!shrinker)
		goto destroy_trackers;
	ret = list_lru_init_memcg(&idle, shrinker);
	if (ret)
		goto free_shrinker;
	ret = register_memory_notifier(&memory_block);
	if (ret)
		goto destroy_list;

	shrinker->count_objects = count_idle;
	shrinker->scan_objects = shrink_idle;
	/* As many of its pages as of the page cache: they cost as much to get back. */
	shrinker->seeks = 2 * DEFAULT_SEEKS;
	shrinker_register(shrinker);
	return 0;

destroy_list:
	list_lru_destroy(&idle);
free_shrinker:
	shrinker_free(shrinker);
destroy_trackers:
	kmem_cache_destroy(trackers);
	return ret;
}

void umem_notify_reclaim_exit(void)
{
	shrinker_free(shrinker);
	unregister_memory_notifier(&memory_block);
	list_lru_destroy(&idle);
	kmem_cache_destroy(trackers);
}
