/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Capabilities of a device for which `device` has no member. */
#ifndef GUEST_CAPABILITY_H
#define GUEST_CAPABILITY_H

#include "device.h"

inline bool has_capability(const mr_notify::device &on, uint64_t flag)
{
	ibv_device_attr_ex attr{};

	mr_notify::check_verb(ibv_query_device_ex(on.context(), nullptr, &attr),
			      "ibv_query_device_ex");
	return attr.device_cap_flags_ex & flag;
}

/* On-demand paging, with MRs of all memory. */
inline bool offers_all(const mr_notify::device &on)
{
	return has_capability(on, IBV_DEVICE_MR_ALL);
}

inline bool can_reclaim(const mr_notify::device &on)
{
	return has_capability(on, IBV_DEVICE_MR_RECLAIM);
}

#endif
