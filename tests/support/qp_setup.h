/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The attributes of queue pairs in tests that count packets. */
#ifndef GUEST_QP_SETUP_H
#define GUEST_QP_SETUP_H

#include "reliable.h"

/* Attributes to send to queue pair @number at @gid, from the address @own. */
inline ibv_qp_attr attributes_to(const mr_notify::address &own, const ibv_gid &gid, uint32_t number)
{
	mr_notify::address other;

	other.gid = gid;
	other.qp = number;
	ibv_qp_attr attr = mr_notify::attributes_to(own, other);
	attr.path_mtu = IBV_MTU_1024;
	attr.min_rnr_timer = 1;
	return attr;
}

#endif
