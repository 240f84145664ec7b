// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Registers a buffer repeatedly with libfabric's verbs provider or UCX's memory domain, on each
 * named device, in one process. Usage: registrations libfabric|imported|ucx [DEVICE...]. Prints one
 * line of JSON, which answers for each device:
 *
 * - found: Was the earlier registration found after no change, after system calls replaced the
 *   memory, after libc's functions replaced it, and after a child of fork() wrote to it?
 * - half: Half of a larger registration was in use, and the other half was unmapped. Was the half
 *   in use found, and how often did the device lose the registration?
 * - kept: 200 registrations were unmapped after use and not requested again. How many of them keep
 *   their pages?
 * - kept by hits: How many of the 200 keep their pages after rare hits on another registration, so
 *   that the kernel suspends idle registrations? "kept by many hits" is the number after frequent
 *   hits.
 *
 * The line also shows whether a library has patched libc, uses userfaultfd, or has a thread in the
 * process. "patched_first" shows the state before a device was opened. If ON_DEMAND is set, UCX may
 * register on demand, which pins no memory. "imported" is libfabric with a monitor that the program
 * supplies, as Open MPI does. This monitor never reports a change.
 */
#include <nlohmann/json.hpp>
#include <rdma/fi_domain.h>
#include <rdma/fi_ext.h>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "interception.h"
#include "libfabric.h"
#include "ucx_md.h"

namespace {

constexpr std::size_t length = 65536, large = 2 << 20;

struct registration {
	std::string key;
	std::function<void()> release;
};

using registrar = std::function<registration(std::byte *, std::size_t)>;

/* Registers and deregisters; returns the key of the registration. */
std::string use(const registrar &on, std::byte *memory, std::size_t size = length)
{
	const auto [key, release] = on(memory, size);

	release();
	return key;
}

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
	return [=](std::byte *memory, std::size_t size) {
		fid_mr *mr = nullptr;
		check(fi_mr_reg(domain, memory, size, FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0, &mr,
				nullptr),
		      "fi_mr_reg");
		return registration{std::to_string(fi_mr_key(mr)), [mr] { fi_close(&mr->fid); }};
	};
}

/* The monitor stays until the process ends. */
void import_monitor()
{
	static fi_ops_mem_monitor ops{
		.size = sizeof(ops),
		.start = [](fid_mem_monitor *) { return 0; },
		.stop = [](fid_mem_monitor *) {},
		.subscribe = [](fid_mem_monitor *, const void *, std::size_t) { return 0; },
		.unsubscribe = [](fid_mem_monitor *, const void *, std::size_t) {},
		.valid = [](fid_mem_monitor *, const void *, std::size_t) { return true; }};
	static fid_mem_monitor monitor{};
	fid *cache = nullptr;

	find_verbs(); /* must come first, because here libfabric chooses its own monitor */
	monitor.fid.fclass = FI_CLASS_MEM_MONITOR;
	monitor.export_ops = &ops;
	check(fi_open(FI_VERSION(1, 17), "mr_cache", nullptr, 0, 0, &cache, nullptr), "fi_open");
	const int refused = fi_import_fid(cache, &monitor.fid, 0);
	check(refused == -FI_ENOSYS ? 0 : refused, "fi_import_fid");
}

registrar on_ucx(const std::string &device)
{
	const unsigned int flags =
		UCT_MD_MEM_ACCESS_ALL | (std::getenv("ON_DEMAND") ? UCT_MD_MEM_FLAG_NONBLOCK : 0);
	uct_md_h md = open_ucx_md(device);
	uct_md_attr_t attr{};

	check_ucx(uct_md_query(md, &attr), "uct_md_query");
	return [md, flags, key_size = attr.rkey_packed_size](std::byte *memory, std::size_t size) {
		uct_mem_h memh = nullptr;
		std::string key(key_size, '\0');
		check_ucx(uct_md_mem_reg(md, memory, size, flags, &memh), "uct_md_mem_reg");
		check_ucx(uct_md_mkey_pack(md, memh, key.data()), "uct_md_mkey_pack");
		return registration{
			key, [=] { check_ucx(uct_md_mem_dereg(md, memh), "uct_md_mem_dereg"); }};
	};
}

void need(bool good, const char *what)
{
	if (!good) {
		std::perror(what);
		std::exit(1);
	}
}

/* Maps new memory at the same address by calls that only the kernel sees. */
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

std::byte *map(std::size_t size)
{
	void *memory =
		mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(memory != MAP_FAILED, "mmap");
	std::memset(memory, 0, size);
	return static_cast<std::byte *>(memory);
}

nlohmann::ordered_json found_on(const registrar &on)
{
	std::byte *memory = map(length);
	nlohmann::ordered_json seen;
	std::string before = use(on, memory);
	const auto found = [&](const char *after, void (*change)(std::byte *)) {
		change(memory);
		const std::string now = use(on, memory);
		seen[after] = now == before;
		before = now;
	};
	found("nothing", [](std::byte *) {});
	found("system calls", replace_unseen);
	found("libc", replace);
	found("fork", let_child_write);
	return seen;
}

/* The number of registrations to which the device has lost access; 0 without a counter. */
uint64_t revokes(const std::string &device)
{
	std::ifstream file("/sys/class/infiniband/" + device +
			   "/ports/1/hw_counters/mr_notify_revokes");
	uint64_t count = 0;

	file >> count;
	return count;
}

/*
 * Half of an earlier registration is in use, and the other half is unmapped. If the registration
 * were idle, the kernel would unpin it within about 20 ms. After half of the time the program
 * registers other buffers, which may remove the registration from the cache.
 */
nlohmann::ordered_json half_on(const registrar &on, const std::string &device)
{
	std::byte *memory = map(large);
	const std::string whole = use(on, memory, large);
	const registration half = on(memory, large / 2);
	const uint64_t before = revokes(device);
	/*
	 * If the device must lose the registration, wait long enough for the loss. Otherwise 50
	 * tries are enough to notice a wrong loss.
	 */
	const int tries = std::getenv("NOT_REVOCABLE") ? 9000 : 50;

	need(!munmap(memory + large / 2, large / 2), "munmap");
	for (int i = 0; i < tries && revokes(device) == before; i++) {
		if (i == 25)
			use(on, map(length));
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
	}
	const uint64_t lost = revokes(device) - before;
	half.release();
	munmap(memory, large / 2);
	return {{"found", half.key == whole}, {"lost", lost}};
}

std::size_t pinned_kb()
{
	std::ifstream status("/proc/self/status");
	std::string word;
	std::size_t kb = 0;

	while (status >> word && word != "VmPin:")
		;
	status >> kb;
	return kb;
}

std::size_t kept_since(std::size_t before)
{
	const std::size_t now = pinned_kb();

	return now < before ? 0 : (now - before) / (length / 1024);
}

/* The last registration is a miss, which finds the remaining stale entries. */
std::size_t kept_on(const registrar &on)
{
	constexpr std::size_t many = 200;
	std::byte *memory = map((many + 1) * length);
	const std::size_t before = pinned_kb();
	const registration first = on(memory, length);

	need(std::getenv("ON_DEMAND") || pinned_kb() >= length / 1024,
	     "VmPin while memory is registered");
	first.release();
	for (std::size_t i = 0; i < many; i++) {
		use(on, memory + i * length);
		need(!munmap(memory + i * length, length), "munmap");
	}
	use(on, memory + many * length);
	return kept_since(before);
}

/* After the unmapping the program has no misses, only `often` hits in a tenth of a second. */
std::size_t kept_by_hits_on(const registrar &on, std::size_t often)
{
	constexpr std::size_t many = 200;
	std::byte *memory = map((many + 1) * length);

	use(on, memory + many * length);
	const std::size_t before = pinned_kb();
	for (std::size_t i = 0; i < many; i++)
		use(on, memory + i * length);
	need(!munmap(memory, many * length), "munmap");
	/* UCX's timer needs some seconds. */
	for (int i = 0; i < 100 && (i < 2 || kept_since(before)); i++) {
		for (std::size_t hits = 0; hits < often; hits++)
			use(on, memory + many * length + hits % (length / 16) * 16, 16);
		std::this_thread::sleep_for(std::chrono::milliseconds(i < 2 ? 0 : 100));
	}
	return kept_since(before);
}

} // namespace

int main(int argc, char **argv)
{
	nlohmann::ordered_json seen;
	std::map<std::string, registrar> devices;
	const std::vector<std::string> words(argv + 1, argv + argc);

	seen["patched_first"] = interception::patched_bytes();
	need(!words.empty(), "registrations libfabric|imported|ucx DEVICE...");
	if (words[0] == "imported")
		import_monitor();
	const std::vector<std::string> names(words.begin() + 1, words.end());
	for (const auto &name : names)
		devices[name] = words[0] == "ucx" ? on_ucx(name) : on_libfabric(name);
	for (const auto &name : names)
		seen["found"][name] = found_on(devices[name]);
	for (const auto &name : names)
		seen["half"][name] = half_on(devices[name], name);
	for (const auto &name : names)
		seen["kept"][name] = kept_on(devices[name]);
	for (const auto &name : names) {
		seen["kept by hits"][name] = kept_by_hits_on(devices[name], 5);
		seen["kept by many hits"][name] = kept_by_hits_on(devices[name], 20000);
	}
	seen["patched_bytes"] = interception::patched_bytes();
	seen["userfaultfds"] = interception::userfaultfds();
	seen["threads"] = interception::threads();
	std::printf("%s\n", seen.dump().c_str());
	return 0;
}
