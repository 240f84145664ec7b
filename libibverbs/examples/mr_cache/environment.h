/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The environment with which the MPI and communication libraries of this
 * machine leave their registrations to libibverbs' cache, and its reasons.
 */
#ifndef MR_CACHE_ENVIRONMENT_H
#define MR_CACHE_ENVIRONMENT_H

#include <string>
#include <vector>

#include "libraries.h"

namespace mr_cache {

struct line {
	std::string assignment;
	std::string reason; /* of one line */
};

/* In the order of printing; empty: none of them registers memory. */
std::vector<line> environment_for(const libraries &found);

} // namespace mr_cache

#endif
