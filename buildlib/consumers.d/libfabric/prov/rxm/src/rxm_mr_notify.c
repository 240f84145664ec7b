/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The operations FI_MR_NOTIFY_OPS of a domain of ofi_rxm call the operations of the
 * domain below, with the regions of the domain below.
 */

#include "rxm.h"

static int rxm_mr_watch(struct fid_mr *mr, const uint64_t **word, uint64_t *mask)
{
	struct rxm_mr *rxm_mr = container_of(mr, struct rxm_mr, mr_fid);

	return rxm_mr->domain->mr_notify->watch(rxm_mr->msg_mr, word, mask);
}

static int rxm_mr_settle(struct fid_mr *mr)
{
	struct rxm_mr *rxm_mr = container_of(mr, struct rxm_mr, mr_fid);

	return rxm_mr->domain->mr_notify->settle(rxm_mr->msg_mr);
}

static int rxm_mr_changes(struct fid_domain *fid, const uint64_t **changes)
{
	struct rxm_domain *domain = container_of(fid, struct rxm_domain,
						 util_domain.domain_fid);

	return domain->mr_notify->changes(domain->msg_domain, changes);
}

static struct fi_ops_mr_notify rxm_ops_mr_notify = {
	.size = sizeof(struct fi_ops_mr_notify),
	.watch = rxm_mr_watch,
	.settle = rxm_mr_settle,
	.changes = rxm_mr_changes,
};

int rxm_domain_ops_open(struct fid *fid, const char *name, uint64_t flags,
			void **ops, void *context)
{
	struct rxm_domain *domain = container_of(fid, struct rxm_domain,
						 util_domain.domain_fid.fid);
	int ret;

	/* With passthru the user has the regions of the domain below. */
	if (strcasecmp(name, FI_MR_NOTIFY_OPS) || domain->passthru)
		return -FI_ENOSYS;

	ret = fi_open_ops(&domain->msg_domain->fid, name, flags,
			  (void **) &domain->mr_notify, context);
	if (!ret)
		*ops = &rxm_ops_mr_notify;
	return ret;
}
