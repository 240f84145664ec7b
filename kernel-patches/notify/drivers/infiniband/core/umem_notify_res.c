// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * "rdma resource show mr -dd" shows MR notification by attributes in the table for drivers.
 * Any iproute2 prints these attributes.
 */

#include <net/netlink.h>
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>

#include "umem_notify.h"

/* The caller holds the space's lock. */
static const char *res_state(const struct ib_umem_notify *n)
{
	if (n->state & SUSPENDED)
		return "suspended";
	if (n->revoked)
		return "revoked";
	if (n->state & INVALID)
		return "invalid";
	return n->state ? "suspect" : "valid";
}

/**
 * ib_mr_notify_fill_res_mr - Print the notification state of an MR
 * @msg: The netlink message
 * @mr: The MR; its restrack entry is held, so it can't be deregistered
 *
 * For fill_res_mr_entry() of a driver that keeps the umem of an MR when it re-registers
 * the MR. Adds no attribute for an MR without a tracker.
 *
 * A u32 is enough: ib_umem_get() pins at most U32_MAX pages. A u64 would need a padding
 * attribute on some architectures, and iproute2 would print the padding as the value.
 *
 * Return: 0 or -EMSGSIZE.
 */
int ib_mr_notify_fill_res_mr(struct sk_buff *msg, struct ib_mr *mr)
{
	struct ib_umem_notify *n = umem_notify_of_mr(mr);
	bool armed, revoked;
	struct nlattr *table;
	const char *state;

	if (!n)
		return 0;
	umem_notify_lock(n);
	armed = n->armed;
	revoked = n->revoked;
	state = res_state(n);
	umem_notify_unlock(n);

	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	if (!table)
		return -EMSGSIZE;
	if (rdma_nl_put_driver_string(msg, "notify", armed ? "armed" : "disarmed") ||
	    rdma_nl_put_driver_string(msg, "state", state) ||
	    rdma_nl_put_driver_u32(msg, "pinned_pages", revoked ? 0 : umem_notify_pages(n))) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}
EXPORT_SYMBOL(ib_mr_notify_fill_res_mr);
