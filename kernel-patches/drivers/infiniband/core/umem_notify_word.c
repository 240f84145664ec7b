// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word: eight bytes of user memory that the kernel can write
 * from any context, at any time, even without the mapping.
 *
 * The page is pinned, so the callback of an MMU notifier, which must neither
 * fault nor sleep, reaches it by the kernel's own mapping. The words of a page share one pin,
 * which is charged once against RLIMIT_MEMLOCK (a cache packs 64 words or more into a
 * page).
 *
 * Each word pins the page that its address maps now, and then finds out whether that page
 * is pinned for other words. So no event has to be watched: if the application unmaps
 * the page, the writes for its words go to the orphaned page, which no process sees and
 * none else can own, and a later word at the same address gets the new page. A word that
 * comes while the address changes may get either page.
 *
 * A word belongs to one MR. With two, settling one wipes out a bit of the other:
 *
 *   settle A                              B, which has the word too
 *                                         word |= SUSPECT
 *   A is intact: word &= ~SUSPECT         [the word says that B is valid]
 *
 * Two words are the same by physical page and offset: the page may be mapped at two
 * addresses, by two processes, or have been moved. The second MR gets -EBUSY.
 */

#include <linux/bitmap.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/rbtree.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "umem_notify_tracker.h"

struct umem_notify_word_page {
	struct rb_node node; /* of its tree, by @page */
	struct page *page;
	struct mm_struct *mm; /* it is charged for the pin */
	DECLARE_BITMAP(used, PAGE_SIZE / sizeof(u64)); /* the tree's lock */
};

#define TREE_BITS 6

/* Process context only. Many, for processes that arm at the same time. */
static struct word_tree {
	spinlock_t lock; /* a leaf */
	struct rb_root root;
} word_trees[1 << TREE_BITS] = {
	[0 ... (1 << TREE_BITS) - 1].lock = __SPIN_LOCK_UNLOCKED(word_trees.lock),
};

static struct word_tree *tree_of(const struct page *page)
{
	return &word_trees[hash_ptr(page, TREE_BITS)];
}

static unsigned int index_of(unsigned int offset)
{
	return offset / sizeof(u64);
}

static int compare(const void *page, const struct rb_node *node)
{
	const struct page *other = rb_entry(node, struct umem_notify_word_page, node)->page;

	return page == other ? 0 : page < (const void *)other ? -1 : 1;
}

static int compare_nodes(struct rb_node *node, const struct rb_node *other)
{
	return compare(rb_entry(node, struct umem_notify_word_page, node)->page, other);
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

static void free_page_of_words(struct umem_notify_word_page *page)
{
	unpin_user_page(page->page);
	atomic64_dec(&page->mm->pinned_vm);
	mmdrop(page->mm);
	kfree(page);
}

/* Takes the pin of @pinned, and the charge for it. */
static struct umem_notify_word_page *create_page(struct page *pinned)
{
	struct umem_notify_word_page *page;
	int ret;

	page = kzalloc(sizeof(*page), GFP_KERNEL_ACCOUNT);
	ret = page ? charge(current->mm) : -ENOMEM;
	if (ret) {
		unpin_user_page(pinned);
		kfree(page);
		return ERR_PTR(ret);
	}
	mmgrab(current->mm);
	page->mm = current->mm;
	page->page = pinned;
	return page;
}

/* The page of words of a pinned page, or NULL. The word is taken, or it is -EBUSY. */
static struct umem_notify_word_page *take_word(struct word_tree *tree, struct rb_node *node,
					       unsigned int offset)
{
	struct umem_notify_word_page *page;

	lockdep_assert_held(&tree->lock);

	if (!node)
		return NULL;
	page = rb_entry(node, struct umem_notify_word_page, node);
	return __test_and_set_bit(index_of(offset), page->used) ? ERR_PTR(-EBUSY) : page;
}

/**
 * umem_notify_word_get - Take a word of the current process
 * @addr: The word's user address, a multiple of eight
 *
 * Return: Its page, pinned, to be given to umem_notify_word_put(); or ERR_PTR():
 * -EBUSY if another MR has the word, -EFAULT if the address can't be written or
 * pinned, -ENOMEM if memory or RLIMIT_MEMLOCK is exhausted, -EINTR.
 */
struct umem_notify_word_page *umem_notify_word_get(unsigned long addr)
{
	struct umem_notify_word_page *page, *fresh;
	unsigned int offset = offset_in_page(addr);
	struct word_tree *tree;
	struct page *pinned;
	struct rb_node *node;
	int ret;

	ret = pin_user_pages_fast(untagged_addr(addr) & PAGE_MASK, 1,
				  FOLL_WRITE | FOLL_LONGTERM, &pinned);
	if (ret != 1)
		return ERR_PTR(ret == -ENOMEM || ret == -EINTR ? ret : -EFAULT);

	tree = tree_of(pinned);
	spin_lock(&tree->lock);
	page = take_word(tree, rb_find(pinned, &tree->root, compare), offset);
	spin_unlock(&tree->lock);
	if (page) {
		unpin_user_page(pinned); /* the first pin is enough */
		return page;
	}

	fresh = create_page(pinned);
	if (IS_ERR(fresh))
		return fresh;
	spin_lock(&tree->lock);
	node = rb_find_add(&fresh->node, &tree->root, compare_nodes);
	page = take_word(tree, node ?: &fresh->node, offset);
	spin_unlock(&tree->lock);
	if (node)
		free_page_of_words(fresh);
	return page;
}

/**
 * umem_notify_word_put - Let go of a word
 * @page: Its page, or NULL; the word is not set or cleared any more
 * @offset: The word's, in the page
 *
 * Context: Any but interrupts.
 */
void umem_notify_word_put(struct umem_notify_word_page *page,
			  unsigned int offset)
{
	struct word_tree *tree;
	bool last;

	if (!page)
		return;
	tree = tree_of(page->page);
	spin_lock(&tree->lock);
	__clear_bit(index_of(offset), page->used);
	last = bitmap_empty(page->used, PAGE_SIZE / sizeof(u64));
	if (last)
		rb_erase(&page->node, &tree->root);
	spin_unlock(&tree->lock);
	if (!last)
		return;
	SetPageDirty(page->page); /* without a lock: see umem_notify_retire.c */
	free_page_of_words(page);
}

/*
 * NULL if the page has a memory error, which pinning does not stop: it may have left the
 * direct map. Its owner gets SIGBUS for each look, so the word is not told.
 */
static atomic64_t *word_at(const struct umem_notify_word_page *page, unsigned int offset)
{
	if (is_page_hwpoison(page->page)) /* of hugetlb the folio is marked */
		return NULL;
	return page_address(page->page) + offset; /* there is no highmem with 64 bits */
}

/*
 * The application changes the same eight bytes with atomic instructions of its
 * own, so each change here is one atomic instruction too. They are fully
 * ordered for user space as locked instructions are; the mapping changes only
 * after the callback that sets a bit has returned.
 */
void umem_notify_word_set(const struct umem_notify_word_page *page,
			  unsigned int offset, u64 bits)
{
	atomic64_t *word = word_at(page, offset);

	if (word)
		atomic64_or(bits, word);
}

void umem_notify_word_clear(const struct umem_notify_word_page *page,
			    unsigned int offset, u64 bits)
{
	atomic64_t *word = word_at(page, offset);

	if (word)
		atomic64_andnot(bits, word);
}

bool umem_notify_word_cmpxchg(const struct umem_notify_word_page *page,
			      unsigned int offset, u64 old, u64 value)
{
	atomic64_t *word = word_at(page, offset);

	return word && atomic64_cmpxchg(word, old, value) == old;
}

/* 0, so not in use, if it is lost. */
u64 umem_notify_word_read(const struct umem_notify_word_page *page,
			  unsigned int offset)
{
	atomic64_t *word = word_at(page, offset);

	return word ? atomic64_read(word) : 0;
}
