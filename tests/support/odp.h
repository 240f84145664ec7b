/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Transfers of a reliable connection, and the MR of all memory. */
#ifndef GUEST_ODP_H
#define GUEST_ODP_H

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "loopback.h"
#include "post.h"

namespace odp {

constexpr int all_rights = mr_notify::device::all_rights;

/*
 * Sends a message to a receive, and waits for both ends. Returns the statuses of sender and
 * receiver.
 */
struct both {
	ibv_wc_status sender;
	ibv_wc_status receiver;
};
both send(mr_notify::loopback &link, const std::vector<piece> &from,
	  const std::vector<piece> &into);
ibv_wc_status run(mr_notify::loopback &link, const request &what);

mr_notify::owned<ibv_mr> register_all(const mr_notify::device &on, int access);

/* A device that is connected with itself, and its MR of all memory. */
struct paged_loopback {
	mr_notify::device on;
	mr_notify::loopback link{on};
	mr_notify::owned<ibv_mr> all = register_all(on, all_rights);
};

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
