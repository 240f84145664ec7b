/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A pool of free huge pages. */
#ifndef GUEST_HUGE_POOL_H
#define GUEST_HUGE_POOL_H

#include <cstddef>
#include <string>

#include "memory.h"
#include "system.h"

/* Keeps @pages huge pages of 2 MiB free while it exists; throws mr_notify::unsupported. */
class huge_pool {
public:
	static constexpr std::size_t page = std::size_t{2} << 20;

	explicit huge_pool(int free) : count_(in_use() + free), size_(file, std::to_string(count_))
	{
		if (std::stoi(mr_notify::read_system_file(file)) < count_)
			throw mr_notify::unsupported("no huge pages");
	}

private:
	static constexpr const char *file = "/proc/sys/vm/nr_hugepages";

	/* Pages that the pool has lost, for example because they were poisoned. */
	static int in_use()
	{
		const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";

		return std::stoi(mr_notify::read_system_file(folder + "nr_hugepages")) -
		       std::stoi(mr_notify::read_system_file(folder + "free_hugepages"));
	}

	const int count_;
	const mr_notify::setting size_;
};

#endif
