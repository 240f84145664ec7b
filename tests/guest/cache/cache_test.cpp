// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Cached registration on a real device: sharing, counting, and the ways in which a registration can
 * end.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "loopback.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;

namespace {

/*
 * With the idle time 0 only the tests make the kernel suspend registrations, even on a slow
 * machine. idle_test.cpp tests other idle times.
 */
[[maybe_unused]] const int without_idle_time = setenv("RDMAV_MR_CACHE_IDLE_MS", "0", 1);

constexpr int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
const std::size_t length = 16 * page_size();

/*
 * Registers by ibv_reg_mr_ex() if rdma-core has it. Some tests also register by ibv_reg_mr(),
 * because each verb finds registrations that the other verb made.
 */
owned<ibv_mr> cached(const device &on, range r)
{
#ifdef IBV_REG_MR_MASK_NOTIFY
	ibv_mr_init_attr attr{};

	attr.comp_mask = IBV_REG_MR_MASK_ADDR;
	attr.addr = r.addr;
	attr.length = r.length;
	attr.access = rights | IBV_ACCESS_CACHED;
	owned<ibv_mr> mr(ibv_reg_mr_ex(on.pd(), &attr));
	if (!mr)
		fail("ibv_reg_mr_ex");
	return mr;
#else
	return on.register_memory(r, rights | IBV_ACCESS_CACHED);
#endif
}

/* Without remote rights a registration serves any part of its range. */
owned<ibv_mr> cached_local(const device &on, range r)
{
	return on.register_memory(r, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_CACHED);
}

bool is_cached(const device &on, range r)
{
	return ibv_is_reg(on.pd(), r.addr, r.length, rights);
}

ibv_mr_cache_stats stats(const device &on)
{
	ibv_mr_cache_stats now{};

	REQUIRE(ibv_query_mr_cache(on.context(), &now) == 0);
	return now;
}

void set_entries(const device &on, uint64_t entries)
{
	ibv_mr_cache_limits limits{};

	REQUIRE(ibv_reg_mr_limits(on.context(), nullptr, &limits) == 0);
	limits.max_entries = entries;
	REQUIRE(ibv_reg_mr_limits(on.context(), &limits, nullptr) == 0);
}

/* Maps other pages at the same address. */
void replace(range r)
{
	REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
}

int status_of(pid_t child)
{
	int status = -1;

	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

TEST_CASE("cache: RDMA through a hit, a part and a registration in use")
{
	const device on;
	loopback link(on);
	const memory from = anonymous(length);
	const memory to = anonymous(length);
	const range part{from.registered().addr + 100, 1000};

	for (int round = 0; round < 3; round++) {
		const auto whole = cached_local(on, from.registered());
		const auto some = cached_local(on, part);
		const auto target = cached(on, to.registered());
		CHECK(some->addr == part.addr);
		CHECK(some->length == part.length);
		CHECK(some->lkey == whole->lkey);
		std::memset(part.addr, round + 1, part.length);
		CHECK(link.write(some.get(), part, to.registered().addr, target->rkey) ==
		      IBV_WC_SUCCESS);
		CHECK(std::memcmp(part.addr, to.registered().addr, part.length) == 0);
	}
	CHECK(stats(on).misses == 2);
	CHECK(stats(on).hits == 7);
}

TEST_CASE("cache: other pages at the same address arrive")
{
	const device on;
	loopback link(on);
	const memory from = anonymous(length);
	const memory to = anonymous(length);
	const range r = from.registered();
	const auto target = cached(on, to.registered());

	for (int round = 1; round <= 20; round++) {
		replace(r);
		CHECK_FALSE(is_cached(on, r));
		std::memset(r.addr, round, r.length);
		const auto mr = cached(on, r);
		REQUIRE(link.write(mr.get(), r, to.registered().addr, target->rkey) ==
			IBV_WC_SUCCESS);
		CHECK(std::memcmp(r.addr, to.registered().addr, r.length) == 0);
	}
	CHECK(stats(on).entries == 2);
}

#ifdef IBV_REG_MR_MASK_NOTIFY
TEST_CASE("cache: a buffer of ibv_alloc_buf is cached as other memory is")
{
	const device on;
	ibv_buf *buf = nullptr;
	void *const at = ibv_alloc_buf(on.pd(), length, &buf);
	const auto reg = [&](int access) {
		return owned<ibv_mr>(ibv_reg_buf_mr(on.pd(), buf, at, length, rights | access));
	};

	REQUIRE(at);
	const range r{static_cast<std::byte *>(at), length};
	const auto first = reg(IBV_ACCESS_CACHED);
	REQUIRE(first);
	CHECK(reg(IBV_ACCESS_CACHED)->rkey == first->rkey);
	CHECK(cached(on, r)->rkey == first->rkey);
	CHECK(reg(0)->rkey != first->rkey);
	CHECK(stats(on).hits == 2);
	replace(r);
	CHECK_FALSE(is_cached(on, r));
	ibv_free_buf(buf);
}
#endif

/*
 * The part itself did not change, so its cached registration must work like a plain registration.
 */
TEST_CASE("cache: a part keeps working when the rest of its entry is unmapped")
{
	const device on;
	loopback link(on);
	memory from = anonymous(length);
	const memory to = anonymous(length);
	const range whole = from.registered();
	const range part{whole.addr, 2 * page_size()};
	const range rest{whole.addr + length / 2, length / 2};
	const auto target = on.register_memory(to.registered());

	cached_local(on, whole).reset();
	const auto mr = cached_local(on, part);
	from.forget(rest);
	REQUIRE(munmap(rest.addr, rest.length) == 0);
	std::memset(part.addr, 7, part.length);
	REQUIRE(link.write(mr.get(), part, to.registered().addr, target->rkey) == IBV_WC_SUCCESS);
	CHECK(std::memcmp(part.addr, to.registered().addr, part.length) == 0);
}

TEST_CASE("cache: windows that slide pin at most twice what they cover")
{
	const device on;
	loopback link(on);
	const std::size_t wide = 16, windows = 400, covered = (windows + wide - 1) * page_size();
	const memory from = anonymous(covered);
	const memory to = anonymous(wide * page_size());
	const auto target = on.register_memory(to.registered());
	const std::size_t before = pinned_bytes();
	const auto slide = [&](unsigned int salt) {
		for (std::size_t n = 0; n < windows; n++) {
			const range r{from.registered().addr + n * page_size(), wide * page_size()};
			const auto mr = cached_local(on, r);

			REQUIRE(mr->addr == r.addr);
			REQUIRE(mr->length == r.length);
			std::memset(r.addr, static_cast<int>(n + salt), r.length);
			REQUIRE(link.write(mr.get(), r, to.registered().addr, target->rkey) ==
				IBV_WC_SUCCESS);
			REQUIRE(std::memcmp(r.addr, to.registered().addr, r.length) == 0);
		}
	};

	slide(1);
	CHECK(stats(on).misses == windows);
	/* plus the page of the words */
	CHECK(pinned_bytes() <= before + 2 * covered + page_size());
	slide(2);
	CHECK(stats(on).misses == windows);
	CHECK(stats(on).hits == windows);
	REQUIRE(ibv_reg_mr_clean(on.context(), 0) == 0);
	CHECK(pinned_bytes() <= before + page_size());
}

/*
 * Plain registrations are the oracle. A thread owns the pages of its window. A registration may
 * also contain adjacent pages of another thread.
 */
TEST_CASE("cache: windows slide while others unmap the memory next to them")
{
	const int flag = GENERATE(0, static_cast<int>(IBV_ACCESS_CACHED));
	constexpr std::size_t pages = 128, wide = 8;
	constexpr int sliders = 2;
	const device on;
	const memory from = anonymous(pages * page_size());
	std::vector<std::mutex> own(pages);
	std::atomic<int> wrong = 0, replaced = 0, sent = 0;
	const run_time time;
	const auto goes_on = [&] { return time.goes_on(sent > 2000 && replaced > 100); };
	const auto with_pages = [&](std::size_t first, std::size_t count, const auto &act) {
		std::vector<std::unique_lock<std::mutex>> held;

		for (std::size_t page = first; page < first + count; page++)
			held.emplace_back(own[page]);
		act(range{from.registered().addr + first * page_size(), count * page_size()});
	};
	const auto slider = [&](std::size_t at) {
		const memory to = anonymous(wide * page_size());
		const auto target = on.register_memory(to.registered());
		loopback link(on);

		for (std::size_t n = at; goes_on(); n++)
			with_pages(n % (pages - wide + 1), wide, [&](range r) {
				const auto mr =
					on.register_memory(r, IBV_ACCESS_LOCAL_WRITE | flag);

				std::memset(r.addr, static_cast<int>(n), r.length);
				wrong += link.write(mr.get(), r, to.registered().addr,
						    target->rkey) != IBV_WC_SUCCESS ||
					 std::memcmp(r.addr, to.registered().addr, r.length) != 0;
				sent++;
			});
	};
	std::vector<std::thread> crowd;

	for (std::size_t i = 0; i < sliders; i++)
		crowd.emplace_back([&, i] { slider(i * pages / sliders); });
	crowd.emplace_back([&] {
		std::minstd_rand random(1);

		while (goes_on()) {
			with_pages(random() % (pages - 2), 1 + random() % 2, [&](range r) {
				wrong += mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
					      0) != r.addr;
				replaced++;
			});
			std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8));
		}
	});
	for (std::thread &one : crowd)
		one.join();
	CHECK(wrong == 0);
	if (flag) {
		CHECK(stats(on).hits > 0);
		CHECK(stats(on).bytes < 4 * pages * page_size());
	}
}

TEST_CASE("cache: nothing is cached unasked")
{
	SKIP_IF(std::getenv("RDMAV_MR_CACHE"), "RDMAV_MR_CACHE is set");
	const device on;
	const memory m = anonymous(length);

	on.register_memory(m.registered());
	CHECK(stats(on).misses == 0);
	CHECK_FALSE(is_cached(on, m.registered()));
}

TEST_CASE("cache: a second dereg and rereg are EINVAL")
{
	SKIP_IF(std::getenv("RDMAV_MR_CACHE"), "RDMAV_MR_CACHE is set");
	const device on;
	const memory m = anonymous(length);
	ibv_mr *mr = cached(on, m.registered()).release();

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(errno == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dereg_mr(mr) == EINVAL);

	const auto whole = cached_local(on, m.registered());
	ibv_mr *part = cached_local(on, {m.registered().addr + 1, 1}).release();

	CHECK(part->lkey == whole->lkey);
	CHECK(ibv_dereg_mr(part) == 0);
	CHECK(ibv_dereg_mr(part) == EINVAL);
	CHECK(cached(on, m.registered()).get() == mr);
	CHECK(is_cached(on, m.registered()));
}

TEST_CASE("cache: a child starts empty and its parent's registrations survive it")
{
	const device on;
	loopback link(on);
	const memory from = anonymous(length);
	const memory to = anonymous(length);
	const range r = from.registered();
	const range inner{r.addr + page_size(), page_size()};
	const auto target = on.register_memory(to.registered());
	auto mr = cached(on, r);
	auto part = cached(on, inner);
	const uint32_t key = mr->lkey;

	const pid_t child = fork();
	if (child == 0) {
		std::memset(r.addr, 7, r.length);
		if (is_cached(on, r))
			_exit(1);
		if (ibv_dereg_mr(mr.get()) || ibv_dereg_mr(part.get()))
			_exit(2);
		if (stats(on).entries)
			_exit(3);
		_exit(0);
	}
	CHECK(status_of(child) == 0);

	std::memset(r.addr, 1, r.length);
	CHECK(link.write(part.get(), inner, to.registered().addr, target->rkey) == IBV_WC_SUCCESS);
	CHECK(std::memcmp(inner.addr, to.registered().addr, inner.length) == 0);
	part.reset();
	mr.reset();
	CHECK(is_cached(on, r));
	CHECK(cached(on, r)->lkey == key);
}

TEST_CASE("cache: a child has a cache of its own")
{
	const memory m = anonymous(length);
	const device parents;
	const auto mr = cached(parents, m.registered());

	const pid_t child = fork();
	if (child == 0) {
		const device on;
		const uint32_t key = cached(on, m.registered())->lkey;
		const bool same = cached(on, m.registered())->lkey == key;
		_exit(!same || stats(on).hits != 1 || stats(on).misses != 1);
	}
	CHECK(status_of(child) == 0);
	CHECK(is_cached(parents, m.registered()));
}

TEST_CASE("cache: a child that exits leaves nothing idle in its parent's PD")
{
	const memory m = anonymous(length);
	const device on;
	owned<ibv_pd> pd(ibv_alloc_pd(on.context()));
	REQUIRE(pd);

	std::fflush(nullptr);
	const pid_t child = fork();
	if (child == 0) {
		owned<ibv_mr>(ibv_reg_mr(pd.get(), m.registered().addr, length,
					 rights | IBV_ACCESS_CACHED))
			.reset();
		std::exit(!ibv_is_reg(pd.get(), m.registered().addr, length, rights));
	}
	CHECK(status_of(child) == 0);
	CHECK(ibv_dealloc_pd(pd.get()) == 0);
	pd.release();
}

TEST_CASE("cache: a PD and a context end with their idle registrations")
{
	const memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	{
		const device on;
		owned<ibv_pd> pd(ibv_alloc_pd(on.context()));
		REQUIRE(pd);
		owned<ibv_mr>(ibv_reg_mr(pd.get(), m.registered().addr, length,
					 rights | IBV_ACCESS_CACHED))
			.reset();
		CHECK(ibv_is_reg(pd.get(), m.registered().addr, length, rights));
		CHECK(ibv_dealloc_pd(pd.release()) == 0);
		CHECK(stats(on).entries == 0);

		cached(on, m.registered()).reset();
		CHECK(stats(on).entries == 1);
	}
	CHECK(happens([&] { return pinned_bytes() <= before; }));
}

TEST_CASE("cache: a PD in use stays, and can be freed after its last user")
{
	const memory m = anonymous(length);
	const device on;
	ibv_pd *pd = ibv_alloc_pd(on.context());

	REQUIRE(pd);
	owned<ibv_mr> mr(ibv_reg_mr(pd, m.registered().addr, length, rights | IBV_ACCESS_CACHED));
	REQUIRE(mr);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	mr.reset();
	CHECK(ibv_dealloc_pd(pd) == 0);
}

TEST_CASE("cache: contexts have separate registrations")
{
	const memory m = anonymous(length);
	const device one, other;

	set_entries(one, 1);
	cached(one, m.registered()).reset();
	CHECK_FALSE(is_cached(other, m.registered()));
	CHECK(stats(other).misses == 0);
	ibv_mr_cache_limits limits{};
	REQUIRE(ibv_reg_mr_limits(other.context(), nullptr, &limits) == 0);
	CHECK(limits.max_entries > 1);
}

TEST_CASE("cache: limits hold while registrations come and go")
{
	const device on;
	std::vector<memory> memories;

	set_entries(on, 10);
	for (int i = 0; i < 50; i++) {
		memories.push_back(anonymous(length));
		cached(on, memories.back().registered()).reset();
		CHECK(stats(on).entries <= 10);
	}
	CHECK(stats(on).entries == 10);
	CHECK(stats(on).evictions == 40);
	for (int i = 40; i < 50; i++)
		CHECK(is_cached(on, memories[i].registered()));
}

TEST_CASE("cache: while all cached registrations are in use, a new registration is uncached")
{
	const device on;
	const memory a = anonymous(length);
	const memory b = anonymous(length);

	set_entries(on, 1);
	const auto first = cached(on, a.registered());
	const auto second = cached(on, b.registered());
	CHECK(second->lkey != first->lkey);
	CHECK(stats(on).entries == 1);
	CHECK_FALSE(is_cached(on, b.registered()));
}

TEST_CASE("cache: idle registrations make room for a registration that RLIMIT_MEMLOCK refuses")
{
	const pid_t child = fork();

	if (child == 0) {
		const device on;
		const std::size_t pages = 256;
		const rlimit limit{pages * page_size(), pages * page_size()};
		ibv_mr_cache_limits wide{};
		bool ok = true;

		if (ibv_reg_mr_limits(on.context(), nullptr, &wide))
			_exit(1);
		wide.max_bytes = uint64_t{1} << 40;
		if (ibv_reg_mr_limits(on.context(), &wide, nullptr) ||
		    setrlimit(RLIMIT_MEMLOCK, &limit) || setresuid(65534, 65534, 65534))
			_exit(2);
		/* Registers four times the limit, one buffer after the other. */
		std::vector<memory> memories;
		for (std::size_t i = 0; i < 4 * pages / 16; i++) {
			memories.push_back(anonymous(length));
			const range r = memories.back().registered();
			ibv_mr *mr =
				ibv_reg_mr(on.pd(), r.addr, r.length, rights | IBV_ACCESS_CACHED);
			ok = ok && mr && ibv_dereg_mr(mr) == 0;
		}
		if (!ok)
			_exit(3);
		if (!stats(on).evictions)
			_exit(4);
		/* A plain registration takes nearly all of the limit. */
		const memory big = anonymous((pages - 32) * page_size());
		ibv_mr *mr =
			ibv_reg_mr(on.pd(), big.registered().addr, big.registered().length, rights);
		if (!mr)
			_exit(5);
		/*
		 * No registration is idle any more, so the verb fails as it does without a cache.
		 */
		const memory more = anonymous(64 * page_size());
		if (ibv_reg_mr(on.pd(), more.registered().addr, more.registered().length,
			       rights | IBV_ACCESS_CACHED) ||
		    errno != ENOMEM)
			_exit(6);
		_exit(ibv_dereg_mr(mr) ? 7 : 0);
	}
	CHECK(status_of(child) == 0);
}

TEST_CASE("cache: threads that miss the same range register it once")
{
	const device on;
	constexpr int threads = 8, rounds = 50;
	int once = 0;

	for (int round = 0; round < rounds; round++) {
		const memory m = anonymous(length);
		const uint64_t before = stats(on).misses;
		std::atomic<int> waiting = threads;
		std::atomic<uint32_t> keys[threads]{};
		std::vector<std::thread> crowd;

		for (int i = 0; i < threads; i++)
			crowd.emplace_back([&, i] {
				waiting--;
				while (waiting)
					std::this_thread::yield();
				keys[i] = cached(on, m.registered())->lkey;
			});
		for (std::thread &one : crowd)
			one.join();
		/* A thread does not wait long for another thread's registration. */
		if (stats(on).misses != before + 1)
			continue;
		once++;
		for (int i = 1; i < threads; i++)
			CHECK(keys[i] == keys[0]);
	}
	CHECK(once > rounds / 2);
}

TEST_CASE("cache: a part stays its user's, whichever thread deregisters it")
{
	const device on;
	const memory m = anonymous(length);
	const auto whole = cached_local(on, m.registered());
	constexpr std::size_t parts = 50; // more than the number of views that a thread keeps
	constexpr int threads = 3;
	std::atomic<int> wrong = 0;
	std::vector<std::thread> crowd;
	/* References that one thread took and the next thread releases. */
	std::vector<ibv_mr *> left[threads];
	std::mutex door[threads];

	const auto part_of = [&](std::size_t i) {
		return range{m.registered().addr + 1 + i * 100, 10 + i};
	};
	const auto end = [&](const std::vector<ibv_mr *> &those) {
		for (std::size_t i = 0; i < those.size(); i++)
			wrong += those[i]->addr != part_of(i).addr ||
				 those[i]->length != part_of(i).length ||
				 those[i]->lkey != whole->lkey || those[i]->pd != on.pd() ||
				 those[i]->context != on.context() || ibv_dereg_mr(those[i]) != 0;
	};

	for (int t = 0; t < threads; t++)
		crowd.emplace_back([&, t] {
			for (int round = 0; round < 200; round++) {
				std::vector<ibv_mr *> mine;

				for (std::size_t i = 0; i < parts; i++)
					mine.push_back(cached_local(on, part_of(i)).release());
				for (const int at : {t, (t + 1) % threads}) {
					const std::lock_guard lock(door[at]);

					std::swap(mine, left[at]);
				}
				end(mine);
			}
		});
	for (std::thread &one : crowd)
		one.join();
	for (const auto &those : left)
		end(those);
	CHECK(wrong == 0);
	CHECK(stats(on).entries == 1);
}

TEST_CASE("cache: a registration outlives the thread that made it")
{
	const device on;
	const memory m = anonymous(length);
	ibv_mr *mr = nullptr;

	std::thread([&] { mr = cached(on, m.registered()).release(); }).join();
	REQUIRE(mr);
	CHECK(cached(on, m.registered())->lkey == mr->lkey);
	std::thread([&] { CHECK(ibv_dereg_mr(mr) == 0); }).join();
	CHECK(is_cached(on, m.registered()));
	CHECK(stats(on).entries == 1);
}

TEST_CASE("cache: invalid ones give their pages back without being asked", "[revoke]")
{
	const device on;
	const std::size_t before = pinned_bytes();
	memory m = anonymous(length);
	const range r = m.registered();

	cached(on, r).reset();
	CHECK(pinned_bytes() >= before + length);
	m.forget(r);
	REQUIRE(munmap(r.addr, r.length) == 0);
	/* the page of the entry's word stays pinned */
	CHECK(happens([&] { return pinned_bytes() <= before + page_size(); }));
}

namespace {

/*
 * The child sends SIGSTOP to itself twice. Returns how often it enters or leaves the kernel from
 * the first stop to the second.
 */
int steps_to_next_stop(pid_t child)
{
	int status = 0;

	for (int steps = 0;; steps++) {
		REQUIRE(ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
		REQUIRE(waitpid(child, &status, 0) == child);
		REQUIRE(WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGSTOP)
			return steps;
	}
}

} // namespace

TEST_CASE("cache: a miss is one system call, a hit none")
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		const device on;
		const memory m = anonymous(2 * length);
		const range first{m.registered().addr, length};
		const range second{first.end(), length};

		cached(on, first).reset();
		ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
		std::raise(SIGSTOP);
		std::raise(SIGSTOP);
		owned<ibv_mr> mr = cached(on, second);
		std::raise(SIGSTOP);
		mr.reset();
		mr = cached(on, first);
		std::raise(SIGSTOP);
		_exit(0);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(WIFSTOPPED(status));
	const int nothing = steps_to_next_stop(child);
	CHECK(steps_to_next_stop(child) == nothing + 2);
	CHECK(steps_to_next_stop(child) == nothing);
	kill(child, SIGKILL);
	REQUIRE(waitpid(child, &status, 0) == child);
}

/* The next case runs these hidden cases as programs. */
TEST_CASE("cache: closes the device", "[.]")
{
	const memory m = anonymous(length);
	const device on;

	cached(on, m.registered()).reset();
	cached(on, m.registered()).reset();
}

TEST_CASE("cache: exits with the device open", "[.]")
{
	const auto on = std::make_unique<device>().release();
	const memory m = anonymous(length);

	cached(*on, m.registered()).reset();
	cached(*on, m.registered()).reset();
}

TEST_CASE("cache: RDMAV_MR_CACHE_STATS=1 tells the statistics")
{
	const auto said_by = [](const std::string &environment, const std::string &test) {
		char self[4096] = {};
		REQUIRE(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
		const std::string command =
			environment + " '" + self + "' '" + test + "' 2>&1 >/dev/null";
		const std::unique_ptr<FILE, int (*)(FILE *)> out(popen(command.c_str(), "r"),
								 pclose);
		REQUIRE(out);
		std::string text;
		for (int c; (c = std::fgetc(out.get())) != EOF;)
			text += static_cast<char>(c);
		return text;
	};

	for (const char *test : {"cache: closes the device", "cache: exits with the device open"}) {
		const std::string said = said_by("RDMAV_MR_CACHE_STATS=1", test);
		INFO(test << ": " << said);
		CHECK(said.starts_with("libibverbs: process "));
		CHECK(said.find(": 1 hits, 1 misses, 0 suspects, 0 invalidations, 0 evictions, "
				"0 suspensions, 0 restorations, ") != std::string::npos);
		CHECK(std::count(said.begin(), said.end(), '\n') == 1);
		CHECK(said_by("", test).empty());
	}
}
