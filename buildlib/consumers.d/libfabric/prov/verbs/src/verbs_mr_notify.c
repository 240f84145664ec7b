/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A registration in the cache has a word, which the kernel marks before a
 * system call of any process that changes the memory returns. So a hit is
 * valid if there is no mark. There is no hook, no thread and no file
 * descriptor, and nothing takes an entry out of the cache from outside: one that
 * is stale stays until a request finds it, a sweep comes by it, or it is the oldest.
 *
 * A request may be for a part of a region, and another part may be unmapped.
 * So the device keeps a stale region's pages until it is deregistered, when its
 * last user is gone, as it does where a hook took the entry out of the tree: a
 * word has a bit that says that it is in use.
 *
 * The verbs are looked up when the provider is loaded: one that was built with
 * them also runs with a libibverbs that has none.
 */

#include "verbs_ofi.h"

#if VERBS_HAVE_MR_NOTIFY

#include <dlfcn.h>

#define VRB_MR_NOTIFY_IN_USE	(1ULL << 8)

/* How many words a sweep looks at */
#define VRB_MR_NOTIFY_SWEEP	16

/* A word, and its owner. The word is 0 where it has none. */
struct vrb_mr_notify_slot {
	uint64_t				word;
	union {
		struct vrb_mem_desc		*md;
		struct vrb_mr_notify_slot	*next;	/* the first: next page */
	};
};

static struct {
	int (*reg)(struct ibv_mr *mr, uint64_t *word);
	int (*reg_in_use)(struct ibv_mr *mr, uint64_t *word, uint64_t in_use);
	int (*settle)(struct ibv_mr *mr);
} notify;

/* The kernel's bits, read each time: it may set more. */
static inline uint64_t vrb_mr_notify_said(const uint64_t *word)
{
	return *(volatile const uint64_t *) word & IBV_MR_NOTIFY_KERNEL_MASK;
}

/* The kernel has said something. INVALID is final. Anything else is a doubt:
 * the kernel looks again, and takes it back or says INVALID.
 */
static bool vrb_mr_notify_settle(struct vrb_mem_desc *md)
{
	if (vrb_mr_notify_said(md->notify_word) & IBV_MR_NOTIFY_INVALID)
		return false;

	return !notify.settle(md->mr) && !vrb_mr_notify_said(md->notify_word);
}

static bool vrb_mr_notify_valid(struct ofi_mem_monitor *monitor,
				const struct ofi_mr_info *info,
				struct ofi_mr_entry *entry)
{
	struct vrb_mem_desc *md = (struct vrb_mem_desc *) entry->data;

	/* Registered as memory of another kind it has none. */
	if (OFI_UNLIKELY(!md->notify_word))
		return false;

	return OFI_LIKELY(!vrb_mr_notify_said(md->notify_word)) || vrb_mr_notify_settle(md);
}

/* An entry is kept only if the kernel watches it. */
static int vrb_mr_notify_subscribe(struct ofi_mem_monitor *monitor,
				   const void *addr, size_t len,
				   union ofi_mr_hmem_info *hmem_info)
{
	struct ofi_mr_entry *entry =
		container_of(hmem_info, struct ofi_mr_entry, hmem_info);
	struct vrb_mem_desc *md = (struct vrb_mem_desc *) entry->data;

	return md->notify_word ? FI_SUCCESS : -FI_EOPNOTSUPP;
}

static struct ofi_mem_monitor vrb_mr_notify_monitor = {
	.iface = FI_HMEM_SYSTEM,
	.init = ofi_monitor_init,
	.cleanup = ofi_monitor_cleanup,
	.start = ofi_monitor_start_no_op,
	.stop = ofi_monitor_stop_no_op,
	.subscribe = vrb_mr_notify_subscribe,
	.unsubscribe = ofi_monitor_unsubscribe_no_op,
	.valid = vrb_mr_notify_valid,
	.name = "verbs_notify",
};

void vrb_mr_notify_init(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);

	vrb_mr_notify_monitor.init(&vrb_mr_notify_monitor);
	if (!lib)
		return;

	*(void **) &notify.reg = dlsym(lib, "ibv_reg_mr_notify");
	*(void **) &notify.reg_in_use = dlsym(lib, "ibv_reg_mr_notify_reclaim");
	*(void **) &notify.settle = dlsym(lib, "ibv_settle_mr_notify");
	dlclose(lib);	/* the provider is linked with it */
}

void vrb_mr_notify_fini(void)
{
	vrb_mr_notify_monitor.cleanup(&vrb_mr_notify_monitor);
}

static bool vrb_mr_notify_capable(struct vrb_domain *domain)
{
	struct ibv_device_attr attr;

	return notify.reg && notify.settle &&
	       !ibv_query_device(domain->verbs, &attr) &&
	       (attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY);
}

/* A build whose default is to have no cache has none unless it is asked for. */
static bool vrb_mr_notify_is_default(void)
{
#if defined(HAVE_MR_CACHE_MONITOR_DEFAULT)
	return strcmp(HAVE_MR_CACHE_MONITOR_DEFAULT, "disabled");
#else
	return true;
#endif
}

bool vrb_mr_notify_select(struct vrb_domain *domain,
			  struct ofi_mem_monitor **monitor)
{
	bool asked = cache_params.monitor &&
		     !strcmp(cache_params.monitor, vrb_mr_notify_monitor.name);

	bool odp = domain->ext_flags & VRB_USE_ODP;

	if (!asked && (cache_params.monitor || !vrb_mr_notify_is_default()))
		return false;

	if (!odp && vrb_mr_notify_capable(domain)) {
		ofi_atomic_initialize32(&domain->notify.locked, 0);
		*monitor = &vrb_mr_notify_monitor;
		return true;
	}

	if (asked) {
		/* On-demand paging follows the memory itself. */
		if (!odp)
			VRB_WARN(FI_LOG_MR,
				 "%s can't notify of changes of memory\n",
				 ibv_get_device_name(domain->verbs->device));
		*monitor = NULL;
	}
	return false;
}

static size_t vrb_mr_notify_slots(void)
{
	return ofi_get_page_size() / sizeof(struct vrb_mr_notify_slot);
}

static uint64_t *vrb_mr_notify_alloc(struct vrb_mem_desc *md)
{
	struct vrb_mr_notify *words = &md->domain->notify;
	struct vrb_mr_notify_slot *slot;
	void *page;
	size_t i;

	pthread_mutex_lock(&md->domain->cache.lock);
	if (!words->unused &&
	    !ofi_mmap_anon_pages(&page, ofi_get_page_size(), 0)) {
		slot = page;
		slot->next = words->pages;
		words->pages = slot;
		for (i = vrb_mr_notify_slots() - 1; i > 0; i--) {
			slot[i].next = words->unused;
			words->unused = &slot[i];
		}
	}

	slot = words->unused;
	if (slot) {
		words->unused = slot->next;
		slot->md = md;
		slot->word = VRB_MR_NOTIFY_IN_USE;
	}
	pthread_mutex_unlock(&md->domain->cache.lock);
	return slot ? &slot->word : NULL;
}

static void vrb_mr_notify_free(struct vrb_mem_desc *md)
{
	struct vrb_mr_notify_slot *slot =
		container_of(md->notify_word, struct vrb_mr_notify_slot, word);

	pthread_mutex_lock(&md->domain->cache.lock);
	slot->word = 0;
	slot->next = md->domain->notify.unused;
	md->domain->notify.unused = slot;
	md->notify_word = NULL;
	pthread_mutex_unlock(&md->domain->cache.lock);
}

/* Round and round, through all pages. Caller must hold cache.lock. */
static struct vrb_mr_notify_slot *vrb_mr_notify_next(struct vrb_mr_notify *words)
{
	if (!words->left) {
		words->page = words->page && words->page->next ?
			      words->page->next : words->pages;
		words->left = vrb_mr_notify_slots();
	}
	return &words->page[--words->left];
}

/* Whether it was in the cache, and is not any more. Caller must hold cache.lock,
 * and with it the region is not freed: an entry that is deregistered by another
 * thread still has its word, and is not in the tree.
 */
static bool vrb_mr_notify_uncache(struct vrb_mr_notify_slot *slot)
{
	struct ofi_mr_entry *entry = slot->md->entry;
	bool cached;

	/* One that could not be deregistered keeps its word, and not its entry. */
	if (slot->md->notify_word != &slot->word)
		return false;

	pthread_mutex_lock(&mm_lock);
	cached = entry->node != NULL;
	if (cached)
		ofi_mr_cache_notify(&slot->md->domain->cache,
				    entry->info.iov.iov_base,
				    entry->info.iov.iov_len);
	pthread_mutex_unlock(&mm_lock);
	return cached;
}

/* Memory that was unmapped may never be asked for again. A miss, which costs far
 * more, looks for some of that, so its pages are given back.
 */
void vrb_mr_notify_sweep(struct vrb_domain *domain)
{
	struct vrb_mr_notify_slot *slot;
	bool found = false;
	int i;

	pthread_mutex_lock(&domain->cache.lock);
	for (i = 0; i < VRB_MR_NOTIFY_SWEEP; i++) {
		slot = vrb_mr_notify_next(&domain->notify);
		if (vrb_mr_notify_said(&slot->word) & IBV_MR_NOTIFY_INVALID)
			found |= vrb_mr_notify_uncache(slot);
	}
	pthread_mutex_unlock(&domain->cache.lock);

	if (found)
		(void) ofi_mr_cache_flush(&domain->cache, false);
}

/* A device that can't be revoked keeps the pages in any case. */
static int vrb_mr_notify_reg(struct ibv_mr *mr, uint64_t *word)
{
	int ret = EOPNOTSUPP;

	if (notify.reg_in_use)
		ret = notify.reg_in_use(mr, word, VRB_MR_NOTIFY_IN_USE);
	return ret == EOPNOTSUPP ? notify.reg(mr, word) : ret;
}

void vrb_mr_notify_arm(struct vrb_mem_desc *md)
{
	struct ofi_mr_cache *cache = &md->domain->cache;
	int ret;

	if (cache->monitors[md->info.iface] != &vrb_mr_notify_monitor || !md->mr)
		return;

	md->notify_word = vrb_mr_notify_alloc(md);
	if (!md->notify_word)
		return;

	ret = vrb_mr_notify_reg(md->mr, md->notify_word);
	if (ret) {
		VRB_INFO(FI_LOG_MR, "ibv_reg_mr_notify: %s\n", strerror(ret));
		vrb_mr_notify_free(md);
	}
	vrb_mr_notify_sweep(md->domain);
}

void vrb_mr_notify_disarmed(struct vrb_mem_desc *md)
{
	if (md->notify_word)
		vrb_mr_notify_free(md);
}

void vrb_mr_notify_close(struct vrb_domain *domain)
{
	struct vrb_mr_notify_slot *page, *next;

	for (page = domain->notify.pages; page; page = next) {
		next = page->next;
		(void) ofi_unmap_anon_pages(page, ofi_get_page_size());
	}
	memset(&domain->notify, 0, sizeof(domain->notify));
}

#endif /* VERBS_HAVE_MR_NOTIFY */
