// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification in "rdma resource show mr -dd": attributes of the driver's
 * table, which iproute2 prints without knowing them.
 */

#include <net/netlink.h>
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>

#include "umem_notify.h"

static const char *state_name(const struct umem_notify_status *status)
{
	if (status->state & IB_UVERBS_MR_NOTIFY_SUSPENDED)
		return "suspended";
	if (status->revoked)
		return "revoked";
	if (status->state & IB_UVERBS_MR_NOTIFY_INVALID)
		return "invalid";
	return status->state ? "suspect" : "valid";
}

/**
 * ib_mr_notify_fill_res_mr - Print the notification state of an MR
 * @msg: The netlink message
 * @mr: The MR; its restrack entry is held, so it can't be deregistered
 *
 * A driver's fill_res_mr_entry(), for one that does not replace the umem of an
 * MR when it re-registers it. Says nothing of an MR that is not watched.
 *
 * ib_umem_get() pins no more pages than a u32 counts. A u64 would need a padding
 * attribute on some architectures, which iproute2 takes for the value.
 *
 * Return: 0 or -EMSGSIZE.
 */
int ib_mr_notify_fill_res_mr(struct sk_buff *msg, struct ib_mr *mr)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	struct umem_notify_status status;
	struct nlattr *table;

	if (!umem || !umem_notify_status(umem, &status))
		return 0;

	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	if (!table)
		return -EMSGSIZE;
	if (rdma_nl_put_driver_string(msg, "notify",
				      status.armed ? "armed" : "disarmed") ||
	    rdma_nl_put_driver_string(msg, "state", state_name(&status)) ||
	    rdma_nl_put_driver_u32(msg, "pinned_pages",
				   status.revoked ? 0 : ib_umem_num_pages(umem))) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}
EXPORT_SYMBOL(ib_mr_notify_fill_res_mr);
