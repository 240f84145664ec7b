// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "operations.h"

namespace odp {

using namespace mr_notify;

uint64_t number(const void *address)
{
	return reinterpret_cast<uintptr_t>(address);
}

namespace {

std::vector<ibv_sge> elements(const std::vector<piece> &pieces)
{
	std::vector<ibv_sge> list;

	list.reserve(pieces.size());
	for (const piece &one : pieces)
		list.push_back({number(one.where.addr), static_cast<uint32_t>(one.where.length),
				one.lkey});
	return list;
}

bool is_atomic(ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

} // namespace

void post(ibv_qp *qp, const request &what)
{
	std::vector<ibv_sge> list = elements(what.local);
	ibv_send_wr wr{};
	ibv_send_wr *bad = nullptr;

	wr.sg_list = list.data();
	wr.num_sge = static_cast<int>(list.size());
	wr.opcode = what.opcode;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (is_atomic(what.opcode)) {
		wr.wr.atomic.remote_addr = what.remote;
		wr.wr.atomic.rkey = what.rkey;
		wr.wr.atomic.compare_add = what.compare_add;
		wr.wr.atomic.swap = what.swap;
	} else {
		wr.wr.rdma.remote_addr = what.remote;
		wr.wr.rdma.rkey = what.rkey;
	}
	check_verb(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

void post_receive(ibv_qp *qp, const std::vector<piece> &into)
{
	std::vector<ibv_sge> list = elements(into);
	ibv_recv_wr wr{};
	ibv_recv_wr *bad = nullptr;

	wr.sg_list = list.data();
	wr.num_sge = static_cast<int>(list.size());
	check_verb(ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
}

both send(loopback &link, const std::vector<piece> &from, const std::vector<piece> &into)
{
	both ends{};

	post_receive(link.far_end(), into);
	post(link.near_end(), {IBV_WR_SEND, from});
	for (int i = 0; i < 2; i++) {
		const ibv_wc wc = link.wait();
		(wc.qp_num == link.far_end()->qp_num ? ends.receiver : ends.sender) = wc.status;
	}
	return ends;
}

ibv_wc_status run(loopback &link, const request &what)
{
	post(link.near_end(), what);
	return link.wait().status;
}

bool offers_all(const device &on)
{
	ibv_device_attr_ex attr{};

	check_verb(ibv_query_device_ex(on.context(), nullptr, &attr), "ibv_query_device_ex");
	return attr.device_cap_flags_ex & IBV_DEVICE_MR_ALL;
}

owned<ibv_mr> register_all(const device &on, int access)
{
	owned<ibv_mr> mr(ibv_register_mr_all(on.pd(), access));

	if (!mr)
		fail("ibv_register_mr_all");
	return mr;
}

} // namespace odp
