// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Contexts and PDs end while other threads register. Idle registrations must not keep counted
 * resources (objects of a cgroup, locked memory) from other users. Each action is also done with
 * plain registrations, as the oracle. RUN_SECONDS sets roughly how long the threads run (default
 * 3).
 */
#include "catch.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <malloc.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "device.h"
#include "skip.h"

using namespace mr_notify;

namespace {

/* Delays this thread's system calls, so that other threads meet it in the middle of its work. */
thread_local bool is_slow = false;
/* Called when this thread makes a CQ: returns an errno value, or 0 to make the CQ. */
thread_local std::function<int()> instead_of_a_cq;

bool makes_cq(unsigned long request, const void *argument)
{
	const auto *const call = static_cast<const ib_uverbs_ioctl_hdr *>(argument);

	return request == RDMA_VERBS_IOCTL && call->object_id == UVERBS_OBJECT_CQ &&
	       call->method_id == UVERBS_METHOD_CQ_CREATE;
}

} // namespace

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept
{
	va_list rest;

	va_start(rest, request);
	void *const argument = va_arg(rest, void *);
	va_end(rest);
	if (is_slow)
		usleep(500);
	if (instead_of_a_cq && makes_cq(request, argument)) {
		errno = instead_of_a_cq();
		if (errno)
			return -1;
	}
	return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

namespace {

constexpr int plain = IBV_ACCESS_LOCAL_WRITE, cached = plain | IBV_ACCESS_CACHED;

/* The tests' time has `parts` equal parts. Returns the end of a part that starts now. */
std::chrono::steady_clock::time_point end_of_part(int parts)
{
	const char *const seconds = std::getenv("RUN_SECONDS");

	return std::chrono::steady_clock::now() +
	       std::chrono::milliseconds(1000 * (seconds ? std::atoi(seconds) : 3) / parts);
}

/* Threads that repeat an action until their part of the time is over. */
class crowd {
public:
	explicit crowd(int parts = 6) : end_(end_of_part(parts)) {}
	~crowd()
	{
		for (std::thread &one : threads_)
			one.join();
	}

	void add(std::function<void()> once)
	{
		threads_.emplace_back([this, once = std::move(once)] {
			do
				once();
			while (std::chrono::steady_clock::now() < end_);
		});
	}

private:
	std::chrono::steady_clock::time_point end_;
	std::vector<std::thread> threads_;
};

/* Limits that are set explicitly instead of derived from RLIMIT_MEMLOCK. */
void set_limits(const device &on, uint64_t entries)
{
	ibv_mr_cache_limits limits{uint64_t{1} << 40, entries};

	REQUIRE(ibv_reg_mr_limits(on.context(), &limits, nullptr) == 0);
}

/* For a separate process: from now on only this much memory can be pinned. */
void limit_locked(std::size_t bytes)
{
	__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
	const rlimit limit{bytes, bytes};

	REQUIRE(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1U << CAP_IPC_LOCK);
	data[0].permitted &= ~(1U << CAP_IPC_LOCK);
	REQUIRE(syscall(SYS_capset, &header, data) == 0);
	REQUIRE(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

/* Pages for `count` registrations of one page each, with a free page between them. */
struct spaced {
	explicit spaced(std::size_t count) : m(anonymous(count * 2 * page_size())) {}

	range operator[](std::size_t i) const
	{
		return {m.registered().addr + i * 2 * page_size(), page_size()};
	}

	memory m;
};

/* Checks in a thread other than the main thread, where a failed CHECK() would not end the test. */
void must_be_zero(int error, const char *verb)
{
	if (!error)
		return;
	std::fprintf(stderr, "%s: %s\n", verb, std::strerror(error));
	std::abort();
}

ibv_mr *reg(ibv_pd *pd, range r, int access)
{
	return ibv_reg_mr(pd, r.addr, r.length, access);
}

/* Registers and deregisters, slowly. */
void use_slowly(ibv_pd *pd, range r, int access)
{
	is_slow = true;
	ibv_mr *mr = reg(pd, r, access);
	if (mr)
		ibv_dereg_mr(mr);
}

/*
 * Deallocates PDs without registrations while other threads evict. Returns how often deallocating
 * failed.
 */
uint64_t busy_pds(int access)
{
	const device on;
	std::atomic<uint64_t> busy = 0;

	set_limits(on, 1); /* each miss evicts the previous entry */
	const spaced theirs(64), ours(1);
	std::vector<std::minstd_rand> randoms{std::minstd_rand(1), std::minstd_rand(2)};
	std::minstd_rand random(3);
	{
		crowd threads(access & IBV_ACCESS_CACHED ? 1 : 6); /* failures are rare */

		for (auto &any : randoms)
			threads.add([&] { use_slowly(on.pd(), theirs[any() % 64], access); });
		threads.add([&] {
			ibv_pd *pd = ibv_alloc_pd(on.context());
			ibv_mr *mr = pd ? reg(pd, ours[0], access) : nullptr;

			must_be_zero(!mr, "ibv_reg_mr");
			must_be_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
			/* By chance, other threads may be evicting the registration. */
			usleep(random() % 1000);
			while (ibv_dealloc_pd(pd)) {
				busy++;
				std::this_thread::yield();
			}
		});
	}
	return busy;
}

constexpr std::size_t large = 8 << 20;

/*
 * Opens, uses and closes contexts, while a registration that needs all lockable memory evicts all
 * idle registrations. Freed memory is overwritten immediately.
 */
void close_beside_others(int access)
{
	limit_locked(large + (64 << 10));
	mallopt(M_PERTURB, 0xa5);

	const device on;
	const memory m = anonymous(large);
	std::atomic<uint64_t> refused = 0;
	const spaced pages(std::size_t{3} * 16);
	{
		crowd threads;

		threads.add([&] { use_slowly(on.pd(), m.registered(), access); });
		for (std::size_t nth = 0; nth < 3; nth++)
			threads.add([&, nth] {
				ibv_context *context = ibv_open_device(on.context()->device);
				ibv_pd *pd = ibv_alloc_pd(context);

				for (std::size_t i = 0; i < 16; i++) {
					ibv_mr *mr = reg(pd, pages[nth * 16 + i], access);
					if (mr && ibv_dereg_mr(mr))
						refused++;
				}
				refused += ibv_dealloc_pd(pd) != 0;
				refused += ibv_close_device(context) != 0;
			});
	}
	tell(std::to_string(refused));
}

/*
 * Threads take turns to register more than half of the lockable memory, while another thread
 * evicts idle registrations. Returns how many registrations were refused.
 */
void take_turns(int access)
{
	limit_locked(large);

	const device on;
	if (access & IBV_ACCESS_CACHED)
		set_limits(on, 1000);
	const std::vector<memory> memories = [] {
		std::vector<memory> made;
		for (int i = 0; i < 3; i++)
			made.push_back(anonymous(large / 8 * 5));
		return made;
	}();
	std::atomic<uint64_t> refused = 0;
	std::mutex turn;
	{
		crowd threads;

		for (const memory &m : memories)
			threads.add([&] {
				const std::lock_guard mine(turn);
				ibv_mr *mr = reg(on.pd(), m.registered(), access);
				if (!mr || ibv_dereg_mr(mr))
					refused++;
			});
		if (access & IBV_ACCESS_CACHED)
			threads.add([&] {
				is_slow = true;
				ibv_reg_mr_clean(on.context(), 0);
			});
	}
	tell(std::to_string(refused));
}

bool put(const std::string &path, const std::string &text)
{
	const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
	const bool done =
		fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());

	if (fd >= 0)
		close(fd);
	return done;
}

bool limit_objects(const std::string &device_name, int objects)
{
	const std::string root = "/run/owner_test", group = root + "/group";

	mkdir(root.c_str(), 0755);
	if (mount("none", root.c_str(), "cgroup2", 0, nullptr) && errno != EBUSY)
		return false;
	mkdir(group.c_str(), 0755);
	return put(root + "/cgroup.subtree_control", "+rdma") &&
	       put(group + "/rdma.max",
		   device_name + " hca_handle=4 hca_object=" + std::to_string(objects)) &&
	       put(group + "/cgroup.procs", std::to_string(getpid()));
}

/* Registers many more times than there are objects, one at a time. Then makes other objects. */
void use_few_objects(int access)
{
	constexpr int objects = 40;
	const std::string name = device().name();

	if (!limit_objects(name, objects)) {
		tell("no rdma cgroup");
		return;
	}
	const device on;
	const spaced pages(100);
	std::string failed;
	for (std::size_t i = 0; i < 100 && failed.empty(); i++) {
		ibv_mr *mr = reg(on.pd(), pages[i], access);
		if (!mr)
			failed = "registration " + std::to_string(i) + ": " + std::strerror(errno);
		else if (const int error = ibv_dereg_mr(mr))
			failed = std::string("ibv_dereg_mr: ") + std::strerror(error);
	}
	tell(failed.empty() ? "all were registered" : failed);

	std::vector<owned<ibv_cq>> queues;
	std::vector<owned<ibv_pd>> domains;
	for (int i = 0; i < objects / 4; i++) {
		queues.emplace_back(ibv_create_cq(on.context(), 8, nullptr, nullptr, 0));
		tell(queues.back() ? "a CQ"
				   : std::string("ibv_create_cq: ") + std::strerror(errno));
		domains.emplace_back(ibv_alloc_pd(on.context()));
		tell(domains.back() ? "a PD"
				    : std::string("ibv_alloc_pd: ") + std::strerror(errno));
	}
}

/* Compares the plain and the cached program. */
void same_told(const std::string &what)
{
	const child_result plainly = run_child("owner: " + what + " (plain)", {"RDMAV_MR_CACHE"});
	const child_result by_flag = run_child("owner: " + what + " (cached)", {"RDMAV_MR_CACHE"});

	REQUIRE(plainly.status == 0);
	REQUIRE(plainly.lines.size() > 0);
	CHECK(by_flag.status == 0);
	CHECK(by_flag.lines == plainly.lines);
}

} // namespace

TEST_CASE("owner: a PD without registrations ends during others' evictions")
{
	CHECK(busy_pds(plain) == 0);
	CHECK(busy_pds(cached) == 0);
}

/* Other cases run these hidden cases as programs. */
TEST_CASE("owner: closing (plain)", "[.]")
{
	close_beside_others(plain);
}

TEST_CASE("owner: closing (cached)", "[.]")
{
	close_beside_others(cached);
}

TEST_CASE("owner: turns (plain)", "[.]")
{
	take_turns(plain);
}

TEST_CASE("owner: turns (cached)", "[.]")
{
	take_turns(cached);
}

TEST_CASE("owner: few objects (plain)", "[.]")
{
	use_few_objects(plain);
}

TEST_CASE("owner: few objects (cached)", "[.]")
{
	use_few_objects(cached);
}

TEST_CASE("owner: contexts and PDs close during others' registrations")
{
	same_told("closing");
}

TEST_CASE("owner: a registration gets locked memory that others are releasing")
{
	same_told("turns");
}

TEST_CASE("owner: idle registrations leave a cgroup's objects to threads that need them")
{
	const child_result first = run_child("owner: few objects (plain)", {"RDMAV_MR_CACHE"});

	SKIP_IF(!first.lines.empty() && first.lines[0] == "no rdma cgroup",
		"this kernel has no rdma cgroup");
	same_told("few objects");
}

/*
 * After each attempt an idle registration has used up the resources again, as if other threads had
 * taken them.
 */
TEST_CASE("owner: a verb that lacks resources ends, even if others take them")
{
	constexpr int many = 1000;
	const device on;
	const spaced pages(1);
	int tried = 0;

	ibv_mr *const first = reg(on.pd(), pages[0], cached);
	REQUIRE(first);
	REQUIRE(ibv_dereg_mr(first) == 0);
	instead_of_a_cq = [&] {
		ibv_mr *const mr = reg(on.pd(), pages[0], cached);
		if (mr)
			ibv_dereg_mr(mr);
		return ++tried < many ? ENOMEM : 0;
	};
	const owned<ibv_cq> cq(ibv_create_cq(on.context(), 8, nullptr, nullptr, 0));
	const int error = errno;
	instead_of_a_cq = nullptr;
	CHECK_FALSE(cq);
	CHECK(error == ENOMEM);
	CHECK(tried > 2);
	CHECK(tried < many);
}
