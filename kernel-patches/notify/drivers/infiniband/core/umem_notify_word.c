// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word: eight bytes of user memory that the kernel can write from any
 * context, at any time, even after the word is unmapped.
 *
 * The page of a word is pinned. So the callback of an MMU notifier, which must not fault or
 * sleep, writes through the kernel's own mapping. The words of a page share one pin, which
 * is charged once against RLIMIT_MEMLOCK (a cache packs 64 words or more into a page).
 *
 * Taking a word pins the page that the address maps now. Then the kernel checks whether this
 * page is already pinned for other words. So words need no MMU notifier: if the application
 * unmaps the page, the kernel writes to a page that no process maps and that can't get
 * another owner. A later word at the same address is in the new page. If the mapping changes
 * while a word is taken, the word may be in either page.
 *
 * A word belongs to one MR. If MR A and MR B shared a word, settling A could clear the bit
 * that an event of B has set:
 *
 *   settle A                              an event of B
 *                                         word |= SUSPECT
 *   A is intact: word &= ~SUSPECT         [the word says that B is valid]
 *
 * Words are compared by physical page and offset, because a page may be mapped at two
 * addresses or by two processes, or moved by mremap(). The second MR with the same word gets
 * -EBUSY.
 *
 * A word may have a listener: a counter in user memory and an eventfd. The counter is pinned
 * like a word, and any number of MRs may share a counter. The kernel increments the counter
 * when it sets INVALID. But umem_notify_word_signal() signals the eventfd only when the
 * registration is retired: an eventfd may have any number of sleepers, and the process that
 * causes the event must not pay for waking them.
 */

#include <linux/bitmap.h>
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "umem_notify.h"

#define WORDS (PAGE_SIZE / sizeof(u64))

struct umem_notify_listener {
	struct umem_notify_word_page *counter; /* the page of the counter, or NULL */
	unsigned int offset; /* the offset of the counter in this page */
	struct eventfd_ctx *event; /* NULL if there is no eventfd */
	bool due; /* @event has to be signalled; set once, before the MR is retired */
};

struct umem_notify_word_page {
	struct page *page;
	struct mm_struct *mm; /* charged for the pin */
	DECLARE_BITMAP(used, WORDS); /* the array's lock */
	u32 *counters; /* the number of MRs of each counter; the array's lock; NULL: only words */
};

/* The pages of all words, by page frame number. For process context only; its lock is a leaf. */
static DEFINE_XARRAY_FLAGS(word_pages, XA_FLAGS_ACCOUNT);

static int charge(struct mm_struct *mm)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic64_inc_return(&mm->pinned_vm) <= limit || capable(CAP_IPC_LOCK))
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
	kfree(page);
}

/* Takes over the pin of @pinned, and charges the pin. */
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

/* A word belongs to one MR, a counter to any number of MRs. */
static int take_word(struct umem_notify_word_page *page, unsigned int offset, bool counter)
{
	unsigned int index = offset / sizeof(u64);

	if (counter && !page->counters) /* the caller holds the array's lock */
		page->counters = kcalloc(WORDS, sizeof(u32), GFP_ATOMIC | __GFP_ACCOUNT);
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
	struct page *pinned;
	unsigned long pfn;
	int ret;

	ret = pin_user_pages_fast(untagged_addr(addr) & PAGE_MASK, 1,
				  FOLL_WRITE | FOLL_LONGTERM, &pinned);
	if (ret != 1)
		return ERR_PTR(ret == -ENOMEM || ret == -EINTR ? ret : -EFAULT);

	pfn = page_to_pfn(pinned);
	xa_lock(&word_pages);
	page = xa_load(&word_pages, pfn);
	if (!page) {
		xa_unlock(&word_pages);
		fresh = create_page(pinned);
		if (IS_ERR(fresh))
			return fresh;
		xa_lock(&word_pages);
		page = __xa_cmpxchg(&word_pages, pfn, NULL, fresh, GFP_KERNEL) ?: fresh;
	}
	ret = xa_err(page) ?: take_word(page, offset, counter);
	if (ret && page == fresh)
		__xa_erase(&word_pages, pfn);
	xa_unlock(&word_pages);

	if (fresh && (page != fresh || ret))
		free_page_of_words(fresh);
	else if (!fresh)
		unpin_user_page(pinned); /* the first pin is enough */
	return ret ? ERR_PTR(ret) : page;
}

static void put_word(struct umem_notify_word_page *page, unsigned int offset, bool counter)
{
	unsigned int index = offset / sizeof(u64);
	bool last = false;

	xa_lock(&word_pages);
	if (!counter || !--page->counters[index]) {
		__clear_bit(index, page->used);
		last = bitmap_empty(page->used, WORDS);
	}
	if (last)
		__xa_erase(&word_pages, page_to_pfn(page->page));
	xa_unlock(&word_pages);
	if (last) {
		SetPageDirty(page->page); /* without a lock: see umem_notify_retire.c */
		free_page_of_words(page);
	}
}

/**
 * umem_notify_word_signal - Signal the eventfd of a word that has become INVALID
 * @listener: The listener of the word, or NULL. The caller has the mutex of the tracker and has
 *	      seen INVALID under the lock
 */
void umem_notify_word_signal(struct umem_notify_listener *listener)
{
	if (!listener || !listener->due)
		return;
	listener->due = false;
	eventfd_signal(listener->event);
}

static void put_listener(struct umem_notify_listener *listener)
{
	umem_notify_word_signal(listener);
	if (!IS_ERR_OR_NULL(listener->counter))
		put_word(listener->counter, listener->offset, true);
	if (!IS_ERR_OR_NULL(listener->event))
		eventfd_ctx_put(listener->event);
	kfree(listener);
}

static struct umem_notify_listener *get_listener(const struct umem_notify_arming *how)
{
	struct umem_notify_listener *listener = kzalloc(sizeof(*listener), GFP_KERNEL_ACCOUNT);
	int ret;

	if (!listener)
		return ERR_PTR(-ENOMEM);
	if (how->event_fd >= 0)
		listener->event = eventfd_ctx_fdget(how->event_fd);
	ret = PTR_ERR_OR_ZERO(listener->event);
	if (!ret && how->changes) {
		listener->offset = offset_in_page(how->changes);
		listener->counter = get_word(how->changes, true);
		ret = PTR_ERR_OR_ZERO(listener->counter);
	}
	if (!ret)
		return listener;
	put_listener(listener);
	return ERR_PTR(ret);
}

/**
 * umem_notify_word_get - Take a word of the current process, and its listener
 * @word: Is set; the caller gives it to umem_notify_word_put()
 * @how: The word, a counter and an eventfd
 *
 * Return: 0; -EBUSY if another MR uses the word, or if the counter is the word of an MR,
 * -EFAULT if an address can't be written or pinned, -ENOMEM if memory or RLIMIT_MEMLOCK
 * is exhausted, -EINTR, -EBADF, -EINVAL if the file is no eventfd.
 */
int umem_notify_word_get(struct umem_notify_word *word, const struct umem_notify_arming *how)
{
	*word = (struct umem_notify_word){ .page = get_word(how->word, false),
					   .offset = offset_in_page(how->word) };
	if (IS_ERR(word->page))
		return PTR_ERR(word->page);
	if (!how->changes && how->event_fd < 0)
		return 0;
	word->listener = get_listener(how);
	if (!IS_ERR(word->listener))
		return 0;
	put_word(word->page, word->offset, false);
	return PTR_ERR(word->listener);
}

/**
 * umem_notify_word_put - Release a word
 * @word: The word, which the kernel does not change any more; it may have no page
 *
 * Context: Any but interrupts.
 */
void umem_notify_word_put(const struct umem_notify_word *word)
{
	if (word->page)
		put_word(word->page, word->offset, false);
	if (word->listener)
		put_listener(word->listener);
}

/*
 * Returns NULL if the page has a memory error: such a page is still pinned, but may have left the
 * direct map. The kernel does not write the word, because the application gets SIGBUS when it
 * reads the word. is_page_hwpoison() also checks the flag of a hugetlb folio.
 */
static atomic64_t *word_at(const struct umem_notify_word_page *page, unsigned int offset)
{
	if (!page || is_page_hwpoison(page->page))
		return NULL;
	return page_address(page->page) + offset; /* 64-bit kernels have no highmem */
}

/**
 * umem_notify_word_change - Change bits of the word of a tracker
 * @n: The tracker, which may have no word; its space's lock held
 * @set: Bits to set
 * @clear: Bits to clear
 *
 * The application changes the same eight bytes by atomic instructions. So each change here is
 * one atomic instruction, too. A single compare-and-swap could set and clear bits together, but
 * could fail as often as the application changes the word. For user space the changes are fully
 * ordered, like locked instructions. The mapping changes only after the callback that sets a bit
 * has returned.
 */
void umem_notify_word_change(const struct ib_umem_notify *n, u64 set, u64 clear)
{
	atomic64_t *word = word_at(n->word.page, n->word.offset);

	if (!word)
		return;
	if (set)
		atomic64_or(set, word);
	if (clear)
		atomic64_andnot(clear, word);
}

/**
 * umem_notify_word_count - Increment the counter of a word that has become INVALID
 * @n: The tracker, its space's lock held; INVALID is set
 *
 * umem_notify_word_signal() or umem_notify_word_put() signals the eventfd later.
 *
 * Context: Any; does not sleep.
 */
void umem_notify_word_count(const struct ib_umem_notify *n)
{
	struct umem_notify_listener *listener = n->word.listener;
	atomic64_t *counter;

	if (!listener)
		return;
	counter = word_at(listener->counter, listener->offset);
	if (counter) {
		smp_mb__before_atomic(); /* a reader of the new count also sees INVALID */
		atomic64_inc(counter);
	}
	listener->due = listener->event;
}

bool umem_notify_word_cmpxchg(const struct ib_umem_notify *n, u64 old, u64 value)
{
	atomic64_t *word = word_at(n->word.page, n->word.offset);

	return word && atomic64_cmpxchg(word, old, value) == old;
}

/* Returns 0 (not in use) if there is no word, or if its page has a memory error. */
u64 umem_notify_word_read(const struct ib_umem_notify *n)
{
	atomic64_t *word = word_at(n->word.page, n->word.offset);

	return word ? atomic64_read(word) : 0;
}
