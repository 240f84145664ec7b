// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* UCX's registration cache (ucs_rcache), as its transports use it: get + put of a region. */
extern "C" {
#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>
}
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr std::size_t apart = 65536;

ucs_status_t reg(void *, ucs_rcache_t *, void *, ucs_rcache_region_t *, uint16_t)
{
	return UCS_OK;
}

void dereg(void *, ucs_rcache_t *, ucs_rcache_region_t *) {}

void dump(void *, ucs_rcache_t *, ucs_rcache_region_t *, char *text, size_t size)
{
	if (size)
		*text = 0;
}

ucs_rcache_t *make_cache()
{
	static const ucs_rcache_ops_t ops = {reg, dereg, dump};
	ucs_rcache_params_t params{};
	ucs_rcache_t *cache = nullptr;

	params.region_struct_size = sizeof(ucs_rcache_region_t);
	params.alignment = UCS_RCACHE_MIN_ALIGNMENT;
	params.max_alignment = 4096;
	params.ucm_events = UCM_EVENT_VM_UNMAPPED;
	params.ucm_event_priority = 1000;
	params.ops = &ops;
	params.max_regions = UINT32_MAX;
	params.max_size = SIZE_MAX;
	params.max_unreleased = SIZE_MAX;
	if (ucs_rcache_create(&params, "benchmark", nullptr, &cache) != UCS_OK)
		std::abort();
	return cache;
}

void ucx(benchmark::State &state)
{
	static ucs_rcache_t *cache = make_cache();
	const auto count = static_cast<std::size_t>(state.range(0));
	static std::byte *base =
		static_cast<std::byte *>(mmap(nullptr, apart * 100001, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	std::vector<std::byte *> buffers;
	ucs_rcache_region_t *region = nullptr;

	for (std::size_t i = 0; i < std::max<std::size_t>(count, 4096); i++)
		buffers.push_back(base + i % count * apart);
	std::shuffle(buffers.begin(), buffers.end(),
		     std::mt19937_64(42 + static_cast<unsigned>(state.thread_index())));
	const auto use = [&](std::byte *addr) {
		if (ucs_rcache_get(cache, addr, 4096, PROT_READ | PROT_WRITE, nullptr, &region) !=
		    UCS_OK)
			std::abort();
		ucs_rcache_region_put(cache, region);
	};
	for (std::byte *addr : buffers)
		use(addr);
	std::size_t i = 0;
	for (auto _ : state) {
		use(buffers[i]);
		i = i + 1 == buffers.size() ? 0 : i + 1;
	}
}

BENCHMARK(ucx)->Arg(1)->Arg(1000)->UseRealTime();
BENCHMARK(ucx)->Arg(1000)->Threads(2)->UseRealTime();

} // namespace

BENCHMARK_MAIN();
