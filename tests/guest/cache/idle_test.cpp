// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A program must not notice an idle registration. Each program below registers memory, deregisters
 * it, and then uses the memory in ways that the plain library allows. The program runs without the
 * cache (the oracle), with RDMAV_MR_CACHE=1 and with RDMAV_MR_CACHE=remote.
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "child.h"
#include "device.h"
#include "huge_pool.h"
#include "memory.h"
#include "own_pages.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

/*
 * Not 0 while the heap is being changed. During a change a signal handler must not call exit(),
 * because exit() frees memory.
 */
volatile std::sig_atomic_t in_heap;
/* A signal came while the heap was being changed. It is raised again afterwards. */
volatile std::sig_atomic_t postponed;

void leave_heap()
{
	in_heap = in_heap - 1;
	if (!in_heap && postponed) {
		postponed = 0;
		std::raise(SIGALRM);
	}
}

} // namespace

extern "C" {

/* The names are glibc's. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(std::size_t size) noexcept;
void *__libc_calloc(std::size_t number, std::size_t size) noexcept;
void __libc_free(void *at) noexcept;
/* NOLINTEND(bugprone-reserved-identifier) */

void *malloc(std::size_t size) noexcept
{
	in_heap = in_heap + 1;
	void *const got = __libc_malloc(size);
	leave_heap();
	return got;
}

void *calloc(std::size_t number, std::size_t size) noexcept
{
	in_heap = in_heap + 1;
	void *const got = __libc_calloc(number, size);
	leave_heap();
	return got;
}

void free(void *at) noexcept
{
	in_heap = in_heap + 1;
	__libc_free(at);
	leave_heap();
}
}

namespace {

constexpr std::size_t megabyte = std::size_t{1} << 20;
constexpr std::size_t huge_page = huge_pool::page;
constexpr int pool_pages = 8;

/* Registers and deregisters, as a transfer would. */
void use(const device &on, std::byte *at, std::size_t size, int access = IBV_ACCESS_LOCAL_WRITE)
{
	ibv_mr *const mr = ibv_reg_mr(on.pd(), at, size, access);

	REQUIRE(mr);
	REQUIRE(ibv_dereg_mr(mr) == 0);
}

std::byte *map(std::size_t size, void *over = nullptr, int flags = 0)
{
	void *const at = mmap(over, size, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | flags | (over ? MAP_FIXED : 0), -1, 0);

	return at == MAP_FAILED ? nullptr : static_cast<std::byte *>(at);
}

void right_each_way(const std::string &program, std::vector<std::string> environment = {})
{
	environment.emplace_back();
	for (const char *way : {"RDMAV_MR_CACHE", "RDMAV_MR_CACHE=1", "RDMAV_MR_CACHE=remote"}) {
		environment.back() = way;
		INFO(program << ", " << way);
		CHECK(run_child(program, environment).status == 0);
	}
}

bool is_cached()
{
	return std::getenv("RDMAV_MR_CACHE");
}

ibv_mr_cache_stats stats_of(const device &on)
{
	ibv_mr_cache_stats stats{};

	REQUIRE(ibv_query_mr_cache(on.context(), &stats) == 0);
	return stats;
}

} // namespace

/*
 * The program gets its arguments by environment variables. It maps the second half of the buffer
 * again within milliseconds. If the worker waited first, it would unpin the old pages too late.
 */
TEST_CASE("idle program: gives back and maps again", "[.]")
{
	constexpr std::size_t size = 2 * megabyte;
	const int way = std::atoi(std::getenv("IDLE_WAY"));
	const std::string group = std::getenv("IDLE_GROUP");

	write_system_file(group + "/memory.max", "max");
	write_system_file(group + "/cgroup.procs", "0");

	const device on;
	std::byte *at = map(size);
	for (int turn = 0; turn < 40; turn++) {
		REQUIRE(at);
		(void)madvise(at, size, MADV_NOHUGEPAGE);
		REQUIRE(madvise(at, size, MADV_POPULATE_WRITE) == 0);
		use(on, at, size);
		if (turn == 0) /* leaves room for half of another buffer */
			write_system_file(group + "/memory.max",
					  std::to_string(std::stoul(read_system_file(
								 group + "/memory.current")) +
							 size / 2));
		switch (way) {
		case 0:
			REQUIRE(munmap(at, size) == 0);
			at = map(size);
			break;
		case 1:
			REQUIRE(madvise(at, size, MADV_DONTNEED) == 0);
			break;
		default:
			at = map(size, at);
		}
	}
}

TEST_CASE("idle: pages given back are there again within memory.max")
{
	try {
		const control_group group("idle");

		write_system_file(group.path() + "/memory.swap.max", "0");
		for (int way = 0; way < 3; way++)
			right_each_way(
				"idle program: gives back and maps again",
				{"IDLE_GROUP=" + group.path(), "IDLE_WAY=" + std::to_string(way)});
	} catch (const unsupported &why) {
		skip_test(why.what());
	}
}

/* If the kernel gave a huge page to a table of the library, the program would exceed its limit. */
TEST_CASE("idle program: uses small buffers", "[.]")
{
	constexpr std::size_t size = megabyte;
	const device on;
	std::byte *const at = map(size);
	const auto kilobytes = [] { return proc_number("/proc/self/smaps_rollup", "Anonymous"); };

	REQUIRE(at);
	std::memset(at, 1, size);
	const std::size_t before = kilobytes();
	for (std::size_t i = 0; i < size / page_size(); i++)
		use(on, at + i * page_size(), page_size());
	const std::size_t after = kilobytes();
	INFO(before << " KiB before, " << after << " after");
	CHECK(after < before + 1024);
}

TEST_CASE("idle: small buffers cost little memory")
{
	right_each_way("idle program: uses small buffers");
}

TEST_CASE("idle program: takes memory away", "[.]")
{
	constexpr std::size_t size = megabyte;
	const device on;

	for (int turn = 0; turn < 20; turn++) {
		std::byte *at = map(2 * size);

		INFO("turn " << turn);
		std::memset(at, 1, size);
		use(on, at, size);
		switch (turn % 4) {
		case 0:
			REQUIRE(munmap(at, page_size()) == 0);
			break;
		case 1:
			REQUIRE(map(size, at));
			break;
		case 2:
			at = static_cast<std::byte *>(
				mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at + size));
			REQUIRE(at != MAP_FAILED);
			break;
		default: /* the kernel unpins only in the shrinker */
			REQUIRE(madvise(at, size, MADV_DONTNEED) == 0);
			write_system_file("/proc/sys/vm/drop_caches", "2");
		}
		CHECK(pinned_bytes() < size);
	}
}

TEST_CASE("idle: pages taken away are not pinned when the call has returned")
{
	right_each_way("idle program: takes memory away", {"RDMAV_MR_CACHE_IDLE_MS=0"});
}

TEST_CASE("idle program: maps all huge pages again and again", "[.]")
{
	const device on;

	for (int turn = 0; turn < 30; turn++) {
		std::byte *const at = map(pool_pages * huge_page, nullptr, MAP_HUGETLB);

		INFO("turn " << turn);
		REQUIRE(at);
		std::memset(at, 1, pool_pages * huge_page);
		use(on, at, pool_pages * huge_page);
		REQUIRE(munmap(at, pool_pages * huge_page) == 0);
	}
}

TEST_CASE("idle program: forks with all huge pages idle", "[.]")
{
	const device on;
	std::byte *const at = map(pool_pages * huge_page, nullptr, MAP_HUGETLB);

	REQUIRE(at);
	std::memset(at, 1, pool_pages * huge_page);
	use(on, at, pool_pages * huge_page);

	const pid_t child = fork();
	if (!child)
		_exit(0);
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, nullptr, 0) == child);
}

TEST_CASE("idle: huge pages")
{
	try {
		const huge_pool pool(pool_pages);

		right_each_way("idle program: maps all huge pages again and again");
		right_each_way("idle program: forks with all huge pages idle");
	} catch (const unsupported &why) {
		skip_test(why.what());
	}
}

TEST_CASE("idle program: forks", "[.]")
{
	constexpr std::size_t size = 16 * megabyte;
	const device on;
	std::byte *const at = map(size);
	std::byte *const held = map(size);

	REQUIRE(at);
	REQUIRE(held);
	(void)madvise(at, size, MADV_NOHUGEPAGE);
	std::memset(at, 1, size);
	std::memset(held, 2, size);
	use(on, at, size);
	const auto in_use = on.register_memory({held, size}, IBV_ACCESS_LOCAL_WRITE);

	const pid_t child = fork();
	if (!child)
		_exit(own_pages(at, size) != 0);
	REQUIRE(child > 0);
	int status = 1;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(own_pages(held, size) == size / page_size()); /* pinned pages are never shared */
	use(on, at, size);
	std::memset(at, 3, size);
}

TEST_CASE("idle: a fork copies nothing that is idle")
{
	right_each_way("idle program: forks");
}

TEST_CASE("idle program: sends little of a suspended registration", "[.]")
{
	constexpr std::size_t size = 16 * megabyte;
	const device on;
	std::byte *const at = map(size);

	REQUIRE(at);
	std::memset(at, 1, size);
	use(on, at, size);
	for (int look = 0; look < 3; look++) {
		write_system_file("/proc/sys/vm/drop_caches", "2");
		let_pass(100ms);
	}
	REQUIRE(happens([] { return pinned_bytes() < megabyte; }));

	for (int turn = 0; turn < 10; turn++) {
		ibv_mr *const mr = ibv_reg_mr(on.pd(), at + turn * 2 * page_size(), page_size(),
					      IBV_ACCESS_LOCAL_WRITE);

		REQUIRE(mr);
		CHECK(pinned_bytes() < megabyte);
		REQUIRE(ibv_dereg_mr(mr) == 0);
	}
	if (!is_cached())
		return;
	CHECK(stats_of(on).suspensions == 1);
	CHECK(stats_of(on).restorations == 0);
	CHECK(stats_of(on).misses == 11);
	CHECK(stats_of(on).entries == 10);
}

TEST_CASE("idle: a small part of a suspended registration is registered alone")
{
	right_each_way("idle program: sends little of a suspended registration",
		       {"RDMAV_MR_CACHE_IDLE_MS=0"});
}

/* The idle time is 100 ms. The program waits without a limit until the idle time is over. */
TEST_CASE("idle program: seals and moves", "[.]")
{
	constexpr std::size_t size = 64 * std::size_t{4096};
	const device on;
	std::string refused;
	const auto done = [&](const char *what, auto call) {
		bool possible = true;
		const bool ends = happens([&] {
			errno = 0;
			const bool is_done = call() == 0;
			/* These errors mean that the machine does not support the call. */
			possible = errno != ENOSYS && errno != EINVAL && errno != EOPNOTSUPP &&
				   errno != ENODEV && errno != ENOTTY;
			return is_done || !possible;
		});

		if (!ends)
			refused += std::string(what) + "; ";
		tell(std::string(what) + (possible ? "" : ": not here"));
	};

	const int file = memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	const std::vector<char> text(size, 's');
	REQUIRE(write(file, text.data(), size) == static_cast<ssize_t>(size));
	const int reader = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY);
	void *const sent = mmap(nullptr, size, PROT_READ, MAP_SHARED, reader, 0);
	REQUIRE(sent != MAP_FAILED);
	use(on, static_cast<std::byte *>(sent), size, 0);
	done("F_SEAL_WRITE", [&] { return fcntl(file, F_ADD_SEALS, F_SEAL_WRITE); });

	std::byte *const at = map(size);
	std::memset(at, 1, size);
	use(on, at, size);
	unsigned long nodes = 1;
	done("mbind to node 0", [&] {
		return syscall(SYS_mbind, at, size, MPOL_BIND, &nodes, 64UL,
			       MPOL_MF_MOVE | MPOL_MF_STRICT);
	});
	nodes = 2;
	done("mbind to node 1", [&] {
		return syscall(SYS_mbind, at, size, MPOL_BIND, &nodes, 64UL,
			       MPOL_MF_MOVE | MPOL_MF_STRICT);
	});

#ifdef UFFDIO_MOVE
	const int pager = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
	uffdio_api api{UFFD_API, UFFD_FEATURE_MOVE, 0};
	std::byte *const to = map(size);
	uffdio_register area{
		{reinterpret_cast<uintptr_t>(to), size}, UFFDIO_REGISTER_MODE_MISSING, 0};
	if (pager >= 0 && !ioctl(pager, UFFDIO_API, &api) &&
	    !ioctl(pager, UFFDIO_REGISTER, &area)) {
		std::byte *const from = map(size);
		std::memset(from, 1, size);
		use(on, from, size);
		done("UFFDIO_MOVE", [&] {
			uffdio_move move{reinterpret_cast<uintptr_t>(to),
					 reinterpret_cast<uintptr_t>(from), size, 0, 0};

			return ioctl(pager, UFFDIO_MOVE, &move);
		});
	}
#endif

	auto *const huge = reinterpret_cast<std::byte *>(
		(reinterpret_cast<uintptr_t>(map(2 * huge_page)) + huge_page - 1) &
		~(huge_page - 1));
	(void)madvise(huge, huge_page, MADV_NOHUGEPAGE);
	std::memset(huge, 1, huge_page);
	use(on, huge, huge_page);
	(void)madvise(huge, huge_page, MADV_HUGEPAGE);
	done("MADV_COLLAPSE", [&] { return madvise(huge, huge_page, 25 /* MADV_COLLAPSE */); });
	CHECK(refused.empty());
}

TEST_CASE("idle: memory not used for a while can be moved")
{
	right_each_way("idle program: seals and moves", {"RDMAV_MR_CACHE_IDLE_MS=100"});
}

TEST_CASE("idle program: leaves one alone", "[.]")
{
	constexpr std::size_t size = megabyte;
	const char *const time = std::getenv("RDMAV_MR_CACHE_IDLE_MS");
	const device on;
	std::byte *const at = map(size);
	std::byte *const held = map(size);

	std::memset(at, 1, size);
	std::memset(held, 1, size);
	ibv_mr *const in_use = ibv_reg_mr(on.pd(), held, size, IBV_ACCESS_LOCAL_WRITE);
	ibv_mr *const first = ibv_reg_mr(on.pd(), at, size, IBV_ACCESS_LOCAL_WRITE);
	REQUIRE(in_use);
	REQUIRE(first);
	const uint32_t key = first->lkey;
	REQUIRE(ibv_dereg_mr(first) == 0);
	if (time && time == std::string("0")) {
		let_pass(1s);
		CHECK(pinned_bytes() >= 2 * size);
		return;
	}
	for (int turn = 1; turn <= 3; turn++) {
		REQUIRE(happens([] { return pinned_bytes() < 2 * size; }));
		CHECK(pinned_bytes() >= size);
		CHECK(stats_of(on).suspensions == static_cast<uint64_t>(turn));
		ibv_mr *const again = ibv_reg_mr(on.pd(), at, size, IBV_ACCESS_LOCAL_WRITE);
		REQUIRE(again);
		CHECK(again->lkey == key);
		CHECK(pinned_bytes() >= 2 * size);
		CHECK(stats_of(on).restorations == static_cast<uint64_t>(turn));
		REQUIRE(ibv_dereg_mr(again) == 0);
	}
	CHECK(stats_of(on).misses == 2);
	REQUIRE(ibv_dereg_mr(in_use) == 0);
}

TEST_CASE("idle: a registration not used for a while is suspended")
{
	for (const char *time :
	     {"RDMAV_MR_CACHE_IDLE_MS=100", "RDMAV_MR_CACHE_IDLE_MS", "RDMAV_MR_CACHE_IDLE_MS=0"}) {
		INFO(time);
		CHECK(run_child("idle program: leaves one alone", {"RDMAV_MR_CACHE=1", time})
			      .status == 0);
	}
}

/* The program exits at random moments, often while a thread holds the cache's lock. */
TEST_CASE("idle program: exits in a signal handler", "[.]")
{
	for (int i = 0; i < 60; i++) {
		const pid_t child = fork();

		if (!child) {
			const device on;
			std::byte *const at = map(4 * megabyte);
			unsigned int seed = static_cast<unsigned int>(i);
			const itimerval soon{{0, 0}, {0, 3000 + i * 97 % 6000}};

			std::signal(SIGALRM, [](int) {
				if (in_heap)
					postponed = 1;
				else
					std::exit(0);
			});
			setitimer(ITIMER_REAL, &soon, nullptr);
			for (;;) {
				std::byte *const some =
					at + static_cast<std::size_t>(rand_r(&seed) % 1000) *
						     page_size();
				ibv_mr *const mr = ibv_reg_mr(on.pd(), some, 2 * page_size(),
							      IBV_ACCESS_LOCAL_WRITE);

				if (mr)
					ibv_dereg_mr(mr);
			}
		}
		REQUIRE(child > 0);
		int status = 1;
		const bool ended =
			happens([&] { return waitpid(child, &status, WNOHANG) == child; });
		if (!ended) {
			kill(child, SIGKILL);
			waitpid(child, nullptr, 0);
		}
		INFO("process " << i);
		REQUIRE(ended);
		CHECK(status == 0);
	}
}

TEST_CASE("idle: exit in a signal handler ends with its report")
{
	right_each_way("idle program: exits in a signal handler", {"RDMAV_MR_CACHE_STATS=1"});
}
