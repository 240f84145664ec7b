// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word: eight bytes of user memory that the kernel can write
 * from any context, at any time, whatever became of the mapping.
 *
 * The page is pinned, so the callback of an MMU notifier, which must neither
 * fault nor sleep, reaches it with kmap_local_page(). A process whose words
 * share a page (a cache packs 64 or more into one) pays for one pinned page,
 * not for one per word: pages are shared by (mm, address) and charged once
 * against RLIMIT_MEMLOCK.
 *
 * If the application unmaps the page first, the writes go to the orphaned
 * page, which nobody sees and nobody else can own. Words that come later must
 * not join them there. So each page has an interval notifier, and whatever
 * happens to its address, a change of protection too, makes it doubtful: the
 * next word pins what is mapped now, as the first one did, and stays only if
 * that is the same page. A word that comes while the address changes may get
 * either page, as it might if it pinned one.
 *
 * A page must not become sure again after the event that made it doubtful:
 *
 *   pin()                                 another thread
 *   pins P, which is still mapped
 *                                         sure = false
 *                                         unmaps P, maps Q
 *   sure = true                           [later words go to P: never seen]
 *
 * Both sides set and test the sequence of the interval under the page's lock:
 *
 *   seq = mmu_interval_read_begin()
 *   pins P
 *                                         lock; mmu_interval_set_seq();
 *                                         sure = false; unlock
 *   lock; mmu_interval_read_retry() is true: sure = false; unlock
 *
 *   [Required: sure is set only if no event came after read_begin()]
 *
 * A new page has its notifier before it is pinned, and is not in the tree yet.
 *
 * A word belongs to one MR: else settling one wipes out what another has said.
 *
 *   settle A                              B, which has the word too
 *                                         word |= SUSPECT
 *   A is intact: word &= ~SUSPECT         [the word says that B is valid]
 *
 * What makes two words the same is the physical page and the offset: it may be
 * mapped at two addresses, by two processes, or have been moved. So what stands
 * for a physical page (struct frame) is one for all its mappings and has a bit
 * for each word. Who sets the bit has the word; to be the second is -EBUSY. A
 * frame has no pin of its own, but each of its mappings has one: as long as it
 * is there, its page is nobody else's.
 */

#include <linux/bitmap.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/rbtree.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "umem_notify.h"

struct frame {
	struct rb_node node;
	struct page *page;
	unsigned int mappings;
	DECLARE_BITMAP(used, PAGE_SIZE / sizeof(u64));
};

struct umem_notify_word_page {
	struct mmu_interval_notifier mni;
	struct page *page;
	struct frame *frame;
	spinlock_t lock; /* a leaf, taken by the callback */
	bool sure; /* the address maps the page; written under @lock */

	/* These under trees_lock */
	unsigned int words;
	struct rb_node node;
};

/*
 * Process context only, a leaf. Trees, so that nobody can make searching them
 * slow for others.
 */
static DEFINE_SPINLOCK(trees_lock);
static struct rb_root pages = RB_ROOT; /* by (mm, address) */
static struct rb_root frames = RB_ROOT; /* by struct page */

static bool umem_notify_word_invalidate(struct mmu_interval_notifier *mni,
					const struct mmu_notifier_range *range,
					unsigned long cur_seq)
{
	struct umem_notify_word_page *page =
		container_of(mni, struct umem_notify_word_page, mni);

	spin_lock(&page->lock);
	mmu_interval_set_seq(mni, cur_seq);
	page->sure = false;
	spin_unlock(&page->lock);
	return true;
}

static const struct mmu_interval_notifier_ops umem_notify_word_ops = {
	.invalidate = umem_notify_word_invalidate,
};

static unsigned long addr_of(const struct umem_notify_word_page *page)
{
	return page->mni.interval_tree.start;
}

/*
 * Pins what the address maps. Keeps the page if it is the first one; -ESTALE if
 * it is another one than before.
 */
static int pin(struct umem_notify_word_page *page)
{
	struct page *pinned;
	unsigned long seq;
	int ret;

	seq = mmu_interval_read_begin(&page->mni);
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

	spin_lock(&page->lock);
	page->sure = !mmu_interval_read_retry(&page->mni, seq);
	spin_unlock(&page->lock);
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

/* Gives a page that is pinned the frame of its physical page, or @frame. */
static void join_frame(struct umem_notify_word_page *page, struct frame *frame)
{
	struct rb_node *other;

	frame->page = page->page;
	spin_lock(&trees_lock);
	other = rb_find_add(&frame->node, &frames, compare_frames);
	page->frame = other ? rb_entry(other, struct frame, node) : frame;
	page->frame->mappings++;
	spin_unlock(&trees_lock);
	if (other)
		kfree(frame);
}

static struct umem_notify_word_page *create_page(unsigned long addr)
{
	struct umem_notify_word_page *page;
	struct frame *frame;
	int ret = -ENOMEM;

	page = kzalloc(sizeof(*page), GFP_KERNEL_ACCOUNT);
	frame = kzalloc(sizeof(*frame), GFP_KERNEL_ACCOUNT);
	if (!page || !frame)
		goto free;
	spin_lock_init(&page->lock);
	RB_CLEAR_NODE(&page->node);
	page->words = 1;

	ret = mmu_interval_notifier_insert(&page->mni, current->mm, addr,
					   PAGE_SIZE, &umem_notify_word_ops);
	if (ret)
		goto free;
	ret = charge(current->mm);
	if (ret)
		goto remove;
	ret = pin(page);
	if (ret)
		goto uncharge;
	join_frame(page, frame);
	return page;

uncharge:
	atomic64_dec(&current->mm->pinned_vm);
remove:
	mmu_interval_notifier_remove(&page->mni);
free:
	kfree(frame);
	kfree(page);
	return ERR_PTR(ret);
}

static void destroy_page(struct umem_notify_word_page *page)
{
	/* The notifier holds the last reference of the mm. */
	mmu_interval_notifier_remove(&page->mni);
	kfree(page);
}

/* One word less. Returns whether the page has to be destroyed. */
static bool drop_page(struct umem_notify_word_page *page)
{
	struct frame *frame = page->frame;

	spin_lock(&trees_lock);
	if (--page->words) {
		spin_unlock(&trees_lock);
		return false;
	}
	if (!RB_EMPTY_NODE(&page->node))
		rb_erase(&page->node, &pages);
	if (--frame->mappings)
		frame = NULL;
	else
		rb_erase(&frame->node, &frames);
	spin_unlock(&trees_lock);

	kfree(frame);
	unpin_user_pages_dirty_lock(&page->page, 1, true);
	atomic64_dec(&page->mni.mm->pinned_vm);
	return true;
}

static void put_page_of_word(struct umem_notify_word_page *page)
{
	if (drop_page(page))
		destroy_page(page);
}

struct place {
	struct mm_struct *mm;
	unsigned long addr;
};

static int compare_place(const void *key, const struct rb_node *node)
{
	const struct umem_notify_word_page *page =
		rb_entry(node, struct umem_notify_word_page, node);
	const struct place *place = key;

	if (place->mm != page->mni.mm)
		return place->mm < page->mni.mm ? -1 : 1;
	if (place->addr != addr_of(page))
		return place->addr < addr_of(page) ? -1 : 1;
	return 0;
}

static int compare_pages(struct rb_node *node, const struct rb_node *other)
{
	const struct umem_notify_word_page *page =
		rb_entry(node, struct umem_notify_word_page, node);
	const struct place place = { page->mni.mm, addr_of(page) };

	return compare_place(&place, other);
}

/* The page for another word at this address, or NULL. */
static struct umem_notify_word_page *find_page(unsigned long addr)
{
	const struct place place = { current->mm, addr };
	struct umem_notify_word_page *page = NULL;
	struct rb_node *node;

	spin_lock(&trees_lock);
	node = rb_find(&place, &pages, compare_place);
	if (node) {
		page = rb_entry(node, struct umem_notify_word_page, node);
		page->words++;
	}
	spin_unlock(&trees_lock);
	return page;
}

/* Its address maps another page now: words that come later find that one. */
static void forget_page(struct umem_notify_word_page *page)
{
	spin_lock(&trees_lock);
	if (!RB_EMPTY_NODE(&page->node)) {
		rb_erase(&page->node, &pages);
		RB_CLEAR_NODE(&page->node);
	}
	spin_unlock(&trees_lock);
}

static struct umem_notify_word_page *get_page_of_word(unsigned long addr)
{
	struct umem_notify_word_page *page, *other = NULL;
	struct rb_node *node;
	int ret;

	page = find_page(addr);
	if (page) {
		if (READ_ONCE(page->sure))
			return page;
		ret = pin(page);
		if (!ret)
			return page;
		if (ret == -ESTALE)
			forget_page(page);
		put_page_of_word(page);
		if (ret != -ESTALE)
			return ERR_PTR(ret);
	}

	page = create_page(addr);
	if (IS_ERR(page))
		return page;
	/* Two threads may be the first: one page is pinned, and charged. */
	spin_lock(&trees_lock);
	node = rb_find_add(&page->node, &pages, compare_pages);
	if (node) {
		RB_CLEAR_NODE(&page->node);
		other = rb_entry(node, struct umem_notify_word_page, node);
		if (other->page == page->page)
			other->words++;
		else
			other = NULL;
	}
	spin_unlock(&trees_lock);
	if (!other)
		return page; /* if not the first, the mapping is being changed */
	put_page_of_word(page);
	return other;
}

static unsigned int index_of(unsigned int offset)
{
	return offset / sizeof(u64);
}

/**
 * umem_notify_word_get - Take a word of the current process
 * @addr: The word's user address, a multiple of eight
 *
 * Return: Its page, pinned, to be given to umem_notify_word_put() or
 * umem_notify_word_retire(); or ERR_PTR(): -EBUSY if somebody has the word,
 * -EFAULT if the address can't be written or pinned, -ENOMEM if memory or
 * RLIMIT_MEMLOCK is exhausted, -EINTR.
 */
struct umem_notify_word_page *umem_notify_word_get(unsigned long addr)
{
	struct umem_notify_word_page *page;

	page = get_page_of_word(untagged_addr(addr) & PAGE_MASK);
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
 * @page: Its page, or NULL; nobody sets or clears the word any more
 * @offset: The word's, in the page
 *
 * Context: Process context, no mm lock held. May wait for invalidations of the
 * page's address space.
 */
void umem_notify_word_put(struct umem_notify_word_page *page,
			  unsigned int offset)
{
	if (!page)
		return;
	clear_bit_unlock(index_of(offset), page->frame->used);
	put_page_of_word(page);
}

/**
 * umem_notify_word_retire - Let go of a word without waiting
 * @page: Its page; nobody sets or clears the word any more
 * @offset: The word's, in the page
 *
 * Removing the notifier of a page waits for all the invalidations that its address
 * space is going through, an exit's for one, and a process can have them go on. So
 * no worker does that: it would keep others' pages waiting.
 *
 * Return: What is left if it was the last word of the page, to be given to
 * umem_notify_word_end() by who may wait; the page itself is given back at once. Or
 * NULL.
 */
struct umem_notify_word_page *
umem_notify_word_retire(struct umem_notify_word_page *page,
			unsigned int offset)
{
	clear_bit_unlock(index_of(offset), page->frame->used);
	return drop_page(page) ? page : NULL;
}

/**
 * umem_notify_word_end - Free what umem_notify_word_retire() left
 * @page: That, or NULL
 *
 * Context: As umem_notify_word_put().
 */
void umem_notify_word_end(struct umem_notify_word_page *page)
{
	if (page)
		destroy_page(page);
}

/*
 * The application changes the same eight bytes with atomic instructions of its
 * own, so each change here is one atomic instruction too. They are fully
 * ordered for user space as locked instructions are; the mapping changes only
 * after the callback that sets a bit has returned.
 *
 * A page with a memory error, which pinning does not stop, may have left the
 * direct map. Its owner gets SIGBUS for each look, so there is nobody to tell.
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

/* 0, so in use by nobody, if it is lost. */
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
