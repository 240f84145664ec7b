// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures libfabric's registration cache as an application uses it: fi_mr_reg + fi_close on the
 * verbs provider. FI_MR_CACHE_MONITOR chooses memhooks or userfaultfd. Other rows measure misses
 * (renewed.h) and idle registrations (idle.h).
 */
#include <benchmark/benchmark.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <sys/mman.h>

#include "idle.h"
#include "libfabric.h"
#include "renewed.h"
#include "shuffled.h"

namespace {

constexpr std::size_t apart = 4096, small = 256, small_apart = 1024;
constexpr std::size_t part_length = 1024, part_apart = 4096, most_parts = 16384;

fid_domain *open_domain()
{
	shift_layout();
	fi_info *info = find_verbs();
	fid_fabric *fabric = nullptr;
	fid_domain *domain = nullptr;

	check(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
	check(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
	return domain;
}

void use(std::byte *addr, std::size_t length)
{
	static fid_domain *domain = open_domain();
	fid_mr *mr = nullptr;

	check(fi_mr_reg(domain, addr, length, FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr),
	      "fi_mr_reg");
	fi_close(&mr->fid);
}

void libfabric(benchmark::State &state)
{
	const auto count = static_cast<std::size_t>(state.range(0));
	auto *base =
		static_cast<std::byte *>(mmap(nullptr, apart * count, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));

	use_shuffled(state, base, apart, [](std::byte *addr) { use(addr, apart); });
	munmap(base, apart * count);
}

/* N buffers smaller than a page; each begins inside a page. */
void libfabric_small(benchmark::State &state)
{
	const auto count = static_cast<std::size_t>(state.range(0));
	const std::size_t length = small_apart * count + small_apart;
	auto *base =
		static_cast<std::byte *>(mmap(nullptr, length, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));

	use_shuffled(state, base + small, small_apart, [](std::byte *addr) { use(addr, small); });
	munmap(base, length);
}

/* Requests parts of one registration, at N addresses. */
void libfabric_parts(benchmark::State &state)
{
	static auto *const base = static_cast<std::byte *>(
		mmap(nullptr, part_apart * most_parts, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));

	use(base, part_apart * most_parts);
	use_shuffled(state, base, part_apart, [](std::byte *addr) { use(addr, part_length); });
}

BENCHMARK(libfabric)->RangeMultiplier(10)->Range(1, 10000);
BENCHMARK(libfabric)->Arg(1)->Arg(1000)->Threads(2);
BENCHMARK(libfabric_small)->Arg(1000);
BENCHMARK(libfabric_small)->Arg(1000)->Threads(2);
BENCHMARK(libfabric_parts)->Arg(1)->Arg(16)->Arg(most_parts);
BENCHMARK(libfabric_parts)->Arg(1)->Arg(16)->Arg(most_parts)->Threads(2);
[[maybe_unused]] const bool has_more = (idle::add(use), renewed::add_both(use), true);

} // namespace

BENCHMARK_MAIN();
