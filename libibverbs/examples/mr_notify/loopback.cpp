// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "loopback.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "system.h"

namespace mr_notify {
namespace {

/* Returns the next PSNs to send and to expect, which show where a connection hangs. */
std::string psns(ibv_qp *qp)
{
	ibv_qp_attr attr{};
	ibv_qp_init_attr init{};

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init))
		return "unknown";
	return "state " + std::to_string(attr.qp_state) + ", next PSN to send " +
	       std::to_string(attr.sq_psn) + ", to receive " + std::to_string(attr.rq_psn);
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
	near_ = make_reliable(on, cq_.get(), srq);
	far_ = make_reliable(on, cq_.get(), srq);
	if (on.is_iwarp()) {
		iwarp_.emplace(on, near_.get(), far_.get());
		return;
	}
	address near = address_of(near_.get());
	near.mtu = std::min(near.mtu, most);
	address far = near;
	far.qp = far_->qp_num;
	connect_reliable(near_.get(), near, far, ends);
	connect_reliable(far_.get(), far, near, ends);
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
		std::this_thread::yield(); // a software device needs the CPU too
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
	wr.wr.rdma.rkey = rkey; /* siw's provider also finds the key to invalidate here */
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
