// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "interception.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace interception {

namespace {

/* The number of bytes in [start, end) that differ from the bytes of the file at `offset`. */
std::size_t differing(uintptr_t start, uintptr_t end, std::streamoff offset,
		      const std::string &path)
{
	std::ifstream file(path, std::ios::binary);
	std::string wanted(end - start, '\0');
	const auto *code = reinterpret_cast<const char *>(start); // NOLINT: an address from /proc

	file.seekg(offset);
	file.read(wanted.data(), static_cast<std::streamsize>(wanted.size()));
	wanted.resize(static_cast<std::size_t>(file.gcount()));
	if (wanted.empty())
		throw std::runtime_error("libc's file can't be read");
	std::size_t count = 0;
	for (std::size_t i = 0; i < wanted.size(); i++)
		count += wanted[i] != code[i];
	return count;
}

} // namespace

std::size_t patched_bytes()
{
	std::ifstream maps("/proc/self/maps");
	std::size_t seen = 0, count = 0;

	for (std::string line; std::getline(maps, line);) {
		std::istringstream words(line);
		std::string range, rights, offset, device, inode, path;

		words >> range >> rights >> offset >> device >> inode >> path;
		if (!path.ends_with("/libc.so.6") || rights.find('x') == std::string::npos)
			continue;
		const auto dash = range.find('-');
		count += differing(std::stoull(range.substr(0, dash), nullptr, 16),
				   std::stoull(range.substr(dash + 1), nullptr, 16),
				   static_cast<std::streamoff>(std::stoull(offset, nullptr, 16)),
				   path);
		seen++;
	}
	if (!seen)
		throw std::runtime_error("libc is not in /proc/self/maps");
	return count;
}

std::size_t userfaultfds()
{
	std::size_t count = 0;

	for (const auto &fd : std::filesystem::directory_iterator("/proc/self/fd")) {
		std::error_code gone;
		count += std::filesystem::read_symlink(fd, gone) == "anon_inode:[userfaultfd]";
	}
	return count;
}

std::size_t threads()
{
	return static_cast<std::size_t>(
		std::ranges::distance(std::filesystem::directory_iterator("/proc/self/task")));
}

} // namespace interception
