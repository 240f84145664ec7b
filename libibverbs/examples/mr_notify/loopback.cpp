// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "loopback.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "system.h"

namespace mr_notify {
namespace {

constexpr uint8_t port_number = 1;

/* How one end of the connection is addressed by the other. */
struct address {
	uint16_t lid = 0;
	uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
	ibv_mtu mtu = IBV_MTU_1024;
	int gid_index = 0;
	ibv_gid gid{};
	loopback::patience ends{};
};

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

/* An IPv4 GID of the newest RoCE version if there is one, else the last one. */
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

address address_of(ibv_context *context)
{
	ibv_port_attr port{};
	address out;

	check_verb(ibv_query_port(context, port_number, &port), "ibv_query_port");
	if (port.state != IBV_PORT_ACTIVE)
		throw unsupported("port 1 is not active");
	out.lid = port.lid;
	out.link_layer = port.link_layer;
	out.mtu = port.active_mtu;
	pick_gid(context, port.gid_tbl_len, out);
	return out;
}

owned<ibv_qp> make_qp(const device &on, ibv_cq *cq, ibv_srq *srq)
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

void connect(ibv_qp *qp, uint32_t peer, const address &where)
{
	ibv_qp_attr attr{};

	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = port_number;
	attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			       IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	check_verb(
		ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		"ibv_modify_qp to INIT");

	attr = {};
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = where.mtu;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.dlid = where.lid;
	attr.ah_attr.port_num = port_number;
	attr.ah_attr.is_global = where.link_layer == IBV_LINK_LAYER_ETHERNET;
	attr.ah_attr.grh.dgid = where.gid;
	attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(where.gid_index);
	attr.ah_attr.grh.hop_limit = 64;
	check_verb(ibv_modify_qp(qp, &attr,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER),
		   "ibv_modify_qp to RTR");

	attr = {};
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = where.ends.timeout;
	attr.retry_cnt = where.ends.retries;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	check_verb(ibv_modify_qp(qp, &attr,
				 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC),
		   "ibv_modify_qp to RTS");
}

/* The next PSNs to send and to expect: where it stopped. */
std::string psns(ibv_qp *qp)
{
	ibv_qp_attr attr{};
	ibv_qp_init_attr init{};

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init))
		return "unknown";
	return "state " + std::to_string(attr.qp_state) + ", sends " + std::to_string(attr.sq_psn) +
	       ", expects " + std::to_string(attr.rq_psn);
}

} // namespace

loopback::loopback(const device &on, ibv_srq *srq, ibv_mtu most)
    : loopback(on, srq, most, patience())
{
}

loopback::loopback(const device &on, ibv_srq *srq, ibv_mtu most, const patience &ends)
    : cq_(ibv_create_cq(on.context(), 64, nullptr, nullptr, 0))
{
	if (!cq_)
		fail("ibv_create_cq");
	near_ = make_qp(on, cq_.get(), srq);
	far_ = make_qp(on, cq_.get(), srq);
	if (on.context()->device->transport_type == IBV_TRANSPORT_IWARP) {
		iwarp_.emplace(on, near_.get(), far_.get());
		return;
	}
	address where = address_of(on.context());
	where.mtu = std::min(where.mtu, most);
	where.ends = ends;
	connect(near_.get(), far_->qp_num, where);
	connect(far_.get(), near_->qp_num, where);
}

std::optional<ibv_wc> loopback::poll()
{
	ibv_wc wc{};
	const int polled = ibv_poll_cq(cq_.get(), 1, &wc);

	if (polled < 0)
		throw std::runtime_error("ibv_poll_cq failed");
	return polled ? std::optional(wc) : std::nullopt;
}

ibv_wc loopback::wait()
{
	const auto deadline = std::chrono::steady_clock::now() + time_limit;

	while (std::chrono::steady_clock::now() < deadline) {
		if (const auto wc = poll())
			return *wc;
		std::this_thread::yield(); // a software device needs a CPU too
	}
	throw std::runtime_error("no completion in " + std::to_string(time_limit.count()) +
				 " s; near end: " + psns(near_.get()) +
				 ", far end: " + psns(far_.get()));
}

void loopback::start(ibv_wr_opcode opcode, const ibv_mr *mr, range local, const void *remote,
		     uint32_t rkey, unsigned int flags)
{
	ibv_sge sge{reinterpret_cast<uintptr_t>(local.addr), static_cast<uint32_t>(local.length),
		    mr->lkey};
	ibv_sge nothing{sge.addr, 0, sge.lkey};
	ibv_send_wr wr{};
	ibv_send_wr *bad = nullptr;

	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = opcode;
	wr.send_flags = flags;
	wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(remote);
	wr.wr.rdma.rkey = rkey; /* siw's library also takes the key to invalidate from there */
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = rkey;

	ibv_send_wr answer = wr;
	answer.sg_list = &nothing;
	answer.opcode = IBV_WR_RDMA_READ;
	answer.send_flags = IBV_SEND_SIGNALED;
	if (iwarp_ && opcode == IBV_WR_RDMA_WRITE)
		wr.next = &answer;
	check_verb(ibv_post_send(near_.get(), &wr, &bad), "ibv_post_send");
}

ibv_wc_status loopback::write(const ibv_mr *from, range local, const void *remote, uint32_t rkey)
{
	start(IBV_WR_RDMA_WRITE, from, local, remote, rkey);
	const ibv_wc_status status = wait().status;
	return status == IBV_WC_SUCCESS && iwarp_ ? wait().status : status;
}

ibv_wc_status loopback::read(const ibv_mr *into, range local, const void *remote, uint32_t rkey)
{
	start(IBV_WR_RDMA_READ, into, local, remote, rkey);
	return wait().status;
}

bool loopback::refused(ibv_wc_status status) const
{
	if (!iwarp_)
		return status == IBV_WC_REM_ACCESS_ERR;
	if (status == IBV_WC_SUCCESS)
		return false;

	pollfd ready{near_->context->async_fd, POLLIN, 0};
	bool found = false;
	while (!found && ::poll(&ready, 1, std::chrono::milliseconds(time_limit).count()) == 1) {
		ibv_async_event event{};
		if (ibv_get_async_event(near_->context, &event))
			fail("ibv_get_async_event");
		found = (event.event_type == IBV_EVENT_QP_ACCESS_ERR ||
			 event.event_type == IBV_EVENT_QP_REQ_ERR) &&
			event.element.qp == far_.get();
		ibv_ack_async_event(&event);
	}
	return found;
}

} // namespace mr_notify
