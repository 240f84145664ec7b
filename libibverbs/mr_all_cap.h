/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The library itself sets IBV_DEVICE_MR_ALL if the kernel reports implicit
 * on-demand paging. So the capability also works with older kernels.
 */
#ifndef IB_VERBS_MR_ALL_CAP_H
#define IB_VERBS_MR_ALL_CAP_H

#include <stddef.h>

#include <infiniband/driver.h>

/* @attr_size: the size of @attr in the calling program */
static inline void mr_all_set_cap(struct ibv_device_attr_ex *attr,
				  size_t attr_size)
{
	if (attr_size < offsetof(struct ibv_device_attr_ex,
				 device_cap_flags_ex) +
				sizeof(attr->device_cap_flags_ex))
		return;
	if (attr->odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT)
		attr->device_cap_flags_ex |= IBV_DEVICE_MR_ALL;
}

#endif /* IB_VERBS_MR_ALL_CAP_H */
