/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Which communication libraries a program would load here, and their versions. */
#ifndef MR_CACHE_LIBRARIES_H
#define MR_CACHE_LIBRARIES_H

#include <compare>
#include <optional>
#include <string>
#include <vector>

namespace mr_cache {

struct version {
	unsigned int major = 0;
	unsigned int minor = 0;

	/* clang-tidy 14 takes the 0 of a comparison for a pointer. */
	auto operator<=>(const version &) const = default; // NOLINT(modernize-use-nullptr)
};

struct library {
	version is;
	bool asks_kernel = false; /* its cache looks at the kernel's word, as buildlib/consumers' */
};

struct libraries {
	std::optional<library> open_mpi;
	std::optional<library> mpich;
	std::optional<library> ucx;
	std::optional<library> libfabric;
	std::vector<std::string> failed; /* sentences: found, but without an answer */
};

/*
 * As the loader finds them, LD_LIBRARY_PATH included. Each is loaded and asked
 * in a process of its own that can neither print nor hang for long, as loading
 * one runs its constructors. Throws std::system_error.
 */
libraries find_libraries();

} // namespace mr_cache

#endif
