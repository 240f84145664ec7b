/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Finds the communication libraries that a program would load here, and their versions. */
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

	/* clang-tidy 14 mistakes the 0 of a comparison for a pointer. */
	auto operator<=>(const version &) const = default; // NOLINT(modernize-use-nullptr)
};

struct library {
	version is;
	bool asks_kernel = false; /* the cache checks the kernel's word (buildlib/consumers) */
};

struct libraries {
	std::optional<library> open_mpi;
	std::optional<library> mpich;
	std::optional<library> ucx;
	std::optional<library> libfabric;
	std::vector<std::string> failed; /* a sentence for each library that did not answer */
};

/*
 * Finds libraries as the loader does, including libraries in LD_LIBRARY_PATH. A child
 * process loads each library, because loading a library runs its constructors. The
 * child prints nothing. If the child hangs, the parent kills it. Throws
 * std::system_error.
 */
libraries find_libraries();

} // namespace mr_cache

#endif
