// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * How registrations, PDs and contexts end while other threads work. A deregistration fails, a flush
 * meets a deregistration, a registration begins inside another registration, or a thread is
 * cancelled.
 *
 * This test fails with each of these mistakes:
 *   A flush does not wait for a deregistration or registration in progress.
 *   A flush ignores a failed attempt to take a reference, or waits long for a used entry.
 *   An entry whose deregistration failed is opened again, or an eviction tries it again.
 *   A flush keeps an entry whose deregistration failed, or uses its context or word afterwards.
 *   The record of an owner or PD lives as long as the used part of a closed context.
 *   A thread waits for its own registration, or two threads wait for each other.
 *   Deregistrations by other threads do not count as room.
 *   A registration is repeated for as long as other threads have idle entries.
 *   A thread is cancelled while it waits with the mutex, or inside the registrar.
 *   A registration waits without limit for another registration, or for memory that other threads
 *   release.
 */
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000;
constexpr uint32_t LOCAL = MR_CACHE_LOCAL_WRITE;

void *name(uintptr_t n)
{
	return reinterpret_cast<void *>(n * 64);
}

/* The registrar first runs `before`, as a hook, a signal or a slow device would. */
struct hooked_env : fake_env {
	/*
	 * Counts the threads that begin to wait for other threads. A thread counts itself before it
	 * releases the mutex.
	 */
	struct condition : fake_env::condition {
		static inline std::atomic<unsigned int> waits = 0;

		uint32_t ticket()
		{
			waits++;
			return fake_env::condition::ticket();
		}

		static inline std::function<void(uint64_t)> before_wait;
		static inline std::function<void()> after_deadline;

		bool wait(uint32_t seen, uint64_t deadline)
		{
			if (before_wait)
				before_wait(deadline);

			const bool in_time = fake_env::condition::wait(seen, deadline);

			if (!in_time && after_deadline)
				after_deadline();
			return in_time;
		}
	};

	/* If true, the thread waits for the other threads as long as necessary. */
	static inline bool patient = true;
	static uint64_t deadline() { return fake_env::deadline() + (patient ? 60 * SECOND : 0); }

	static inline std::atomic<unsigned int> yields = 0;

	static inline std::function<void(unsigned int)> on_yield;

	static void yield()
	{
		yields++;
		if (on_yield)
			on_yield(yields);
		fake_env::yield();
	}

	std::function<void(const mr_cache_request &)> before_reg;
	std::function<int(const fake_kernel::mr &)> before_dereg;
	std::function<void()> before_settle;

	int reg(const mr_cache_request *what, uint64_t *word, void **out)
	{
		return with_room(*what, [&] {
			if (before_reg)
				before_reg(*what);
			return reg_once(*what, word, out);
		});
	}
	int settle(void *m)
	{
		if (before_settle)
			before_settle();
		return fake_env::settle(m);
	}
	int dereg(void *m)
	{
		int error = before_dereg ? before_dereg(*static_cast<fake_kernel::mr *>(m)) : 0;

		return error ? error : fake_env::dereg(m);
	}
};

/* Two contexts, each with a PD. */
struct fixture {
	fake_kernel kernel;
	mr_cache::cache<hooked_env> cache;
	void *const pd = name(1), *const owner = name(2);
	void *const pd2 = name(3), *const owner2 = name(4);

	fixture()
	{
		cache.env.kernel = &kernel;
		cache.env.shrink = [this](uint32_t stage) { return cache.shrink(stage, true); };
		hooked_env::condition::waits = 0;
		hooked_env::patient = true;
		hooked_env::yields = 0;
		REQUIRE(cache.start() == 0);
	}
	~fixture()
	{
		cache.env.before_reg = nullptr;
		cache.env.before_dereg = nullptr;
		cache.env.before_settle = nullptr;
		hooked_env::on_yield = nullptr;
		hooked_env::condition::before_wait = nullptr;
		hooked_env::condition::after_deadline = nullptr;
		CHECK(cache.drain(owner, nullptr) == 0);
		CHECK(cache.drain(owner2, nullptr) == 0);
		CHECK(kernel.complaint == "");
	}

	int get(mr_cache_ref *ref, uint64_t page, uint64_t pages = 1)
	{
		return acquire(cache, pd, owner, BASE + page * PAGE, pages * PAGE, LOCAL, ref);
	}
	int get2(mr_cache_ref *ref, uint64_t page)
	{
		return acquire(cache, pd2, owner2, BASE + page * PAGE, PAGE, LOCAL, ref);
	}
	int put(const mr_cache_ref &ref) { return cache.release(ref.index, ref.generation); }
	void use(uint64_t page, uint64_t pages = 1)
	{
		mr_cache_ref ref;

		REQUIRE(get(&ref, page, pages) == 0);
		REQUIRE(put(ref) == 0);
	}
	/* The device of the first context is gone. */
	void unplug()
	{
		cache.env.before_dereg = [this](const fake_kernel::mr &m) {
			return m.what.owner == owner ? EIO : 0;
		};
	}
	void fail_next(int error, int times = 1)
	{
		kernel.fail_reg = error;
		kernel.fail_times = times;
	}
};

/* A gate that stops a thread of the test. */
struct gate {
	std::atomic<bool> reached{false}, open{false};

	void pass()
	{
		reached = true;
		while (!open)
			std::this_thread::yield();
	}
	void wait()
	{
		while (!reached)
			std::this_thread::yield();
	}
};

/* Returns whether the thread waits for another thread. */
bool waits(const std::atomic<bool> &done)
{
	while (!hooked_env::condition::waits && !done)
		std::this_thread::yield();
	return !done;
}

} // namespace

TEST_CASE_METHOD(fixture, "one that cannot be deregistered is not tried again to make room")
{
	ibv_mr_cache_limits little = {4 * PAGE, 4}, old;
	unsigned int tried = 0;
	mr_cache_ref ref;

	for (uint64_t n = 0; n < 8; n++)
		use(2 * n);
	unplug();
	auto count = cache.env.before_dereg;
	cache.env.before_dereg = [&](const fake_kernel::mr &m) {
		tried++;
		return count(m);
	};

	/* Each attempt tries each deregistration at most once, ends, and returns the error. */
	CHECK(cache.limits(owner, &little, &old) == 0);
	CHECK(get(&ref, 100) == EOPNOTSUPP);
	CHECK(cache.limits(owner, &old, nullptr) == 0);
	fail_next(ENOMEM, 100);
	CHECK(get2(&ref, 100) == ENOMEM);
	kernel.fail_times = 0;
	CHECK(cache.shrink(1) == 0);
	CHECK(cache.shrink(1) == 0);
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(tried == 8);
	for (uint64_t n = 0; n < 8; n++)
		CHECK(!cache.covers(pd, BASE + 2 * n * PAGE, PAGE, LOCAL));

	/*
	 * Draining the PD or the context tries each deregistration again. Then the kernel ends the
	 * registrations together with the context.
	 */
	CHECK(cache.drain(nullptr, pd) == EIO);
	CHECK(tried == 16);
	CHECK(cache.drain(owner, nullptr) == EIO);
	CHECK(tried == 24);
	CHECK(cache.shrink(1) == 0);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(cache.drain(owner, nullptr) == 0);
	CHECK(tried == 24);
}

TEST_CASE_METHOD(fixture, "one that cannot be deregistered takes no room for ever")
{
	for (uintptr_t n = 0; n < 200; n++) {
		mr_cache_ref ref;

		cache.env.before_dereg = nullptr;
		REQUIRE(get(&ref, 0) == 0);
		REQUIRE(put(ref) == 0);
		unplug();
		REQUIRE(cache.drain(owner, nullptr) == EIO);
		kernel.close(owner);
	}
}

TEST_CASE_METHOD(fixture, "cleaning returns the error of a deregistration")
{
	use(0);
	unplug();
	CHECK(cache.clean(owner, 0) == EIO);
}

TEST_CASE_METHOD(fixture, "a reference of a context that was closed may be given back")
{
	mr_cache_ref ref;

	REQUIRE(get(&ref, 0) == 0);
	CHECK(cache.drain(owner, nullptr) == 0);
	CHECK(kernel.live.size() == 1);
	cache.env.before_dereg = [](const fake_kernel::mr &) -> int {
		FAIL("the context is gone");
		return 0;
	};
	CHECK(put(ref) == 0);
	CHECK(put(ref) != 0);
}

TEST_CASE_METHOD(fixture, "a word that the kernel has beyond its context is not used again")
{
	const bool in_use = GENERATE(false, true);
	mr_cache_ref ref;

	/* Closing the context's file ends no registration, because another process has it open. */
	REQUIRE(get(&ref, 0) == 0);
	if (!in_use) {
		unplug();
		REQUIRE(put(ref) == 0);
		REQUIRE(cache.clean(owner, 0) == EIO);
	}
	CHECK(cache.drain(owner, nullptr) == (in_use ? 0 : EIO));
	if (in_use)
		CHECK(put(ref) == 0);
	CHECK(kernel.live.size() == 1);
	for (uint64_t page = 1; page < 40; page++) {
		REQUIRE(get2(&ref, page) == 0);
		CHECK(put(ref) == 0);
	}
	CHECK(kernel.live.size() == 40);
}

TEST_CASE_METHOD(fixture, "a flush waits for a moment, for a thread with a reference in vain")
{
	constexpr unsigned int few = 64;
	mr_cache_ref ref;

	REQUIRE(get(&ref, 0) == 0);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(hooked_env::yields <= few);
	hooked_env::yields = 0;
	hooked_env::on_yield = [&](unsigned int times) {
		if (times == 3)
			CHECK(put(ref) == 0);
	};
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "the end of a context does not wait for users of its registrations")
{
	constexpr unsigned int few = 64;
	mr_cache_ref ref;

	REQUIRE(get(&ref, 0) == 0);
	CHECK(cache.drain(owner, nullptr) == 0);
	CHECK(hooked_env::yields <= few);
	CHECK(put(ref) == 0);
}

TEST_CASE_METHOD(fixture, "contexts that are closed with something in use leave no record")
{
	constexpr uintptr_t contexts = 20; // more than the limits of owners and PDs
	mr_cache_ref refs[contexts];

	/* After each round all registrations have ended, and the cache is in its former state. */
	for (int times = 0; times < 8; times++) {
		for (uintptr_t n = 0; n < contexts; n++) {
			void *context = name(100 + 2 * n), *its_pd = name(101 + 2 * n);

			REQUIRE(cache.limits(context, nullptr, nullptr) == 0);
			REQUIRE(acquire(cache, its_pd, context, BASE, PAGE, LOCAL, &refs[n]) == 0);
			REQUIRE(cache.drain(context, nullptr) == 0);
			kernel.close(context);
		}
		use(0);
		for (auto &old : refs) {
			CHECK(put(old) == 0);
			CHECK(put(old) == EINVAL);
		}
		use(0);
	}
	CHECK(kernel.live.size() == 1);
}

TEST_CASE_METHOD(fixture, "a flush waits for a deregistration for another context")
{
	gate in_dereg;
	std::atomic<bool> flushed{false};
	mr_cache_ref ref;

	use(0);
	cache.env.before_dereg = [&](const fake_kernel::mr &m) {
		if (m.what.owner == owner)
			in_dereg.pass();
		return 0;
	};
	fail_next(ENOMEM);

	std::thread evicts([&] { CHECK(get2(&ref, 7) == 0); });

	in_dereg.wait();

	auto flush = GENERATE(0, 1);
	std::thread closes([&] {
		CHECK((flush ? cache.drain(owner, nullptr) : cache.drain(nullptr, pd)) == 0);
		flushed = true;
		CHECK(kernel.live.size() <= 1);
	});

	CHECK(waits(flushed));
	in_dereg.open = true;
	closes.join();
	evicts.join();
	CHECK(put(ref) == 0);
}

TEST_CASE_METHOD(fixture, "a flush waits for a thread that registers")
{
	gate in_reg;
	std::atomic<bool> flushed{false};
	mr_cache_ref ref;

	cache.env.before_reg = [&](const mr_cache_request &) { in_reg.pass(); };

	std::thread registers([&] {
		CHECK(get(&ref, 7) == 0);
		CHECK(put(ref) == 0);
	});

	in_reg.wait();

	std::thread closes([&] {
		CHECK(cache.drain(nullptr, pd) == 0);
		flushed = true;
	});

	CHECK(waits(flushed));
	in_reg.open = true;
	closes.join();
	registers.join();
}

TEST_CASE_METHOD(fixture, "memory that others are giving back is room")
{
	gate in_dereg;
	std::atomic<bool> done{false};
	mr_cache_ref ref;

	use(0);
	kernel.most_bytes = PAGE;
	cache.env.before_dereg = [&](const fake_kernel::mr &) {
		in_dereg.pass();
		return 0;
	};

	std::thread cleans([&] { CHECK(cache.clean(owner, 0) == 0); });

	in_dereg.wait();

	auto plain = GENERATE(0, 1);
	std::thread registers([&] {
		CHECK((plain ? cache.shrink(1) == 1 : get2(&ref, 7) == 0));
		done = true;
	});

	CHECK(waits(done));
	in_dereg.open = true;
	registers.join();
	cleans.join();
	kernel.most_bytes = UINT64_MAX;
	if (!plain)
		CHECK(put(ref) == 0);
}

TEST_CASE_METHOD(fixture, "there is an end though others take the room each time")
{
	constexpr unsigned int many = 1000;
	unsigned int tried = 0;
	mr_cache_ref ref;

	cache.env.before_reg = [&](const mr_cache_request &what) {
		mr_cache_ref another;

		if (what.owner != owner)
			return;
		/*
		 * Adds an idle entry and refuses the registration again, so the cache evicts again.
		 */
		CHECK(get2(&another, 7) == 0);
		CHECK(put(another) == 0);
		if (++tried < many)
			fail_next(ENOMEM);
	};
	CHECK(get(&ref, 0) == ENOMEM);
	CHECK(tried > 2);
	CHECK(tried < many);
}

TEST_CASE_METHOD(fixture, "a registration in the middle of a registration does not wait")
{
	/* The inner range is equal to the outer range, within it, or separate. */
	for (auto [page, pages] : {std::pair<uint64_t, uint64_t>{0, 4}, {1, 1}, {8, 2}}) {
		mr_cache_ref outer, inner;
		int depth = 0;

		cache.env.before_reg = [&, at = page, size = pages](const mr_cache_request &) {
			if (depth++)
				return;
			CHECK(get(&inner, at, size) == 0);
			CHECK(cache.shrink(1) == 0);
		};
		CHECK(get(&outer, 0, 4) == 0);
		CHECK(outer.mr != inner.mr);
		CHECK(mr_of(outer).live);
		CHECK(mr_of(inner).live);
		CHECK(mr_of(outer).word != mr_of(inner).word);
		CHECK(put(inner) == 0);
		CHECK(put(outer) == 0);
		cache.env.before_reg = nullptr;
		CHECK(cache.drain(nullptr, pd) == 0);
		CHECK(kernel.live.empty());
	}
}

TEST_CASE_METHOD(fixture, "a registration in the middle of a deregistration does not wait")
{
	mr_cache_ref ref;
	int depth = 0;

	use(0);
	kernel.most_bytes = PAGE;
	cache.env.before_dereg = [&](const fake_kernel::mr &) {
		/* This deregistration has not released its memory yet. */
		if (!depth++)
			CHECK(get(&ref, 8) == ENOMEM);
		return 0;
	};
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(depth == 1);
	kernel.most_bytes = UINT64_MAX;
}

TEST_CASE_METHOD(fixture,
		 "two whose hooks want the other one's registration do not wait in a circle")
{
	gate first, second;

	cache.env.before_reg = [&](const mr_cache_request &what) {
		static thread_local int depth;
		const bool is_first = what.addr == BASE;
		mr_cache_ref inner;

		if (depth++) {
			depth--;
			return;
		}
		(is_first ? first : second).pass();
		CHECK(get(&inner, is_first ? 8 : 0) == 0);
		CHECK(put(inner) == 0);
		depth--;
	};

	std::thread one([&] { use(0); });
	std::thread two([&] { use(8); });

	first.wait();
	second.wait();
	first.open = second.open = true;
	one.join();
	two.join();
}

TEST_CASE_METHOD(fixture, "a request waits for the union that will serve it")
{
	constexpr uint64_t WIDE = 16, IDLE = 7;
	std::atomic<bool> done{false};
	mr_cache_ref held[IDLE];
	gate in_reg;

	for (uint64_t n = 0; n < IDLE; n++)
		REQUIRE(get(&held[n], n, WIDE) == 0);
	for (const mr_cache_ref &ref : held)
		REQUIRE(put(ref) == 0);
	cache.env.before_reg = [&](const mr_cache_request &what) {
		if (what.size == (WIDE + IDLE) * PAGE)
			in_reg.pass();
	};

	std::thread registers([&] { use(IDLE, WIDE); });

	in_reg.wait();

	/* This request waits only for the union, not for a window of it. */
	std::thread asks([&] {
		use(2, WIDE + 4);
		done = true;
	});

	CHECK(waits(done));
	in_reg.open = true;
	registers.join();
	asks.join();
	CHECK(kernel.reg_calls == IDLE + 1);
}

TEST_CASE_METHOD(fixture, "no thread waits for long for a registration that may wait for it")
{
	gate in_reg;
	mr_cache_ref part, whole;

	hooked_env::patient = false;
	cache.env.before_reg = [&](const mr_cache_request &what) {
		if (what.size == 4 * PAGE)
			in_reg.pass();
	};

	std::thread registers([&] { CHECK(get(&whole, 0, 4) == 0); });

	in_reg.wait();
	CHECK(get(&part, 1) == 0);
	CHECK(hooked_env::condition::waits > 0);
	CHECK(kernel.live.size() == 1);
	in_reg.open = true;
	registers.join();
	CHECK(part.mr != whole.mr);
	CHECK(put(part) == 0);
	CHECK(put(whole) == 0);
	/* The larger registration is found. */
	CHECK(kernel.live.size() == 1);
	use(1);
	CHECK(kernel.reg_calls == 2);
}

TEST_CASE_METHOD(fixture, "a long registration is waited for once, by all that it would serve")
{
	gate in_reg;
	mr_cache_ref part[4], whole;

	hooked_env::patient = false;
	cache.env.before_reg = [&](const mr_cache_request &what) {
		if (what.size == 8 * PAGE)
			in_reg.pass();
	};

	std::thread registers([&] { CHECK(get(&whole, 0, 8) == 0); });

	in_reg.wait();
	for (uint64_t n = 0; n < 4; n++)
		CHECK(get(&part[n], 2 * n) == 0);
	CHECK(hooked_env::condition::waits == 1);
	in_reg.open = true;
	registers.join();
	for (const mr_cache_ref &one : part)
		CHECK(put(one) == 0);
	CHECK(put(whole) == 0);
}

TEST_CASE_METHOD(fixture, "no thread waits longer for a registration than the first one that waits")
{
	gate in_reg, after_wait;
	mr_cache_ref first, second, whole;
	std::vector<uint64_t> deadlines;

	hooked_env::patient = false;
	cache.env.before_reg = [&](const mr_cache_request &what) {
		if (what.size == 8 * PAGE)
			in_reg.pass();
	};
	hooked_env::condition::before_wait = [&](uint64_t deadline) {
		deadlines.push_back(deadline);
	};
	/* The first thread is stopped when its wait ends. */
	hooked_env::condition::after_deadline = [&] {
		if (!after_wait.reached)
			after_wait.pass();
	};

	std::thread registers([&] { CHECK(get(&whole, 0, 8) == 0); });

	in_reg.wait();

	std::thread waits([&] { CHECK(get(&first, 0) == 0); });

	after_wait.wait();
	CHECK(get(&second, 1) == 0);
	after_wait.open = true;
	waits.join();
	in_reg.open = true;
	registers.join();
	CHECK(put(first) == 0);
	CHECK(put(second) == 0);
	CHECK(put(whole) == 0);
	REQUIRE(deadlines.size() == 2);
	CHECK(deadlines[1] == deadlines[0]);
}

TEST_CASE_METHOD(fixture,
		 "a request that waits for a restoration and a registration has one deadline")
{
	gate in_reg, in_settle;
	std::atomic<unsigned int> waits{0};
	std::atomic<bool> done{false};
	std::vector<uint64_t> deadlines;
	static thread_local bool asks;

	use(0);
	kernel.suspend();
	cache.env.before_settle = [&] { in_settle.pass(); };
	cache.env.before_reg = [&](const mr_cache_request &what) {
		if (what.size == 8 * PAGE)
			in_reg.pass();
	};
	hooked_env::condition::before_wait = [&](uint64_t deadline) {
		if (!asks)
			return;
		deadlines.push_back(deadline);
		waits++;
	};

	std::thread restores([&] { use(0); });

	in_settle.wait();

	std::thread registers([&] { use(0, 8); });

	in_reg.wait();

	std::thread requests([&] {
		asks = true;
		use(0);
		done = true;
	});

	while (!waits && !done)
		std::this_thread::yield();
	kernel.fail_settle = EIO;
	in_settle.open = true;
	while (waits < 2 && !done)
		std::this_thread::yield();
	in_reg.open = true;
	for (std::thread *one : {&restores, &registers, &requests})
		one->join();
	kernel.fail_settle = 0;
	REQUIRE(deadlines.size() > 1);
	for (uint64_t deadline : deadlines)
		CHECK(deadline == deadlines[0]);
}

TEST_CASE_METHOD(fixture, "a long restoration is waited for once, by all")
{
	gate in_settle;
	mr_cache_ref part, whole;

	use(0, 4);
	kernel.suspend();
	hooked_env::patient = false;
	cache.env.before_settle = [&] { in_settle.pass(); };

	std::thread restores([&] { CHECK(get(&whole, 0, 4) == 0); });

	in_settle.wait();
	for (uint64_t page = 0; page < 4; page++)
		CHECK(get(&part, page) == EOPNOTSUPP);
	CHECK(hooked_env::condition::waits == 1);
	in_settle.open = true;
	restores.join();
	CHECK(put(whole) == 0);
}

TEST_CASE_METHOD(fixture, "no thread waits for long for one that another restores")
{
	gate in_settle;
	mr_cache_ref part, whole;
	ibv_mr_cache_stats s{};

	use(0, 4);
	kernel.suspend();
	hooked_env::patient = false;
	cache.env.before_settle = [&] {
		if (!in_settle.reached)
			in_settle.pass();
	};

	std::thread restores([&] { CHECK(get(&whole, 0, 4) == 0); });

	in_settle.wait();
	CHECK(get(&part, 1) == EOPNOTSUPP);
	CHECK(cache.covers(pd, BASE + PAGE, PAGE, LOCAL) == 0);
	CHECK(hooked_env::condition::waits > 0);
	in_settle.open = true;
	restores.join();
	CHECK(put(whole) == 0);
	use(1);
	CHECK(cache.query(owner, &s) == 0);
	CHECK(s.suspensions == 1);
	CHECK(s.restorations == 1);
	CHECK(kernel.reg_calls == 1);
}

TEST_CASE_METHOD(fixture, "one that two threads find suspended is restored once")
{
	std::atomic<bool> done{false};
	gate in_settle;
	ibv_mr_cache_stats s{};

	use(0, 4);
	kernel.suspend();
	cache.env.before_settle = [&] { in_settle.pass(); };

	std::thread restores([&] { use(0, 4); });

	in_settle.wait();

	std::thread asks([&] {
		use(1);
		done = true;
	});

	CHECK(waits(done));
	in_settle.open = true;
	restores.join();
	asks.join();
	CHECK(cache.query(owner, &s) == 0);
	CHECK(s.restorations == 1);
	CHECK(kernel.settle_calls == 1);
	CHECK(kernel.reg_calls == 1);
}

TEST_CASE_METHOD(fixture, "cleaning waits for what another thread is giving back")
{
	std::atomic<bool> done{false};
	gate in_dereg;

	use(0);
	cache.env.before_dereg = [&](const fake_kernel::mr &) {
		in_dereg.pass();
		return 0;
	};

	std::thread first([&] { CHECK(cache.clean(owner, 0) == 0); });

	in_dereg.wait();

	std::thread second([&] {
		CHECK(cache.clean(owner, 0) == 0);
		CHECK(kernel.live.empty());
		done = true;
	});

	CHECK(waits(done));
	in_dereg.open = true;
	first.join();
	second.join();
}

TEST_CASE_METHOD(fixture, "no thread waits for long for memory that others are giving back")
{
	gate in_dereg;
	mr_cache_ref ref;

	use(0);
	hooked_env::patient = false;
	kernel.most_bytes = PAGE;
	cache.env.before_dereg = [&](const fake_kernel::mr &) {
		in_dereg.pass();
		return 0;
	};

	std::thread cleans([&] { CHECK(cache.clean(owner, 0) == 0); });

	in_dereg.wait();
	CHECK(get2(&ref, 7) == ENOMEM);
	CHECK(cache.shrink(1) == 0);
	CHECK(hooked_env::condition::waits == 1);
	in_dereg.open = true;
	cleans.join();
	kernel.most_bytes = UINT64_MAX;
}

TEST_CASE_METHOD(fixture, "a thread that is cancelled inside the registrar comes back")
{
	gate inside;

	/* A provider may call a cancellation point, for example to print a message. */
	cache.env.before_reg = [&](const mr_cache_request &) {
		inside.pass();
		pthread_testcancel();
	};

	auto body = [&] {
		use(0);
		pthread_testcancel();
	};
	pthread_t thread;
	void *result = nullptr;

	REQUIRE(pthread_create(
			&thread, nullptr,
			[](void *what) -> void * {
				(*static_cast<decltype(body) *>(what))();
				return what;
			},
			&body) == 0);
	inside.wait();
	pthread_cancel(thread);
	inside.open = true;
	pthread_join(thread, &result);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(kernel.live.size() == 1);
	cache.env.before_reg = nullptr;
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "a thread that is cancelled while it waits keeps no lock")
{
	gate in_reg;
	std::atomic<bool> second_waits{false};
	mr_cache_ref ref;

	cache.env.before_reg = [&](const mr_cache_request &) { in_reg.pass(); };

	std::thread first([&] { use(0); });

	in_reg.wait();

	auto body = [&] {
		second_waits = true;
		use(0);
	};
	pthread_t second;

	REQUIRE(pthread_create(
			&second, nullptr,
			[](void *what) -> void * {
				(*static_cast<decltype(body) *>(what))();
				return nullptr;
			},
			&body) == 0);
	while (!second_waits)
		std::this_thread::yield();
	std::this_thread::sleep_for(std::chrono::milliseconds(20));
	pthread_cancel(second);
	std::this_thread::sleep_for(std::chrono::milliseconds(20));
	in_reg.open = true;
	pthread_join(second, nullptr);
	first.join();
	CHECK(get(&ref, 5) == 0);
	CHECK(put(ref) == 0);
}

TEST_CASE_METHOD(fixture, "the end of the process does not wait for a thread that keeps the lock")
{
	gate locked;
	const auto stay = [](void *, const ibv_mr_cache_stats *, const void *by) {
		static_cast<gate *>(const_cast<void *>(by))->pass();
		return false;
	};
	const auto nothing = [](void *, const ibv_mr_cache_stats *, const void *) { return false; };

	use(0);

	std::thread holder([&] { cache.visit(stay, &locked, false); });

	locked.wait();
	CHECK(cache.visit(nothing, nullptr, true) == -1);
	locked.open = true;
	holder.join();
	CHECK(cache.visit(nothing, nullptr, true) == 0);
}

TEST_CASE_METHOD(fixture, "fork() in the middle of everything leaves the child a cache")
{
	gate in_reg;

	cache.env.before_reg = [&](const mr_cache_request &) { in_reg.pass(); };

	std::thread registers([&] { use(0); });

	in_reg.wait();

	pid_t child = fork();

	if (!child) {
		mr_cache_ref ref;

		cache.env.before_reg = nullptr;
		alarm(180);
		_exit(get(&ref, 0) || put(ref) || cache.drain(nullptr, pd));
	}

	int status = -1;

	in_reg.open = true;
	registers.join();
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

TEST_CASE("a process that locks all its memory pays for used tables only")
{
	/* The sizes in production. */
	struct env : mr_cache::linux_env {
		int reg(const mr_cache_request *, uint64_t *, void **mr)
		{
			*mr = this;
			return 0;
		}
		int settle(void *) { return 0; }
		int dereg(void *) { return 0; }
		static uint64_t max_merge(void *) { return UINT64_MAX; }
		static ibv_mr_cache_limits default_limits(void *)
		{
			return {UINT64_MAX, UINT64_MAX};
		}
	};
	auto bytes = [](const char *format) {
		char line[200];
		unsigned long size = 0;
		FILE *status = fopen("/proc/self/status", "r");

		REQUIRE(status);
		while (fgets(line, sizeof(line), status) && sscanf(line, format, &size) != 1)
			;
		fclose(status);
		return size << 10;
	};
	static mr_cache::cache<env> cache;

	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		return; // the process may not lock memory

	const auto before = bytes("VmLck: %lu"), resident = bytes("VmRSS: %lu");
	mr_cache_ref ref;

	if (!before)
		return; // AddressSanitizer disables mlockall()

	CHECK(cache.start() == 0);
	CHECK(cache.acquire(name(1), name(2), BASE, PAGE, LOCAL, &ref) == 0);
	CHECK(cache.release(ref.index, ref.generation) == 0);

	/* The cache must not lock its whole arena. Only used pages may be charged. */
	const auto used = bytes("VmLck: %lu") - before;

	CHECK(used > 0);
	CHECK(used < 4 << 20);
	/* mlockall() touches all mapped pages except inaccessible pages. */
	CHECK(mlockall(MCL_CURRENT) == 0);
	CHECK(bytes("VmRSS: %lu") - resident < 16 << 20);
	munlockall();
}

/*
 * In a child the kernel wipes only the cache's memory, and keeps the rest of the aligned mapping.
 */
TEST_CASE_METHOD(fixture, "a core file has nothing of the cache")
{
	struct {
		unsigned long begin = 0, end = 0;
		bool wiped = false, dumped = false;
	} before, now;
	char line[300], rights[5] = "";
	FILE *maps = fopen("/proc/self/smaps", "r");
	unsigned int wiped = 0, dumped = 0;

	REQUIRE(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long begin, end;

		if (sscanf(line, "%lx-%lx %4s", &begin, &end, rights) == 3) {
			before = now;
			now.begin = begin;
			now.end = end;
		}
		if (strncmp(line, "VmFlags:", 8))
			continue;
		now.wiped = strstr(line, " wf");
		now.dumped = !strstr(line, " dd") && (now.wiped || !strcmp(rights, "---p"));
		wiped += now.wiped;
		dumped += now.wiped && now.dumped;
		if (before.end == now.begin && before.wiped != now.wiped)
			dumped += before.wiped ? now.dumped : before.dumped;
	}
	fclose(maps);
	CHECK(wiped > 0);
	CHECK(dumped == 0);
}
