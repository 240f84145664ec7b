// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Shows how much unmapped memory UCX keeps pinned. Usage: unreleased uct|ucp. The program registers
 * 201 buffers of 1 MiB on rxe0, one after the other, unmaps 200 of them, and then uses only the
 * last buffer repeatedly. Prints one line of JSON. "all" is VmPin in kB while all buffers were
 * registered, and "hits" is VmPin after the hits. "mrs" is the device's number of registrations
 * after the hits. If ON_DEMAND is set, UCX may register on demand, which pins no memory.
 */
#include <nlohmann/json.hpp>
#include <ucp/api/ucp.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

#include "ucx_md.h"

namespace {

constexpr std::size_t length = 1 << 20, unmapped = 200;
constexpr int hits = 300000;

using user = std::function<void(std::byte *)>;

user of_domain()
{
	const unsigned int flags =
		UCT_MD_MEM_ACCESS_ALL | (std::getenv("ON_DEMAND") ? UCT_MD_MEM_FLAG_NONBLOCK : 0);
	uct_md_h md = open_ucx_md("rxe0");

	return [=](std::byte *memory) {
		uct_mem_h handle = nullptr;

		check_ucx(uct_md_mem_reg(md, memory, length, flags, &handle), "uct_md_mem_reg");
		check_ucx(uct_md_mem_dereg(md, handle), "uct_md_mem_dereg");
	};
}

user of_context()
{
	ucp_context_h context = nullptr;
	ucp_params_t params{};

	params.field_mask = UCP_PARAM_FIELD_FEATURES;
	params.features = UCP_FEATURE_RMA;
	check_ucx(ucp_init(&params, nullptr, &context), "ucp_init");
	return [=](std::byte *memory) {
		ucp_mem_map_params_t map{};
		ucp_mem_h handle = nullptr;

		map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
		map.address = memory;
		map.length = length;
		check_ucx(ucp_mem_map(context, &map, &handle), "ucp_mem_map");
		check_ucx(ucp_mem_unmap(context, handle), "ucp_mem_unmap");
	};
}

void need(bool good, const char *what)
{
	if (!good) {
		std::perror(what);
		std::exit(1);
	}
}

/* Returns the number that follows a word in a text. */
long number_after(FILE *text, std::string_view word)
{
	char seen[64];
	long number = -1;

	need(text, "open");
	while (number < 0 && std::fscanf(text, "%63s", seen) == 1) {
		if (word == seen)
			need(std::fscanf(text, "%ld", &number) == 1, seen);
	}
	need(number >= 0, "no such word");
	return number;
}

long pinned_kb()
{
	FILE *status = std::fopen("/proc/self/status", "r");
	const long kb = number_after(status, "VmPin:");

	std::fclose(status);
	return kb;
}

long registrations()
{
	FILE *said = popen("rdma resource show rxe0", "r");
	const long mrs = number_after(said, "mr");

	pclose(said);
	return mrs;
}

} // namespace

int main(int argc, char **argv)
{
	nlohmann::ordered_json seen;

	need(argc == 2, "unreleased uct|ucp");
	const user use = std::string_view(argv[1]) == "ucp" ? of_context() : of_domain();
	const long before_kb = pinned_kb(), before = registrations();
	void *mapped = mmap(nullptr, (unmapped + 1) * length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(mapped != MAP_FAILED, "mmap");
	auto *memory = static_cast<std::byte *>(mapped);
	const auto at = [=](std::size_t buffer) { return memory + buffer * length; };

	for (std::size_t i = 0; i <= unmapped; i++)
		use(at(i));
	seen["all"] = pinned_kb() - before_kb;
	for (std::size_t i = 0; i < unmapped; i++)
		need(!munmap(at(i), length), "munmap");
	for (int i = 0; i < hits; i++)
		use(at(unmapped));
	seen["hits"] = pinned_kb() - before_kb;
	seen["mrs"] = registrations() - before;
	std::printf("%s\n", seen.dump().c_str());
	return 0;
}
