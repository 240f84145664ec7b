/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The operations FI_MR_NOTIFY_OPS of a domain, for caches of registrations above
 * libfabric. After a user has opened the operations, the domain registers each region
 * with a word. The cache above keeps the region, and the cache of this domain does not.
 */

#include "verbs_ofi.h"

#if VERBS_HAVE_MR_NOTIFY

#include <dlfcn.h>

static int (*vrb_notify_arm)(struct ibv_mr *mr,
			     const struct ibv_mr_notify_attr *attr);

/* Arms a region that was registered before the operations were opened */
static int vrb_mr_arm(struct vrb_mem_desc *md)
{
	struct ibv_mr_notify_attr attr;
	int ret;

	if (!md->mr || md->info.iface != FI_HMEM_SYSTEM)
		return -FI_EOPNOTSUPP;

	attr = vrb_notify_attr(md->domain);
	if (!attr.word)
		return -FI_ENOMEM;

	ret = vrb_notify_arm(md->mr, &attr);
	if (ret == EOPNOTSUPP) {
		attr.comp_mask &= ~IBV_MR_NOTIFY_ATTR_IN_USE;
		ret = vrb_notify_arm(md->mr, &attr);
	}
	if (ret)
		vrb_notify_free(attr.word);
	else
		md->word = attr.word;
	return -ret;
}

static int vrb_mr_watch(struct fid_mr *mr, const uint64_t **word, uint64_t *mask)
{
	struct vrb_mem_desc *md = container_of(mr, struct vrb_mem_desc, mr_fid);
	int ret;

	ofi_genlock_lock(&md->domain->util_domain.lock);
	ret = md->word ? FI_SUCCESS : vrb_mr_arm(md);
	ofi_genlock_unlock(&md->domain->util_domain.lock);
	if (ret)
		return ret;

	*word = md->word;
	*mask = OFI_MR_NOTIFY_KERNEL;
	return FI_SUCCESS;
}

static int vrb_mr_settle(struct fid_mr *mr)
{
	struct vrb_mem_desc *md = container_of(mr, struct vrb_mem_desc, mr_fid);

	if (!md->word)
		return -FI_EOPNOTSUPP;

	return vrb_notify_settle(md) ||
	       (__atomic_load_n(md->word, __ATOMIC_ACQUIRE) &
		OFI_MR_NOTIFY_KERNEL) ? -FI_EADDRNOTAVAIL : FI_SUCCESS;
}

static int vrb_mr_changes(struct fid_domain *fid, const uint64_t **changes)
{
	*changes = container_of(fid, struct vrb_domain,
				util_domain.domain_fid)->changes;
	return FI_SUCCESS;
}

static struct fi_ops_mr_notify vrb_ops_mr_notify = {
	.size = sizeof(struct fi_ops_mr_notify),
	.watch = vrb_mr_watch,
	.settle = vrb_mr_settle,
	.changes = vrb_mr_changes,
};

int vrb_mr_notify_ops_open(struct fid *fid, void **ops)
{
	struct vrb_domain *domain = container_of(fid, struct vrb_domain,
						 util_domain.domain_fid.fid);

	*(void **) &vrb_notify_arm = dlsym(RTLD_DEFAULT, "ibv_reg_mr_notify_ex");
	if (!domain->changes || !vrb_notify_arm)
		return -FI_ENOSYS;

	domain->watched = true;
	domain->util_domain.domain_fid.mr = &vrb_mr_ops;
	*ops = &vrb_ops_mr_notify;
	return FI_SUCCESS;
}

#else /* !VERBS_HAVE_MR_NOTIFY */

int vrb_mr_notify_ops_open(struct fid *fid, void **ops)
{
	return -FI_ENOSYS;
}

#endif
