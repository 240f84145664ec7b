// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An armed registration can end in these ways: its process exits, executes another program or is
 * killed, or its device is removed. Each word is in memory that is shared with the test, which
 * reads its final value.
 */
#include "catch.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "device.h"
#include "removal.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 64 * 4096;

struct shared_words {
	memory m = shared_file(page_size());
	uint64_t *at = reinterpret_cast<uint64_t *>(m.registered().addr);

	shared_words() { at[0] = at[1] = 0; }
	uint64_t read(int i) { return std::atomic_ref<uint64_t>(at[i]).load(); }
};

/* A child arms one word, sets the other word to say so, and calls end(). */
template <class F> pid_t child_with_armed_mr(shared_words &words, F end)
{
	const pid_t child = fork();

	if (child)
		return child;
	const device on;
	memory m = anonymous(length);
	ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr, length, IBV_ACCESS_LOCAL_WRITE);
	if (!mr || ibv_reg_mr_notify(mr, &words.at[0]) || words.at[0])
		_exit(1);
	std::atomic_ref<uint64_t>(words.at[1]).store(1);
	end(on);
	_exit(2);
}

void expect_invalid_after(shared_words &words, pid_t child)
{
	int status = 0;

	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(words.read(1) == 1);
	CHECK(words.read(0) == IBV_MR_NOTIFY_INVALID);
}

/* A child drops shared huge pages again and again, so that the worker compares them. */
pid_t child_with_huge_pages(range all, int armed)
{
	const pid_t child = fork();

	if (child)
		return child;
	const device on;
	word w;
	ibv_mr *const mr = ibv_reg_mr(on.pd(), all.addr, all.length, IBV_ACCESS_LOCAL_WRITE);

	if (!mr || ibv_reg_mr_notify(mr, w.address()) || write(armed, "x", 1) != 1)
		_exit(1);
	for (;;)
		madvise(all.addr, all.length, MADV_DONTNEED);
}

} // namespace

/*
 * When hugetlb frees the lock of a shared mapping, it waits only for threads that hold mmap_lock.
 */
TEST_CASE("race: the worker compares during the exit of an owner of shared huge pages")
{
	const run_time time;
	std::optional<memory> huge;
	useconds_t lives = 0;

	try {
		huge = shared_hugetlb(8 * huge_page_size());
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
	for (int rounds = 0; time.goes_on(rounds > 20); rounds++) {
		std::array<int, 2> said{};
		int status = 0;
		char armed = 0;

		REQUIRE(pipe(said.data()) == 0);
		const pid_t owner = child_with_huge_pages(huge->registered(), said[1]);
		REQUIRE(owner > 0);
		close(said[1]);
		REQUIRE(read(said[0], &armed, 1) == 1);
		close(said[0]);
		lives = (lives + 1237) % 5000;
		usleep(20000 + lives); /* the worker begins to compare after 20 ms */
		REQUIRE(kill(owner, SIGKILL) == 0);
		REQUIRE(waitpid(owner, &status, 0) == owner);
		CHECK(WIFSIGNALED(status));
	}
}

TEST_CASE("process exit with an armed MR")
{
	shared_words words;

	expect_invalid_after(words, child_with_armed_mr(words, [](const device &) { _exit(0); }));
}

TEST_CASE("exec with an armed MR")
{
	shared_words words;

	expect_invalid_after(words, child_with_armed_mr(words, [](const device &) {
				     execl("/bin/true", "true", nullptr);
			     }));
}

TEST_CASE("exec with an armed MR whose device stays open")
{
	shared_words words;

	expect_invalid_after(words, child_with_armed_mr(words, [](const device &on) {
				     fcntl(on.context()->cmd_fd, F_SETFD, 0);
				     execl("/bin/sleep", "sleep", "0.2", nullptr);
			     }));
}

TEST_CASE("kill -9 with an armed MR")
{
	shared_words words;
	const pid_t child = child_with_armed_mr(words, [](const device &) { pause(); });

	while (words.read(1) == 0 && waitpid(child, nullptr, WNOHANG) == 0)
		usleep(1000);
	REQUIRE(kill(child, SIGKILL) == 0);
	expect_invalid_after(words, child);
}

TEST_CASE("a child outlives its parent's armed MR")
{
	const device on;
	memory m = anonymous(length);
	auto mr = on.register_memory(m.registered());
	word w;
	const std::size_t before = pinned_bytes();

	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	const pid_t child = fork();
	if (child == 0) {
		usleep(200000);
		_exit(0);
	}
	mr.reset();
	CHECK(pinned_bytes() <= before - length);
	CHECK(w.value() == 0);
	REQUIRE(waitpid(child, nullptr, 0) == child);
}

/* If a signal interrupts a settle, the settle must not report uncompared pages as unchanged. */
TEST_CASE("another process in the same address space is killed while it settles")
{
	constexpr std::size_t large = std::size_t{16} << 20;
	const device on;
	watched it(on, anonymous(large));
	const range r = it.m.registered();
	alignas(16) std::array<std::byte, 65536> stack;

	const auto settle_always = [](void *its) -> int {
		for (;;)
			ibv_settle_mr_notify(static_cast<ibv_mr *>(its));
	};
	for (int i = 0; i < 50; i++) {
		const pid_t sharer = clone(settle_always, stack.data() + stack.size(),
					   CLONE_VM | SIGCHLD, it.mr.get());
		REQUIRE(sharer > 0);
		for (int j = 0; j < 10; j++) {
			REQUIRE(madvise(r.addr, large, MADV_FREE) == 0);
			if (j == i % 10)
				kill(sharer, SIGKILL);
		}
		REQUIRE(waitpid(sharer, nullptr, 0) == sharer);
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		REQUIRE(it.w.value() == 0);
	}
}

/*
 * The removal of a software device waits until its users have closed it. Until then everything
 * works, and closing ends the armed MRs.
 */
TEST_CASE("the device is removed with armed MRs")
{
	const bool iwarp = device().is_iwarp();
	const std::string make = "ip link add mrn-dummy type dummy && ip link set mrn-dummy up && "
				 "rdma link add mrn0 type " +
				 std::string(iwarp ? "siw" : "rxe") + " netdev mrn-dummy";
	SKIP_IF(std::system(make.c_str()), "can't make a device");
	memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	word words[8];
	/*
	 * The process starts before the device is opened, so it never holds the files that are
	 * closed below.
	 */
	FILE *const removal = popen("read now && exec rdma link del mrn0", "w");
	REQUIRE(removal);
	{
		const device on("mrn0");
		for (std::size_t i = 0; i < 8; i++) {
			ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr + i * page_size(),
						page_size(), 0);
			REQUIRE(mr);
			REQUIRE(ibv_reg_mr_notify(mr, words[i].address()) == 0);
		}
		std::fputs("now\n", removal);
		std::fflush(removal);
		usleep(300000);
		CHECK(munmap(m.registered().addr, page_size()) == 0);
		m.forget({m.registered().addr, page_size()});
		CHECK(words[0].value() == IBV_MR_NOTIFY_INVALID);
		if (removal_waits())
			CHECK(words[1].value() == 0);
		else
			CHECK(happens([&] { return words[1].value() == IBV_MR_NOTIFY_INVALID; }));
	}
	for (word &w : words)
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
	CHECK(pclose(removal) == 0);
	CHECK(wait_for_pinned(before) == before);
	CHECK(std::system("ip link del mrn-dummy") == 0);
}
