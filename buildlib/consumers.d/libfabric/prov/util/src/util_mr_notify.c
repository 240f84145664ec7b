/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A registration in the cache has a word, which the kernel marks before a system
 * call of any process that changes the memory returns. So a hit is valid if there
 * is no mark. There is no hook, no thread and no file descriptor, and nothing takes
 * an entry out of the cache from outside: a stale one stays until a request finds
 * it, a sweep comes by it, or it is the oldest.
 *
 * A request may be for a part of a region, and another part may be unmapped. So
 * the device keeps the pages while the word says that the region is in use, as it
 * does where a hook took an entry in use out of the tree. Pages of one that is not
 * in use the kernel takes by itself, if the device can lose its access; else the
 * region has to be found and deregistered. An idle region that is intact may lose
 * them, too, when memory is short, and gets them back when it is settled. Both
 * only as no bit says that it is in use: that is set before the word is looked at.
 *
 * The kernel pins the pages of the words, so entries are in pages of their own.
 */

#include <ofi_mr.h>

#if OFI_HAVE_MR_NOTIFY

/* How many words a sweep looks at */
#define UTIL_MR_NOTIFY_SWEEP	16

static inline uint64_t util_mr_notify_said(struct ofi_mr_entry *entry)
{
	return ofi_atomic_load_explicit64(&entry->notify.word,
					  memory_order_acquire) &
	       OFI_MR_NOTIFY_KERNEL;
}

/* Returns the word as it was. */
static inline uint64_t util_mr_notify_change(struct ofi_mr_entry *entry,
					     uint64_t set, uint64_t clear)
{
	int64_t word = ofi_atomic_load_explicit64(&entry->notify.word,
						  memory_order_relaxed);

	while (!ofi_atomic_compare_exchange_weak64(&entry->notify.word, &word,
						   (word | set) & ~clear))
		;
	return word;
}

bool ofi_mr_notify_settle(struct ofi_mr_entry *entry)
{
	struct ofi_mr_cache *cache = entry->notify.cache;
	bool valid = !(util_mr_notify_said(entry) & OFI_MR_NOTIFY_INVALID) &&
		     !cache->notify->settle(entry) &&
		     !util_mr_notify_said(entry);

	ofi_atomic_inc64(valid ? &cache->settled_cnt : &cache->stale_cnt);
	return valid;
}

/* The caller uses the entry if it is valid. */
static bool util_mr_notify_valid(struct ofi_mem_monitor *monitor,
				 const struct ofi_mr_info *info,
				 struct ofi_mr_entry *entry)
{
	/* Registered as memory of another kind it has no word. */
	if (!entry->notify.cache)
		return false;

	return !(util_mr_notify_change(entry, OFI_MR_NOTIFY_HELD, 0) &
		 OFI_MR_NOTIFY_KERNEL) ||
	       ofi_mr_notify_settle(entry);
}

void ofi_mr_notify_idle(struct ofi_mr_entry *entry)
{
	if (entry->notify.cache)
		util_mr_notify_change(entry, 0, OFI_MR_NOTIFY_HELD);
}

static int util_mr_notify_subscribe(struct ofi_mem_monitor *monitor,
				    const void *addr, size_t len,
				    union ofi_mr_hmem_info *hmem_info)
{
	struct ofi_mr_entry *entry =
		container_of(hmem_info, struct ofi_mr_entry, hmem_info);

	dlist_insert_tail(&entry->notify.list,
			  &entry->notify.cache->notify_list);
	return FI_SUCCESS;
}

static void util_mr_notify_unsubscribe(struct ofi_mem_monitor *monitor,
				       const void *addr, size_t len,
				       union ofi_mr_hmem_info *hmem_info)
{
	struct ofi_mr_entry *entry =
		container_of(hmem_info, struct ofi_mr_entry, hmem_info);

	dlist_remove(&entry->notify.list);
}

static struct ofi_mem_monitor monitor = {
	.iface = FI_HMEM_SYSTEM,
	.init = ofi_monitor_init,
	.cleanup = ofi_monitor_cleanup,
	.start = ofi_monitor_start_no_op,
	.stop = ofi_monitor_stop_no_op,
	.subscribe = util_mr_notify_subscribe,
	.unsubscribe = util_mr_notify_unsubscribe,
	.valid = util_mr_notify_valid,
	.name = "verbs_notify",
};

struct ofi_mem_monitor *notify_monitor = &monitor;

/* A build whose default is to have no cache has none unless it is asked for. */
static bool util_mr_notify_is_default(void)
{
#if defined(HAVE_MR_CACHE_MONITOR_DEFAULT)
	return strcmp(HAVE_MR_CACHE_MONITOR_DEFAULT, "disabled");
#else
	return true;
#endif
}

const struct ofi_mr_notify_ops *
ofi_mr_notify_select(struct ofi_mem_monitor **monitor,
		     const struct ofi_mr_notify_ops *ops)
{
	bool asked = cache_params.monitor &&
		     !strcmp(cache_params.monitor, notify_monitor->name);

	if (!asked && (cache_params.monitor || !util_mr_notify_is_default()))
		return NULL;

	if (ops) {
		*monitor = notify_monitor;
	} else if (asked) {
		FI_WARN(&core_prov, FI_LOG_MR,
			"a device can't notify of changes of memory: no cache\n");
		*monitor = NULL;
	}
	return ops;
}

bool ofi_mr_notify_arm(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry)
{
	int ret;

	entry->notify.cache = NULL;
	if (cache->monitors[entry->info.iface] != notify_monitor)
		return true;

	ofi_atomic_initialize64(&entry->notify.word, OFI_MR_NOTIFY_HELD);
	ret = cache->notify->arm(entry, (uint64_t *) &entry->notify.word,
				 OFI_MR_NOTIFY_IN_USE);
	if (ret) {
		FI_INFO(&core_prov, FI_LOG_MR, "no notification of %p: %s\n",
			entry->info.iov.iov_base, fi_strerror(-ret));
		return false;
	}
	entry->notify.cache = cache;
	return true;
}

void ofi_mr_notify_sweep(struct ofi_mr_cache *cache)
{
	struct ofi_mr_entry *entry;
	int i;

	for (i = 0; cache->notify && i < UTIL_MR_NOTIFY_SWEEP &&
	     !dlist_empty(&cache->notify_list); i++) {
		dlist_pop_front(&cache->notify_list, struct ofi_mr_entry, entry,
				notify.list);
		dlist_insert_tail(&entry->notify.list, &cache->notify_list);
		if (util_mr_notify_said(entry) & OFI_MR_NOTIFY_INVALID)
			ofi_mr_cache_notify(cache, entry->info.iov.iov_base,
					    entry->info.iov.iov_len);
	}
}

#endif
