// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Maps read-only memory with UCP, which fails. Then maps writable memory in a part of the same
 * place. The failed registration must leave no entry in UCP's cache.
 */
#include <ucp/api/ucp.h>

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr std::size_t large = 1 << 20, small = 64 << 10;

void need(bool good, const char *what)
{
	if (!good) {
		std::fprintf(stderr, "%s\n", what);
		std::exit(1);
	}
}

void *map(void *place, std::size_t size, int protection)
{
	void *memory = mmap(place, size, protection,
			    MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0), -1, 0);

	need(memory != MAP_FAILED, "mmap");
	return memory;
}

ucs_status_t register_once(ucp_context_h context, void *memory, std::size_t size)
{
	ucp_mem_map_params_t params{};
	ucp_mem_h handle = nullptr;

	params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
	params.address = memory;
	params.length = size;
	const ucs_status_t status = ucp_mem_map(context, &params, &handle);
	return status == UCS_OK ? ucp_mem_unmap(context, handle) : status;
}

} // namespace

int main()
{
	ucp_context_h context = nullptr;
	ucp_params_t params{};

	params.field_mask = UCP_PARAM_FIELD_FEATURES;
	params.features = UCP_FEATURE_RMA;
	need(ucp_init(&params, nullptr, &context) == UCS_OK, "ucp_init");

	void *memory = map(nullptr, large, PROT_READ);

	need(register_once(context, memory, large) != UCS_OK, "read-only memory was registered");
	need(!munmap(memory, large), "munmap");
	map(memory, small, PROT_READ | PROT_WRITE);
	need(register_once(context, memory, small) == UCS_OK,
	     "memory in its place was not registered");
	ucp_cleanup(context);
	return 0;
}
