// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "environment.h"

#include <fmt/core.h>

namespace mr_cache {

namespace {

std::string name_of(const char *library, version v)
{
	return fmt::format("{} {}.{}", library, v.major, v.minor);
}

/*
 * Each name where that version has it, as UCX warns of variables that it does
 * not know. The cache of the InfiniBand domains, src/uct/ib/base/ib_md.c, is in
 * all up to 1.15; that of UCP, src/ucp/core/ucp_mm.c, in all since 1.13.
 */
void for_ucx(version v, std::vector<line> &out)
{
	const auto name = name_of("UCX", v);

	if (v < version{1, 16})
		out.push_back({"UCX_IB_REG_METHODS=direct",
			       name + " keeps registrations in its InfiniBand domains"});
	if (v >= version{1, 13})
		out.push_back(
			{"UCX_RCACHE_ENABLE=n", name + " keeps registrations in its UCP contexts"});
	out.push_back(
		{"UCX_MEM_EVENTS=n", name + " patches libc for its caches, which are off by that"});
}

} // namespace

std::vector<line> environment_for(const libraries &found)
{
	std::vector<line> out;

	/* Up to 4.1 Open MPI has a transport over verbs of its own, btl/openib. */
	if (!found.ucx && !found.libfabric && !(found.open_mpi && *found.open_mpi < version{5, 0}))
		return out;
	if (found.ucx)
		for_ucx(*found.ucx, out);
	if (found.libfabric)
		out.push_back({"FI_MR_CACHE_MAX_COUNT=0",
			       name_of("libfabric", *found.libfabric) +
				       " keeps registrations that may be stale"});
	if (found.open_mpi)
		out.push_back({"OMPI_MCA_memory='^patcher'",
			       name_of("Open MPI", *found.open_mpi) +
				       " patches libc, and keeps registrations itself"});
	out.push_back(
		{"RDMAV_MR_CACHE=remote",
		 "libibverbs keeps all of them, never stale; for peers that trust one another"});
	return out;
}

} // namespace mr_cache
