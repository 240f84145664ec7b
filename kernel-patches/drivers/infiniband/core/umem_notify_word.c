// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word: eight bytes of user memory that the kernel can write
 * from any context, at any time, even without the mapping.
 *
 * The page is pinned, so the callback of an MMU notifier, which must neither
 * fault nor sleep, reaches it with kmap_local_page(). A process whose words
 * share a page (a cache packs 64 or more into one) pays for one pinned page,
 * not for one per word: pages are shared by (address space, address) and charged once
 * against RLIMIT_MEMLOCK.
 *
 * If the application unmaps the page first, the writes go to the orphaned page,
 * which no process sees and none else can own. Words that come later must not
 * join them there. So each page is in a tree of its space, and any event of its
 * address, a change of protection too, makes it doubtful: the next word pins
 * the page that is mapped now, as the first one did, and stays only if that is
 * the same page. A word that comes while the address changes may get either
 * page, as it might if it pinned one.
 *
 * A word belongs to one MR: else settling one wipes out a bit of another.
 *
 *   settle A                              B, which has the word too
 *                                         word |= SUSPECT
 *   A is intact: word &= ~SUSPECT         [the word says that B is valid]
 *
 * Two words are the same by physical page and offset: the page may be mapped at two
 * addresses, by two processes, or have been moved. So a physical page has one struct
 * frame for all its mappings, with a bit for each word. The caller that sets the bit has
 * the word; to be the second is -EBUSY. A frame has no pin of its own, but each of its
 * mappings has one: as long as it is there, its page is not given to others.
 *
 * A pinned anonymous page belongs to one address space, so the frames of these are in
 * a tree of the space. Those of files and shared memory are in one tree for all.
 */

#include <linux/bitmap.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/rbtree.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "umem_notify_tracker.h"

struct frame {
	struct rb_node node;
	struct page *page;
	unsigned int mappings;
	bool shared; /* which tree it is in */
	DECLARE_BITMAP(used, PAGE_SIZE / sizeof(u64));
};

/* But for the frame all of it is under the space's lock. */
struct umem_notify_word_page {
	struct umem_notify_node node;
	struct umem_notify_space *space;
	struct page *page;
	struct frame *frame;
	unsigned int words;
	unsigned int events; /* of its address */
	bool sure; /* the address maps the page */
	bool joined; /* other words find it */
};

/* Process context only, a leaf */
static DEFINE_SPINLOCK(shared_frames_lock);
static struct rb_root shared_frames = RB_ROOT;

/**
 * umem_notify_word_event - An event of the address space hits a page of words
 * @node: The page's, its space's lock held
 */
void umem_notify_word_event(struct umem_notify_node *node)
{
	struct umem_notify_word_page *page =
		container_of(node, struct umem_notify_word_page, node);

	page->sure = false;
	page->events++;
}

static unsigned long addr_of(const struct umem_notify_word_page *page)
{
	return page->node.range.start;
}

/* Whether an event is under way there, and how many there were. */
static bool word_events(struct umem_notify_word_page *page, unsigned int *events)
{
	struct umem_notify_space *space = page->space;
	bool under_way;

	spin_lock(&space->lock);
	*events = page->events;
	under_way = umem_notify_space_events(space, addr_of(page),
					     page->node.range.last);
	spin_unlock(&space->lock);
	return under_way;
}

/*
 * Pins the page that the address maps. Keeps the page if it is the first one;
 * -ESTALE if it is another one than before.
 *
 * A page must not become sure again after the event that made it doubtful:
 *
 *   pin()                                 another thread
 *   pins P, which is still mapped
 *                                         sure = false
 *                                         unmaps P, maps Q
 *   sure = true                           [later words go to P: never seen]
 *
 * So it is sure only if no event was under way before it was pinned, and none has
 * come since.
 */
static int pin(struct umem_notify_word_page *page)
{
	struct umem_notify_space *space = page->space;
	unsigned int before;
	struct page *pinned;
	bool under_way;
	int ret;

	under_way = word_events(page, &before);
	ret = pin_user_pages_fast(addr_of(page), 1,
				  FOLL_WRITE | FOLL_LONGTERM, &pinned);
	if (ret != 1)
		return ret == -ENOMEM || ret == -EINTR ? ret : -EFAULT;

	if (!page->page) {
		page->page = pinned;
	} else {
		unpin_user_page(pinned); /* the first pin is enough */
		if (page->page != pinned)
			return -ESTALE;
	}

	spin_lock(&space->lock);
	page->sure = !under_way && page->events == before;
	spin_unlock(&space->lock);
	return 0;
}

static int charge(struct mm_struct *mm)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_inc_return(&mm->pinned_vm) <= limit ||
	    capable(CAP_IPC_LOCK))
		return 0;
	atomic64_dec(&mm->pinned_vm);
	return -ENOMEM;
}

static int compare_frames(struct rb_node *node, const struct rb_node *other)
{
	const struct page *a = rb_entry(node, struct frame, node)->page;
	const struct page *b = rb_entry(other, struct frame, node)->page;

	return a == b ? 0 : a < b ? -1 : 1;
}

static struct rb_root *lock_frames(struct umem_notify_space *space, bool shared)
{
	spin_lock(shared ? &shared_frames_lock : &space->lock);
	return shared ? &shared_frames : &space->frames;
}

static void unlock_frames(struct umem_notify_space *space, bool shared)
{
	spin_unlock(shared ? &shared_frames_lock : &space->lock);
}

/* Gives a page that is pinned the frame of its physical page, or @frame. */
static void join_frame(struct umem_notify_word_page *page, struct frame *frame)
{
	struct rb_node *other;

	frame->page = page->page;
	frame->shared = !PageAnon(page->page);
	other = rb_find_add(&frame->node,
			    lock_frames(page->space, frame->shared),
			    compare_frames);
	page->frame = other ? rb_entry(other, struct frame, node) : frame;
	page->frame->mappings++;
	unlock_frames(page->space, frame->shared);
	if (other)
		kfree(frame);
}

static void leave_frame(struct umem_notify_word_page *page)
{
	struct frame *frame = page->frame;
	bool shared = frame->shared;
	struct rb_root *frames = lock_frames(page->space, shared);

	if (--frame->mappings)
		frame = NULL;
	else
		rb_erase(&frame->node, frames);
	unlock_frames(page->space, shared);
	kfree(frame);
}

/* Takes a page without words out of its space. */
static void end_page(struct umem_notify_word_page *page)
{
	struct umem_notify_space *space = page->space;

	spin_lock(&space->lock);
	interval_tree_remove(&page->node.range, &space->words);
	spin_unlock(&space->lock);
	kfree(page);
	umem_notify_space_put(space);
}

static struct umem_notify_word_page *create_page(struct umem_notify_space *space,
						 unsigned long addr)
{
	struct umem_notify_word_page *page;
	struct frame *frame;
	int ret = -ENOMEM;

	page = kzalloc(sizeof(*page), GFP_KERNEL_ACCOUNT);
	frame = kzalloc(sizeof(*frame), GFP_KERNEL_ACCOUNT);
	if (!page || !frame)
		goto free;
	page->space = space;
	page->words = 1;
	page->node.range.start = addr;
	page->node.range.last = addr + PAGE_SIZE - 1;

	ret = charge(space->mn.mm);
	if (ret)
		goto free;
	refcount_inc(&space->users);
	spin_lock(&space->lock);
	umem_notify_space_insert(space, &space->words, &page->node);
	spin_unlock(&space->lock);
	ret = pin(page);
	if (ret)
		goto end;
	join_frame(page, frame);
	return page;

end:
	end_page(page);
	page = NULL;
	atomic64_dec(&space->mn.mm->pinned_vm);
free:
	kfree(frame);
	kfree(page);
	return ERR_PTR(ret);
}

static void put_page_of_word(struct umem_notify_word_page *page)
{
	struct umem_notify_space *space = page->space;
	bool last;

	spin_lock(&space->lock);
	last = !--page->words;
	if (last)
		page->joined = false;
	spin_unlock(&space->lock);
	if (!last)
		return;

	leave_frame(page);
	SetPageDirty(page->page); /* without a lock: see umem_notify_retire.c */
	unpin_user_page(page->page);
	atomic64_dec(&space->mn.mm->pinned_vm);
	end_page(page);
}

#define MOST_LOOKS 64

/*
 * The page that other words at this address share, with one more; or NULL. Behind many that were
 * mapped there before, as events wait for the lock, it is not found: its words have two pages.
 */
static struct umem_notify_word_page *find_page(struct umem_notify_space *space,
					       unsigned long addr)
{
	struct umem_notify_word_page *page;
	struct interval_tree_node *next;
	unsigned int looks = MOST_LOOKS;

	lockdep_assert_held(&space->lock);

	for (next = interval_tree_iter_first(&space->words, addr, addr); next && looks--;
	     next = interval_tree_iter_next(next, addr, addr)) {
		page = container_of(next, struct umem_notify_word_page, node.range);
		if (page->joined) {
			page->words++;
			return page;
		}
	}
	return NULL;
}

/* Has later words find a page, or one with the same physical page that they find. */
static struct umem_notify_word_page *join_page(struct umem_notify_word_page *page)
{
	struct umem_notify_space *space = page->space;
	struct umem_notify_word_page *other;

	spin_lock(&space->lock);
	other = find_page(space, addr_of(page));
	if (!other)
		page->joined = true;
	spin_unlock(&space->lock);
	if (!other)
		return page;
	/* Two threads may be the first: one page is pinned, and charged. */
	if (other->page == page->page)
		swap(page, other);
	/* If not the same, the mapping is being changed. */
	put_page_of_word(other);
	return page;
}

static struct umem_notify_word_page *get_page_of_word(struct umem_notify_space *space,
						      unsigned long addr)
{
	struct umem_notify_word_page *page;
	bool sure = false;
	int ret;

	spin_lock(&space->lock);
	page = find_page(space, addr);
	if (page)
		sure = page->sure;
	spin_unlock(&space->lock);
	if (sure)
		return page;
	if (page) {
		ret = pin(page);
		if (!ret)
			return page;
		if (ret == -ESTALE) {
			/* Later words find the page that is mapped now. */
			spin_lock(&space->lock);
			page->joined = false;
			spin_unlock(&space->lock);
		}
		put_page_of_word(page);
		if (ret != -ESTALE)
			return ERR_PTR(ret);
	}
	page = create_page(space, addr);
	return IS_ERR(page) ? page : join_page(page);
}

static unsigned int index_of(unsigned int offset)
{
	return offset / sizeof(u64);
}

/**
 * umem_notify_word_get - Take a word of the current process
 * @space: The space of that process
 * @addr: The word's user address, a multiple of eight
 *
 * Return: Its page, pinned, to be given to umem_notify_word_put(); or ERR_PTR():
 * -EBUSY if another MR has the word, -EFAULT if the address can't be written or
 * pinned, -ENOMEM if memory or RLIMIT_MEMLOCK is exhausted, -EINTR.
 */
struct umem_notify_word_page *umem_notify_word_get(struct umem_notify_space *space,
						   unsigned long addr)
{
	struct umem_notify_word_page *page;

	page = get_page_of_word(space, untagged_addr(addr) & PAGE_MASK);
	if (IS_ERR(page))
		return page;
	if (test_and_set_bit(index_of(offset_in_page(addr)),
			     page->frame->used)) {
		put_page_of_word(page);
		return ERR_PTR(-EBUSY);
	}
	return page;
}

/**
 * umem_notify_word_put - Let go of a word
 * @page: Its page, or NULL; the word is not set or cleared any more
 * @offset: The word's, in the page
 *
 * Context: Process context, no mm lock held.
 */
void umem_notify_word_put(struct umem_notify_word_page *page,
			  unsigned int offset)
{
	if (!page)
		return;
	clear_bit_unlock(index_of(offset), page->frame->used);
	put_page_of_word(page);
}

/*
 * The application changes the same eight bytes with atomic instructions of its
 * own, so each change here is one atomic instruction too. They are fully
 * ordered for user space as locked instructions are; the mapping changes only
 * after the callback that sets a bit has returned.
 *
 * A page with a memory error, which pinning does not stop, may have left the
 * direct map. Its owner gets SIGBUS for each look, so the word is not told.
 */
static bool is_lost(const struct umem_notify_word_page *page)
{
	return is_page_hwpoison(page->page); /* of hugetlb the folio is marked */
}

void umem_notify_word_set(const struct umem_notify_word_page *page,
			  unsigned int offset, u64 bits)
{
	void *va;

	if (is_lost(page))
		return;
	va = kmap_local_page(page->page);
	atomic64_or(bits, (atomic64_t *)(va + offset));
	flush_dcache_page(page->page);
	kunmap_local(va);
}

void umem_notify_word_clear(const struct umem_notify_word_page *page,
			    unsigned int offset, u64 bits)
{
	void *va;

	if (is_lost(page))
		return;
	va = kmap_local_page(page->page);
	atomic64_andnot(bits, (atomic64_t *)(va + offset));
	flush_dcache_page(page->page);
	kunmap_local(va);
}

bool umem_notify_word_cmpxchg(const struct umem_notify_word_page *page,
			      unsigned int offset, u64 old, u64 value)
{
	void *va;
	bool same;

	if (is_lost(page))
		return false;
	va = kmap_local_page(page->page);
	same = atomic64_cmpxchg((atomic64_t *)(va + offset), old, value) == old;
	flush_dcache_page(page->page);
	kunmap_local(va);
	return same;
}

/* 0, so not in use, if it is lost. */
u64 umem_notify_word_read(const struct umem_notify_word_page *page,
			  unsigned int offset)
{
	void *va;
	u64 value;

	if (is_lost(page))
		return 0;
	va = kmap_local_page(page->page);
	value = atomic64_read((atomic64_t *)(va + offset));
	kunmap_local(va);
	return value;
}
