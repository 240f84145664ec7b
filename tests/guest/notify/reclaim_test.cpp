// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The kernel suspends idle registrations and takes their pages. When such a registration is used
 * again, the kernel restores it with new pages under the same key. Writing 2 to drop_caches calls
 * all shrinkers.
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/userfaultfd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "huge_pool.h"
#include "loopback.h"
#include "port_counter.h"
#include "probe.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

/* Without an idle time only the tests suspend registrations. idle_test.cpp tests the idle time. */
[[maybe_unused]] const int without_idle_time = setenv("RDMAV_MR_CACHE_IDLE_MS", "0", 1);

constexpr std::size_t length = 16 * 4096;
constexpr uint64_t mask = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr int tracked = 1 << 28; /* IB_UVERBS_ACCESS_TRACK; arming compares no pages */
constexpr uint64_t one_use = uint64_t{1} << 32; /* not a bit of the mask */
constexpr uint64_t invalid = IBV_MR_NOTIFY_INVALID;
constexpr uint64_t suspect = IBV_MR_NOTIFY_SUSPECT;
constexpr uint64_t suspended = IBV_MR_NOTIFY_SUSPENDED;
constexpr uint64_t kernel_bits = IBV_MR_NOTIFY_KERNEL_MASK;

std::atomic_ref<uint64_t> at(word &w)
{
	return std::atomic_ref<uint64_t>(*w.address());
}

void shrink()
{
	write_system_file("/proc/sys/vm/drop_caches", "2");
}

/* Runs the shrinker twice, with enough time in between to count as two scans. */
void shrink_twice()
{
	shrink();
	let_pass(100ms);
	shrink();
}

const char *const too_slow = "too slow for a single scan";

/*
 * Calls `prepare`, and returns the result of a check. If the check took so long that the kernel may
 * have scanned or the worker may have run, the function tries again. Returns nothing if each
 * attempt took too long.
 */
template <class P, class F>
std::optional<bool> within(std::chrono::nanoseconds most, P prepare, F is_so)
{
	for (int i = 0; i < 100; i++) {
		prepare();
		const auto begin = kernel_time();
		const bool so = is_so();

		if (kernel_time() - begin < most)
			return so;
	}
	return std::nullopt;
}

/* Runs an action and one scan of the shrinker, and returns the result of a check. */
template <class P, class F, class G> std::optional<bool> after_one_scan(P prepare, F what, G is_so)
{
	return within(one_look, prepare, [&] {
		what();
		shrink();
		return is_so();
	});
}

struct suspendable {
	explicit suspendable(memory what = anonymous(length), uint64_t start = 0, int more = 0)
	    : m(std::move(what))
	{
		std::memset(source.registered().addr, 0x5a, page_size());
		*w.address() = start;
		before = pinned_bytes();
		mr = on.register_memory(m.registered(), device::all_rights | more);
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), mask) == 0);
	}

	bool is_suspended() { return (w.value() & kernel_bits) == suspended; }
	/* Waits until the worker has unpinned all pages, perhaps except the page of the word. */
	bool is_unpinned() const
	{
		return happens([&] { return pinned_bytes() <= before + page_size(); });
	}
	void suspend()
	{
		shrink();
		REQUIRE(is_suspended());
		REQUIRE(is_unpinned());
	}
	int settle() const { return ibv_settle_mr_notify(mr.get()); }

	ibv_wc_status write(std::size_t offset = 0)
	{
		if (!link)
			link.emplace(on);
		const auto status = link->write(from.get(), source.registered(),
						m.registered().addr + offset, mr->rkey);
		if (status != IBV_WC_SUCCESS) {
			was_refused = link->refused(status);
			link.reset();
		}
		return status;
	}
	bool arrives(std::size_t offset = 0)
	{
		auto *const bytes = m.registered().addr + offset;

		std::memset(bytes, 0, page_size());
		return write(offset) == IBV_WC_SUCCESS &&
		       std::memcmp(bytes, source.registered().addr, page_size()) == 0;
	}
	bool refused() { return write() != IBV_WC_SUCCESS && was_refused; }

	device on;
	memory m;
	memory source = anonymous(page_size());
	owned<ibv_mr> from = on.register_memory(source.registered());
	std::size_t before = 0;
	word w;
	owned<ibv_mr> mr;
	std::optional<loopback> link;
	bool was_refused = false;
};

/*
 * Runs in a child. An exception must not leave the function, because the child would then run its
 * parent's code.
 */
template <class F> void in_tested_child(F &&function)
{
	in_child([&] {
		try {
			function();
		} catch (const std::exception &reason) {
			std::fprintf(stderr, "in the child: %s\n", reason.what());
			_exit(1);
		}
	});
}

/* CHECK() in a child */
#define CHILD_CHECK(what)                                                                          \
	do {                                                                                       \
		if (!(what))                                                                       \
			throw std::runtime_error(#what);                                           \
	} while (0)

/* Drops the right to exceed the limit; ends the process if this fails. */
void become_ordinary()
{
	__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct data[2]{};

	child_check(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1U << CAP_IPC_LOCK);
	child_check(syscall(SYS_capset, &header, data) == 0);
}

void limit_locked(rlim_t bytes)
{
	const rlimit limit{bytes, RLIM_INFINITY};

	child_check(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

} // namespace

TEST_CASE("the device can reclaim")
{
	const device on;
	ibv_device_attr_ex attr{};

	REQUIRE(ibv_query_device_ex(on.context(), nullptr, &attr) == 0);
	CHECK(attr.device_cap_flags_ex & IBV_DEVICE_MR_RECLAIM);
	CHECK(attr.device_cap_flags_ex & IBV_DEVICE_MR_REVOKE);
}

TEST_CASE("reclaim: permissions and arguments")
{
	const device on;
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const std::size_t before = pinned_bytes();
	word w;

	for (const uint64_t bad : {uint64_t{0}, uint64_t{1}, uint64_t{0x80}, uint64_t{0x180}})
		CHECK(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), bad) == EINVAL);
	CHECK(ibv_reg_mr_notify_reclaim(mr.get(), nullptr, mask) == EINVAL);
	CHECK(ibv_reg_mr_notify_reclaim(
		      mr.get(),
		      reinterpret_cast<uint64_t *>(reinterpret_cast<char *>(w.address()) + 4),
		      mask) == EINVAL);
	CHECK(pinned_bytes() == before);
	CHECK(ibv_settle_mr_notify(mr.get()) == EINVAL); /* it is not armed */
	CHECK(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), uint64_t{1} << 63) == 0);
	CHECK(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), mask) == EBUSY);
	CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == EBUSY);
}

TEST_CASE("an idle registration is suspended, and comes back under its keys")
{
	suspendable one;
	const uint32_t rkey = one.mr->rkey;
	const uint32_t lkey = one.mr->lkey;

	CHECK(one.w.value() == 0);
	CHECK(one.arrives());
	shrink();
	CHECK(one.w.value() == suspended);
	CHECK(one.is_unpinned());
	CHECK(one.refused());
	CHECK(one.w.value() == suspended);

	CHECK(one.settle() == 0);
	CHECK(one.w.value() == 0);
	CHECK(pinned_bytes() == one.before + length + page_size());
	CHECK(one.mr->rkey == rkey);
	CHECK(one.mr->lkey == lkey);
	for (std::size_t offset = 0; offset < length; offset += page_size())
		CHECK(one.arrives(offset));
	one.mr.reset();
	CHECK(pinned_bytes() == one.before);
	CHECK(one.w.value() == 0);
}

TEST_CASE("a registration is restored as often as it is suspended")
{
	suspendable one(anonymous(length), one_use);

	for (int i = 0; i < 20; i++) {
		shrink_twice();
		REQUIRE(one.is_suspended());
		if (i % 2) /* in the other rounds the worker may not have run yet */
			REQUIRE(one.is_unpinned());
		at(one.w) += one_user + one_use;
		REQUIRE(one.settle() == 0);
		REQUIRE((one.w.value() & kernel_bits) == 0);
		REQUIRE(one.arrives());
		at(one.w) -= one_user;
	}
	CHECK(one.w.value() == 21 * one_use);
}

TEST_CASE("a registration in use stays")
{
	suspendable one(anonymous(length), one_user);

	for (int i = 0; i < 5; i++) {
		shrink();
		usleep(50000);
	}
	CHECK(one.w.value() == one_user);
	CHECK(one.arrives());
	at(one.w) -= one_user;
	shrink_twice();
	CHECK(one.w.value() == suspended);
}

TEST_CASE("only the bits of the mask keep it")
{
	suspendable one(anonymous(length), ~(mask | kernel_bits));

	shrink();
	CHECK(one.w.value() == (~(mask | kernel_bits) | suspended));
	CHECK(one.settle() == 0);
	CHECK(one.w.value() == ~(mask | kernel_bits));
}

TEST_CASE("a registration that was used since the last look is passed over once")
{
	suspendable used;
	suspendable unused;

	const auto passed_over =
		after_one_scan([&] { REQUIRE(used.settle() == 0); }, [&] { at(used.w) += one_use; },
			       [&] { return (used.w.value() & kernel_bits) == 0; });
	SKIP_IF(!passed_over, too_slow);
	CHECK(*passed_over);
	CHECK(unused.w.value() == suspended);
	let_pass(100ms);
	shrink();
	CHECK((used.w.value() & kernel_bits) == suspended);

	SECTION("and so is one that has just been restored")
	{
		const auto left = after_one_scan(
			[&] {
				shrink_twice(); /* the next step restores it */
				REQUIRE(unused.w.value() == suspended);
			},
			[&] { REQUIRE(unused.settle() == 0); },
			[&] { return unused.w.value() == 0; });
		SKIP_IF(!left, too_slow);
		CHECK(*left);
		let_pass(100ms);
		shrink();
		CHECK(unused.w.value() == suspended);
	}
}

TEST_CASE("an MR that cannot be suspended keeps its pages")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const auto plain = on.register_memory(m.registered());
	const auto counting = on.register_memory(m.registered());
	word w[2];

	REQUIRE(ibv_reg_mr_notify(plain.get(), w[0].address()) == 0);
	REQUIRE(raw.arm(counting->handle, w[1].address(), mask) == 0);
	const std::size_t before = pinned_bytes();
	shrink_twice();
	usleep(50000);
	CHECK(w[0].value() == 0);
	CHECK(w[1].value() == 0);
	CHECK(pinned_bytes() == before);
}

TEST_CASE("reclaim without counting users is refused")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	word w;

	CHECK(raw.arm_reclaim(mr->handle, w.address(), 0) == EINVAL);
	CHECK(raw.arm_reclaim(mr->handle, w.address(), mask) == 0);
}

TEST_CASE("a registration that can be suspended from the start", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	word w;

	const auto refused = raw.register_armed(on.pd(), m.registered().addr, length, w.address(),
						{raw_uverbs::reclaimable()});
	CHECK(refused.error == EINVAL); /* the word counts no users */
	const auto nothing_to_lend = raw.register_armed(on.pd(), m.registered().addr, length,
							nullptr, {raw_uverbs::reclaimable()});
	CHECK(nothing_to_lend.error == EINVAL);
	const auto made = raw.register_armed(
		on.pd(), m.registered().addr, length, w.address(),
		{raw_uverbs::in_use(mask), raw_uverbs::reclaimable(), raw_uverbs::idle_ms(0)});
	REQUIRE(made.error == 0);
	shrink();
	CHECK(w.value() == suspended);
	CHECK(wait_for_pinned(before + page_size()) == before + page_size());
	CHECK(raw.settle(made.handle) == 0);
	CHECK(w.value() == 0);
	CHECK(raw.deregister(made.handle) == 0);
	CHECK(pinned_bytes() == before);
}

TEST_CASE("an idle time is for a registration that can be suspended", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory kept = anonymous(length), idle = anonymous(length);
	word of_kept, of_idle;
	const auto reg = [&](const memory &m, word &w, std::initializer_list<ib_uverbs_attr> more) {
		return raw.register_armed(on.pd(), m.registered().addr, length, w.address(), more);
	};

	CHECK(reg(kept, of_kept, {raw_uverbs::in_use(mask), raw_uverbs::idle_ms(100)}).error ==
	      EINVAL);
	const auto stays = reg(kept, of_kept, {raw_uverbs::in_use(mask)});
	REQUIRE(stays.error == 0);
	const auto also = reg(idle, of_idle, {raw_uverbs::in_use(mask), raw_uverbs::reclaimable()});
	REQUIRE(also.error == 0);
	/* The default idle time of both registrations is over. */
	CHECK(happens([&] { return of_idle.value() == suspended; }));
	CHECK(of_kept.value() == 0);
	CHECK(raw.deregister(also.handle) == 0);
	CHECK(raw.deregister(stays.handle) == 0);
}

TEST_CASE("a registration has an idle time of its own", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory first = anonymous(length), second = anonymous(length);
	word of_first, of_second;
	const auto reg = [&](const memory &m, word &w, uint32_t idle) {
		return raw.register_armed(on.pd(), m.registered().addr, length, w.address(),
					  {raw_uverbs::in_use(mask), raw_uverbs::reclaimable(),
					   raw_uverbs::idle_ms(idle)});
	};

	const auto longer = reg(first, of_first, 1000 * 1000);
	REQUIRE(longer.error == 0);
	const auto shorter = reg(second, of_second, 100);
	REQUIRE(shorter.error == 0);
	CHECK(happens([&] { return of_second.value() == suspended; }));
	CHECK(of_first.value() == 0);
	CHECK(raw.deregister(shorter.handle) == 0);
	CHECK(raw.deregister(longer.handle) == 0);
}

namespace {

/*
 * The kernel puts new pages, and pages after MADV_FREE, on a per-CPU list, where MADV_FREE and
 * reclaim do not find them. The thread may move to another CPU.
 */
void empty_lists_of_cpus()
{
	write_system_file("/proc/sys/vm/drop_caches", "1");
}

/* Makes memory short, and returns how many pages still have their bytes. */
std::size_t pages_kept(range r)
{
	std::size_t kept = 0;

	empty_lists_of_cpus();
	REQUIRE(madvise(r.addr, r.length, MADV_PAGEOUT) == 0);
	for (std::size_t at = 0; at < r.length; at += page_size())
		kept += r.addr[at] == std::byte{0x5a};
	return kept;
}

} // namespace

/*
 * With a cache, a program may call MADV_FREE after ibv_dereg_mr() while the pages are still
 * registered.
 */
TEST_CASE("memory that MADV_FREE freed in a registration is given back")
{
	suspendable one(anonymous(length));
	const range r = one.m.registered();

	std::memset(r.addr, 0x5a, r.length);
	empty_lists_of_cpus();
	REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
	SECTION("the worker unpins it") {}
	SECTION("reclaim unpins it")
	{
		shrink();
	}
	SECTION("it is deregistered")
	{
		one.mr.reset();
	}
	REQUIRE(happens([&] { return pinned_bytes() <= one.before + page_size(); }));
	CHECK(pages_kept(r) == 0);
}

TEST_CASE("memory that was freed lazily before the device wrote to it is kept")
{
	std::optional<suspendable> one;
	memory m = anonymous(length);
	const range r = m.registered();

	std::memset(r.addr, 0x11, r.length);
	SECTION("freed before it was registered")
	{
		REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
		one.emplace(std::move(m), 0, tracked);
	}
	SECTION("freed before a user settled")
	{
		one.emplace(std::move(m));
		REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
		REQUIRE(one->settle() == 0);
		REQUIRE(one->w.value() == 0);
	}
	SECTION("freed beside a user")
	{
		one.emplace(std::move(m));
		at(one->w) = one_user;
		REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
	}
	SECTION("freed while it was suspended")
	{
		one.emplace(std::move(m));
		one->suspend();
		REQUIRE(madvise(r.addr, r.length, MADV_FREE) == 0);
		REQUIRE(one->settle() == 0);
	}
	for (std::size_t at = 0; at < r.length; at += page_size())
		REQUIRE(one->write(at) == IBV_WC_SUCCESS);
	at(one->w).fetch_and(~one_user);
	shrink_twice();
	REQUIRE(happens([&] { return pinned_bytes() <= one->before + page_size(); }));
	CHECK(pages_kept(r) == r.length / page_size());
}

TEST_CASE("idle pages are given back within twice the idle time", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	constexpr auto idle = 1000ms;
	word w;
	const auto mr = raw.register_armed(on.pd(), m.registered().addr, length, w.address(),
					   {raw_uverbs::in_use(mask), raw_uverbs::reclaimable(),
					    raw_uverbs::idle_ms(idle.count())});

	REQUIRE(mr.error == 0);
	for (const auto phase : {0ms, 130ms, 370ms, 610ms}) {
		let_pass(phase);
		const uint32_t handle = mr.handle;
		at(w) += one_use;
		const auto used = kernel_time();
		CHECK(happens([&] { return (w.value() & kernel_bits) == suspended; }));
		const auto took = kernel_time() - used;
		CHECK(took >= idle);
		CHECK(took <= 2 * idle);
		REQUIRE(raw.settle(handle) == 0);
	}
	CHECK(raw.deregister(mr.handle) == 0);
}

TEST_CASE("while suspended a drop changes nothing, and an unmap ends it")
{
	suspendable one;

	one.suspend();
	SECTION("MADV_DONTNEED: the device gets the new pages")
	{
		drop_all(one.m);
		CHECK(one.w.value() == suspended);
		usleep(100000); /* a worker would have compared by now */
		CHECK(one.w.value() == suspended);
		CHECK(one.settle() == 0);
		CHECK(one.w.value() == 0);
		CHECK(one.arrives());
		CHECK(one.arrives(length - page_size()));
	}
	SECTION("munmap")
	{
		unmap(one.m, half(one.m.registered()));
		CHECK(one.w.value() == invalid);
		CHECK(one.settle() == 0);
		CHECK(one.w.value() == invalid);
		/* The page of the word is unpinned, too. */
		CHECK(wait_for_pinned(one.before) == one.before);
		CHECK(one.refused());
	}
	SECTION("munmap, and the same mapped again: another one")
	{
		const range r = one.m.registered();
		REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
		CHECK(one.w.value() == invalid);
		CHECK(one.settle() == 0);
		CHECK(one.w.value() == invalid);
	}
}

/*
 * Settling must not restore the old pages, which the kernel still has if the worker has not run
 * yet.
 */
TEST_CASE("the device does not have pages dropped right after the suspension")
{
	int restored = 0;

	for (int i = 0; i < 20; i++) {
		suspendable one;

		shrink();
		REQUIRE(one.is_suspended());
		drop_all(one.m);
		CHECK(one.settle() == 0);
		CHECK((one.w.value() == 0 || one.w.value() == invalid));
		if (one.w.value() == 0) {
			CHECK(one.arrives());
			CHECK(one.arrives(length - page_size()));
			restored++;
		}
	}
	INFO(restored << " of 20 restored, the others invalid");
}

/* The shrinker scans before the worker runs. */
TEST_CASE("an invalid registration is not suspended")
{
	suspendable one;
	const range r = one.m.registered();

	REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
	shrink();
	CHECK(one.w.value() == invalid);
	CHECK(one.settle() == 0);
	CHECK(one.w.value() == invalid);
	CHECK(wait_for_pinned(one.before) == one.before);
	CHECK(one.refused());
}

TEST_CASE("an invalid registration without pages is armed again")
{
	suspendable a;

	unmap_all(a.m);
	REQUIRE(a.is_unpinned());
	REQUIRE(ibv_unreg_mr_notify(a.mr.get()) == 0);
	*a.w.address() = 0;
	CHECK(ibv_reg_mr_notify_reclaim(a.mr.get(), a.w.address(), mask) == 0);
	CHECK(a.w.value() == IBV_MR_NOTIFY_INVALID);
	shrink_twice();
	CHECK(a.w.value() == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("pressure in a memory control group takes the pages charged there")
{
	suspendable outside(shared_file(length)); /* fork suspends no MR of shared memory */
	std::optional<control_group> group;

	try {
		group.emplace("reclaimable");
	} catch (const unsupported &) {
	}
	SKIP_IF(!group || access((group->path() + "/memory.reclaim").c_str(), W_OK),
		"no memory control groups");
	in_tested_child([&] {
		group->enter();
		suspendable inside;
		try { /* more than the machine has */
			write_system_file(group->path() + "/memory.reclaim", "64M");
		} catch (const unsupported &) {
		}
		CHILD_CHECK(inside.is_suspended());
		CHILD_CHECK(inside.settle() == 0);
		CHILD_CHECK(inside.arrives());
	});
	CHECK(outside.w.value() == 0);
}

TEST_CASE("a range that can't be pinned with these rights is invalid")
{
	suspendable one;

	one.suspend();
	const range r = middle_page(one.m.registered());
	SECTION("not writable any more")
	{
		REQUIRE(mprotect(r.addr, r.length, PROT_READ) == 0);
	}
	SECTION("not accessible any more")
	{
		REQUIRE(mprotect(r.addr, r.length, PROT_NONE) == 0);
	}
	const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
	SECTION("write-protected by a userfaultfd that answers no fault of the kernel's")
	{
		uffdio_api api{UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
		const uffdio_range where{reinterpret_cast<uintptr_t>(r.addr), r.length};
		uffdio_register watched{where, UFFDIO_REGISTER_MODE_WP, 0};
		uffdio_writeprotect protect{where, UFFDIO_WRITEPROTECT_MODE_WP};
		SKIP_IF(ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &watched),
			"no userfaultfd that write-protects");
		REQUIRE(ioctl(fd, UFFDIO_WRITEPROTECT, &protect) == 0);
		CHECK(!ibv_reg_mr(one.on.pd(), r.addr, r.length, IBV_ACCESS_LOCAL_WRITE));
		CHECK(errno == EFAULT);
	}
	CHECK(one.w.value() == suspended);
	CHECK(one.settle() == 0);
	CHECK(one.w.value() == invalid);
	close(fd);
	CHECK(wait_for_pinned(one.before) == one.before);
	CHECK(one.refused());
	CHECK(one.settle() == 0);
}

TEST_CASE("with too low a limit a registration stays suspended")
{
	in_tested_child([] {
		suspendable one;
		one.suspend();
		become_ordinary();

		limit_locked(pinned_bytes());
		CHILD_CHECK(one.settle() == ENOMEM);
		CHILD_CHECK(one.w.value() == suspended);
		limit_locked(0); /* nothing may be locked */
		CHILD_CHECK(one.settle() == ENOMEM);
		CHILD_CHECK(ibv_unreg_mr_notify(one.mr.get()) == ENOMEM);
		CHILD_CHECK(one.w.value() == suspended);
		CHILD_CHECK(pinned_bytes() == one.before + page_size());

		limit_locked(RLIM_INFINITY);
		CHILD_CHECK(one.settle() == 0);
		CHILD_CHECK(one.w.value() == 0);
		CHILD_CHECK(pinned_bytes() == one.before + length + page_size());
	});
}

TEST_CASE("disarming restores the pages")
{
	suspendable one;

	one.suspend();
	CHECK(ibv_unreg_mr_notify(one.mr.get()) == 0);
	CHECK(pinned_bytes() == one.before + length);
	CHECK(one.arrives());
	shrink_twice();
	CHECK(one.w.value() == 0);
	CHECK(one.arrives());
	CHECK(ibv_reg_mr_notify_reclaim(one.mr.get(), one.w.address(), mask) == 0);
	shrink();
	CHECK(one.w.value() == suspended);
}

TEST_CASE("deregistered while suspended")
{
	suspendable one;

	SECTION("after its pages have gone")
	{
		one.suspend();
	}
	SECTION("perhaps before")
	{
		shrink();
	}
	CHECK(ibv_dereg_mr(one.mr.release()) == 0);
	CHECK(pinned_bytes() == one.before);
	CHECK(one.w.value() == suspended);
}

TEST_CASE("other rights while suspended", "[roce]")
{
	suspendable one;
	const raw_uverbs raw(one.on.context());

	one.suspend();
	REQUIRE(raw.change_access(one.mr->handle, IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK(one.w.value() == suspended);
	CHECK(one.settle() == 0);
	CHECK(one.w.value() == 0);
	CHECK(one.refused()); /* the mapping is read-only now */
	REQUIRE(raw.change_access(one.mr->handle,
				  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) == 0);
	CHECK(one.arrives());
}

TEST_CASE("a window on a suspended registration", "[roce]")
{
	suspendable one;
	ibv_mw *mw = ibv_alloc_mw(one.on.pd(), IBV_MW_TYPE_1);
	REQUIRE(mw);

	one.suspend();
	CHECK(one.settle() == 0);
	CHECK(one.arrives());
	CHECK(ibv_dealloc_mw(mw) == 0);
}

TEST_CASE("a child can't restore its parent's")
{
	suspendable one;

	one.suspend();
	in_child([&] { child_check(one.settle() == EINVAL); });
	CHECK(one.w.value() == suspended);
	CHECK(one.settle() == 0);
	CHECK(one.w.value() == 0);
	CHECK(one.arrives());
}

TEST_CASE("after a fork the device uses the parent's pages")
{
	suspendable one;

	one.suspend();
	in_child([&] { std::memset(one.m.registered().addr, 0x77, length); });
	const pid_t child = fork();
	if (child == 0) {
		pause();
		_exit(0);
	}
	CHECK(one.settle() == 0);
	for (std::size_t offset = 0; offset < length; offset += page_size())
		CHECK(one.arrives(offset));
	kill(child, SIGKILL);
	CHECK(waitpid(child, nullptr, 0) == child);
}

/*
 * The kernel reports this change for the whole GiB around the part, because the page tables of a
 * GiB may be shared.
 */
TEST_CASE("other rights for a part of shared huge pages suspend nothing")
{
	constexpr std::size_t block = std::size_t{1} << 30;
	std::optional<huge_pool> pool;
	try {
		pool.emplace(1);
	} catch (const unsupported &) {
	}
	SKIP_IF(!pool, "no huge pages");
	const std::size_t huge = huge_page_size();
	const auto map = [&] {
		const int fd = memfd_create("mr_notify", MFD_CLOEXEC | MFD_HUGETLB);
		REQUIRE(fd >= 0);
		REQUIRE(ftruncate(fd, 2 * block) == 0);
		void *const addr = mmap(nullptr, 2 * block, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_NORESERVE, fd, 0);
		REQUIRE(addr != MAP_FAILED);
		memory m({static_cast<std::byte *>(addr), 2 * block}, fd);
		const std::size_t rest = reinterpret_cast<std::uintptr_t>(addr) % block;
		const range first{m.registered().addr + (rest ? block - rest : 0), huge};
		std::memset(first.addr, 1, first.length);
		m.set_registered(first);
		return m;
	};
	std::optional<suspendable> one;
	/*
	 * 20 ms after the event the worker suspends the idle MR, because it is SUSPECT. The change
	 * splits the mapping, so a second change would not be for the whole GiB.
	 */
	const auto stays = within(
		12ms,
		[&] {
			one.reset();
			one.emplace(map());
		},
		[&] {
			REQUIRE(mprotect(one->m.registered().addr + 100 * huge, huge, PROT_READ) ==
				0);
			return one->w.value() == suspect && pinned_bytes() >= one->before + huge;
		});
	SKIP_IF(!stays, "too slow to be before the worker");
	CHECK(*stays);
	CHECK(one->settle() == 0);
	CHECK(one->w.value() == 0);
	CHECK(one->arrives());
}

TEST_CASE("a process that ends while its registrations are suspended")
{
	const std::size_t before = pinned_bytes();

	SECTION("exit")
	{
		in_child([] {
			suspendable one;
			shrink();
			child_check(one.is_suspended());
			_exit(0);
		});
	}
	SECTION("exec")
	{
		in_child([] {
			suspendable one;
			one.suspend();
			execl("/bin/true", "true", nullptr);
			_exit(1);
		});
	}
	CHECK(pinned_bytes() == before);
}

TEST_CASE("suspending and restoring are counted")
{
	suspendable one;
	const auto suspensions = port_counter(one.on, "mr_notify_suspensions");
	const auto restores = port_counter(one.on, "mr_notify_restores");
	SKIP_IF(!suspensions || !restores, "the driver shows no counters");

	one.suspend();
	let_pass(50ms); /* the kernel caches the counters for 10 ms */
	CHECK(port_counter(one.on, "mr_notify_suspensions") == *suspensions + 1);
	CHECK(port_counter(one.on, "mr_notify_restores") == restores);
	CHECK(one.settle() == 0);
	CHECK(one.settle() == 0);
	let_pass(50ms);
	CHECK(port_counter(one.on, "mr_notify_suspensions") == *suspensions + 1);
	CHECK(port_counter(one.on, "mr_notify_restores") == *restores + 1);
}

/*
 * Threads use the registration as a cache does, while another thread runs the shrinker without a
 * pause.
 */
TEST_CASE("race: a user with a reference of a valid registration is never refused")
{
	const run_time time;
	suspendable one;
	std::atomic<bool> stop = false;
	std::atomic<uint64_t> refused = 0;
	std::atomic<uint64_t> wrong = 0;
	std::atomic<uint64_t> settled = 0;
	std::atomic<uint64_t> failed = 0;
	uint64_t invalidated = 0;
	uint64_t writes = 0;

	one.link.emplace(one.on);
	std::thread shrinking([&] {
		while (!stop)
			shrink();
	});
	/* This thread increments and decrements the word's count of users without a transfer. */
	std::thread settling([&] {
		for (unsigned int i = 0; !stop; i++) {
			if (at(one.w).fetch_add(one_user) & kernel_bits)
				failed += one.settle() != 0;
			at(one.w) -= one_user;
			usleep(i % 64 * 1000);
		}
	});
	do {
		uint64_t was = at(one.w).fetch_add(one_user);
		while (was & (suspended | suspect)) {
			settled++;
			if (one.settle()) {
				failed++;
				break;
			}
			was = one.w.value();
		}
		invalidated += was & invalid;
		const bool arrived = one.arrives();
		refused += one.was_refused;
		wrong += !arrived && !one.was_refused;
		one.was_refused = false;
		at(one.w) -= one_user;
		writes++;
		/* Sometimes leaves the MR idle until the shrinker has scanned twice. */
		for (int i = 0; writes % 4 == 0 && i < 400 && !one.is_suspended(); i++)
			usleep(5000);
	} while (time.goes_on(settled > 0));
	stop = true;
	shrinking.join();
	settling.join();
	INFO(writes << " writes, settled " << settled);
	CHECK(invalidated == 0);
	CHECK(refused == 0);
	CHECK(wrong == 0);
	CHECK(failed == 0);
	CHECK(settled > 0);
}

/*
 * The kernel changes the word before its own state. Between these two changes, the probe's stack
 * trace gives settling more time.
 */
TEST_CASE("race: a settle while the word is being set restores it", "[kprobes]")
{
	const run_time time;
	suspendable one;
	::probe set("umem_notify_word_cmpxchg", ::probe::at::end);
	std::atomic<bool> stop = false;
	uint64_t settled = 0, failed = 0, left = 0;

	set.slow_down();
	/* A fork suspends the registration whenever it is idle. */
	std::thread forking([&] {
		while (!stop)
			in_child([] {});
	});
	do {
		while (!(at(one.w) & suspended) && time.goes_on(settled > 0))
			continue;
		if (at(one.w).fetch_add(one_user) & suspended) {
			settled++;
			failed += one.settle() != 0;
			left += (one.w.value() & suspended) != 0;
		}
		at(one.w) -= one_user;
	} while (time.goes_on(settled > 0));
	stop = true;
	forking.join();
	INFO("settled " << settled);
	CHECK(settled > 0);
	CHECK(failed == 0);
	CHECK(left == 0);
}

TEST_CASE("race: the device does not have pages dropped while they are restored")
{
	const run_time time;
	int restored = 0;
	int ended = 0;

	do {
		suspendable one;
		std::atomic<bool> stop = false;
		std::atomic<int> drops = 0;

		one.suspend();
		std::thread dropping([&] {
			while (!stop) {
				drop_all(one.m);
				drops++;
			}
		});
		while (!drops)
			std::this_thread::yield();
		const int error = one.settle();
		stop = true;
		dropping.join();
		CHECK(error == 0);
		CHECK(one.settle() == 0);
		CHECK((one.w.value() == 0 || one.w.value() == invalid));
		if (one.w.value()) {
			ended++;
			continue;
		}
		for (std::size_t offset = 0; offset < length; offset += page_size())
			CHECK(one.arrives(offset));
		restored++;
	} while (time.goes_on());
	WARN(restored << " restored, " << ended << " invalid");
}

TEST_CASE("a process that lies harms only itself")
{
	suspendable honest(anonymous(length), one_user);
	const std::size_t before = pinned_bytes();

	SECTION("by clearing the bit")
	{
		suspendable liar;
		liar.suspend();
		at(liar.w) = 0;
		CHECK(liar.refused());
		CHECK(liar.settle() == 0);
		CHECK(liar.w.value() == 0);
		CHECK(liar.arrives());
	}
	SECTION("by setting all the kernel's bits")
	{
		suspendable liar;
		at(liar.w) = kernel_bits;
		CHECK(liar.arrives());
		CHECK(liar.settle() == 0);
		shrink_twice();
		CHECK(liar.is_unpinned());
		CHECK(liar.settle() == 0);
		CHECK(liar.arrives());
	}
	SECTION("by changing all bits at random, all the time")
	{
		in_tested_child([] {
			suspendable liar;
			std::atomic<bool> stop = false;
			std::thread lying([&] {
				uint64_t x = 88172645463325252ULL;
				while (!stop) {
					x ^= x << 13;
					x ^= x >> 7;
					x ^= x << 17;
					at(liar.w) = x;
				}
			});
			for (int i = 0; i < 30; i++) {
				shrink();
				liar.settle();
				if (i % 3 == 0)
					madvise(liar.m.registered().addr, page_size(),
						MADV_DONTNEED);
			}
			stop = true;
			lying.join();
		});
	}
	SECTION("by unmapping the word's page")
	{
		memory other = anonymous(page_size());
		auto *const lost = reinterpret_cast<uint64_t *>(other.registered().addr);
		const device on;
		const memory m = anonymous(length);
		auto mr = on.register_memory(m.registered());
		*lost = 0;
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), lost, mask) == 0);
		unmap_all(other);
		shrink();
		CHECK(wait_for_pinned(before + page_size()) == before + page_size());
		CHECK(ibv_settle_mr_notify(mr.get()) == 0);
		CHECK(pinned_bytes() == before + length + page_size());
		mr.reset();
	}
	CHECK(wait_for_pinned(before) <= before);
	CHECK(honest.w.value() == one_user);
	CHECK(honest.arrives());
	at(honest.w) -= one_user;
	shrink_twice();
	CHECK(honest.is_suspended());
}

namespace {

ibv_mr_cache_stats cached_on(const device &on)
{
	ibv_mr_cache_stats now{};

	REQUIRE(ibv_query_mr_cache(on.context(), &now) == 0);
	return now;
}

/* The first user of a cached registration. */
struct cache_user {
	cache_user() { std::memset(source.registered().addr, 0x5a, page_size()); }

	owned<ibv_mr> use(int access = IBV_ACCESS_LOCAL_WRITE) const
	{
		return on.register_memory(m.registered(), access | IBV_ACCESS_CACHED);
	}

	device on;
	memory m = anonymous(length);
	memory source = anonymous(page_size());
};

} // namespace

TEST_CASE("idle cached registrations are suspended, and a hit returns the MR again")
{
	constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	const cache_user user;
	auto mr = user.use(access);
	const auto from = user.on.register_memory(user.source.registered());
	const std::size_t used = pinned_bytes();
	const uint32_t key = mr->rkey;

	shrink_twice();
	usleep(100000);
	CHECK(pinned_bytes() == used);
	CHECK(cached_on(user.on).suspensions == 0);
	mr.reset();
	shrink_twice();
	CHECK(wait_for_pinned(used - length) <= used - length);
	CHECK(cached_on(user.on).suspensions == 1);
	CHECK(cached_on(user.on).restorations == 0);
	CHECK(cached_on(user.on).entries == 1);
	/* A peer can't reach an idle registration, either. */
	{
		loopback link(user.on);
		const auto status = link.write(from.get(), user.source.registered(),
					       user.m.registered().addr, key);
		CHECK(status != IBV_WC_SUCCESS);
		CHECK(link.refused(status));
	}

	mr = user.use(access);
	CHECK(mr->rkey == key);
	CHECK(pinned_bytes() == used);
	CHECK(cached_on(user.on).misses == 1);
	CHECK(cached_on(user.on).restorations == 1);
	loopback link(user.on);
	CHECK(link.write(from.get(), user.source.registered(), user.m.registered().addr, key) ==
	      IBV_WC_SUCCESS);
	CHECK(std::memcmp(user.m.registered().addr, user.source.registered().addr, page_size()) ==
	      0);
}

TEST_CASE("the cache drops an entry that was unmapped while it was suspended")
{
	cache_user user;
	const range r = user.m.registered();

	user.use().reset();
	shrink_twice();
	REQUIRE(cached_on(user.on).suspensions == 1);
	REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
	CHECK_FALSE(ibv_is_reg(user.on.pd(), r.addr, r.length, IBV_ACCESS_LOCAL_WRITE));
	user.use().reset();
	CHECK(cached_on(user.on).misses == 2);
	CHECK(cached_on(user.on).restorations == 0);
	CHECK(cached_on(user.on).invalidations == 1);
}

TEST_CASE("RDMAV_MR_CACHE_RECLAIM=0: cached registrations stay pinned, and the limits are smaller")
{
	const uint64_t machine = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_size();
	ibv_mr_cache_limits limits{};

	REQUIRE(setenv("RDMAV_MR_CACHE_RECLAIM", "0", 1) == 0);
	{
		const cache_user user;
		user.use().reset();
		const std::size_t before = pinned_bytes();
		shrink_twice();
		usleep(100000);
		CHECK(pinned_bytes() == before);
		CHECK(cached_on(user.on).suspensions == 0);
		REQUIRE(ibv_reg_mr_limits(user.on.context(), nullptr, &limits) == 0);
		CHECK(limits.max_bytes == machine / 4);
	}
	REQUIRE(setenv("RDMAV_MR_CACHE_RECLAIM", "1", 1) == 0);
	const device other;
	REQUIRE(ibv_reg_mr_limits(other.context(), nullptr, &limits) == 0);
	CHECK(limits.max_bytes == machine);
	unsetenv("RDMAV_MR_CACHE_RECLAIM");
}
