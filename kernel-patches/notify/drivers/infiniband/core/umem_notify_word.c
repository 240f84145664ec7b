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
 *
 * A word may have a listener: a counter in user memory, which is pinned like a word and which
 * any number of MRs share, and an eventfd. The counter is incremented where INVALID is set.
 * An eventfd may have any number of sleepers, for which the process of the event must not pay:
 * umem_notify_word_signal() wakes them when the registration is retired.
 */

#include <linux/bitmap.h>
#include <linux/eventfd.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/rbtree.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "umem_notify.h"

#define WORDS (PAGE_SIZE / sizeof(u64))

struct umem_notify_listener {
	struct umem_notify_word_page *counter; /* its page, or NULL */
	unsigned int offset; /* the counter's */
	struct eventfd_ctx *event; /* or NULL */
	bool due; /* @event is to be signalled; written once, before the MR is retired */
};

struct umem_notify_word_page {
	struct rb_node node; /* of its tree, by @page */
	struct page *page;
	struct mm_struct *mm; /* it is charged for the pin */
	DECLARE_BITMAP(used, WORDS); /* the tree's lock */
	u32 *counters; /* the MRs of each counter; the tree's lock; NULL: there are only words */
	struct umem_notify_listener **listeners; /* of each word; NULL: no word has a listener */
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
	kfree(page->counters);
	kfree(page->listeners);
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

/* An array of a page of words, for all its words; under the tree's lock */
static void *alloc_array(size_t size)
{
	return kcalloc(WORDS, size, GFP_ATOMIC | __GFP_ACCOUNT);
}

/* A word belongs to one MR, a counter to any number. */
static int take_word(struct umem_notify_word_page *page, unsigned int offset, bool counter)
{
	unsigned int index = index_of(offset);

	if (counter && !page->counters)
		page->counters = alloc_array(sizeof(*page->counters));
	if (counter && !page->counters)
		return -ENOMEM;
	if (__test_and_set_bit(index, page->used) && !(counter && page->counters[index]))
		return -EBUSY;
	if (counter)
		page->counters[index]++;
	return 0;
}

/* Pins the page of a word or of a counter. */
static struct umem_notify_word_page *get_word(unsigned long addr, bool counter)
{
	struct umem_notify_word_page *page, *fresh = NULL;
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
	node = rb_find(pinned, &tree->root, compare);
	if (!node) {
		spin_unlock(&tree->lock);
		fresh = create_page(pinned);
		if (IS_ERR(fresh))
			return fresh;
		spin_lock(&tree->lock);
		node = rb_find_add(&fresh->node, &tree->root, compare_nodes);
	}
	page = node ? rb_entry(node, struct umem_notify_word_page, node) : fresh;
	ret = take_word(page, offset, counter);
	if (ret && !node)
		rb_erase(&fresh->node, &tree->root);
	spin_unlock(&tree->lock);

	if (fresh && (node || ret))
		free_page_of_words(fresh);
	else if (!fresh)
		unpin_user_page(pinned); /* the first pin is enough */
	return ret ? ERR_PTR(ret) : page;
}

/* Returns the listener of the word, which is the caller's now. */
static struct umem_notify_listener *put_word(struct umem_notify_word_page *page,
					     unsigned int offset, bool counter)
{
	struct word_tree *tree = tree_of(page->page);
	struct umem_notify_listener *listener = NULL;
	unsigned int index = index_of(offset);
	bool last = false;

	spin_lock(&tree->lock);
	if (page->listeners)
		swap(listener, page->listeners[index]);
	if (!counter || !--page->counters[index]) {
		__clear_bit(index, page->used);
		last = bitmap_empty(page->used, WORDS);
	}
	if (last)
		rb_erase(&page->node, &tree->root);
	spin_unlock(&tree->lock);
	if (last) {
		SetPageDirty(page->page); /* without a lock: see umem_notify_retire.c */
		free_page_of_words(page);
	}
	return listener;
}

static void signal_listener(struct umem_notify_listener *listener)
{
	if (!listener->due)
		return;
	listener->due = false;
	eventfd_signal(listener->event);
}

static void put_listener(struct umem_notify_listener *listener)
{
	signal_listener(listener);
	if (!IS_ERR_OR_NULL(listener->counter))
		put_word(listener->counter, listener->offset, true);
	if (!IS_ERR_OR_NULL(listener->event))
		eventfd_ctx_put(listener->event);
	kfree(listener);
}

/* The word is the caller's, and nobody is told of it yet. */
static int add_listener(struct umem_notify_word_page *page, unsigned int offset,
			const struct umem_notify_arming *how)
{
	struct umem_notify_listener *listener = kzalloc(sizeof(*listener), GFP_KERNEL_ACCOUNT);
	struct word_tree *tree = tree_of(page->page);
	struct umem_notify_listener **listeners;
	int ret = 0;

	if (!listener)
		return -ENOMEM;
	if (how->event_fd >= 0) {
		listener->event = eventfd_ctx_fdget(how->event_fd);
		ret = PTR_ERR_OR_ZERO(listener->event);
	}
	if (!ret && how->changes) {
		listener->offset = offset_in_page(how->changes);
		listener->counter = get_word(how->changes, true);
		ret = PTR_ERR_OR_ZERO(listener->counter);
	}
	if (!ret) {
		spin_lock(&tree->lock);
		listeners = page->listeners ?: alloc_array(sizeof(*listeners));
		if (listeners) {
			listeners[index_of(offset)] = listener;
			/* Pairs with listener_of(), of another word. */
			smp_store_release(&page->listeners, listeners);
		} else {
			ret = -ENOMEM;
		}
		spin_unlock(&tree->lock);
	}
	if (ret)
		put_listener(listener);
	return ret;
}

/**
 * umem_notify_word_get - Take a word of the current process, and its listener
 * @how: The word, a counter and an eventfd
 *
 * Return: The word's page, pinned, to be given to umem_notify_word_put(); or ERR_PTR():
 * -EBUSY if another MR has the word, or an MR has the counter for its word, -EFAULT if an
 * address can't be written or pinned, -ENOMEM if memory or RLIMIT_MEMLOCK is exhausted,
 * -EINTR, -EBADF, -EINVAL if the file is no eventfd.
 */
struct umem_notify_word_page *umem_notify_word_get(const struct umem_notify_arming *how)
{
	struct umem_notify_word_page *page = get_word(how->word, false);
	int ret;

	if (IS_ERR(page) || (!how->changes && how->event_fd < 0))
		return page;
	ret = add_listener(page, offset_in_page(how->word), how);
	if (ret) {
		umem_notify_word_put(page, offset_in_page(how->word));
		return ERR_PTR(ret);
	}
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
	struct umem_notify_listener *listener = page ? put_word(page, offset, false) : NULL;

	if (listener)
		put_listener(listener);
}

/*
 * NULL if the page has a memory error, which pinning does not stop: it may have left the
 * direct map. Its owner gets SIGBUS for each look, so the word is not told.
 */
static atomic64_t *word_at(const struct umem_notify_word_page *page, unsigned int offset)
{
	if (!page || is_page_hwpoison(page->page)) /* of hugetlb the folio is marked */
		return NULL;
	return page_address(page->page) + offset; /* there is no highmem with 64 bits */
}

/**
 * umem_notify_word_change - Change bits of the word of a tracker
 * @n: The tracker, its space's lock held; it may have no word
 * @set: Bits to set
 * @clear: Bits to clear
 *
 * The application changes the same eight bytes with atomic instructions of its own, so each
 * change here is one atomic instruction too: a compare-and-swap instead of both could fail as
 * often as the application likes. They are fully ordered for user space as locked instructions
 * are; the mapping changes only after the callback that sets a bit has returned.
 */
void umem_notify_word_change(const struct ib_umem_notify *n, u64 set, u64 clear)
{
	atomic64_t *word = word_at(n->word_page, n->word);

	if (!word)
		return;
	if (set)
		atomic64_or(set, word);
	if (clear)
		atomic64_andnot(clear, word);
}

/*
 * The space's lock orders the listener of a word before the word is armed. The array may be new:
 * another word has brought it, and this word has no listener.
 */
static struct umem_notify_listener *listener_of(const struct ib_umem_notify *n)
{
	struct umem_notify_listener **listeners = NULL;

	if (n->word_page) /* pairs with add_listener() */
		listeners = smp_load_acquire(&n->word_page->listeners);
	return listeners ? listeners[index_of(n->word)] : NULL;
}

/**
 * umem_notify_word_tell - Tell the listener of a word that has become INVALID
 * @n: The tracker, its space's lock held; the bit is set
 *
 * Its eventfd is told by umem_notify_word_signal(), or when the word is let go of.
 *
 * Context: Any; does not sleep.
 */
void umem_notify_word_tell(const struct ib_umem_notify *n)
{
	struct umem_notify_listener *listener = listener_of(n);
	atomic64_t *counter;

	if (!listener)
		return;
	counter = word_at(listener->counter, listener->offset);
	if (counter) {
		smp_mb__before_atomic(); /* whoever sees the number sees the word */
		atomic64_inc(counter);
	}
	listener->due = listener->event;
}

/**
 * umem_notify_word_signal - Wake the sleepers of a word that has become INVALID
 * @n: The tracker, its mutex held, that the caller has seen INVALID under the lock
 */
void umem_notify_word_signal(const struct ib_umem_notify *n)
{
	struct umem_notify_listener *listener = listener_of(n);

	if (listener)
		signal_listener(listener);
}

bool umem_notify_word_cmpxchg(const struct ib_umem_notify *n, u64 old, u64 value)
{
	atomic64_t *word = word_at(n->word_page, n->word);

	return word && atomic64_cmpxchg(word, old, value) == old;
}

/* 0, so not in use, if there is none or it is lost. */
u64 umem_notify_word_read(const struct ib_umem_notify *n)
{
	atomic64_t *word = word_at(n->word_page, n->word);

	return word ? atomic64_read(word) : 0;
}
