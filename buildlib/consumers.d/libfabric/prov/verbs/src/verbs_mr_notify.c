/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The regions of this provider for the memory monitor "verbs_notify".
 */

#include "verbs_ofi.h"
#include <ofi_mr_notify_verbs.h>

static struct ibv_mr *vrb_mr_of(struct ofi_mr_entry *entry)
{
	return ((struct vrb_mem_desc *) entry->data)->mr;
}

static int vrb_mr_notify_arm(struct ofi_mr_entry *entry, uint64_t *word,
			     uint64_t in_use)
{
	return ofi_verbs_notify_arm(vrb_mr_of(entry), word, in_use);
}

static int vrb_mr_notify_settle(struct ofi_mr_entry *entry)
{
	return ofi_verbs_notify_settle(vrb_mr_of(entry));
}

static const struct ofi_mr_notify_ops vrb_mr_notify_ops = {
	.arm = vrb_mr_notify_arm,
	.settle = vrb_mr_notify_settle,
};

const struct ofi_mr_notify_ops *vrb_mr_notify(struct vrb_domain *domain)
{
	/* On-demand paging follows the memory itself. */
	return !(domain->ext_flags & VRB_USE_ODP) &&
	       ofi_verbs_can_notify(domain->verbs) ? &vrb_mr_notify_ops : NULL;
}
