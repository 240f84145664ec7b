/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The operations FI_MR_NOTIFY_OPS of a domain, for caches of registrations above
 * libfabric. A region that the memory monitor "verbs_notify" watches has a word
 * already; its user may read it for as long as the region is open.
 */

#include "verbs_ofi.h"

#if OFI_HAVE_MR_NOTIFY

static struct ofi_mr_entry *vrb_mr_watched(struct fid_mr *mr)
{
	struct vrb_mem_desc *md = container_of(mr, struct vrb_mem_desc, mr_fid);

	/* One that is not of the cache has no entry. */
	return md->entry && md->entry->notify.cache ? md->entry : NULL;
}

static int vrb_mr_watch(struct fid_mr *mr, const uint64_t **word, uint64_t *mask)
{
	struct ofi_mr_entry *entry = vrb_mr_watched(mr);

	if (!entry)
		return -FI_EOPNOTSUPP;

	*word = (const uint64_t *) &entry->notify.word;
	*mask = OFI_MR_NOTIFY_KERNEL;
	return FI_SUCCESS;
}

static int vrb_mr_settle(struct fid_mr *mr)
{
	struct ofi_mr_entry *entry = vrb_mr_watched(mr);

	if (!entry)
		return -FI_EOPNOTSUPP;

	return ofi_mr_notify_settle(entry) ? FI_SUCCESS : -FI_EADDRNOTAVAIL;
}

static struct fi_ops_mr_notify vrb_ops_mr_notify = {
	.size = sizeof(struct fi_ops_mr_notify),
	.watch = vrb_mr_watch,
	.settle = vrb_mr_settle,
};

int vrb_mr_notify_ops_open(struct fid *fid, void **ops)
{
	struct vrb_domain *domain = container_of(fid, struct vrb_domain,
						 util_domain.domain_fid.fid);

	if (domain->cache.monitors[FI_HMEM_SYSTEM] != notify_monitor)
		return -FI_ENOSYS;

	*ops = &vrb_ops_mr_notify;
	return FI_SUCCESS;
}

#endif
