// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The n-th call of the cache to its environment fails. The call is a registration, a settle, a
 * deregistration, a reservation of memory, or a change of its protection. A scenario is repeated
 * with n = 1, 2, ... until no call fails. Either only the n-th call fails, or all calls from the
 * n-th on.
 *
 * After each failure the contract holds: a verb that fails gives no reference, each reference
 * belongs to a live registration of the range, and nothing is left over at the end.
 */
#include <cerrno>
#include <vector>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000;
constexpr uint32_t LOCAL = MR_CACHE_LOCAL_WRITE, REMOTE = LOCAL | MR_CACHE_REMOTE_WRITE;

void *name(uintptr_t n)
{
	return reinterpret_cast<void *>(n * 64);
}

/* The cache calls some functions of its environment without an object. */
struct failing_env : fake_env {
	static inline unsigned int calls, nth, failed;
	static inline bool persists;
	static inline int error;

	static void fail(unsigned int from, bool all, int with)
	{
		calls = failed = 0;
		nth = from;
		persists = all;
		error = with;
	}
	static void end() { nth = 0; }
	static bool fails()
	{
		calls++;
		if (!nth || (persists ? calls < nth : calls != nth))
			return false;
		failed++;
		return true;
	}

	static void *map(size_t size) { return fails() ? nullptr : fake_env::map(size); }
	static bool commit(void *start, size_t size, bool huge)
	{
		return !fails() && fake_env::commit(start, size, huge);
	}
	int reg(const mr_cache_request *what, uint64_t *word, void **out)
	{
		return with_room(*what,
				 [&] { return fails() ? error : reg_once(*what, word, out); });
	}
	int settle(void *mr) { return fails() ? error : fake_env::settle(mr); }
	int dereg(void *mr) { return fails() ? error : fake_env::dereg(mr); }
};

/* Two contexts with a PD each use ranges that overlap, change, and exceed the limits. */
class scenario {
public:
	void run()
	{
		cache.env.kernel = &kernel;
		cache.env.shrink = [this](uint32_t stage) { return cache.shrink(stage, true); };
		is_on = !tried(cache.start());
		if (!is_on)
			return;
		for (uint64_t context = 0; context < 2; context++) {
			get(context, 0, 4, LOCAL);
			get(context, 1, 2, LOCAL);
			get(context, 1, 2, REMOTE);
			get(context, 3, 4, LOCAL);
			get(context, 10, 1, REMOTE | MR_CACHE_REMOTE_READ);
		}
		put_half();
		kernel.suspect(BASE, BASE + 2 * PAGE, false);
		get(0, 0, 4, LOCAL);
		kernel.suspect(BASE, BASE + PAGE, true);
		get(0, 0, 2, LOCAL);
		kernel.invalidate(BASE + 10 * PAGE, BASE + 11 * PAGE);
		get(1, 10, 1, REMOTE);
		kernel.suspend();
		get(1, 3, 4, LOCAL);
		limit(8 * PAGE, 4);
		for (uint64_t page = 20; page < 110; page += 2) { /* more than the table has */
			get(page % 4 / 2, page, 1, LOCAL);
			put_half();
		}
		limit(UINT64_MAX, UINT64_MAX);
		forget_one();
		tried(cache.clean(name(2), PAGE));
		tried(cache.drain(nullptr, name(0x100)));
	}

	/* Ends the scenario without failures. */
	void end()
	{
		ibv_mr_cache_stats s{};

		if (!is_on)
			return;
		while (!used.empty()) {
			const mr_cache_ref ref = used.back();

			used.pop_back();
			CHECK(cache.release(ref.index, ref.generation) == 0);
		}
		for (uint64_t context = 0; context < 2; context++) {
			CHECK(cache.drain(name(2 + context), nullptr) == 0);
			CHECK(cache.query(name(2 + context), &s) == 0);
			CHECK(s.entries == 0);
			CHECK(s.bytes == 0);
		}
		CHECK(cache.shrink(1) == 0);
		CHECK(kernel.live.size() == 0);
		CHECK(kernel.bytes == 0);
		CHECK(kernel.complaint == "");
	}

private:
	/*
	 * A verb may fail only if one of its calls failed. The cache may refuse a request
	 * (EOPNOTSUPP).
	 */
	int tried(int error, int other = 0)
	{
		CHECK((!error || error == other || failing_env::failed > seen));
		seen = failing_env::failed;
		return error;
	}
	void get(uint64_t context, uint64_t page, uint64_t pages, uint32_t access)
	{
		const uint64_t addr = BASE + page * PAGE, size = pages * PAGE;
		const mr_cache_ref none = {};
		mr_cache_ref ref = none;

		if (tried(acquire(cache, name(0x100 + context), name(2 + context), addr, size,
				  access, &ref),
			  EOPNOTSUPP)) {
			CHECK(ref.mr == none.mr);
			return;
		}
		const fake_kernel::mr &mr = mr_of(ref);

		CHECK(mr.live);
		CHECK(!mr.invalid);
		CHECK(!mr.suspended);
		CHECK((mr.what.pd == name(0x100 + context) && (mr.what.access & access) == access));
		CHECK((mr.what.start <= addr && addr + size <= mr.what.start + mr.what.size));
		used.push_back(ref);
	}
	void put_half()
	{
		for (size_t i = 0; i < used.size(); i++) {
			const mr_cache_ref ref = used[i];

			if (!tried(cache.release(ref.index, ref.generation)))
				used.erase(used.begin() + static_cast<ptrdiff_t>(i));
		}
	}
	void forget_one()
	{
		int shared;

		if (used.empty())
			return;
		if (!tried(forget(cache, used.back(), &shared)))
			used.pop_back();
	}
	void limit(uint64_t bytes, uint64_t entries)
	{
		const ibv_mr_cache_limits to = {bytes, entries};

		for (uint64_t context = 0; context < 2; context++)
			tried(cache.limits(name(2 + context), &to, nullptr));
	}

	fake_kernel kernel;
	mr_cache::cache<failing_env> cache;
	std::vector<mr_cache_ref> used;
	unsigned int seen = 0;
	bool is_on = false;
};

} // namespace

TEST_CASE("the n-th call of the cache fails")
{
	for (const int error : {ENOMEM, EINVAL, EAGAIN, EBUSY, EINTR, EIO})
		for (const bool persists : {false, true})
			for (unsigned int nth = 1;; nth++) {
				INFO("error " << error << (persists ? ", from call " : ", call ")
					      << nth);
				scenario s;

				failing_env::fail(nth, persists, error);
				s.run();
				const unsigned int failed = failing_env::failed;

				failing_env::end();
				s.end();
				if (!failed) {
					CHECK(nth > 100);
					break;
				}
			}
}
