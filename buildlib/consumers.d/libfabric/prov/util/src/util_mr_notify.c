/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Each registration in the cache has a word. When a system call of any process changes
 * the memory of the registration, the kernel marks the word before the call returns. So
 * a hit is valid if the word has no mark. This check needs no hook, thread or file
 * descriptor. Only the cache itself removes entries. The kernel counts in
 * cache->notify.changes how many words have become INVALID. When this counter has moved,
 * a search looks for stale entries.
 *
 * A request may be for a part of a region, and another part may be unmapped. So the
 * device keeps the pages while the word says that the region is in use. If the device can
 * revoke, the kernel unpins the pages of a stale region that is not in use. When memory is
 * short, the kernel may also unpin an idle region, which gets pages again when it is
 * settled.
 */

#include <ofi_mr.h>

#if OFI_HAVE_MR_NOTIFY

#include <ofi_mr_notify_hit.h>

/* How many words a search checks */
#define UTIL_MR_NOTIFY_SWEEP	16

static bool util_mr_notify_valid(struct ofi_mem_monitor *monitor,
				 const struct ofi_mr_info *info,
				 struct ofi_mr_entry *entry)
{
	/* An entry for another kind of memory has no word. */
	if (!entry->notify.word || !ofi_mr_notify_hold(entry))
		return false;

	/* Another entry may have taken the place of this entry in the table. */
	*ofi_mr_notify_hint(entry->notify.cache, entry->info.iov.iov_base) = entry;
	return true;
}

/* A reference keeps the entry while the function releases mm_lock. */
bool ofi_mr_notify_settle(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry)
{
	bool valid;

	if (!entry->notify.word ||
	    ofi_mr_notify_said(entry) & OFI_MR_NOTIFY_INVALID)
		return false;

	if (entry->use_cnt++ == 0)
		dlist_remove_init(&entry->list_entry);
	pthread_mutex_unlock(&mm_lock);
	valid = !cache->settle_region(cache, entry) &&
		!ofi_mr_notify_said(entry);
	pthread_mutex_lock(&mm_lock);
	if (valid)
		return true;

	if (entry->node)
		ofi_mr_cache_notify(cache, entry->info.iov.iov_base,
				    entry->info.iov.iov_len);
	if (--entry->use_cnt == 0) {
		cache->uncached_cnt--;
		cache->uncached_size -= entry->info.iov.iov_len;
		dlist_insert_tail(&entry->list_entry, &cache->dead_region_list);
	}
	return false;
}

static int util_mr_notify_subscribe(struct ofi_mem_monitor *monitor,
				    const void *addr, size_t len,
				    union ofi_mr_hmem_info *hmem_info)
{
	struct ofi_mr_entry *entry =
		container_of(hmem_info, struct ofi_mr_entry, hmem_info);

	dlist_insert_tail(&entry->notify.list,
			  &entry->notify.cache->notify.list);
	*ofi_mr_notify_hint(entry->notify.cache, addr) = entry;
	return FI_SUCCESS;
}

static void util_mr_notify_unsubscribe(struct ofi_mem_monitor *monitor,
				       const void *addr, size_t len,
				       union ofi_mr_hmem_info *hmem_info)
{
	struct ofi_mr_entry *entry =
		container_of(hmem_info, struct ofi_mr_entry, hmem_info);
	struct ofi_mr_entry **hint = ofi_mr_notify_hint(entry->notify.cache, addr);

	if (*hint == entry)
		*hint = NULL;
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

/* If a build has no cache by default, verbs_notify is not its default monitor. */
static bool util_mr_notify_is_default(void)
{
#if defined(HAVE_MR_CACHE_MONITOR_DEFAULT)
	return strcmp(HAVE_MR_CACHE_MONITOR_DEFAULT, "disabled");
#else
	return true;
#endif
}

uint64_t *ofi_mr_notify_select(struct ofi_mem_monitor **monitor,
			       uint64_t *changes)
{
	bool asked = cache_params.monitor &&
		     !strcmp(cache_params.monitor, notify_monitor->name);

	if (!asked && (cache_params.monitor || !util_mr_notify_is_default()))
		return NULL;

	if (changes) {
		*monitor = notify_monitor;
	} else if (asked) {
		FI_WARN(&core_prov, FI_LOG_MR,
			"no cache: a device can't notify of changes of memory\n");
		*monitor = NULL;
	}
	return changes;
}

void ofi_mr_notify_init(struct ofi_mr_cache *cache, struct ofi_mr_entry *entry)
{
	if (cache->monitors[entry->info.iface] == notify_monitor)
		entry->notify.cache = cache;
}

void ofi_mr_notify_cache_init(struct ofi_mr_cache *cache)
{
	struct ofi_mr_notify_cache *notify = &cache->notify;

	dlist_init(&notify->list);
	notify->changes_seen = 0;
	notify->changes_next = 0;
	notify->unchecked_cnt = 0;
	memset(notify->hints, 0, sizeof(notify->hints));
}

/* Removes stale entries. If a stale entry is in use, its last user deregisters it. */
void ofi_mr_notify_sweep(struct ofi_mr_cache *cache)
{
	struct ofi_mr_notify_cache *notify = &cache->notify;
	struct ofi_mr_entry *entry;
	uint64_t changes = __atomic_load_n(notify->changes, __ATOMIC_ACQUIRE);
	int i;

	if (changes != notify->changes_next) {
		notify->changes_next = changes;
		notify->unchecked_cnt = cache->cached_cnt;
	}

	for (i = 0; i < UTIL_MR_NOTIFY_SWEEP && notify->unchecked_cnt &&
	     !dlist_empty(&notify->list); i++) {
		notify->unchecked_cnt--;
		dlist_pop_front(&notify->list, struct ofi_mr_entry, entry,
				notify.list);
		dlist_insert_tail(&entry->notify.list, &notify->list);
		if (ofi_mr_notify_said(entry) & OFI_MR_NOTIFY_INVALID)
			ofi_mr_cache_notify(cache, entry->info.iov.iov_base,
					    entry->info.iov.iov_len);
	}

	if (!notify->unchecked_cnt || dlist_empty(&notify->list))
		notify->changes_seen = notify->changes_next;
}

#endif
