// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word: eight bytes of user memory that the kernel can write
 * from any context, at any time, whatever became of the mapping.
 *
 * The page is pinned, so the callback of an MMU notifier, which must neither
 * fault nor sleep, reaches it with kmap_local_page(). A process whose words
 * share a page (a cache packs 64 or more into one) pays for one pinned page,
 * not for one per word: pages are shared by (mm, page) and charged once
 * against RLIMIT_MEMLOCK.
 *
 * If the application unmaps the page first, the writes go to the orphaned
 * page, which nobody sees and nobody else can own.
 */

#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "umem_notify.h"

struct umem_notify_word_page {
	struct hlist_node node;
	struct mm_struct *mm;
	struct page *page;
	unsigned int words;
};

/* Guards the table and each entry's count. Process context only, a leaf. */
static DEFINE_MUTEX(pages_mutex);
static DEFINE_HASHTABLE(pages, 8);

static struct umem_notify_word_page *find_page(struct mm_struct *mm,
					       struct page *page)
{
	struct umem_notify_word_page *entry;

	hash_for_each_possible(pages, entry, node, (unsigned long)page)
		if (entry->page == page && entry->mm == mm)
			return entry;
	return NULL;
}

static struct umem_notify_word_page *add_page(struct mm_struct *mm,
					      struct page *page)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct umem_notify_word_page *entry;

	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return NULL;

	if (atomic64_inc_return(&mm->pinned_vm) > limit &&
	    !capable(CAP_IPC_LOCK)) {
		atomic64_dec(&mm->pinned_vm);
		kfree(entry);
		return NULL;
	}

	mmgrab(mm);
	entry->mm = mm;
	entry->page = page;
	hash_add(pages, &entry->node, (unsigned long)page);
	return entry;
}

/**
 * umem_notify_word_get - Pin a word of the current process
 * @word: Filled on success, to be given to umem_notify_word_put()
 * @addr: Its user address, a multiple of eight
 *
 * Return: 0, -EFAULT if the address can't be written or pinned, -ENOMEM if
 * memory or RLIMIT_MEMLOCK is exhausted.
 */
int umem_notify_word_get(struct umem_notify_word *word, unsigned long addr)
{
	struct umem_notify_word_page *entry;
	struct page *page;
	int ret;

	ret = pin_user_pages_fast(addr & PAGE_MASK, 1,
				  FOLL_WRITE | FOLL_LONGTERM, &page);
	if (ret != 1)
		return ret == -ENOMEM || ret == -EINTR ? ret : -EFAULT;

	mutex_lock(&pages_mutex);
	entry = find_page(current->mm, page);
	if (entry)
		unpin_user_page(page); /* the entry's own pin is enough */
	else
		entry = add_page(current->mm, page);
	if (entry)
		entry->words++;
	mutex_unlock(&pages_mutex);

	if (!entry) {
		unpin_user_page(page);
		return -ENOMEM;
	}
	word->page = entry;
	word->offset = offset_in_page(addr);
	return 0;
}

/**
 * umem_notify_word_put - Let go of a word
 * @word: The word, empty afterwards; nobody may set or clear it any more
 */
void umem_notify_word_put(struct umem_notify_word *word)
{
	struct umem_notify_word_page *entry = word->page;

	if (!entry)
		return;
	word->page = NULL;

	mutex_lock(&pages_mutex);
	if (--entry->words)
		entry = NULL;
	else
		hash_del(&entry->node);
	mutex_unlock(&pages_mutex);
	if (!entry)
		return;

	unpin_user_pages_dirty_lock(&entry->page, 1, true);
	atomic64_dec(&entry->mm->pinned_vm);
	mmdrop(entry->mm);
	kfree(entry);
}

/*
 * The application changes the same eight bytes with atomic instructions of its
 * own, so each change here is one atomic instruction too. Both are fully
 * ordered for user space as locked instructions are; the mapping changes only
 * after the callback that sets a bit has returned.
 */
void umem_notify_word_set(const struct umem_notify_word *word, u64 bits)
{
	struct page *page = word->page->page;
	void *va = kmap_local_page(page);

	atomic64_or(bits, (atomic64_t *)(va + word->offset));
	flush_dcache_page(page);
	kunmap_local(va);
}

void umem_notify_word_clear(const struct umem_notify_word *word, u64 bits)
{
	struct page *page = word->page->page;
	void *va = kmap_local_page(page);

	atomic64_andnot(bits, (atomic64_t *)(va + word->offset));
	flush_dcache_page(page);
	kunmap_local(va);
}
