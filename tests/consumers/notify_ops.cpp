// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests libfabric's FI_MR_NOTIFY_OPS, which is for caches above fi_mr_reg(). The tests run without
 * libfabric's own cache, and with each monitor of this cache. libfabric chooses the monitor when it
 * is loaded. So without an argument the program runs itself once for each setting.
 */
#include <infiniband/verbs.h>
#include <rdma/fi_domain.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "libfabric.h"

namespace {

constexpr std::size_t length = 4 * 65536;
struct setting {
	const char *variable, *value;
};
constexpr std::array settings{
	setting{"FI_MR_CACHE_MAX_COUNT", "0"}, setting{"FI_MR_CACHE_MONITOR", "disabled"},
	setting{"FI_MR_CACHE_MONITOR", "memhooks"}, setting{"FI_MR_CACHE_MONITOR", "userfaultfd"},
	setting{"FI_MR_CACHE_MONITOR", "verbs_notify"}};

/* A copy of libfabric's struct, which the program's headers lack. */
struct notify_ops {
	std::size_t size;
	int (*watch)(fid_mr *mr, const uint64_t **word, uint64_t *mask);
	int (*settle)(fid_mr *mr);
	int (*changes)(fid_domain *domain, const uint64_t **changes);
};

std::size_t armed_at_once, armed_later;

} // namespace

extern "C" {

ibv_mr *ibv_reg_notified_mr(ibv_pd *pd, void *addr, std::size_t size, uint64_t iova,
			    unsigned int access, const ibv_mr_notify_attr *attr)
{
	static const auto next = reinterpret_cast<decltype(&ibv_reg_notified_mr)>(
		dlsym(RTLD_NEXT, "ibv_reg_notified_mr"));
	armed_at_once++;
	return next(pd, addr, size, iova, access, attr);
}

int ibv_reg_mr_notify_ex(ibv_mr *mr, const ibv_mr_notify_attr *attr)
{
	static const auto next = reinterpret_cast<decltype(&ibv_reg_mr_notify_ex)>(
		dlsym(RTLD_NEXT, "ibv_reg_mr_notify_ex"));
	armed_later++;
	return next(mr, attr);
}
}

namespace {

std::string name;
bool all_good = true;

void result(const char *what, bool good)
{
	std::printf("%sok %s: %s\n", good ? "" : "not ", name.c_str(), what);
	all_good &= good;
}

/* Maps by a system call, which hooks do not see, and replaces the memory at the address `at`. */
void *map(void *at, int file = -1)
{
	const int flags = (at ? MAP_FIXED : 0) |
			  (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_POPULATE;
	const long place = syscall(SYS_mmap, at, length, PROT_READ | PROT_WRITE, flags, file, 0L);

	check(place == -1 ? -errno : 0, "mmap");
	return reinterpret_cast<void *>(place);
}

void unmap(void *memory, std::size_t size = length)
{
	check(syscall(SYS_munmap, memory, size), "munmap");
}

struct region {
	fid_domain *domain;
	fid_mr *mr = nullptr;
	const uint64_t *word = nullptr;
	uint64_t mask = 0;

	region(fid_domain *its_domain, void *memory) : domain(its_domain)
	{
		check(fi_mr_reg(domain, memory, length, FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0, &mr,
				nullptr),
		      "fi_mr_reg");
	}
	region(const region &) = delete;
	region &operator=(const region &) = delete;
	~region() { check(fi_close(&mr->fid), "fi_close"); }
	void watch(const notify_ops *ops) { check(ops->watch(mr, &word, &mask), "watch"); }
	bool said() const { return __atomic_load_n(word, __ATOMIC_ACQUIRE) & mask; }
};

uint64_t count(const uint64_t *changes)
{
	return __atomic_load_n(changes, __ATOMIC_ACQUIRE);
}

/* While a region is open, its memory is unmapped and replaced by other memory. */
void replaces(fid_domain *domain, const notify_ops *ops, const uint64_t *changes)
{
	void *memory = map(nullptr);
	const uint64_t before = count(changes);
	region first(domain, memory);

	first.watch(ops);
	result("a region has no mark at first", !first.said() && count(changes) == before);
	unmap(memory, length / 4);
	result("it has one when munmap has returned, and is counted",
	       first.said() && count(changes) == before + 1);
	result("and it is stale", ops->settle(first.mr) == -FI_EADDRNOTAVAIL);
	map(memory);
	region second(domain, memory);
	second.watch(ops);
	result("other memory in its place has a region of its own",
	       second.word != first.word && !second.said() && first.said() &&
		       second.mr->key != first.mr->key);
	unmap(memory);
}

/* Pages of a file stay in the file when a mapping drops them. */
void settles(fid_domain *domain, const notify_ops *ops)
{
	const int file = memfd_create("notify_ops", 0);

	check(ftruncate(file, length), "ftruncate");
	void *memory = map(nullptr, file);
	{
		region doubted(domain, memory);

		doubted.watch(ops);
		madvise(memory, length, MADV_DONTNEED);
		const bool marked = doubted.said();
		result("a suspect registration is marked, and settled",
		       marked && !ops->settle(doubted.mr) && !doubted.said());
	}
	unmap(memory);
	close(file);
}

/* If libfabric's own cache were in use, it would return an old registration. */
void keeps_nothing(fid_domain *domain, const notify_ops *ops, const uint64_t *changes)
{
	void *memory = map(nullptr);
	const uint64_t before = count(changes);

	region(domain, memory).watch(ops);
	unmap(memory);
	result("a closed region is registered no more", count(changes) == before);
	map(memory);
	region again(domain, memory);
	again.watch(ops);
	result("registered again it has no mark", !again.said());
	unmap(memory);
}

int run()
{
	fi_info *info = find_verbs();
	fid_fabric *fabric = nullptr;
	fid_domain *domain = nullptr;
	notify_ops *ops = nullptr;
	const uint64_t *changes = nullptr;

	check(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
	check(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
	{
		void *memory = map(nullptr);
		region early(domain, memory);

		const int opened = fi_open_ops(&domain->fid, "mr_notify", 0,
					       reinterpret_cast<void **>(&ops), nullptr);
		result("the operations are there", !opened);
		if (opened)
			return 1;
		check(ops->changes(domain, &changes), "changes");
		armed_later = 0;
		early.watch(ops);
		result("a region from before is armed, unless its cache has done so",
		       armed_later + armed_at_once == 1);
		unmap(memory);
		result("and marked", early.said());
	}
	armed_at_once = armed_later = 0;
	replaces(domain, ops, changes);
	settles(domain, ops);
	keeps_nothing(domain, ops, changes);
	result("each region is registered and armed by one call",
	       armed_at_once == 5 && !armed_later);
	result("nothing is left when the domain is closed", !fi_close(&domain->fid));
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	return all_good ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
	int failures = 0;

	if (argc > 1) {
		name = argv[1];
		return run();
	}
	for (const auto &one : settings) {
		const std::string title = std::string(one.variable) + "=" + one.value;
		const pid_t child = fork();
		int status = 0;

		if (!child) {
			setenv(one.variable, one.value, 1);
			execl("/proc/self/exe", argv[0], title.c_str(), nullptr);
			_exit(127);
		}
		check(child < 0 || waitpid(child, &status, 0) != child ? -errno : 0, "fork");
		if (status) {
			std::printf("not ok %s: status %d\n", title.c_str(), status);
			failures++;
		}
	}
	return failures ? 1 : 0;
}
