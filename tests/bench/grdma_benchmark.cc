// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures a hit and a miss of Open MPI's cache grdma above libfabric, as btl/ofi uses it. In the
 * rows "armed" the registering domain has not opened FI_MR_NOTIFY_OPS, so a region gets its word by
 * a second call. buildlib/consumers openmpi builds this program.
 */
#include <benchmark/benchmark.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <sys/mman.h>

#include <cstddef>

#include "grdma.h"
#include "libfabric.h"
#include "renewed.h"

namespace {

constexpr std::size_t length = 4096;

fid_domain *open_domain()
{
	static fi_info *const info = find_verbs();
	static fid_fabric *fabric = [] {
		fid_fabric *opened = nullptr;

		check(fi_fabric(info->fabric_attr, &opened, nullptr), "fi_fabric");
		return opened;
	}();
	fid_domain *domain = nullptr;

	check(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
	return domain;
}

/* The first call decides which rows the process can run: the rows "armed", or the other rows. */
void open_once(bool armed)
{
	[[maybe_unused]] static const bool opened = [armed] {
		fid_domain *domain = open_domain();

		grdma_open(domain, armed ? open_domain() : domain);
		return true;
	}();
}

template <bool armed> void use(std::byte *addr, std::size_t size)
{
	open_once(armed);
	grdma_use(addr, size);
}

template <bool armed> void grdma(benchmark::State &state)
{
	auto *addr =
		static_cast<std::byte *>(mmap(nullptr, length, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));

	use<armed>(addr, length);
	for (auto _ : state)
		use<armed>(addr, length);
	munmap(addr, length);
}

BENCHMARK(grdma<false>)->Name("grdma/registered");
BENCHMARK(grdma<true>)->Name("grdma/armed");
[[maybe_unused]] const bool has_misses =
	(renewed::add_both(use<false>), renewed::add("armed", use<true>), true);

} // namespace

BENCHMARK_MAIN();
