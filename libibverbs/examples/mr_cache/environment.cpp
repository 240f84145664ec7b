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
 * UCX warns of unknown variables, so each variable is set only for the versions of UCX that know
 * the variable. The cache of the InfiniBand domains (src/uct/ib/base/ib_md.c) exists up to
 * version 1.15. The cache of UCP (src/ucp/core/ucp_mm.c) exists since version 1.13.
 */
void for_ucx(version v, environment &out)
{
	const auto name = name_of("UCX", v);

	if (v < version{1, 16})
		out.lines.push_back({"UCX_IB_REG_METHODS=direct",
				     name + " keeps registrations in its InfiniBand domains"});
	if (v >= version{1, 13})
		out.lines.push_back(
			{"UCX_RCACHE_ENABLE=n", name + " keeps registrations in its UCP contexts"});
	out.lines.push_back({"UCX_MEM_EVENTS=n", "while the caches of " + name +
							 " are off, hooks in libc have no use"});
	if (v >= version{1, 16} && v < version{1, 22})
		out.risks.push_back(name + " crashes without its cache if a peer fails during a "
					   "rendezvous (openucx/ucx issue 11467, fixed in 1.22.0): "
					   "use 1.22.0 or later, or the UCX of buildlib/consumers");
}

void for_open_mpi(version v, environment &out)
{
	out.lines.push_back(
		{"OMPI_MCA_memory='^patcher'",
		 name_of("Open MPI", v) + " patches libc, and keeps registrations itself"});
}

void keep(const char *name, const std::optional<library> &one, environment &out)
{
	if (one)
		out.kept.push_back(name_of(name, one->is));
}

} // namespace

environment environment_for(const libraries &found)
{
	environment out;
	const auto needs_ours = [](const std::optional<library> &one) {
		return one && !one->asks_kernel;
	};

	/* Up to version 4.1, Open MPI has its own transport over verbs, btl/openib. */
	if (!found.ucx && !found.libfabric &&
	    !(found.open_mpi && found.open_mpi->is < version{5, 0}))
		return out;
	/*
	 * If one library needs our cache, all libraries use our cache, because the kernel refuses
	 * a second word for a registration of our cache.
	 */
	if ((found.ucx || found.libfabric) && !needs_ours(found.ucx) &&
	    !needs_ours(found.libfabric)) {
		keep("UCX", found.ucx, out);
		keep("libfabric", found.libfabric, out);
		if (found.open_mpi)
			for_open_mpi(found.open_mpi->is, out);
		return out;
	}
	if (found.ucx)
		for_ucx(found.ucx->is, out);
	if (found.libfabric)
		out.lines.push_back(
			{"FI_MR_CACHE_MAX_COUNT=0",
			 name_of("libfabric", found.libfabric->is) +
				 (found.libfabric->asks_kernel
					  ? " keeps registrations, but another library needs "
					    "the cache of libibverbs"
					  : " keeps registrations that may be stale")});
	if (found.open_mpi)
		for_open_mpi(found.open_mpi->is, out);
	out.lines.push_back(
		{"RDMAV_MR_CACHE=remote",
		 "libibverbs keeps all registrations; the peers must trust one another"});
	return out;
}

} // namespace mr_cache
