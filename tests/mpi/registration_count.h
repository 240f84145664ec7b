/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Counts the registrations that the kernel has made for all processes. The kernel numbers
 * registrations in order and shows the numbers (rdma resource show mr). So the number of a new
 * registration tells how many came before. A separate process, which is forked first, makes the new
 * registration. So the memory of the counted process does not change.
 */
#ifndef MPI_REGISTRATION_COUNT_H
#define MPI_REGISTRATION_COUNT_H

#include <cstdint>

#include <sys/types.h>

class registration_count {
public:
	/* Forks the separate process. The constructor and the methods throw std::runtime_error. */
	registration_count();
	registration_count(const registration_count &) = delete;
	registration_count &operator=(const registration_count &) = delete;
	~registration_count();

	/*
	 * The number of registrations on the first RDMA device since construction, without the
	 * registrations of this class.
	 */
	uint64_t now();

private:
	int socket_;
	pid_t child_;
	uint64_t own_ = 0;
};

#endif
