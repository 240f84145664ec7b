// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Registers a buffer again and again with libfabric's verbs provider or UCX's memory domain, on
 *each device that is named, in one process: registrations libfabric|ucx DEVICE... Prints one line
 *of JSON: for each device whether the registration from before was found ("found") after nothing,
 *after the memory was replaced by system calls, after it was by libc's functions, after a child of
 *fork() that has written to it; then what was done to the process to hear of changes.
 */
#include <nlohmann/json.hpp>
#include <rdma/fi_domain.h>
#include <uct/api/uct.h>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "interception.h"
#include "libfabric.h"

namespace {

constexpr std::size_t length = 65536;

/* Registers and deregisters, and tells the key of that registration. */
using registrar = std::function<std::string(std::byte *)>;

registrar on_libfabric(const std::string &device)
{
	fid_fabric *fabric = nullptr;
	fid_domain *domain = nullptr;
	const fi_info *info = find_verbs();

	while (info && device != info->domain_attr->name)
		info = info->next;
	check(info ? 0 : -FI_ENODATA, "fi_getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
	check(fi_domain(fabric, const_cast<fi_info *>(info), &domain, nullptr), "fi_domain");
	return [=](std::byte *memory) {
		fid_mr *mr = nullptr;
		check(fi_mr_reg(domain, memory, length, FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0, &mr,
				nullptr),
		      "fi_mr_reg");
		const auto key = std::to_string(fi_mr_key(mr));
		fi_close(&mr->fid);
		return key;
	};
}

void check_ucx(ucs_status_t status, const char *call)
{
	if (status == UCS_OK)
		return;
	std::fprintf(stderr, "%s: %s\n", call, ucs_status_string(status));
	std::exit(1);
}

registrar on_ucx(const std::string &device)
{
	uct_component_h *components = nullptr;
	uct_md_config_t *config = nullptr;
	uct_md_attr_t attr{};
	uct_md_h md = nullptr;
	unsigned int count = 0;

	check_ucx(uct_query_components(&components, &count), "uct_query_components");
	for (unsigned int i = 0; i < count && !md; i++) {
		uct_component_attr_t component{};
		component.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
		check_ucx(uct_component_query(components[i], &component), "uct_component_query");
		if (std::string_view(component.name) != "ib")
			continue;
		check_ucx(uct_md_config_read(components[i], nullptr, nullptr, &config),
			  "uct_md_config_read");
		check_ucx(uct_md_open(components[i], device.c_str(), config, &md), "uct_md_open");
	}
	check_ucx(md ? UCS_OK : UCS_ERR_NO_DEVICE, "uct_query_components");
	check_ucx(uct_md_query(md, &attr), "uct_md_query");
	return [md, size = attr.rkey_packed_size](std::byte *memory) {
		uct_mem_h memh = nullptr;
		std::string key(size, '\0');
		check_ucx(uct_md_mem_reg(md, memory, length, UCT_MD_MEM_ACCESS_ALL, &memh),
			  "uct_md_mem_reg");
		check_ucx(uct_md_mkey_pack(md, memh, key.data()), "uct_md_mkey_pack");
		check_ucx(uct_md_mem_dereg(md, memh), "uct_md_mem_dereg");
		return key;
	};
}

void need(bool good, const char *what)
{
	if (!good) {
		std::perror(what);
		std::exit(1);
	}
}

/* New memory at the same place, by calls that only the kernel sees. */
void replace_unseen(std::byte *memory)
{
	need(!syscall(SYS_munmap, memory, length), "munmap");
	need(syscall(SYS_mmap, memory, length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != -1,
	     "mmap");
	std::memset(memory, 1, length);
}

void replace(std::byte *memory)
{
	need(!munmap(memory, length), "munmap");
	need(mmap(memory, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		  -1, 0) == memory,
	     "mmap");
	std::memset(memory, 2, length);
}

void let_child_write(std::byte *memory)
{
	const pid_t child = fork();
	int status = 0;

	if (!child) {
		std::memset(memory, 3, length);
		_exit(0);
	}
	need(child > 0 && waitpid(child, &status, 0) == child && !status, "fork");
}

nlohmann::ordered_json seen_on(const registrar &use)
{
	auto *memory = static_cast<std::byte *>(
		mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	nlohmann::ordered_json seen;

	need(memory != MAP_FAILED, "mmap");
	std::memset(memory, 0, length);
	std::string before = use(memory);
	const auto found = [&](const char *after, void (*change)(std::byte *)) {
		change(memory);
		const std::string now = use(memory);
		seen[after] = now == before;
		before = now;
	};
	found("nothing", [](std::byte *) {});
	found("system calls", replace_unseen);
	found("libc", replace);
	found("fork", let_child_write);
	return seen;
}

} // namespace

int main(int argc, char **argv)
{
	nlohmann::ordered_json seen;
	std::map<std::string, registrar> devices;
	const std::vector<std::string> words(argv + 1, argv + argc);

	need(words.size() > 1, "registrations libfabric|ucx DEVICE...");
	const std::vector<std::string> names(words.begin() + 1, words.end());
	for (const auto &name : names)
		devices[name] = words[0] == "ucx" ? on_ucx(name) : on_libfabric(name);
	for (const auto &name : names)
		seen["found"][name] = seen_on(devices[name]);
	seen["patched_bytes"] = interception::patched_bytes();
	seen["userfaultfds"] = interception::userfaultfds();
	seen["threads"] = interception::threads();
	std::printf("%s\n", seen.dump().c_str());
	return 0;
}
