// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The promises of the registration cache, one by one, in one thread, on a fake kernel. The tests
 * find and evict entries, and the registrar fails.
 */
#include <memory>

#include "catch.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cache.h"
#include "fake_kernel.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000;
constexpr uint32_t LOCAL = MR_CACHE_LOCAL_WRITE, REMOTE = LOCAL | MR_CACHE_REMOTE_WRITE;

void *name(uintptr_t n)
{
	return reinterpret_cast<void *>(n * 64);
}

struct fixture {
	fake_kernel kernel;
	mr_cache::cache<fake_env> cache;
	void *const pd = name(1);
	void *const owner = name(2);

	fixture()
	{
		cache.env.kernel = &kernel;
		cache.env.shrink = [this](uint32_t stage) { return cache.shrink(stage, true); };
		REQUIRE(cache.start() == 0);
	}

	~fixture()
	{
		kernel.fail_dereg = 0;
		CHECK(cache.drain(owner, nullptr) == 0);
		CHECK(cache.shrink(1) == 0);
		CHECK(kernel.live.size() == 0);
		CHECK(kernel.bytes == 0);
		CHECK(kernel.complaint == "");
	}

	mr_cache_ref get(uint64_t page, uint64_t pages = 1, uint32_t access = LOCAL)
	{
		mr_cache_ref ref = {};

		REQUIRE(try_get(&ref, page, pages, access) == 0);
		CHECK(mr_of(ref).live);
		return ref;
	}
	int try_get(mr_cache_ref *ref, uint64_t page, uint64_t pages = 1, uint32_t access = LOCAL)
	{
		return acquire(cache, pd, owner, BASE + page * PAGE, pages * PAGE, access, ref);
	}
	int put(const mr_cache_ref &ref) { return cache.release(ref.index, ref.generation); }
	void use(uint64_t page, uint64_t pages = 1) { CHECK(put(get(page, pages)) == 0); }
	bool has(uint64_t page, uint64_t pages = 1, uint32_t access = LOCAL)
	{
		return cache.covers(pd, BASE + page * PAGE, pages * PAGE, access);
	}
	ibv_mr_cache_stats count()
	{
		ibv_mr_cache_stats s{};

		CHECK(cache.query(owner, &s) == 0);
		return s;
	}
	void limit(uint64_t bytes, uint64_t entries)
	{
		ibv_mr_cache_limits to = {bytes, entries};

		CHECK(cache.limits(owner, &to, nullptr) == 0);
	}
};

/* Counts the locked instructions. */
struct counted_env : fake_env {
	static inline unsigned int locked;

	template <class T> struct atomic : std::atomic<T> {
		using base = std::atomic<T>;

		T fetch_add(T by, std::memory_order order)
		{
			return locked++, base::fetch_add(by, order);
		}
		T fetch_sub(T by, std::memory_order order)
		{
			return locked++, base::fetch_sub(by, order);
		}
		T fetch_or(T bits, std::memory_order order)
		{
			return locked++, base::fetch_or(bits, order);
		}
		T fetch_and(T bits, std::memory_order order)
		{
			return locked++, base::fetch_and(bits, order);
		}
		bool compare_exchange_weak(T &from, T to, std::memory_order a, std::memory_order b)
		{
			return locked++, base::compare_exchange_weak(from, to, a, b);
		}
	};
};

} // namespace

TEST_CASE("only the word of an entry takes locked instructions")
{
	fake_kernel kernel;
	mr_cache::cache<counted_env> cache;
	mr_cache_ref ref;
	const auto count = [](const auto &call) {
		counted_env::locked = 0;
		CHECK(call() == 0);
		return counted_env::locked;
	};
	const auto get = [&] { return acquire(cache, name(1), name(2), BASE, PAGE, LOCAL, &ref); };
	const auto put = [&] { return cache.release(ref.index, ref.generation); };
	const auto clean = [&] { return cache.clean(name(2), 0); };

	cache.env.kernel = &kernel;
	REQUIRE(cache.start() == 0);
	CHECK(count(get) == 3); // a miss: takes an entry that was never used, and opens it
	CHECK(count(put) == 1);
	CHECK(count(get) == 1); // a hit
	CHECK(count(put) == 1);
	CHECK(count(clean) == 3); // closes and frees the entry
	CHECK(count(get) == 1);	  // a miss: opens the entry
	CHECK(count(put) == 1);
	CHECK(count([&] { return cache.drain(name(2), nullptr); }) == 4); // also unlinks it
}

TEST_CASE_METHOD(fixture, "a second request for the range is a hit")
{
	mr_cache_ref first = get(0, 4), second = get(0, 4);

	CHECK(first.mr == second.mr);
	CHECK(kernel.reg_calls == 1);
	CHECK(put(first) == 0);
	CHECK(put(second) == 0);
	CHECK(put(get(1, 2)) == 0);
	CHECK(kernel.reg_calls == 1);
	CHECK(count().hits == 2);
	CHECK(count().misses == 1);
	CHECK(count().entries == 1);
	CHECK(count().bytes == 4 * PAGE);
}

TEST_CASE_METHOD(fixture, "the whole pages of an odd range are registered, the range is shown")
{
	mr_cache_ref ref;

	REQUIRE(acquire(cache, pd, owner, BASE + 100, 5000, LOCAL, &ref) == 0);
	CHECK(mr_of(ref).what.addr == BASE + 100);
	CHECK(mr_of(ref).what.length == 5000);
	CHECK(mr_of(ref).what.start == BASE);
	CHECK(mr_of(ref).what.size == 2 * PAGE);
	CHECK(put(ref) == 0);
	CHECK(has(0, 2));
	CHECK(!has(0, 3));
	CHECK(!has(2));
}

TEST_CASE_METHOD(fixture, "a request that the cache does not serve is refused")
{
	mr_cache_ref ref;

	CHECK(acquire(cache, pd, owner, BASE, 0, LOCAL, &ref) == EOPNOTSUPP);
	CHECK(acquire(cache, pd, owner, BASE, PAGE, 1 << 6, &ref) == EOPNOTSUPP);
	CHECK(acquire(cache, pd, owner, ~0ULL - 10, 100, LOCAL, &ref) == EOPNOTSUPP);
	CHECK(acquire(cache, pd, owner, ~0ULL - 10, 5, LOCAL, &ref) == EOPNOTSUPP);
	use(0, 4);
	CHECK(acquire(cache, pd, owner, BASE, 0, LOCAL, &ref) == EOPNOTSUPP);
	CHECK(acquire(cache, pd, owner, BASE, PAGE, LOCAL | 1 << 6, &ref) == EOPNOTSUPP);
	CHECK(acquire(cache, pd, owner, BASE + PAGE, ~0ULL - 100, LOCAL, &ref) == EOPNOTSUPP);
}

TEST_CASE_METHOD(fixture, "rights, PDs and ordering keep registrations apart")
{
	CHECK(put(get(0, 4, REMOTE)) == 0);
	CHECK(put(get(0, 4, LOCAL)) == 0);
	CHECK(put(get(0, 4, 0)) == 0);
	CHECK(kernel.reg_calls == 1);
	CHECK(put(get(0, 4, MR_CACHE_REMOTE_READ)) == 0);
	CHECK(kernel.reg_calls == 2);
	CHECK(put(get(0, 4, LOCAL | MR_CACHE_RELAXED_ORDERING)) == 0);
	CHECK(kernel.reg_calls == 3);
	CHECK(!cache.covers(name(3), BASE, PAGE, LOCAL));
}

TEST_CASE_METHOD(fixture, "a range that contains others takes their place")
{
	mr_cache_ref used = get(2);

	use(4);
	use(6, 3);
	use(0, 9); // 2 is used, 4 and 6-8 are idle
	CHECK(count().entries == 2);
	CHECK(put(used) == 0);
	CHECK(count().entries == 1);
	use(4);
	CHECK(kernel.reg_calls == 4);
}

TEST_CASE_METHOD(fixture, "an invalid registration is never handed out again")
{
	mr_cache_ref held = get(0, 2);

	use(4);
	kernel.invalidate(BASE, BASE + 8 * PAGE);
	CHECK(!has(0));
	CHECK(!has(4));

	mr_cache_ref after = get(0, 2);

	CHECK(after.mr != held.mr);
	CHECK(mr_of(held).live);
	CHECK(put(held) == 0);
	CHECK(!mr_of(held).live);
	CHECK(put(after) == 0);
	CHECK(count().entries == 1);
	CHECK(count().invalidations == 2);
}

TEST_CASE_METHOD(fixture, "an entry that became invalid while used goes with its last user")
{
	mr_cache_ref first = get(0), second = get(0);

	kernel.invalidate(BASE, BASE + PAGE);
	CHECK(put(first) == 0);
	CHECK(kernel.live.size() == 1);
	CHECK(put(second) == 0);
	CHECK(kernel.live.size() == 0);
}

TEST_CASE_METHOD(fixture, "a suspect is settled, not registered again")
{
	use(0);
	kernel.suspect(BASE, BASE + PAGE, false);
	use(0);
	CHECK(kernel.reg_calls == 1);
	CHECK(kernel.settle_calls == 1);
	CHECK(count().suspects == 1);
	kernel.suspect(BASE, BASE + PAGE, true);
	use(0);
	CHECK(kernel.reg_calls == 2);
	CHECK(count().invalidations == 1);
	kernel.suspect(BASE, BASE + PAGE, false);
	kernel.fail_settle = EIO;
	use(0);
	CHECK(kernel.reg_calls == 3);
	CHECK(count().suspects == 1);
}

TEST_CASE_METHOD(fixture, "a suspended one is restored, and the same is handed out")
{
	mr_cache_ref held = get(0), idle = get(4);

	CHECK(put(idle) == 0);
	kernel.suspend();
	CHECK(!mr_of(held).suspended);
	CHECK(mr_of(idle).suspended);
	CHECK(count().suspensions == 1);
	CHECK(count().restorations == 0);

	mr_cache_ref again = get(4);

	CHECK(again.mr == idle.mr);
	CHECK(!mr_of(again).suspended);
	CHECK(count().suspensions == 1);
	CHECK(count().restorations == 1);
	CHECK(count().suspects == 0);
	CHECK(put(again) == 0);
	CHECK(put(held) == 0);
	CHECK(kernel.reg_calls == 2);
}

TEST_CASE_METHOD(fixture, "a suspended registration that cannot be restored is registered again")
{
	use(0);
	kernel.suspend();
	kernel.fail_settle = ENOMEM;
	use(0);
	CHECK(kernel.reg_calls == 2);
	CHECK(count().suspensions == 1);
	CHECK(count().restorations == 0);
	CHECK(count().entries == 1);
	kernel.fail_settle = 0;
	kernel.suspend();
	for (auto *m : kernel.live)
		m->invalid = true; // now the range can't be pinned
	use(0);
	CHECK(kernel.reg_calls == 3);
	CHECK(count().suspensions == 2);
	CHECK(count().restorations == 0);
	CHECK(count().invalidations == 1);
}

TEST_CASE_METHOD(fixture, "much that is suspended is not restored for little")
{
	use(0, 1024);
	kernel.suspend();
	use(5, 128);
	CHECK(count().restorations == 1);
	CHECK(kernel.reg_calls == 1);
	kernel.suspend();
	use(5, 127);
	CHECK(count().restorations == 1);
	CHECK(kernel.reg_calls == 2);
	CHECK(kernel.bytes == 127 * PAGE);
	use(2048, 63); /* not much */
	kernel.suspend();
	use(2050);
	CHECK(count().restorations == 2);
	CHECK(kernel.reg_calls == 3);
}

TEST_CASE_METHOD(fixture, "at the end of the process the statistics are the same")
{
	static ibv_mr_cache_stats s;
	const auto look = [](void *of, const ibv_mr_cache_stats *seen, const void *by) {
		s = *seen;
		return of == by;
	};

	use(0);
	use(0);
	CHECK(cache.visit(look, nullptr, true) == 0);
	CHECK(s.hits == 1);
	CHECK(s.misses == 1);
	CHECK(cache.visit(look, owner, true) == 1);
	CHECK(!has(0));
}

TEST_CASE_METHOD(fixture, "nothing is suspended while it is registered")
{
	kernel.after_reg = [this] { kernel.suspend(); };

	mr_cache_ref ref = get(0);

	CHECK(!mr_of(ref).suspended);
	CHECK(put(ref) == 0);
	kernel.after_reg = nullptr;
	kernel.fail_times = 1;
	kernel.fail_reg = EFAULT;

	mr_cache_ref other;

	CHECK(try_get(&other, 8) == EFAULT);
	use(8); // the same entry, without a reference
	kernel.suspend();
	CHECK(count().suspensions == 2);
}

TEST_CASE_METHOD(fixture, "a registration that cannot be deregistered keeps its pages")
{
	mr_cache_ref ref = get(0);

	kernel.invalidate(BASE + PAGE, BASE + 2 * PAGE);
	CHECK(cache.claim(ref.index, ref.generation) == 0); // unlinked
	kernel.fail_dereg = EBUSY;
	kernel.before_dereg = [this](const fake_kernel::mr &) { kernel.suspend(); };
	CHECK(put(ref) == EBUSY);
	CHECK(!mr_of(ref).suspended);
	kernel.before_dereg = nullptr;
	kernel.fail_dereg = 0;
	CHECK(put(ref) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "a release too many does not end a registration that is being made")
{
	mr_cache_ref ref = get(0);

	CHECK(put(ref) == 0);
	CHECK(cache.drain(nullptr, pd) == 0);
	kernel.after_reg = [this, ref] { CHECK(put(ref) == EINVAL); };

	mr_cache_ref next = get(0);

	CHECK(next.index == ref.index);
	kernel.after_reg = nullptr;
	kernel.suspend();
	CHECK(!mr_of(next).suspended);
	CHECK(put(next) == 0);
}

TEST_CASE_METHOD(fixture, "a registration that is invalid from birth is its user's alone")
{
	kernel.invalid_from_birth = true;

	mr_cache_ref ref = get(0);

	CHECK(kernel.reg_calls == 1);
	CHECK(kernel.live.size() == 1);
	CHECK(!has(0));
	CHECK(put(ref) == 0);
	CHECK(kernel.live.size() == 0);
}

TEST_CASE_METHOD(fixture, "a release too many is EINVAL, with or without the entry")
{
	mr_cache_ref ref = get(0);

	CHECK(put(ref) == 0);
	CHECK(put(ref) == EINVAL);
	use(0);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(put(ref) == EINVAL);
	use(0);
	CHECK(kernel.live.size() == 1);
	CHECK(cache.release(0, ref.generation) == EINVAL);
	CHECK(cache.release(40, ref.generation) == EINVAL);
	CHECK(cache.release(1000, ref.generation) == EINVAL);
	CHECK(cache.release(1, 0) == EINVAL);
	CHECK(cache.release(1, 77) == EINVAL);
}

TEST_CASE_METHOD(fixture,
		 "a release too many of a free entry is EINVAL while an old hint is followed")
{
	using word = mr_cache::entry_word<fake_env>;
	mr_cache_ref ref = get(0);
	std::atomic_ref raw(*mr_of(ref).word);

	CHECK(put(ref) == 0);
	CHECK(cache.drain(nullptr, pd) == 0);

	const uint64_t free = raw.load();

	raw += word::REF + word::USE; // the reference of the hint
	CHECK(put(ref) == EINVAL);
	raw -= word::REF + word::USE;
	CHECK(raw == free);
	use(0);
}

TEST_CASE_METHOD(fixture, "the least recently used goes first, the used never")
{
	limit(UINT64_MAX, 4);

	mr_cache_ref held = get(0);

	use(10);
	use(20);
	use(30);
	use(10);
	use(40);
	CHECK(!has(20));
	CHECK((has(0) && has(10) && has(30) && has(40)));
	use(50);
	CHECK(!has(30));
	CHECK(has(10));
	CHECK(count().evictions == 2);
	CHECK(put(held) == 0);
}

TEST_CASE_METHOD(fixture, "full of used registrations: register it yourself")
{
	limit(3 * PAGE, 100);

	mr_cache_ref a = get(0), b = get(2, 2), c;

	CHECK(try_get(&c, 10) == EOPNOTSUPP);
	CHECK(try_get(&c, 10, 4) == EOPNOTSUPP);
	CHECK(put(a) == 0);
	CHECK(put(get(10)) == 0);
	CHECK(put(b) == 0);
	CHECK(try_get(&c, 20, 4) == EOPNOTSUPP);
	CHECK(count().entries == 2);
	limit(PAGE, 100);
	CHECK(count().entries <= 1);
	limit(0, 0);
	CHECK(count().entries == 0);
	CHECK(try_get(&c, 20) == EOPNOTSUPP);
}

TEST_CASE_METHOD(fixture, "a registration in use beyond lower limits ends with its last user")
{
	mr_cache_ref a = get(0), b = get(2, 3), c = get(8), ref;

	limit(UINT64_MAX, 2);
	CHECK(!has(0));
	CHECK(has(2, 3));
	CHECK(has(8));
	CHECK(put(a) == 0);
	CHECK(count().entries == 2);
	limit(PAGE, 2);
	CHECK(!has(2, 3));
	CHECK(has(8));
	CHECK(mr_of(b).live);
	limit(PAGE, 2);
	CHECK(has(8));
	limit(0, 0);
	CHECK(put(b) == 0);
	CHECK(put(c) == 0);
	CHECK(count().entries == 0);
	CHECK(try_get(&ref, 8) == EOPNOTSUPP);
}

TEST_CASE_METHOD(fixture,
		 "a registration made while the limits become lower ends with its last user")
{
	mr_cache_ref held = get(0);

	kernel.after_reg = [this] { limit(UINT64_MAX, 1); };

	mr_cache_ref ref = get(2);

	kernel.after_reg = nullptr;
	CHECK(!has(2));
	CHECK(put(ref) == 0);
	CHECK(put(held) == 0);
	CHECK(count().entries <= 1);
	limit(0, UINT64_MAX);
	CHECK(count().entries == 0);
}

TEST_CASE_METHOD(fixture, "lower limits do not end a registration that can't be deregistered")
{
	use(0);
	kernel.fail_dereg = EBUSY;
	CHECK(cache.clean(owner, 0) == EBUSY);
	kernel.fail_dereg = 0;

	mr_cache_ref held = get(2), other = get(4);

	limit(UINT64_MAX, 2);
	CHECK(put(held) == 0);
	CHECK(put(other) == 0);
	CHECK(count().entries == 2);
}

TEST_CASE_METHOD(fixture, "the table being full is no failure")
{
	std::vector<mr_cache_ref> held;
	mr_cache_ref ref;

	for (uint64_t i = 0; i < 64; i++)
		held.push_back(get(i * 2));
	CHECK(try_get(&ref, 1000) == EOPNOTSUPP);
	CHECK(put(held.back()) == 0);
	use(1000);
	held.pop_back();
	for (auto &one : held)
		CHECK(put(one) == 0);
	for (uint64_t i = 0; i < 200; i++)
		use(i * 2);
}

TEST_CASE_METHOD(fixture, "clean keeps the most recent bytes")
{
	for (uint64_t i = 0; i < 10; i++)
		use(i * 2);
	CHECK(cache.clean(owner, 3 * PAGE) == 0);
	CHECK(count().entries == 3);
	CHECK((has(18) && has(16) && has(14)));
	CHECK(cache.clean(owner, 0) == 0);
	CHECK(kernel.live.size() == 0);
}

TEST_CASE_METHOD(fixture, "out of memory: evicts and tries again, then says so")
{
	kernel.most_bytes = 20 * PAGE;
	for (uint64_t i = 0; i < 60; i++)
		use(i * 2);
	CHECK(kernel.bytes <= 20 * PAGE);

	mr_cache_ref held = get(0, 15), ref;

	CHECK(try_get(&ref, 100, 6) == ENOMEM);
	CHECK(count().entries == 1);
	CHECK(put(held) == 0);
	use(100, 20);
}

TEST_CASE_METHOD(fixture, "the registrar's error is the user's, and nothing is left")
{
	mr_cache_ref ref;

	kernel.fail_times = 1;
	kernel.fail_reg = EFAULT;
	CHECK(try_get(&ref, 0) == EFAULT);
	CHECK(count().entries == 0);
	CHECK(count().bytes == 0);
	use(0);
}

TEST_CASE_METHOD(fixture,
		 "one that can't be deregistered is still its user's, and never found again")
{
	mr_cache_ref ref = get(0);

	kernel.invalidate(BASE, BASE + PAGE);
	kernel.fail_dereg = EBUSY;
	CHECK(put(ref) == EBUSY);
	CHECK(put(ref) == EBUSY);
	CHECK(!has(0));
	kernel.fail_dereg = 0;
	CHECK(put(ref) == 0);
	CHECK(kernel.live.size() == 0);

	use(0);
	kernel.fail_dereg = EBUSY;
	CHECK(cache.drain(nullptr, pd) == EBUSY);
	CHECK(!has(0));
	kernel.fail_dereg = 0;
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(kernel.live.size() == 0);
}

TEST_CASE_METHOD(fixture, "a flush leaves used registrations to their users")
{
	mr_cache_ref held = get(0);

	use(2);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(kernel.live.size() == 1);
	CHECK(!has(0));
	CHECK(mr_of(held).live);
	CHECK(put(held) == 0);
	CHECK(kernel.live.size() == 0);
}

TEST_CASE_METHOD(fixture, "owners and PDs are used again")
{
	mr_cache_ref ref;

	for (uintptr_t i = 10; i < 100; i++) {
		REQUIRE(acquire(cache, name(i), name(i), BASE, PAGE, LOCAL, &ref) == 0);
		CHECK(put(ref) == 0);
		CHECK(cache.covers(name(i), BASE, PAGE, LOCAL));
		CHECK(cache.drain(name(i), nullptr) == 0);
	}
	for (uintptr_t i = 10; i < 30; i++) {
		REQUIRE(acquire(cache, name(i), owner, BASE, PAGE, LOCAL, &ref) == 0);
		CHECK(put(ref) == 0);
		CHECK(cache.covers(name(i), BASE, PAGE, LOCAL));
		CHECK(!cache.covers(name(i + 1), BASE, PAGE, LOCAL));
	}
	/* Drains only the entries of one PD. */
	CHECK(cache.drain(nullptr, name(20)) == 0);
	for (uintptr_t i = 10; i < 30; i++)
		CHECK(cache.covers(name(i), BASE, PAGE, LOCAL) == (i != 20));
}

TEST_CASE_METHOD(fixture, "hits are counted beyond the count of a word")
{
	mr_cache_ref ref = get(0);
	uint64_t *word = mr_of(ref).word;

	std::atomic_ref(*word).fetch_add((1ULL << 63) - 2 * mr_cache::entry_word<fake_env>::USE);
	CHECK(put(ref) == 0);
	for (int i = 0; i < 5; i++)
		use(0);
	CHECK(kernel.reg_calls == 1);
	CHECK(count().hits == (1U << 29) - 2 + 5);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(count().hits == (1U << 29) - 2 + 5);
}

TEST_CASE_METHOD(fixture, "a thread that takes a registration is its only user")
{
	mr_cache_ref mine = get(0), other = get(0);

	CHECK(cache.claim(mine.index, mine.generation) == EBUSY);
	CHECK(put(other) == 0);
	CHECK(cache.claim(mine.index, mine.generation) == 0);
	CHECK(!has(0));
	CHECK(put(mine) == 0);
	CHECK(cache.claim(mine.index, mine.generation) == EINVAL);
}

TEST_CASE_METHOD(fixture, "a child starts empty and leaves the parent's alone")
{
	mr_cache_ref held = get(0);

	use(2);
	for (bool raw : {false, true}) {
		auto child = raw ? static_cast<pid_t>(syscall(SYS_fork)) : fork();

		if (!child) {
			mr_cache_ref ref;
			int bad = 0;

			kernel.forked();
			bad |= put(held) != 0;
			bad |= has(0) << 1;
			bad |= (try_get(&ref, 2) || ref.generation == held.generation) << 2;
			bad |= (kernel.live.size() != 3) << 3;
			bad |= (put(ref) || put(ref) != EINVAL) << 4;
			bad |= (put(held) != 0) << 5;
			bad |= (cache.shrink(1) != 1) << 6;
			bad |= (kernel.live.size() != 2 || kernel.complaint != "") << 7;
			_exit(bad);
		}

		int status = 0;

		waitpid(child, &status, 0);
		CHECK(status == 0);
	}
	CHECK(has(0));
	CHECK(has(2));
	CHECK(put(held) == 0);
}

TEST_CASE_METHOD(fixture, "an exact registration serves its range and its rights alone")
{
	constexpr uint32_t READ = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT, WRITE = REMOTE | READ;
	auto get_exact = [&](uint64_t offset, uint64_t length, uint32_t access) {
		mr_cache_ref ref = {};

		REQUIRE(acquire(cache, pd, owner, BASE + offset, length, access, &ref) == 0);
		CHECK(mr_of(ref).what.addr == BASE + offset);
		CHECK(mr_of(ref).what.length == length);
		CHECK(mr_of(ref).what.start == BASE + offset);
		CHECK(mr_of(ref).what.size == length);
		CHECK(mr_of(ref).what.access == (access & ~MR_CACHE_EXACT));
		return ref;
	};
	auto has_exact = [&](uint64_t offset, uint64_t length, uint32_t access) {
		return cache.covers(pd, BASE + offset, length, access);
	};
	mr_cache_ref all = get_exact(0, 2 * PAGE, WRITE), part = get_exact(100, 64, READ);

	CHECK(all.mr != part.mr);
	CHECK(get_exact(100, 64, READ).mr == part.mr);
	CHECK(put(part) == 0);
	/*
	 * Requests with another range, fewer rights or more rights, and local requests, find no
	 * exact entry. An exact request finds no local entry.
	 */
	CHECK(!has_exact(100, 63, READ));
	CHECK(!has_exact(101, 64, READ));
	CHECK(!has_exact(0, 2 * PAGE, READ));
	/* The hints of some of these parts are in the same chain as the hint of `all`. */
	for (uint64_t offset = 100; offset < 200; offset++)
		CHECK(!has_exact(offset, 64, WRITE));
	CHECK(!has(0));
	use(0, 2);
	CHECK(has(0));
	CHECK(!has_exact(0, PAGE, READ));
	CHECK(put(all) == 0);
	CHECK(put(part) == 0);
	/* Pages are pinned, so pages are counted. */
	CHECK(count().bytes == 5 * PAGE);
	kernel.invalidate(BASE, BASE + PAGE);
	CHECK(!has_exact(100, 64, READ));
	CHECK(!has_exact(0, 2 * PAGE, WRITE));
}

TEST_CASE_METHOD(fixture, "an exact registration serves no part of it by another one's hint")
{
	using hints = mr_cache::hints<fake_env>;
	constexpr uint64_t MANY = 1 << 26;
	constexpr uint32_t WRITE = REMOTE | MR_CACHE_EXACT;
	const auto hint = [](const mr_cache::request &want) {
		auto table = std::make_unique<hints>();

		table->learn(hints::hash_of(want), hints::MOST, 1);
		return table;
	};
	mr_cache_ref all = {};

	REQUIRE(acquire(cache, pd, owner, BASE, MANY * PAGE, WRITE, &all) == 0);

	/* Finds a request whose hint has the same place and tag as the hint of `all`. */
	const auto table = hint({pd, BASE, MANY * PAGE, WRITE});
	uint64_t page = 1;

	while (page < MANY &&
	       !table->lookup(hints::hash_of({pd, BASE + page * PAGE, PAGE, LOCAL}), hints::MOST))
		page++;
	REQUIRE(page < MANY);

	mr_cache_ref other = get(page);

	CHECK(other.mr != all.mr);
	CHECK(put(other) == 0);
	CHECK(put(all) == 0);
}

TEST_CASE_METHOD(fixture, "a view of exactly the range is found, and parts are left to the caller")
{
	constexpr uint32_t READ = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT;
	mr_cache_ref part = {};
	int asked = 0;
	auto find = [&](uint64_t offset, uint64_t length, uint32_t access) {
		return cache.find(pd, BASE + offset, length, access,
				  [&](void *of, uint64_t addr, uint64_t size, uint32_t rights,
				      mr_cache_ref found) -> void * {
					  CHECK(of == pd);
					  CHECK(addr == BASE + offset);
					  CHECK(size == length);
					  CHECK(rights == access);
					  part = found;
					  asked++;
					  return nullptr;
				  });
	};
	auto is_idle = [&](const mr_cache_ref &ref) {
		CHECK(put(ref) == EINVAL);
		return true;
	};

	CHECK(!find(0, PAGE, REMOTE));
	CHECK(asked == 1);
	CHECK(!part.mr);

	mr_cache_ref ref = get(0, 2, REMOTE);

	CHECK(put(ref) == 0);
	CHECK(find(0, 2 * PAGE, REMOTE) == ref.mr);
	CHECK(asked == 1);
	CHECK(put(ref) == 0);
	CHECK(is_idle(ref));

	/* The view of a part holds a reference, too. */
	CHECK(!find(100, PAGE, REMOTE));
	CHECK(asked == 2);
	CHECK(part.mr == ref.mr);
	CHECK(part.index == ref.index);
	CHECK(part.generation == ref.generation);
	CHECK(put(ref) == 0);
	CHECK(is_idle(ref));

	/* A request for more than is registered. */
	CHECK(!find(0, 3 * PAGE, REMOTE));
	CHECK(asked == 3);
	CHECK(!part.mr);
	CHECK(is_idle(ref));

	/* A request with fewer rights, after a hint has been learned. */
	CHECK(put(get(0, 2, LOCAL)) == 0);
	CHECK(find(0, 2 * PAGE, LOCAL) == ref.mr);
	CHECK(asked == 3);
	CHECK(put(ref) == 0);

	/* A request after the kernel has set a bit. */
	kernel.suspect(BASE, BASE + PAGE, false);
	CHECK(!find(0, 2 * PAGE, REMOTE));
	CHECK(asked == 4);
	CHECK(!part.mr);
	CHECK(is_idle(ref));

	REQUIRE(acquire(cache, pd, owner, BASE + 100, 64, READ, &ref) == 0);
	CHECK(put(ref) == 0);
	CHECK(find(100, 64, READ) == ref.mr);
	CHECK(asked == 4);
	CHECK(put(ref) == 0);
	CHECK(!find(100, 63, READ));
	CHECK(!part.mr);
	CHECK(is_idle(ref));
	CHECK(kernel.reg_calls == 2);
	CHECK(count().hits == 5);
}

TEST_CASE_METHOD(fixture, "a request that find() leaves to others is acquired, made or refused")
{
	mr_cache_ref ref = {};
	auto acquire = [&](uint64_t length) {
		return cache.acquire(pd, owner, BASE, length, REMOTE, &ref);
	};
	auto made_at = [&](unsigned int calls) {
		REQUIRE(acquire(PAGE) == 0);
		CHECK(kernel.reg_calls == calls);
		CHECK(put(ref) == 0);
		return ref.index;
	};
	const uint32_t first = made_at(1);

	CHECK(made_at(1) == first);
	kernel.suspect(BASE, BASE + PAGE, false);
	CHECK(made_at(1) == first);
	kernel.invalidate(BASE, BASE + PAGE);
	made_at(2);
	CHECK(acquire(0) == EOPNOTSUPP);
}

TEST_CASE_METHOD(fixture, "the registrar is told which references there will be")
{
	mr_cache_ref first = get(0), second = get(1);

	CHECK(mr_of(first).what.index == first.index);
	CHECK(mr_of(second).what.index == second.index);
	CHECK(mr_of(second).what.generation == second.generation);
	CHECK(put(first) == 0);
	CHECK(put(second) == 0);
}

TEST_CASE("a word is idle while it is open without references")
{
	mr_cache::entry_word<fake_env> word{};
	auto idle = [&] { return word.idle(word.peek_relaxed()); };
	uint64_t seen = 0;

	word.free_fresh_relaxed();
	CHECK(!idle());
	word.open_release(0);
	CHECK(!idle());
	word.put_unused_release();
	CHECK(idle());
	word.get_acquire();
	CHECK(!idle());
	word.put_unused_release();
	REQUIRE(word.close_acquire(&seen));
	CHECK(!idle());
}

TEST_CASE("a word is free with one reference, and without the kernel's bits")
{
	mr_cache::entry_word<fake_env> word{};
	auto hold = [&] { return word.peek_relaxed() & (word.REFS | word.CLOSED); };

	word.free_fresh_relaxed();
	CHECK(hold() == (word.CLOSED | word.REF));
	CHECK(!(word.peek_relaxed() & (word.KERNEL | word.UNLINKED)));

	/* The word is opened, used, suspected and closed, with a reader that has an old hint. */
	uint64_t seen = word.open_release(0);

	CHECK(hold() == word.REF);
	std::atomic_ref(*word.raw()).fetch_or(word.SUSPECT);
	word.mark_unlinked_relaxed();
	REQUIRE(!word.close_acquire(&seen));
	word.put_release();
	REQUIRE(word.close_acquire(&seen));
	word.get_acquire();
	word.free_relaxed();
	CHECK(hold() == (word.CLOSED | 2 * word.REF));
	CHECK(!(word.peek_relaxed() & (word.KERNEL | word.UNLINKED)));
	word.put_unused_release();
	CHECK(hold() == (word.CLOSED | word.REF));
}

/* After each operation of the cache on a word, the kernel may change the word. */
struct meddled_env : fake_env {
	static inline std::function<void(std::atomic<uint64_t> &)> kernel_acts;

	template <class T> struct atomic : std::atomic<T> {
		using base = std::atomic<T>;

		T load(std::memory_order o) const { return meddle(base::load(o)); }
		T fetch_add(T by, std::memory_order o) { return meddle(base::fetch_add(by, o)); }
		T fetch_and(T by, std::memory_order o) { return meddle(base::fetch_and(by, o)); }
		T meddle(T seen) const
		{
			if (kernel_acts)
				kernel_acts(const_cast<atomic &>(*this));
			return seen;
		}
	};
};

TEST_CASE("a word is freed while the kernel settles or suspends it")
{
	using word = mr_cache::entry_word<meddled_env>;

	auto settles = [](std::atomic<uint64_t> &w) { w &= ~word::SUSPECT; };
	auto suspends = [](std::atomic<uint64_t> &w) {
		if (!(w & word::REFS))
			w |= word::SUSPENDED;
	};

	for (auto acts : {+settles, +suspends}) {
		word freed{};
		uint64_t seen = 0;

		freed.free_fresh_relaxed();
		freed.open_release(0);
		std::atomic_ref(*freed.raw()).fetch_or(word::SUSPECT);
		freed.mark_unlinked_relaxed();
		freed.put_release();
		REQUIRE(freed.close_acquire(&seen));
		meddled_env::kernel_acts = acts;
		freed.free_relaxed();
		meddled_env::kernel_acts = nullptr;
		CHECK(freed.peek_relaxed() == (word::CLOSED | word::REF));
	}
}

TEST_CASE_METHOD(fixture, "many exact registrations of one page are all found")
{
	constexpr uint32_t READ = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT;

	for (int round = 0; round < 2; round++)
		for (uint64_t n = 0; n < 40; n++) {
			mr_cache_ref ref;

			REQUIRE(acquire(cache, pd, owner, BASE + n * 100, 100, READ, &ref) == 0);
			CHECK(put(ref) == 0);
		}
	CHECK(kernel.reg_calls == 40);
	CHECK(cache.drain(nullptr, pd) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "a forgotten registration ends with its last user")
{
	mr_cache_ref mine = get(0), other = get(0);
	int shared = -1;

	CHECK(forget(cache, mine, &shared) == 0);
	CHECK(shared == 1);
	CHECK(mr_of(other).live);
	CHECK(!has(0));
	CHECK(put(other) == 0);
	CHECK(kernel.live.empty());

	mine = get(0);
	CHECK(forget(cache, mine, &shared) == 0);
	CHECK(shared == 0);
	CHECK(kernel.live.empty());
	CHECK(forget(cache, mine, &shared) == EINVAL);

	/*
	 * An idle entry that covers the range does not count as a user. The idle entry ended with
	 * the other entry.
	 */
	mine = get(4);
	kernel.fail_dereg = EBUSY;
	CHECK(forget(cache, mine, &shared) == EBUSY);
	CHECK(shared == 0);
	kernel.fail_dereg = 0;
	CHECK(put(mine) == 0);
	CHECK(kernel.live.empty());
}

TEST_CASE_METHOD(fixture, "more users than can be counted have more registrations")
{
	using word = mr_cache::entry_word<fake_env>;
	mr_cache_ref first = get(0);

	/* Sets the word as it would be after this many references. */
	std::atomic_ref(*mr_of(first).word).fetch_add((word::FULL / word::REF - 2) * word::REF);

	mr_cache_ref last = get(0), next = get(0);

	CHECK(last.mr == first.mr);
	CHECK(next.mr != first.mr);
	CHECK(cache.shrink(1) == 0);
	CHECK(mr_of(first).live);
	std::atomic_ref(*mr_of(first).word).fetch_sub((word::FULL / word::REF - 2) * word::REF);
	CHECK(put(first) == 0);
	CHECK(put(last) == 0);
	CHECK(put(next) == 0);
	CHECK(kernel.live.size() == 1);
}

TEST_CASE_METHOD(fixture, "idle ones whose memory has gone do not stay")
{
	for (uint64_t n = 0; n < 2000; n++) {
		use(n);
		kernel.invalidate(BASE + n * PAGE, BASE + (n + 1) * PAGE);
		REQUIRE(kernel.live.size() < 4);
	}
	CHECK(count().evictions == 0);
	CHECK(count().invalidations >= 1996);
}

TEST_CASE_METHOD(fixture, "a request that will not have room evicts nothing")
{
	limit(10 * PAGE, 60);

	mr_cache_ref held = get(0, 6), ref;

	use(10);
	use(20);
	CHECK(try_get(&ref, 30, 5) == EOPNOTSUPP);
	CHECK(try_get(&ref, 30, 11) == EOPNOTSUPP);
	CHECK(has(10));
	CHECK(has(20));
	CHECK(put(get(30, 4)) == 0);
	CHECK(!has(10));
	CHECK(!has(20));
	CHECK(put(held) == 0);
}

TEST_CASE_METHOD(fixture, "a registration that fails is no miss")
{
	mr_cache_ref ref;

	kernel.fail_reg = EFAULT;
	kernel.fail_times = 1;
	CHECK(try_get(&ref, 0) == EFAULT);
	CHECK(count().misses == 0);
}

TEST_CASE_METHOD(fixture, "short of objects is as short of memory")
{
	for (int error : {ENOMEM, EAGAIN, ENOSPC}) {
		use(0);
		kernel.fail_reg = error;
		kernel.fail_times = 1;
		use(2);
		CHECK(!has(0));
		CHECK(cache.drain(nullptr, pd) == 0);
	}
	/* Other owners also make room in steps. */
	for (uint64_t n = 0; n < 32; n++)
		use(2 * n);
	CHECK(cache.shrink(0) == 3);
	CHECK(cache.shrink(1) == 29);
	CHECK(cache.shrink(1) == 0);
}
