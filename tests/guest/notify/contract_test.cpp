// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The contract of the verbs. Each verb returns the documented result, and changes nothing else. */
#include "catch.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "device.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "secret_memory.h"
#include "skip.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 16 * 4096;

struct first_arming {
	int status; /* the status of the program first_arming, as waitpid() returns it */
	std::chrono::microseconds took;

	bool is_too_slow() const { return WIFEXITED(status) && WEXITSTATUS(status) == 2; }
};

first_arming arm_first(bool cached, const std::string &by, std::chrono::microseconds interval)
{
	const auto self = std::filesystem::read_symlink("/proc/self/exe");
	const std::string command =
		"timeout -s KILL 600 " + (self.parent_path() / "first_arming").string() +
		(cached ? " cached " : " plain ") + by + ' ' + std::to_string(interval.count());
	FILE *const said = popen(command.c_str(), "r");
	int64_t took = 0;

	REQUIRE(said);
	const bool has_said = std::fscanf(said, "%" SCNd64, &took) == 1;
	const first_arming first{pclose(said), std::chrono::microseconds(took)};
	CHECK((has_said || first.status));
	return first;
}

} // namespace

TEST_CASE("the capability is shown")
{
	const device on;

	CHECK(on.can_notify());
	ibv_device_attr_ex attr{};
	REQUIRE(ibv_query_device_ex(on.context(), nullptr, &attr) == 0);
	CHECK(attr.device_cap_flags_ex & IBV_DEVICE_MR_NOTIFY);
}

TEST_CASE("a word that starts at 0 becomes 1")
{
	const device on;
	watched it(on, anonymous(length));

	CHECK(it.w.value() == 0);
	unmap_all(it.m);
	CHECK(it.w.value() == 1);
}

TEST_CASE("the upper bits belong to the application")
{
	const device on;
	memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	constexpr uint64_t mine = 0xfedcba9876543200;
	word w;

	*w.address() = mine;
	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	CHECK(w.value() == mine);
	drop_all(m);
	CHECK((w.value() & ~uint64_t{IBV_MR_NOTIFY_KERNEL_MASK}) == mine);
	CHECK(ibv_settle_mr_notify(mr.get()) == 0);
	CHECK(w.value() == (mine | IBV_MR_NOTIFY_INVALID));
}

TEST_CASE("a reference count in the word is not disturbed")
{
	const device on;
	watched it(on, shared_file(length));
	constexpr int rounds = 200;
	constexpr uint64_t one = 0x100;
	std::atomic<bool> stop = false;
	uint64_t taken = 0;

	std::thread user([&] {
		std::atomic_ref<uint64_t> ref(*it.w.address());
		while (!stop) {
			ref.fetch_add(one);
			taken++;
		}
	});
	for (int i = 0; i < rounds; i++) {
		drop_all(it.m); /* SUSPECT: shared memory keeps its pages */
		CHECK(ibv_settle_mr_notify(it.mr.get()) == 0);
	}
	stop = true;
	user.join();
	CHECK(it.w.value() == taken * one);
}

TEST_CASE("arming a stale MR succeeds and says INVALID")
{
	const device on;
	word w;

	SECTION("unmapped")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		unmap_all(m);
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("other pages at the same address")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		drop_all(m);
		*m.registered().addr = std::byte{1};
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("memory that no device may have, at the same address")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		SKIP_IF(!make_secret(m.registered()), "no memfd_secret");
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("only the last page is another one")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		std::byte *last = m.registered().end() - page_size();
		REQUIRE(madvise(last, page_size(), MADV_DONTNEED) == 0);
		*last = std::byte{1};
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("a hole was punched, and filled again")
	{
		memory m = shared_file(length);
		const auto mr = on.register_memory(m.registered());
		REQUIRE(madvise(m.registered().addr, page_size(), MADV_REMOVE) == 0);
		*m.registered().addr = std::byte{1};
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
}

TEST_CASE("a registration that is tracked from the start")
{
	constexpr int track = 1 << 28;
	const device on;
	word w;

	SECTION("is armed")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | track);
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == 0);
		unmap_all(m);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("is stale when armed")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | track);
		unmap_all(m);
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	}
	SECTION("of untouched memory is intact")
	{
		void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		REQUIRE(addr != MAP_FAILED);
		memory m({static_cast<std::byte *>(addr), length});
		const auto mr = on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | track);
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == 0);
	}
	SECTION("is never armed")
	{
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | track);
		unmap_all(m);
	}
}

TEST_CASE("disarming leaves the word alone")
{
	const device on;
	watched it(on, anonymous(length));
	word other;

	REQUIRE(ibv_unreg_mr_notify(it.mr.get()) == 0);
	drop_all(it.m);
	CHECK(it.w.value() == 0);

	/* when the MR is armed again, its word says INVALID because of the event */
	REQUIRE(ibv_reg_mr_notify(it.mr.get(), other.address()) == 0);
	CHECK(other.value() == IBV_MR_NOTIFY_INVALID);
	CHECK(it.w.value() == 0);
}

TEST_CASE("errors")
{
	const device on;
	memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	alignas(8) unsigned char unaligned[16] = {};
	word w;

	SECTION("EINVAL: unaligned word")
	{
		auto *address = reinterpret_cast<uint64_t *>(unaligned + 1);
		CHECK(ibv_reg_mr_notify(mr.get(), address) == EINVAL);
	}
	SECTION("EINVAL: no word")
	{
		CHECK(ibv_reg_mr_notify(mr.get(), nullptr) == EINVAL);
	}
	SECTION("EINVAL: not armed")
	{
		CHECK(ibv_unreg_mr_notify(mr.get()) == EINVAL);
		CHECK(ibv_settle_mr_notify(mr.get()) == EINVAL);
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		REQUIRE(ibv_unreg_mr_notify(mr.get()) == 0);
		CHECK(ibv_unreg_mr_notify(mr.get()) == EINVAL);
		CHECK(ibv_settle_mr_notify(mr.get()) == EINVAL);
	}
	SECTION("EBUSY: armed already")
	{
		word other;
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(ibv_reg_mr_notify(mr.get(), other.address()) == EBUSY);
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == EBUSY);
		unmap_all(m);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
		CHECK(other.value() == 0);
		/* the MR stays armed until it is disarmed */
		CHECK(ibv_reg_mr_notify(mr.get(), other.address()) == EBUSY);
	}
	SECTION("EFAULT: the word is nowhere")
	{
		memory gone = anonymous(page_size());
		auto *address = reinterpret_cast<uint64_t *>(gone.registered().addr);
		unmap_all(gone);
		CHECK(ibv_reg_mr_notify(mr.get(), address) == EFAULT);
	}
	SECTION("EFAULT: the word can't be written")
	{
		memory readonly = anonymous(page_size());
		REQUIRE(mprotect(readonly.registered().addr, page_size(), PROT_READ) == 0);
		auto *address = reinterpret_cast<uint64_t *>(readonly.registered().addr);
		CHECK(ibv_reg_mr_notify(mr.get(), address) == EFAULT);
	}
	/* The failed calls have not armed the MR, so it can be armed again. */
	ibv_unreg_mr_notify(mr.get());
	CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
}

/*
 * Several signals interrupt the kernel while it takes the locks of the mappings. Task work of
 * io_uring also interrupts it, and a signal mask does not block task work.
 */
static void check_arms_first(const std::string &by)
{
	const bool cached = GENERATE(false, true);
	const first_arming alone = arm_first(cached, "none", {});

	CAPTURE(cached, alone.took.count());
	SKIP_IF(alone.is_too_slow(), "so many mappings take too long here");
	REQUIRE(alone.status == 0);
	const first_arming disturbed =
		arm_first(cached, by, std::max(alone.took / 16, std::chrono::microseconds(1000)));
	SKIP_IF(disturbed.is_too_slow(), "so many mappings take too long here");
	CHECK(disturbed.status == 0);
}

TEST_CASE("a program with a fast timer and many mappings is armed")
{
	check_arms_first("timer");
}

TEST_CASE("a program with completions of io_uring and many mappings is armed")
{
	check_arms_first("io_uring");
}

TEST_CASE("a program with a debugger and many mappings is armed")
{
	check_arms_first("debugger");
}

TEST_CASE("a registration that names its word is armed", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	word w;
	word other;

	*w.address() = 0x500;
	const auto made = raw.register_armed(on.pd(), m.registered().addr, length, w.address());
	REQUIRE(made.error == 0);
	const uint32_t mr = made.handle;
	CHECK(w.value() == 0x500);
	CHECK(raw.arm(mr, other.address()) == EBUSY);
	unmap_all(m);
	CHECK(w.value() == (0x500 | IBV_MR_NOTIFY_INVALID));
	CHECK(raw.deregister(mr) == 0);
	CHECK(wait_for_pinned(before) == before);
}

TEST_CASE("a registration that names a bad word fails", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const memory readonly = anonymous(page_size());
	const std::size_t before = pinned_bytes();
	alignas(8) uint64_t words[2] = {};
	auto *const inside = reinterpret_cast<std::byte *>(words) + 4;
	const auto fails = [&](void *at, int error) {
		const auto made = raw.register_armed(on.pd(), m.registered().addr, length,
						     static_cast<uint64_t *>(at));
		CHECK(made.error == error);
	};

	REQUIRE(mprotect(readonly.registered().addr, page_size(), PROT_READ) == 0);
	fails(inside, EINVAL);
	fails(readonly.registered().addr, EFAULT);
	fails(reinterpret_cast<void *>(page_size()), EFAULT);
	CHECK(pinned_bytes() == before);

	/* A failed registration does not arm. */
	const auto mr = on.register_memory(m.registered());
	CHECK(raw.change_access(mr->handle, IBV_ACCESS_LOCAL_WRITE, {raw_uverbs::names(words)}) ==
	      EINVAL);
}

TEST_CASE("EINVAL: the MR of another process")
{
	const device on;
	memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const auto says_child = [&](auto call) {
		const pid_t child = fork();
		int status = 0;

		if (child == 0)
			_exit(call());
		REQUIRE(child > 0);
		REQUIRE(waitpid(child, &status, 0) == child);
		return WEXITSTATUS(status);
	};
	word w;

	CHECK(says_child([&] {
		      alignas(8) uint64_t own = 0;
		      return ibv_reg_mr_notify(mr.get(), &own);
	      }) == EINVAL);
	SECTION("armed, it stays so")
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	}
	SECTION("the same, with a count of users")
	{
		const int error = ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00);
		SKIP_IF(error == EOPNOTSUPP, "the driver can't revoke");
		REQUIRE(error == 0);
	}
	CHECK(says_child([&] { return ibv_unreg_mr_notify(mr.get()); }) == EINVAL);
	CHECK(says_child([&] { return ibv_settle_mr_notify(mr.get()); }) == EINVAL);
	unmap_all(m);
	CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	CHECK(ibv_unreg_mr_notify(mr.get()) == 0);
}

/* The owner still reads the word. */
TEST_CASE("a child that ends or changes its parent's MR has the word say INVALID")
{
	const device on;
	const raw_uverbs raw(on.context());
	watched it(on, anonymous(length));
	int status = 0;
	pid_t child = -1;

	SECTION("deregisters")
	{
		child = fork();
		if (child == 0)
			_exit(ibv_dereg_mr(it.mr.get()));
		std::ignore = it.mr.release(); /* the kernel has no such MR any more */
	}
	SECTION("re-registers")
	{
		child = fork();
		if (child == 0)
			_exit(raw.change_access(it.mr->handle, IBV_ACCESS_LOCAL_WRITE));
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	SKIP_IF(WEXITSTATUS(status) == EOPNOTSUPP, "the driver can't re-register");
	CHECK(status == 0);
	CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("another process in the same address space disarms")
{
	const device on;
	watched it(on, anonymous(length));
	alignas(16) std::array<std::byte, 65536> stack;
	int status = 0;

	const pid_t sharer =
		clone([](void *its) { return ibv_unreg_mr_notify(static_cast<ibv_mr *>(its)); },
		      stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, it.mr.get());
	REQUIRE(sharer > 0);
	REQUIRE(waitpid(sharer, &status, 0) == sharer);
	CHECK(status == 0);
	CHECK(ibv_unreg_mr_notify(it.mr.get()) == EINVAL);
}

/*
 * The process that armed the MR has ended, so the word says INVALID. The MR still has to be
 * deregistered.
 */
TEST_CASE("the MR of a process that has ended can be deregistered, not disarmed")
{
	memory shared = shared_file(page_size());
	auto *const said = reinterpret_cast<uint64_t *>(shared.registered().addr);
	const device on;
	const raw_uverbs raw(on.context());
	int status = 0;

	said[0] = said[1] = 0;
	const pid_t child = fork();
	if (child == 0) {
		const memory m = anonymous(length);
		ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr, length, 0);

		said[1] = mr ? mr->handle : 0;
		_exit(mr ? ibv_reg_mr_notify(mr, said) : 200);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(status == 0);
	CHECK(said[0] == IBV_MR_NOTIFY_INVALID);
	CHECK(raw.disarm(static_cast<uint32_t>(said[1])) == EINVAL);
	CHECK(raw.deregister(static_cast<uint32_t>(said[1])) == 0);
}

TEST_CASE("ENOMEM: RLIMIT_MEMLOCK leaves no page for the word")
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		/* becomes an unprivileged user, because the limit does not apply to root */
		const rlimit limit{length, length};
		const device on;
		memory m = anonymous(length);
		alignas(8) uint64_t w = 0;

		if (setrlimit(RLIMIT_MEMLOCK, &limit) || setuid(65534))
			_exit(200);
		ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr, length, 0);
		if (!mr)
			_exit(201);
		const std::size_t before = pinned_bytes();
		const int error = ibv_reg_mr_notify(mr, &w);
		if (pinned_bytes() != before)
			_exit(202);
		_exit(error);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WEXITSTATUS(status) == ENOMEM);
}

TEST_CASE("words of one page are charged once")
{
	const device on;
	memory m = anonymous(8 * page_size());
	memory words = anonymous(page_size());
	auto *word_at = reinterpret_cast<uint64_t *>(words.registered().addr);
	std::vector<owned<ibv_mr>> mrs;

	std::fill_n(word_at, 8, 0);
	for (std::size_t i = 0; i < 8; i++)
		mrs.push_back(
			on.register_memory({m.registered().addr + i * page_size(), page_size()}));
	const std::size_t before = pinned_bytes();
	for (std::size_t i = 0; i < 8; i++)
		REQUIRE(ibv_reg_mr_notify(mrs[i].get(), word_at + i * 8) == 0);
	CHECK(pinned_bytes() == before + page_size());
	for (const auto &mr : mrs)
		REQUIRE(ibv_unreg_mr_notify(mr.get()) == 0);
	CHECK(pinned_bytes() == before);
}

TEST_CASE("several MRs over the same memory")
{
	const device on;
	memory m = anonymous(length);
	const auto first = on.register_memory(m.registered());
	const auto second = on.register_memory(m.registered());
	const std::size_t before = pinned_bytes();
	word w;
	word other;

	REQUIRE(ibv_reg_mr_notify(first.get(), w.address()) == 0);
	REQUIRE(ibv_reg_mr_notify(second.get(), other.address()) == 0);
	unmap_all(m);
	CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	CHECK(other.value() == IBV_MR_NOTIFY_INVALID);
	CHECK(wait_for_pinned(before - (on.can_revoke() ? 2 * length : 0)) ==
	      before - (on.can_revoke() ? 2 * length : 0));
}

TEST_CASE("the word's own page is unmapped first")
{
	const device on;
	memory m = anonymous(length);
	memory word_page = anonymous(page_size());
	auto *address = reinterpret_cast<uint64_t *>(word_page.registered().addr);
	const auto mr = on.register_memory(m.registered());

	*address = 0;
	REQUIRE(ibv_reg_mr_notify(mr.get(), address) == 0);
	unmap_all(word_page);
	unmap_all(m);
	CHECK(ibv_settle_mr_notify(mr.get()) == 0);
	CHECK(ibv_unreg_mr_notify(mr.get()) == 0);
}

/*
 * Two words share one pin only if they are in the same physical page, not if they merely have the
 * same address.
 */
TEST_CASE("a word where another page was mapped before")
{
	const device on;
	memory first = anonymous(length);
	memory second = anonymous(length);
	const memory words = anonymous(page_size());
	const range r = words.registered();
	auto *word_at = reinterpret_cast<uint64_t *>(r.addr);
	const auto earlier = on.register_memory(first.registered());
	const auto later = on.register_memory(second.registered());

	word_at[0] = 0;
	REQUIRE(ibv_reg_mr_notify(earlier.get(), &word_at[0]) == 0);
	SECTION("unmapped")
	{
		REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
	}
	SECTION("dropped")
	{
		REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
	}
	SECTION("moved here")
	{
		memory other = anonymous(page_size());
		REQUIRE(mremap(other.registered().addr, r.length, r.length,
			       MREMAP_MAYMOVE | MREMAP_FIXED, r.addr) == r.addr);
		other.forget(other.registered());
	}
	word_at[0] = 0;
	word_at[1] = 0;
	REQUIRE(ibv_reg_mr_notify(later.get(), &word_at[1]) == 0);
	unmap_all(first);
	CHECK(word_at[0] == 0);
	unmap_all(second);
	CHECK(word_at[1] == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("a word in a page that can't be written any more")
{
	const device on;
	memory m = anonymous(length);
	const memory words = anonymous(page_size());
	const range r = words.registered();
	auto *word_at = reinterpret_cast<uint64_t *>(r.addr);
	const auto first = on.register_memory(m.registered());
	const auto second = on.register_memory(m.registered());

	word_at[0] = word_at[1] = 0;
	REQUIRE(ibv_reg_mr_notify(first.get(), &word_at[0]) == 0);
	const std::size_t before = pinned_bytes();
	REQUIRE(mprotect(r.addr, r.length, PROT_READ) == 0);
	CHECK(ibv_reg_mr_notify(second.get(), &word_at[1]) == EFAULT);
	REQUIRE(mprotect(r.addr, r.length, PROT_READ | PROT_WRITE) == 0);
	REQUIRE(ibv_reg_mr_notify(second.get(), &word_at[1]) == 0);
	CHECK(pinned_bytes() == before);
	unmap_all(m);
	CHECK(word_at[0] == IBV_MR_NOTIFY_INVALID);
	CHECK(word_at[1] == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("the word is in the registered memory")
{
	const device on;
	memory m = shared_file(length);
	const auto mr = on.register_memory(m.registered());
	auto *address = reinterpret_cast<uint64_t *>(m.registered().addr);

	*address = 0;
	REQUIRE(ibv_reg_mr_notify(mr.get(), address) == 0);
	unmap_all(m);
	/* the word is in a page of the file */
	uint64_t value = 0;
	REQUIRE(pread(m.fd(), &value, sizeof(value), 0) == sizeof(value));
	CHECK(value == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("a later event's changes are compared, too")
{
	const device on;
	watched it(on, anonymous(length));
	const range r = it.m.registered();
	const std::size_t pages = length / page_size();
	const auto page = [&](std::size_t n) { return r.addr + n * page_size(); };
	const auto [harmless, changed] = GENERATE_COPY(
		std::pair(pages / 2, std::size_t{0}), std::pair(pages / 2, pages - 1),
		std::pair(pages / 2, pages / 2 + 1), std::pair(pages / 2, pages / 2 - 1));

	INFO("page " << changed << " after page " << harmless);
	REQUIRE(madvise(page(harmless), page_size(), MADV_FREE) == 0);
	REQUIRE(madvise(page(changed), page_size(), MADV_DONTNEED) == 0);
	REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
	CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("after INVALID the pages are given back without a call", "[revoke]")
{
	const device on;
	memory m = anonymous(length);
	const std::size_t before = pinned_bytes();

	SECTION("unmapped")
	{
		const watched it(on, m.registered());
		unmap_all(m);
		CHECK(wait_for_pinned(before) == before);
	}
	SECTION("dropped: found out by the kernel alone")
	{
		watched it(on, m.registered());
		drop_all(m);
		CHECK(wait_for_pinned(before) == before);
		CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
	}
	CHECK(pinned_bytes() == before);
}

TEST_CASE("a harmless SUSPECT goes away without a call")
{
	const device on;
	watched it(on, shared_file(length));

	drop_all(it.m);
	CHECK(happens([&] { return it.w.value() == 0; }));
}

/*
 * The page may have left the page cache. Only a settle by a system call may fault the page in, so
 * the worker leaves the MR SUSPECT.
 */
TEST_CASE("a SUSPECT read-only mapping of a regular file waits to be settled")
{
	const device on;
	const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	void *addr = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
	REQUIRE(addr != MAP_FAILED);
	watched it(on, memory({static_cast<std::byte *>(addr), length}, fd), 0);

	CHECK(it.w.value() == 0);
	drop_all(it.m);
	usleep(200000); /* the worker has compared by now */
	CHECK(it.w.value() == IBV_MR_NOTIFY_SUSPECT);
	CHECK(ibv_settle_mr_notify(it.mr.get()) == 0);
	CHECK(it.w.value() == 0);
	unmap_all(it.m);
	CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
}

/*
 * mprotect() may unmap page tables that are shared with another process. Then punching a hole in
 * the file causes no event.
 */
TEST_CASE("protecting so much of shared huge pages that page tables go makes the word SUSPECT")
{
	constexpr std::size_t length = std::size_t{2} << 30;
	const device on;
	const int fd = memfd_create("protected", MFD_CLOEXEC | MFD_HUGETLB);
	SKIP_IF(fd < 0, "no hugetlbfs in this kernel");
	REQUIRE(ftruncate(fd, length) == 0);
	void *const addr =
		mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	REQUIRE(addr != MAP_FAILED);
	const memory m({static_cast<std::byte *>(addr), length}, fd);

	*m.registered().addr = std::byte{1};
	watched it(on, {m.registered().addr, page_size()});
	REQUIRE(it.w.value() == 0);
	REQUIRE(mprotect(addr, length, PROT_READ) == 0);
	CHECK(it.w.value() == IBV_MR_NOTIFY_SUSPECT);
	CHECK(ibv_settle_mr_notify(it.mr.get()) == 0);
	CHECK(it.w.value() == 0);
}

TEST_CASE("re-registration")
{
	const device on;
	const raw_uverbs raw(on.context());
	watched it(on, anonymous(length));

	const int first = raw.change_access(it.mr->handle, IBV_ACCESS_LOCAL_WRITE);
	SKIP_IF(first == EOPNOTSUPP, "the driver can't re-register");
	CHECK(first == 0);

	/* The MR is still armed, and can be revoked. */
	const std::size_t before = pinned_bytes();
	unmap_all(it.m);
	CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
	REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
	SKIP_IF(!on.can_revoke(), "the driver can't revoke");
	CHECK(pinned_bytes() == before - length - page_size());

	/* A revoked MR has no pages, so its access can't change. */
	CHECK(raw.change_access(it.mr->handle, IBV_ACCESS_LOCAL_WRITE) == EINVAL);
}

TEST_CASE("an MR that is closed with its device says INVALID")
{
	memory m = anonymous(length);
	word w;
	{
		const device on;
		ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr, length, 0);
		REQUIRE(mr);
		REQUIRE(ibv_reg_mr_notify(mr, w.address()) == 0);
		/* the PD can't be freed while it has the MR; closing the context frees both */
	}
	CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
}
