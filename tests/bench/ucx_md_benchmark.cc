// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures UCX's registration cache for a user of a transport: uct_md_mem_reg + uct_md_mem_dereg on
 * the memory domain of rxe0. If the library knows UCX_RCACHE_NOTIFY, this variable chooses how the
 * cache learns of changes of memory. Other rows measure misses (renewed.h) and idle registrations
 * (idle.h). The rows ucp and renewed/mapped use UCP's cache, by ucp_mem_map + ucp_mem_unmap.
 */
#include <benchmark/benchmark.h>
#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "idle.h"
#include "renewed.h"
#include "shuffled.h"

namespace {

constexpr std::size_t apart = 65536;
constexpr std::size_t length = 4096;
constexpr std::string_view device = "rxe0";

void check(ucs_status_t status, const char *call)
{
	if (status == UCS_OK)
		return;
	std::fprintf(stderr, "%s: %s\n", call, ucs_status_string(status));
	std::exit(1);
}

uct_md_h open_md(uct_component_h component)
{
	uct_md_config_t *config = nullptr;
	uct_md_h md = nullptr;

	check(uct_md_config_read(component, nullptr, nullptr, &config), "uct_md_config_read");
	check(uct_md_open(component, device.data(), config, &md), "uct_md_open");
	uct_config_release(config);
	return md;
}

uct_md_h find_md()
{
	shift_layout();
	uct_component_h *components = nullptr;
	unsigned int count = 0;

	check(uct_query_components(&components, &count), "uct_query_components");
	for (unsigned int i = 0; i < count; i++) {
		uct_component_attr_t attr{};

		attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
		check(uct_component_query(components[i], &attr), "uct_component_query");
		if (std::string_view(attr.name) == "ib")
			return open_md(components[i]);
	}
	std::fprintf(stderr, "UCX has no component ib\n");
	std::exit(1);
}

void use(std::byte *addr, std::size_t bytes)
{
	static uct_md_h md = find_md();
	uct_mem_h memh = nullptr;

	check(uct_md_mem_reg(md, addr, bytes, UCT_MD_MEM_ACCESS_ALL, &memh), "uct_md_mem_reg");
	check(uct_md_mem_dereg(md, memh), "uct_md_mem_dereg");
}

ucp_context_h make_context()
{
	ucp_context_h context = nullptr;
	ucp_params_t params{};

	shift_layout();
	params.field_mask = UCP_PARAM_FIELD_FEATURES;
	params.features = UCP_FEATURE_RMA;
	check(ucp_init(&params, nullptr, &context), "ucp_init");
	return context;
}

void map_by_ucp(std::byte *addr, std::size_t bytes)
{
	static ucp_context_h context = make_context();
	ucp_mem_map_params_t params{};
	ucp_mem_h memh = nullptr;

	params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
	params.address = addr;
	params.length = bytes;
	check(ucp_mem_map(context, &params, &memh), "ucp_mem_map");
	check(ucp_mem_unmap(context, memh), "ucp_mem_unmap");
}

template <void (*take)(std::byte *, std::size_t)> void hit(benchmark::State &state)
{
	const auto count = static_cast<std::size_t>(state.range(0));
	auto *base =
		static_cast<std::byte *>(mmap(nullptr, apart * count, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

	use_shuffled(state, base, apart, [](std::byte *addr) { take(addr, length); });
	munmap(base, apart * count);
}

BENCHMARK(hit<use>)->Name("ucx_md")->RangeMultiplier(10)->Range(1, 10000);
BENCHMARK(hit<map_by_ucp>)->Name("ucp")->Arg(1);
[[maybe_unused]] const bool has_more =
	(idle::add(use), renewed::add_both(use), renewed::add("mapped", map_by_ucp), true);

} // namespace

BENCHMARK_MAIN();
