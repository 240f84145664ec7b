/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Counts the registrations that the kernel has made for all processes. The kernel numbers them in
 * order and shows the numbers (rdma resource show mr), so the number of a new registration tells
 * how many came before. A separate process, forked before any other work, makes the new
 * registration, so that the memory of the counted process does not change.
 */
#ifndef MPI_REGISTRATION_COUNT_H
#define MPI_REGISTRATION_COUNT_H

#include <cstdint>

#include <sys/types.h>

class registration_count {
public:
	/* Forks the separate process. Throws std::runtime_error, as the methods do. */
	registration_count();
	registration_count(const registration_count &) = delete;
	registration_count &operator=(const registration_count &) = delete;
	/* Ends the separate process. */
	~registration_count();

	/* Registrations on the first RDMA device since construction, without this class's own. */
	uint64_t now();

private:
	int socket_;
	pid_t child_;
	uint64_t own_ = 0;
};

#endif
