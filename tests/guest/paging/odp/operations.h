/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The operations of a reliable connection beyond reading and writing, and memory
 * whose faults are answered when the test says so.
 */
#ifndef GUEST_ODP_OPERATIONS_H
#define GUEST_ODP_OPERATIONS_H

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "loopback.h"

namespace odp {

constexpr int all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/* One piece of local memory. */
struct piece {
	mr_notify::range where;
	uint32_t lkey;
};

/* All that a work request names. */
struct request {
	ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
	std::vector<piece> local;
	uint64_t remote = 0;
	uint32_t rkey = 0;
	uint64_t compare_add = 0;
	uint64_t swap = 0;
};

uint64_t number(const void *address);

void post(ibv_qp *qp, const request &what);
void post_receive(ibv_qp *qp, const std::vector<piece> &into);
/* Sends to a receive, and waits for both ends: sender's status, then receiver's. */
struct both {
	ibv_wc_status sender;
	ibv_wc_status receiver;
};
both send(mr_notify::loopback &link, const std::vector<piece> &from,
	  const std::vector<piece> &into);
ibv_wc_status run(mr_notify::loopback &link, const request &what);

bool offers_all(const mr_notify::device &on);
mr_notify::owned<ibv_mr> register_all(const mr_notify::device &on, int access);

/* A child that ends with the status that the function returns, or 99 if it throws. */
template <class F> pid_t child_that(F does)
{
	const pid_t child = fork();

	if (child)
		return child;
	try {
		_exit(does());
	} catch (const std::exception &problem) {
		std::fprintf(stderr, "%s\n", problem.what());
		_exit(99);
	}
}

} // namespace odp

#endif
