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
 * A new page has its notifier before it is pinned, and is not in the table yet.
 */

#include <linux/hashtable.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "umem_notify.h"

struct umem_notify_word_page {
	struct mmu_interval_notifier mni;
	struct page *page;
	spinlock_t lock; /* a leaf, taken by the callback */
	bool sure; /* the address maps the page; written under @lock */

	/* These two under pages_mutex */
	struct hlist_node node;
	unsigned int words;
};

/* Guards the table. Process context only, a leaf. */
static DEFINE_MUTEX(pages_mutex);
static DEFINE_HASHTABLE(pages, 8);

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

static struct umem_notify_word_page *create_page(unsigned long addr)
{
	struct umem_notify_word_page *page;
	int ret;

	page = kzalloc(sizeof(*page), GFP_KERNEL);
	if (!page)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&page->lock);
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
	return page;

uncharge:
	atomic64_dec(&current->mm->pinned_vm);
remove:
	mmu_interval_notifier_remove(&page->mni);
free:
	kfree(page);
	return ERR_PTR(ret);
}

static void destroy_page(struct umem_notify_word_page *page)
{
	unpin_user_pages_dirty_lock(&page->page, 1, true);
	atomic64_dec(&page->mni.mm->pinned_vm);
	/* The notifier holds the last reference of the mm. */
	mmu_interval_notifier_remove(&page->mni);
	kfree(page);
}

/* The page for another word at this address, or NULL. */
static struct umem_notify_word_page *find_page(unsigned long addr)
{
	struct umem_notify_word_page *page;

	lockdep_assert_held(&pages_mutex);

	hash_for_each_possible(pages, page, node, addr) {
		if (addr_of(page) == addr &&
		    page->mni.mm == current->mm) {
			page->words++;
			return page;
		}
	}
	return NULL;
}

/**
 * umem_notify_word_get - Pin the page of a word of the current process
 * @addr: The word's user address, a multiple of eight
 *
 * Return: The page, to be given to umem_notify_word_put() once for each call;
 * or ERR_PTR(): -EFAULT if the address can't be written or pinned, -ENOMEM if
 * memory or RLIMIT_MEMLOCK is exhausted, -EINTR.
 */
struct umem_notify_word_page *umem_notify_word_get(unsigned long addr)
{
	struct umem_notify_word_page *page, *other;
	int ret;

	addr &= PAGE_MASK;
	mutex_lock(&pages_mutex);
	page = find_page(addr);
	mutex_unlock(&pages_mutex);
	if (page) {
		if (READ_ONCE(page->sure))
			return page;
		ret = pin(page);
		if (!ret)
			return page;
		if (ret == -ESTALE) {
			mutex_lock(&pages_mutex);
			hash_del(&page->node);
			mutex_unlock(&pages_mutex);
		}
		umem_notify_word_put(page);
		if (ret != -ESTALE)
			return ERR_PTR(ret);
	}

	page = create_page(addr);
	if (IS_ERR(page))
		return page;
	/* Two threads may be the first: one page is pinned, and charged. */
	mutex_lock(&pages_mutex);
	other = find_page(addr);
	if (!other)
		hash_add(pages, &page->node, addr);
	mutex_unlock(&pages_mutex);
	if (!other)
		return page;
	if (other->page == page->page) {
		destroy_page(page);
		return other;
	}
	umem_notify_word_put(other);
	return page; /* for this word only: the mapping is being changed */
}

/**
 * umem_notify_word_put - Let go of a word
 * @page: Its page, or NULL; nobody may set or clear the word any more
 *
 * Context: Process context, no mm lock held.
 */
void umem_notify_word_put(struct umem_notify_word_page *page)
{
	if (!page)
		return;
	mutex_lock(&pages_mutex);
	if (--page->words)
		page = NULL;
	else
		hash_del(&page->node);
	mutex_unlock(&pages_mutex);
	if (page)
		destroy_page(page);
}

/*
 * The application changes the same eight bytes with atomic instructions of its
 * own, so each change here is one atomic instruction too. Both are fully
 * ordered for user space as locked instructions are; the mapping changes only
 * after the callback that sets a bit has returned.
 */
void umem_notify_word_set(const struct umem_notify_word_page *page,
			  unsigned int offset, u64 bits)
{
	void *va = kmap_local_page(page->page);

	atomic64_or(bits, (atomic64_t *)(va + offset));
	flush_dcache_page(page->page);
	kunmap_local(va);
}

void umem_notify_word_clear(const struct umem_notify_word_page *page,
			    unsigned int offset, u64 bits)
{
	void *va = kmap_local_page(page->page);

	atomic64_andnot(bits, (atomic64_t *)(va + offset));
	flush_dcache_page(page->page);
	kunmap_local(va);
}
