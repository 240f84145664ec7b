/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Finds the environment variables with which the MPI and communication libraries of
 * this machine leave registrations to the cache of libibverbs. Each variable comes
 * with a reason.
 */
#ifndef MR_CACHE_ENVIRONMENT_H
#define MR_CACHE_ENVIRONMENT_H

#include <string>
#include <vector>

#include "libraries.h"

namespace mr_cache {

struct line {
	std::string assignment;
	std::string reason; /* one line of text */
};

struct environment {
	std::vector<line> lines;	/* in the order of printing */
	std::vector<std::string> kept;	/* libraries with a cache that checks the kernel's word */
	std::vector<std::string> risks; /* warnings for the user */

	/* Returns false if none of the libraries registers memory. */
	bool useful() const { return !lines.empty() || !kept.empty(); }
	bool ours() const { return kept.empty(); }
};

environment environment_for(const libraries &found);

} // namespace mr_cache

#endif
