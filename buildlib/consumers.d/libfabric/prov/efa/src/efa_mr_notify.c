/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The regions of this provider for the memory monitor "verbs_notify".
 */

#include "efa.h"
#include <ofi_mr_notify_verbs.h>

static struct ibv_mr *efa_mr_of(struct ofi_mr_entry *entry)
{
	return ((struct efa_mr *) entry->data)->ibv_mr;
}

static int efa_mr_notify_arm(struct ofi_mr_entry *entry, uint64_t *word,
			     uint64_t in_use)
{
	return ofi_verbs_notify_arm(efa_mr_of(entry), word, in_use);
}

static int efa_mr_notify_settle(struct ofi_mr_entry *entry)
{
	return ofi_verbs_notify_settle(efa_mr_of(entry));
}

static const struct ofi_mr_notify_ops efa_mr_notify_ops = {
	.arm = efa_mr_notify_arm,
	.settle = efa_mr_notify_settle,
};

const struct ofi_mr_notify_ops *efa_mr_notify(struct efa_domain *domain)
{
	return ofi_verbs_can_notify(domain->device->ibv_ctx) ?
	       &efa_mr_notify_ops : NULL;
}
