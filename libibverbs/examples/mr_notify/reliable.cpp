// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "reliable.h"

#include <algorithm>
#include <array>

namespace mr_notify {
namespace {

constexpr uint8_t port_number = 1;

bool is_zero(const ibv_gid &gid)
{
	return std::all_of(std::begin(gid.raw), std::end(gid.raw),
			   [](uint8_t b) { return b == 0; });
}

bool is_ipv4_mapped(const ibv_gid &gid)
{
	static constexpr std::array<uint8_t, 12> prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

	return std::equal(prefix.begin(), prefix.end(), std::begin(gid.raw));
}

/* Picks an IPv4 GID of the newest RoCE version if there is one, otherwise the last GID. */
void pick_gid(ibv_context *context, int table_length, address &out)
{
	for (int i = 0; i < table_length; i++) {
		ibv_gid gid{};

		if (ibv_query_gid(context, port_number, i, &gid) || is_zero(gid))
			continue;
		if (is_ipv4_mapped(out.gid) && !is_ipv4_mapped(gid))
			continue;
		out.gid = gid;
		out.gid_index = i;
	}
}

/* The attributes that a queue pair of this type needs to enter INIT, RTR or RTS. */
int needed_attributes(ibv_qp_type type, ibv_qp_state state)
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

} // namespace

address address_of(const ibv_qp *qp)
{
	ibv_port_attr port{};
	address out;

	out.qp = qp->qp_num;
	check_verb(ibv_query_port(qp->context, port_number, &port), "ibv_query_port");
	if (port.state != IBV_PORT_ACTIVE)
		throw unsupported("port 1 is not active");
	out.lid = port.lid;
	out.link_layer = port.link_layer;
	out.mtu = port.active_mtu;
	pick_gid(qp->context, port.gid_tbl_len, out);
	return out;
}

owned<ibv_qp> make_reliable(const device &on, ibv_cq *cq, ibv_srq *srq)
{
	ibv_qp_init_attr init{};
	ibv_device_attr attr{};

	check_verb(ibv_query_device(on.context(), &attr), "ibv_query_device");
	init.send_cq = cq;
	init.recv_cq = cq;
	init.srq = srq;
	init.qp_type = IBV_QPT_RC;
	init.cap = {16, 16, std::min(30U, static_cast<unsigned>(attr.max_sge)), 2, 0};
	owned<ibv_qp> qp(ibv_create_qp(on.pd(), &init));
	if (!qp)
		fail("ibv_create_qp");
	return qp;
}

ibv_qp_attr attributes_to(const address &own, const address &other)
{
	ibv_qp_attr attr{};

	attr.port_num = port_number;
	attr.path_mtu = own.mtu;
	attr.dest_qp_num = other.qp;
	attr.rq_psn = other.psn;
	attr.sq_psn = own.psn;
	attr.qp_access_flags = device::all_rights;
	attr.min_rnr_timer = 12;
	attr.rnr_retry = 7;
	attr.ah_attr.dlid = other.lid;
	attr.ah_attr.port_num = port_number;
	attr.ah_attr.is_global = own.link_layer == IBV_LINK_LAYER_ETHERNET;
	attr.ah_attr.grh.dgid = other.gid;
	attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(own.gid_index);
	attr.ah_attr.grh.hop_limit = 64;
	return attr;
}

int enter(ibv_qp *qp, ibv_qp_state state, ibv_qp_attr attr)
{
	attr.qp_state = state;
	return ibv_modify_qp(qp, &attr, needed_attributes(qp->qp_type, state));
}

void connect_reliable(ibv_qp *qp, const address &own, const address &other, const patience &waits)
{
	ibv_qp_attr attr = attributes_to(own, other);

	attr.max_rd_atomic = 1;
	attr.max_dest_rd_atomic = 1;
	attr.timeout = waits.timeout;
	attr.retry_cnt = waits.retries;
	check_verb(enter(qp, IBV_QPS_INIT, attr), "ibv_modify_qp to INIT");
	check_verb(enter(qp, IBV_QPS_RTR, attr), "ibv_modify_qp to RTR");
	check_verb(enter(qp, IBV_QPS_RTS, attr), "ibv_modify_qp to RTS");
}

} // namespace mr_notify
