// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_register_mr_all() registers implicit on-demand paging, if the device has it.
 */
#include <config.h>

#include <errno.h>
#include <stdint.h>

#include <infiniband/driver.h>
#include <infiniband/verbs.h>

struct ibv_mr *ibv_register_mr_all(struct ibv_pd *pd, int access)
{
	struct ibv_device_attr_ex attr;
	int ret;

	ret = ibv_query_device_ex(pd->context, NULL, &attr);
	if (ret) {
		errno = ret;
		return NULL;
	}
	if (!(attr.device_cap_flags_ex & IBV_DEVICE_MR_ALL)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return ibv_reg_mr_iova2(pd, NULL, SIZE_MAX, 0,
				access | IBV_ACCESS_ON_DEMAND);
}
