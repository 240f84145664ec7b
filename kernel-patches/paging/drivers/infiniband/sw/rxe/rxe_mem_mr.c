// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging in soft-RoCE: the MR.
 *
 * An MR with on-demand paging stores an address space, and the start address of the
 * MR in this address space. The MR has no page table, no pages and no notifier. See
 * rxe_mem_copy.c and rxe_mem_atomic.c for the accesses of packets.
 */

#include <linux/mm.h>
#include <rdma/rdma_netlink.h>

#include "rxe.h"
#include "rxe_mem_pool.h"

/**
 * rxe_mem_init_mr - Use on-demand paging for a new MR
 * @mr: The MR, initialized, with its access rights
 * @start: The start address in the address space of the caller
 * @length: The length; @start 0 and @length U64_MAX mean the whole address space
 *
 * The range may have no mapping. The MR always refers to the caller's address
 * space, but does not keep the address space alive. When the address space has
 * ended, each access fails.
 *
 * Return:
 * * 0
 * * -EINVAL: the range wraps around, or the MR covers the whole address space and
 *   has IB_ACCESS_FLUSH_PERSISTENT
 * * -EAGAIN: the process can't have another thread
 * * -ENOMEM
 */
int rxe_mem_init_mr(struct rxe_mr *mr, u64 start, u64 length)
{
	bool all = !start && length == U64_MAX;
	struct rxe_mem_mr *odp;
	u64 end;
	int err;

	if (check_add_overflow(start, length, &end))
		return -EINVAL;
	if (all && (mr->access & IB_ACCESS_FLUSH_PERSISTENT))
		return -EINVAL;

	odp = kzalloc(sizeof(*odp), GFP_KERNEL);
	if (!odp)
		return -ENOMEM;
	odp->pool = rxe_mem_pool_join();
	if (IS_ERR(odp->pool)) {
		err = PTR_ERR(odp->pool);
		kfree(odp);
		return err;
	}

	odp->start = start;
	mr->odp = odp;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;
	return 0;
}

/* Re-registering can't turn an MR with on-demand paging into a pinned MR, or back */
int rxe_mem_check_rereg(struct rxe_mr *mr, int flags, int access)
{
	if (!(flags & IB_MR_REREG_ACCESS) ||
	    !(access & IB_ACCESS_ON_DEMAND) == !mr->odp)
		return 0;
	return -EOPNOTSUPP;
}

void rxe_mem_cleanup_mr(struct rxe_mr *mr)
{
	if (!mr->odp)
		return;

	rxe_mem_pool_leave(mr->odp->pool);
	kfree(mr->odp);
	mr->odp = NULL;
}

/* The counters of an MR, for "rdma statistic show mr" */
static int rxe_mem_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct rxe_mem_mr *odp = to_rmr(ibmr)->odp;
	struct nlattr *table;

	if (!odp)
		return 0;

	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);
	if (!table)
		return -EMSGSIZE;
	if (rdma_nl_stat_hwcounter_entry(msg, "page_faults",
					 atomic64_read(&odp->faults)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_fault_waits",
					 atomic64_read(&odp->waits)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_prefetch",
					 atomic64_read(&odp->prefetched))) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}

static const struct ib_device_ops rxe_mem_dev_ops = {
	.advise_mr = rxe_mem_advise_mr,
	.fill_stat_mr_entry = rxe_mem_fill_stat_mr,
};

/**
 * rxe_mem_init_device - Offer on-demand paging
 * @rxe: A new device, whose other methods and capabilities may be set later
 */
void rxe_mem_init_device(struct rxe_dev *rxe)
{
	struct ib_device_attr *attr = &rxe->attr;
	u32 ud = IB_ODP_SUPPORT_SEND | IB_ODP_SUPPORT_RECV |
		 IB_ODP_SUPPORT_SRQ_RECV;
	u32 uc = ud | IB_ODP_SUPPORT_WRITE;
	u32 rc = uc | IB_ODP_SUPPORT_READ | IB_ODP_SUPPORT_ATOMIC;

	attr->kernel_cap_flags |= IBK_ON_DEMAND_PAGING;
	attr->odp_caps.general_caps = IB_ODP_SUPPORT | IB_ODP_SUPPORT_IMPLICIT;
	attr->odp_caps.per_transport_caps.rc_odp_caps = rc;
	attr->odp_caps.per_transport_caps.uc_odp_caps = uc;
	attr->odp_caps.per_transport_caps.ud_odp_caps = ud;
	ib_set_device_ops(&rxe->ib_dev, &rxe_mem_dev_ops);
}
