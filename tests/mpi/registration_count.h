/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * How many registrations the kernel has made, by whomever: it numbers them, one after the other,
 * and shows the numbers (rdma resource show mr). So a registration of our own tells how many came
 * before it. It is made by a process of its own, which is forked before anything else is done, so
 * that nothing happens to the memory of the process that is being counted.
 */
#ifndef MPI_REGISTRATION_COUNT_H
#define MPI_REGISTRATION_COUNT_H

#include <cstdint>

#include <sys/types.h>

class registration_count {
public:
	/* Forks. Throws std::runtime_error, as its functions do. */
	registration_count();
	registration_count(const registration_count &) = delete;
	registration_count &operator=(const registration_count &) = delete;
	/* Ends the process. */
	~registration_count();

	/* Of the first RDMA device, since it was made, without those that this class made. */
	uint64_t now();

private:
	int socket_;
	pid_t child_;
	uint64_t own_ = 0;
};

#endif
