/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Posts work requests of any kind, and makes a shared receive queue. Throws on errors. */
#ifndef GUEST_POST_H
#define GUEST_POST_H

#include <cstdint>
#include <type_traits>
#include <vector>

#include "device.h"

/* One piece of local memory. */
struct piece {
	mr_notify::range where;
	uint32_t lkey;
};

struct request {
	ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
	std::vector<piece> local;
	uint64_t remote = 0;
	uint32_t rkey = 0;
	uint64_t compare_add = 0;
	uint64_t swap = 0;
	unsigned int flags = 0; /* in addition to IBV_SEND_SIGNALED */
};

inline uint64_t number(const void *address)
{
	return reinterpret_cast<uintptr_t>(address);
}

inline std::vector<ibv_sge> elements(const std::vector<piece> &pieces)
{
	std::vector<ibv_sge> list;

	list.reserve(pieces.size());
	for (const piece &one : pieces)
		list.push_back({number(one.where.addr), static_cast<uint32_t>(one.where.length),
				one.lkey});
	return list;
}

inline void post(ibv_qp *qp, ibv_send_wr &wr)
{
	ibv_send_wr *bad = nullptr;

	mr_notify::check_verb(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

inline void post(ibv_qp *qp, const request &what)
{
	std::vector<ibv_sge> list = elements(what.local);
	ibv_send_wr wr{};

	wr.sg_list = list.data();
	wr.num_sge = static_cast<int>(list.size());
	wr.opcode = what.opcode;
	wr.send_flags = IBV_SEND_SIGNALED | what.flags;
	if (what.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	    what.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = what.remote;
		wr.wr.atomic.rkey = what.rkey;
		wr.wr.atomic.compare_add = what.compare_add;
		wr.wr.atomic.swap = what.swap;
	} else {
		wr.wr.rdma.remote_addr = what.remote;
		wr.wr.rdma.rkey = what.rkey;
	}
	post(qp, wr);
}

/* Binds a memory window of type 2; returns its new key. */
inline uint32_t post_bind(ibv_qp *qp, ibv_mw *window, const ibv_mw_bind_info &to)
{
	ibv_send_wr wr{};

	wr.opcode = IBV_WR_BIND_MW;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.bind_mw = {window, ibv_inc_rkey(window->rkey), to};
	post(qp, wr);
	return wr.bind_mw.rkey;
}

/* @queue: a queue pair, or a shared receive queue */
template <class Queue>
void post_receive(Queue *queue, const std::vector<piece> &into, uint64_t id = 0)
{
	std::vector<ibv_sge> list = elements(into);
	ibv_recv_wr wr{};
	ibv_recv_wr *bad = nullptr;

	wr.wr_id = id;
	wr.sg_list = list.data();
	wr.num_sge = static_cast<int>(list.size());
	if constexpr (std::is_same_v<Queue, ibv_srq>)
		mr_notify::check_verb(ibv_post_srq_recv(queue, &wr, &bad), "ibv_post_srq_recv");
	else
		mr_notify::check_verb(ibv_post_recv(queue, &wr, &bad), "ibv_post_recv");
}

/* A shared receive queue with room for @receives. */
inline mr_notify::owned<ibv_srq> shared_queue(const mr_notify::device &on, uint32_t receives,
					      uint32_t pieces = 1)
{
	ibv_srq_init_attr init{};

	init.attr = {receives, pieces, 0};
	mr_notify::owned<ibv_srq> shared(ibv_create_srq(on.pd(), &init));
	if (!shared)
		mr_notify::fail("ibv_create_srq");
	return shared;
}

#endif
