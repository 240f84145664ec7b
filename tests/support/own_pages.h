/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The pages of a process that no other process shares, including pages copied after a fork. */
#ifndef GUEST_OWN_PAGES_H
#define GUEST_OWN_PAGES_H

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory.h"

/*
 * The number of pages that only this process maps. If the kernel does not report this, the number
 * of all pages.
 */
inline std::size_t own_pages(const std::byte *at, std::size_t size)
{
	std::vector<uint64_t> entries(size / mr_notify::page_size());
	const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	const auto first = reinterpret_cast<uintptr_t>(at) / mr_notify::page_size();
	const auto got = pread(fd, entries.data(), entries.size() * sizeof(uint64_t),
			       static_cast<off_t>(first * sizeof(uint64_t)));
	std::size_t own = 0;

	close(fd);
	if (got != static_cast<ssize_t>(entries.size() * sizeof(uint64_t)))
		return entries.size();
	for (const uint64_t entry : entries)
		own += entry >> 56 & 1;
	return own;
}

#endif
