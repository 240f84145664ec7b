/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Registration with a cache whose hits take no lock (util_mr_lockless.h): a hit
 * writes only the fields that a hit reads. Included by verbs_mr.c.
 */
#ifndef VERBS_MR_LOCKLESS_H
#define VERBS_MR_LOCKLESS_H

static inline bool
vrb_mr_is_lockless(struct vrb_domain *domain, uint64_t flags)
{
	return domain->cache.hints &&
	       !(flags & (OFI_MR_NOCACHE | FI_MR_DMABUF));
}

/* As vrb_mr_cache_reg(), of system memory */
static inline int
vrb_mr_lockless_reg(struct vrb_domain *domain, const void *buf, size_t len,
		    struct fid_mr **mr)
{
	struct ofi_mr_entry *entry;
	struct ofi_mr_info info;
	int ret;

	info.iov.iov_base = (void *) buf;
	info.iov.iov_len = len;
	info.iface = FI_HMEM_SYSTEM;
	info.device = 0;
	info.flags = 0;
	info.peer_id = 0;
	info.mapped_addr = NULL;

	ret = ofi_mr_cache_search(&domain->cache, &info, &entry);
	if (OFI_UNLIKELY(ret))
		return ret;

	*mr = &((struct vrb_mem_desc *) entry->data)->mr_fid;
	return FI_SUCCESS;
}

#endif /* VERBS_MR_LOCKLESS_H */
