/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The code that the benchmarks of libfabric's verbs provider share. An error ends the program. */
#ifndef BENCH_LIBFABRIC_H
#define BENCH_LIBFABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

/* A negative value is an error. */
inline void check(ssize_t ret, const char *call)
{
	if (ret >= 0)
		return;
	std::fprintf(stderr, "%s: %s\n", call, fi_strerror(static_cast<int>(-ret)));
	std::exit(1);
}

/* Finds the verbs provider with connected endpoints. Without `node` any address matches. */
inline fi_info *find_verbs(const char *node = nullptr, const char *service = nullptr,
			   uint64_t flags = 0)
{
	fi_info *hints = fi_allocinfo();
	fi_info *info = nullptr;

	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	check(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &info), "fi_getinfo");
	fi_freeinfo(hints);
	return info;
}

#endif
