/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Finds the rings of queue pairs and completion queues that a device's library has mapped. Any code
 * of the process may write to these rings.
 */
#ifndef GUEST_MAPPED_H
#define GUEST_MAPPED_H

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "memory.h"

/* All mapped rings, in the order in which the kernel made them. */
inline std::vector<mr_notify::range> mapped_rings()
{
	struct found {
		uint64_t offset;
		mr_notify::range where;
	};
	std::vector<found> all;
	std::vector<mr_notify::range> rings;
	std::ifstream maps("/proc/self/maps");

	for (std::string line; std::getline(maps, line);) {
		uintptr_t from = 0;
		uintptr_t to = 0;
		uint64_t offset = 0;

		if (line.find("uverbs") == std::string::npos ||
		    std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64, &from, &to,
				&offset) != 3)
			continue;
		all.push_back({offset, {reinterpret_cast<std::byte *>(from), to - from}});
	}
	std::sort(all.begin(), all.end(),
		  [](const found &a, const found &b) { return a.offset < b.offset; });
	for (const found &one : all)
		rings.push_back(one.where);
	return rings;
}

/* The rings that are mapped now, without the rings in @before. */
inline std::vector<mr_notify::range> mapped_since(const std::vector<mr_notify::range> &before)
{
	std::vector<mr_notify::range> rings = mapped_rings();

	std::erase_if(rings, [&](const mr_notify::range &ring) {
		return std::any_of(before.begin(), before.end(), [&](const mr_notify::range &old) {
			return old.addr == ring.addr;
		});
	});
	return rings;
}

#endif
