// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* Measures UCX's registration cache (ucs_rcache) as transports use it: get + put of a region. */
extern "C" {
#include <ucm/api/ucm.h>
#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>
}
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "shuffled.h"

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

#if UCP_API_VERSION >= UCP_VERSION(1, 18) /* Debian 13's */
void merge(void *, ucs_rcache_t *, void *, ucs_rcache_region_t *) {}

constexpr ucs_rcache_ops_t ops = {reg, dereg, merge, dump};

void align(ucs_rcache_params_t &) {}

ucs_status_t get(ucs_rcache_t *cache, std::byte *addr, ucs_rcache_region_t **region)
{
	return ucs_rcache_get(cache, addr, 4096, UCS_RCACHE_MIN_ALIGNMENT, PROT_READ | PROT_WRITE,
			      nullptr, region);
}
#else /* Debian 12's 1.13 */
constexpr ucs_rcache_ops_t ops = {reg, dereg, dump};

void align(ucs_rcache_params_t &params)
{
	params.alignment = UCS_RCACHE_MIN_ALIGNMENT;
	params.max_alignment = 4096;
}

ucs_status_t get(ucs_rcache_t *cache, std::byte *addr, ucs_rcache_region_t **region)
{
	return ucs_rcache_get(cache, addr, 4096, PROT_READ | PROT_WRITE, nullptr, region);
}
#endif

ucs_rcache_t *make_cache()
{
	ucs_rcache_params_t params{};
	ucs_rcache_t *cache = nullptr;

	params.region_struct_size = sizeof(ucs_rcache_region_t);
	align(params);
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
	static std::byte *base =
		static_cast<std::byte *>(mmap(nullptr, apart * 100001, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

	use_shuffled(state, base, apart, [](std::byte *addr) {
		ucs_rcache_region_t *region = nullptr;

		if (get(cache, addr, &region) != UCS_OK)
			std::abort();
		ucs_rcache_region_put(cache, region);
	});
}

BENCHMARK(ucx)->Arg(1)->Arg(1000)->UseRealTime();
BENCHMARK(ucx)->Arg(1000)->Threads(2)->UseRealTime();

} // namespace

BENCHMARK_MAIN();
