/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Prefetching for MRs with on-demand paging, which not every kernel's device has. The
 * kernel checks the arguments.
 */
#ifndef RXE_ODP_H
#define RXE_ODP_H

#include <infiniband/driver.h>

static int rxe_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
			 uint32_t flags, struct ibv_sge *sg_list,
			 uint32_t num_sge)
{
	return ibv_cmd_advise_mr(pd, advice, flags, sg_list, num_sge);
}

#endif /* RXE_ODP_H */
