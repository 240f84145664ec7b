// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Idle registrations lend their pages to the VM, and get others when they are
 * used again.
 *
 * A tracker whose word counts its users (@in_use) and was armed for it
 * (@reclaim) is on a list of its memory cgroup. The shrinker goes through the
 * list, least recently used first, and sets SUSPENDED in the words of those
 * that are idle. The worker then takes the pages from the device and unpins
 * them: from there on they are like any others of the process, to be swapped,
 * moved or freed. Settling pins the pages that the range maps then, and gives
 * them to the device under the same keys.
 *
 * A use of a registration touches no list. Whether one was shows in its word:
 * application bits that are not those of the last look were changed in between,
 * and the registration is passed over once. Looks that are less than
 * LOOKS_APART from one another are one: reclaim comes on all CPUs at the same
 * time, and drop_caches comes again and again while it finds something.
 *
 * A memory block that goes offline suspends the idle ones that have pages in it,
 * however recently they were used.
 *
 * A REFERENCE AGAINST A SUSPENSION
 *
 * To read the word and then to set the bit loses:
 *
 *   shrinker                              the application
 *   word & in_use is 0
 *                                         adds a reference; the word is 0: valid
 *   word |= SUSPENDED
 *   revokes                               [its transfer fails]
 *
 * So the bit is set by a compare-and-swap of the whole word. A reference is
 * taken by an atomic addition that returns the word before, so one of the two
 * is first:
 *
 *   word & in_use is 0
 *                                         adds a reference: valid
 *   compare-and-swap fails: it stays
 *
 *   compare-and-swap
 *                                         adds a reference, sees SUSPENDED: settles
 *
 * A SUSPENSION AGAINST AN EVENT
 *
 * Both are under @lock. UNMAP and RELEASE turn SUSPENDED into INVALID, and a
 * tracker that is INVALID is not suspended. CLEAR and MIGRATE leave the word
 * alone, as the mapping of the range does not matter any more. But the pages
 * are there until the worker has come, and settle may come first; so these
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
 *
 * RESTORING AGAINST AN EVENT
 *
 * The notifier has been there all the time, but a settle that pins a page that
 * an event is about to take away, after the event told no word, has a stale
 * page and a word that says 0:
 *
 *   settle                                another thread
 *                                         CLEAR: SUSPENDED, nothing to say
 *   pins P, which is still mapped
 *                                         unmaps P
 *   state = 0                             [stale]
 *
 * So events leave a doubt from before the first page is pinned; if some are under
 * way then, all of the range is in doubt, as in ib_umem_track():
 *
 *   lock; @doubt = nothing, or all; unlock
 *   pins P
 *                                         lock; @doubt has P; unlock; unmaps P
 *   lock; @doubt is not empty:
 *   state = SUSPECT; unlock; looks
 *
 * An UNMAP in between has made it INVALID. Then the pages go back at once.
 *
 * SETTLE AGAINST THE REST
 *
 * A second suspension: a tracker is off the list from the first one until it
 * has been restored, and is passed over once after that. A user that holds a
 * reference while settling, as it should, finds the word valid afterwards.
 *
 * A second settle, the worker, disarming: each takes the tracker. So the worker
 * unpins either all the pages or, if settle was first, none: the state is not
 * SUSPENDED any more.
 *
 * Disarming restores first. A tracker that is restored goes back on the list, and
 * may be suspended again before it is taken off:
 *
 *   disarm                                memory goes offline
 *   restores: on the list
 *                                         state = SUSPENDED; queues
 *   takes it off; leaves the word
 *                                         [the worker: it is not armed]
 *
 * So it counts as not lent from before it is restored.
 *
 * Deregistration, re-registration: they have the uobject alone, so no settle is
 * under way. They hold the tracker (umem_notify_hold()), and the shrinker leaves
 * it alone. A suspended MR that is deregistered has no pages to release; one that
 * is re-registered with the same translation goes on being suspended, one with
 * another ends INVALID as ever.
 *
 * The device is removed, the context closed: INVALID, from SUSPENDED too. Exit
 * and exec: RELEASE. Fork suspends idle MRs (umem_notify_due.c), and the child
 * has no registration; a suspended range is not pinned, so fork shares its
 * pages, and restoring makes them the parent's own as pinning always does. A
 * child that has inherited the device can't settle a SUSPENDED MR: it maps other
 * memory there.
 *
 * THE SHRINKER'S LIMITS
 *
 * It runs in reclaim. Unpinning takes the locks of folios, and revoking may sleep, so it
 * sets the bit and queues. A queued tracker frees no memory by itself either: it lets
 * reclaim have pages that it had to pass over. The pages of one that an event has hit are
 * freed, if they were unmapped: the shrinker has the worker come for it at once. It waits
 * for the worker where those pages may be the missing ones (umem_notify_due.c).
 *
 * A PROCESS THAT LIES
 *
 * The word is written, but believed in one thing only: whether the process uses
 * the registration. One that clears SUSPENDED has no access all the same; one
 * that sets it, or changes other bits all the time, keeps its own pages pinned,
 * and charged.
 *
 * LOCKS
 *
 * The list's lock is outside of the space's. So no MMU callback touches the list: a
 * tracker that is INVALID stays there until the shrinker meets it when its pages have
 * gone, or its end; and one that a fork suspended until the shrinker meets it.
 */

#include <linux/hash.h>
#include <linux/list_lru.h>
#include <linux/memcontrol.h>
#include <linux/memory.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

#include "umem_notify_tracker.h"
#include "umem_notify_trace.h"

#define LOOKS_APART max(HZ / 50, 1)
/* So many registrations tell how large the others are. */
#define SAMPLE 32
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
	struct umem_notify_space *space; /* NULL, or one whose pages are due */
	/* Of a memory block; @list has so many left to look at */
	unsigned long start_pfn;
	unsigned long end_pfn;
	struct list_lru_one *list;
	long left;
};

static u16 look_now(void)
{
	return jiffies / LOOKS_APART;
}

static u16 seen_of(u64 word)
{
	return hash_64(word & ~(u64)IB_UVERBS_MR_NOTIFY_KERNEL_MASK, 16);
}

/* Nothing is to be had from it any more, with any word. */
static bool is_over(const struct ib_umem_notify *n)
{
	return n->state & (INVALID | SUSPENDED) || !n->word_page;
}

/**
 * umem_notify_is_idle - Is a registration that lends its pages idle?
 * @n: The tracker, its space's lock held
 */
bool umem_notify_is_idle(const struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	return n->reclaim && !n->held && !is_over(n) &&
	       !(umem_notify_word_read(n->word_page, n->word) & n->in_use);
}

/* The registration, if it is still idle, has no pages any more. */
static bool take_back(struct ib_umem_notify *n, u64 word)
{
	u8 bit = n->mr->device->ops.restore_user_mr ? SUSPENDED : INVALID;

	umem_notify_assert_locked(n);

	if (!umem_notify_word_cmpxchg(n->word_page, n->word, word,
				      (word & ~(u64)SUSPECT) | bit))
		return false;
	n->state = bit;
	n->doublings = 0;
	umem_notify_counted(n, bit == SUSPENDED ? IB_MR_NOTIFY_STAT_SUSPENSIONS :
						  IB_MR_NOTIFY_STAT_INVALID, 1);
	trace_mr_notify_suspend(n->umem, umem_notify_id(n), bit);
	umem_notify_queue_now(n);
	return true;
}

/**
 * umem_notify_take_back - An idle registration has no pages any more
 * @n: The tracker, its space's lock held, idle just now
 *
 * Return: Whether it was still idle.
 */
bool umem_notify_take_back(struct ib_umem_notify *n)
{
	u64 word = umem_notify_word_read(n->word_page, n->word);

	return !(word & n->in_use) && take_back(n, word);
}

/* Its pages come soon, or that is found out; the caller may wait for it. */
static void hasten(struct ib_umem_notify *n, struct walk *walk)
{
	struct umem_notify_space *space = umem_notify_space(n);

	umem_notify_queue_now(n);
	if (walk->space)
		return;
	refcount_inc(&space->users); /* it has one of the queue */
	walk->space = space;
}

/*
 * An event has hit it, and it is not in use: the worker is on its way, after a while. It
 * comes at once.
 */
static bool is_hit(const struct ib_umem_notify *n)
{
	return n->state & (INVALID | SUSPECT) && n->word_page && !n->held &&
	       !(umem_notify_word_read(n->word_page, n->word) & n->in_use);
}

/* Since the last look that found so. Then this is the one. */
static bool was_used(struct ib_umem_notify *n, u64 word)
{
	u16 seen = seen_of(word);

	if (!(word & n->in_use) && seen == n->seen)
		return false;
	n->seen = seen;
	n->look = look_now();
	return true;
}

static u16 looks_since(const struct ib_umem_notify *n)
{
	return look_now() - n->look;
}

static enum lru_status look_at(struct ib_umem_notify *n, struct walk *walk)
{
	u64 word;

	if (is_hit(n)) {
		hasten(n, walk);
		walk->looked += umem_notify_pages(n);
		walk->taken += umem_notify_pages(n);
		return LRU_ROTATE;
	}
	if (is_over(n) && !(n->state == INVALID && n->word_page)) {
		walk->looked++;
		return LRU_REMOVED;
	}
	walk->looked += umem_notify_pages(n);
	if (is_over(n))
		return LRU_ROTATE;
	if (n->held)
		return LRU_ROTATE;
	word = umem_notify_word_read(n->word_page, n->word);
	if (was_used(n, word) || looks_since(n) <= 1 || !take_back(n, word))
		return LRU_ROTATE;
	hasten(n, walk);
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

/*
 * A task of a user's, which gets no memory otherwise; not one that others wait for. Of its
 * own process, or of the memory cgroup that is short because of both: a stranger's
 * registrations are no reason to wait.
 */
static bool may_wait(const struct shrink_control *sc, const struct umem_notify_space *space)
{
	struct mm_struct *mm = current->mm;

	if ((sc->gfp_mask & GFP_KERNEL) != GFP_KERNEL || current->flags & PF_KTHREAD || !mm)
		return false;
	return space->mn.mm == mm || (sc->memcg && parent_mem_cgroup(sc->memcg) &&
				      mm_match_cgroup(mm, sc->memcg));
}

static unsigned long shrink_idle(struct shrinker *s, struct shrink_control *sc)
{
	unsigned long nr = list_lru_shrink_count(&idle, sc);
	struct walk walk = { .wanted = sc->nr_to_scan };

	list_lru_walk_one(&idle, sc->nid, sc->memcg, shrink_one, &walk, &nr);
	if (walk.space) {
		if (may_wait(sc, walk.space))
			umem_notify_due_wait(walk.space);
		umem_notify_space_put(walk.space);
	}
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
	u64 word;

	umem_notify_lock(n);
	gone = is_over(n);
	if (!gone && !n->held) {
		word = umem_notify_word_read(n->word_page, n->word);
		gone = !(word & n->in_use) && has_pages_in(n, walk) &&
		       take_back(n, word);
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
 * @n: The tracker, armed and taken
 */
void umem_notify_lend(struct ib_umem_notify *n)
{
	lockdep_assert_held(&n->mutex);

	if (n->reclaim)
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

/**
 * umem_notify_first_look - Note the application's bits before the first look
 * @n: The tracker, its lock held, its word known
 */
void umem_notify_first_look(struct ib_umem_notify *n)
{
	umem_notify_assert_locked(n);

	n->seen = seen_of(umem_notify_word_read(n->word_page, n->word));
	n->look = look_now() - 2;
}

/**
 * umem_notify_look_idle - Suspend a registration not used for a while
 * @n: The tracker, taken
 * @idle: For so many jiffies, if it has a time
 */
void umem_notify_look_idle(struct ib_umem_notify *n, unsigned long idle)
{
	bool taken = false;
	u64 word;

	lockdep_assert_held(&n->mutex);

	umem_notify_lock(n);
	if (n->timed && n->reclaim && !n->held && !n->state && n->word_page) {
		word = umem_notify_word_read(n->word_page, n->word);
		taken = !was_used(n, word) &&
			looks_since(n) >= idle / LOOKS_APART &&
			take_back(n, word);
	}
	umem_notify_unlock(n);
	if (taken)
		umem_notify_unlend(n);
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

static bool is_invalid(struct ib_umem_notify *n)
{
	bool invalid;

	umem_notify_lock(n);
	invalid = n->state == INVALID;
	umem_notify_unlock(n);
	return invalid;
}

static int give_pages(struct ib_umem_notify *n)
{
	struct ib_umem *umem = n->umem;
	int ret;

	umem_notify_lock(n);
	umem_notify_doubt_clear(&n->doubt);
	if (umem_notify_space_changes(umem_notify_space(n), umem_notify_start(n),
				      umem_notify_last(n)))
		umem_notify_doubt_all(n);
	umem_notify_unlock(n);

	ret = pin_again(umem);
	if (ret)
		return ret;
	ret = is_invalid(n) ? -EFAULT : umem->ibdev->ops.restore_user_mr(n->mr);
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
		if (n->state) {
			umem_notify_word_set(n->word_page, n->word, SUSPECT);
			umem_notify_queue_later(n);
		}
		umem_notify_word_clear(n->word_page, n->word, SUSPENDED);
		umem_notify_queue_idle(n);
		n->seen = ~seen_of(umem_notify_word_read(n->word_page, n->word));
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
	trace_mr_notify_restore(n->umem, n->mr->res.id, ret);
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
		umem_notify_mark(n, INVALID, 0, 0);
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

void umem_notify_tracker_free(struct umem_notify_node *node)
{
	kmem_cache_free(trackers, container_of(node, struct ib_umem_notify, node));
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
