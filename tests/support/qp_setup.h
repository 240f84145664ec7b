/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The states of a queue pair of RC, UC or UD: for tests that choose its attributes. */
#ifndef GUEST_QP_SETUP_H
#define GUEST_QP_SETUP_H

#include "device.h"
#include "reliable.h"

/* Attributes to send to queue pair @number at @gid, from the address @own. */
inline ibv_qp_attr attributes_to(const mr_notify::address &own, const ibv_gid &gid, uint32_t number)
{
	ibv_qp_attr attr{};

	attr.port_num = 1;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = number;
	attr.qp_access_flags = mr_notify::device::all_rights;
	attr.min_rnr_timer = 1;
	attr.rnr_retry = 7;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(own.gid_index);
	attr.ah_attr.grh.hop_limit = 64;
	return attr;
}

/* The attributes that a queue pair of this type needs to enter INIT, RTR or RTS. */
inline int needed_attributes(ibv_qp_type type, ibv_qp_state state)
{
	const bool datagrams = type == IBV_QPT_UD;
	const bool reliable = type == IBV_QPT_RC;

	switch (state) {
	case IBV_QPS_INIT:
		return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		       (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	case IBV_QPS_RTR:
		return IBV_QP_STATE |
		       (datagrams ? 0
				  : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
		       (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	case IBV_QPS_RTS:
		return IBV_QP_STATE | IBV_QP_SQ_PSN |
		       (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					   IBV_QP_MAX_QP_RD_ATOMIC
				 : 0);
	default:
		return IBV_QP_STATE;
	}
}

/* Returns 0 or an errno value, as ibv_modify_qp() does. */
inline int enter(ibv_qp *qp, ibv_qp_state state, ibv_qp_attr attr = {})
{
	attr.qp_state = state;
	return ibv_modify_qp(qp, &attr, needed_attributes(qp->qp_type, state));
}

#endif
