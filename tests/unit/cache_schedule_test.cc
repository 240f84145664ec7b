// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache under a scheduler, for many seeds. The steps of users, of a kernel that
 * invalidates, and of a thread that evicts are interleaved at each atomic operation. The test
 * fails, and names the seed, if a registration is stale, leaked, or deregistered in use or twice,
 * or if a thread hangs. RUN_SEED=n runs only this seed.
 *
 * This test fails with each of these mistakes:
 *   The fields are compared before get(), but not after it.
 *   open() stores the word instead of adding to it.
 *   A word is closed while it has references.
 *   A release does not check whether it was the last release of an unlinked entry.
 *   put_unused() does not make this check.
 *   A hit ignores CLOSED or the kernel's bits.
 *   A suspect or suspended entry is handed out without settling.
 *   A registration has no reference while it is made.
 *   An entry found in the index is not compared again after get().
 *   A slow release does not check again under the mutex.
 *   The kernel's bits of the word's previous registration are not cleared.
 *   An unlinked registration stays in the index.
 *   The end of a registration wakes no waiter.
 *   After a thread has looked for a registration in progress, it deregisters unlinked entries
 *   before it waits.
 *   An eviction or a new entry does not change the index's version.
 *   If the index has changed, an entry is inserted without another look-up.
 *   A flush does not wait for threads inside the registrar.
 *   The last user of a closed context's entry deregisters the entry.
 */
#include <cstdlib>
#include <cstring>
#include <vector>

#include "catch.h"

#include "cache.h"
#include "fake_kernel.h"
#include "schedule.h"

namespace {

constexpr uint64_t PAGE = 4096, BASE = 0x10000000, PAGES = 5;

/* Few entries, so that they are reused soon; one or two buckets of hints. */
struct scheduled_env {
	template <class T> using atomic = scheduled_atomic<T>;
	using mutex = scheduled_mutex;
	using condition = scheduled_condition;

	static constexpr uint32_t entries = 5;
	static constexpr uint32_t owners = 3;
	static constexpr uint32_t least_hint_bits = 1;
	static constexpr uint32_t most_hint_bits = 2;

	fake_kernel *kernel = nullptr;
	void *memory = nullptr;

	void *map(size_t) { return memory; }
	static bool commit(void *, size_t, bool) { return true; }
	void wipe(void *, size_t) {}
	static void clear(void *start, size_t size) { memset(start, 0, size); }
	static void published(void *, size_t) {}
	/* The longest sleep of a thread when a few threads run. */
	static void nap()
	{
		for (int n = 0; n < 64; n++)
			schedule::wait();
	}
	static void yield() { schedule::wait(); }
	/* Some waits end too early. Others have no end, to detect a thread that is never woken. */
	static inline bool patient;
	static uint64_t deadline()
	{
		return patient ? 0 : schedule::deadline(schedule::now->pick(4) ? 3000 : 30);
	}
	static mr_cache::thread_state &thread() { return schedule::thread(); }
	static int disable_cancel() { return 0; }
	static void restore_cancel(int) {}
	static uint64_t page_mask() { return PAGE - 1; }
	static uint32_t tick()
	{
		static uint32_t ticks;

		return ++ticks;
	}

	int reg(const mr_cache_request *what, uint64_t *word, void **mr)
	{
		calls++;
		schedule::point();
		int error = kernel->reg(*what, word, mr);
		schedule::point();
		calls--;
		return error;
	}
	int settle(void *mr)
	{
		calls++;
		schedule::point();
		int error = kernel->settle(mr);
		schedule::point();
		calls--;
		return error;
	}
	int dereg(void *mr)
	{
		const auto before = std::exchange(ends, static_cast<fake_kernel::mr *>(mr));

		calls++;
		schedule::point();
		int error = kernel->dereg(mr);
		schedule::point();
		calls--;
		kernel->dereg_returns(mr);
		ends = before;
		return error;
	}
	const fake_kernel::mr *ends = nullptr; // being deregistered
	unsigned int calls = 0;		       // of the registrar
	static ibv_mr_cache_limits default_limits(void *) { return {UINT64_MAX, 3}; }
	static uint64_t max_merge(void *) { return UINT64_MAX; }
	static mr_cache_ref reference_to(void *mr) { return fake_kernel::reference_to(mr); }
};

struct world {
	explicit world(uint64_t seed) : order(seed)
	{
		cache.env.kernel = &kernel;
		size = (sizeof(mr_cache::arena<scheduled_env>) + 4095) & ~4095ULL;
		scheduled_env::patient = false;
		memory = aligned_alloc(4096, size);
		memset(memory, 0, size);
		cache.env.memory = memory;
		started = cache.start() == 0;
	}
	~world() { free(memory); }

	void user()
	{
		for (int n = 0; n < 12; n++) {
			uint64_t first = order.pick(PAGES), count = 1 + order.pick(2);
			uint32_t access = order.pick(4) ? 1 : 3;
			uint64_t before = kernel.clock;
			mr_cache_ref ref;
			int error = acquire(cache, pd, owner, BASE + first * PAGE, count * PAGE,
					    access, &ref);

			if (error == EOPNOTSUPP)
				continue;
			if (error)
				kernel.complain("could not be registered");

			fake_kernel::mr &mr = mr_of(ref);

			if (mr.invalid && mr.invalid_at <= before)
				kernel.complain("stale");
			if (mr.what.start > BASE + first * PAGE || ~mr.what.access & access ||
			    mr.what.start + mr.what.size < BASE + (first + count) * PAGE)
				kernel.complain("another range");
			for (uint32_t hold = order.pick(12); hold; hold--) {
				if (!mr.live)
					kernel.complain("deregistered while used");
				if (mr.suspended)
					kernel.complain("suspended while used");
				schedule::wait();
			}
			if (!mr.live)
				kernel.complain("deregistered while used");
			if (cache.release(ref.index, ref.generation))
				kernel.complain("could not be released");
		}
	}

	void invalidator()
	{
		for (int n = 0; n < 24; n++) {
			uint64_t start = BASE + order.pick(PAGES) * PAGE;

			switch (order.pick(4)) {
			case 0:
			case 1:
				kernel.suspend();
				break;
			case 2:
				kernel.invalidate(start, start + PAGE);
				break;
			default:
				kernel.suspect(start, start + PAGE, !order.pick(3));
			}
			for (uint32_t pause = order.pick(32); pause; pause--)
				schedule::wait();
		}
	}

	void cleaner()
	{
		for (int n = 0; n < 6; n++) {
			switch (order.pick(4)) {
			case 0:
				(void)cache.drain(nullptr, pd);
				break;
			case 1:
				cache.shrink(1);
				break;
			case 2:
				(void)cache.clean(owner, PAGE);
				break;
			default:
				(void)cache.covers(pd, BASE, PAGE, 1);
			}
			for (uint32_t pause = order.pick(16); pause; pause--)
				schedule::wait();
		}
	}

	/* A thread finds an entry invalid while another thread registers a range that serves it. */
	std::string arrival()
	{
		auto once = [this](uint32_t access) {
			mr_cache_ref ref;

			if (acquire(cache, pd, owner, BASE, PAGE, access, &ref) ||
			    cache.release(ref.index, ref.generation))
				kernel.complain("could not be registered and released");
		};

		if (!started)
			return "did not start";
		scheduled_env::patient = true;
		once(1);
		kernel.suspect(BASE, BASE + PAGE, true);
		order.spawn([&once] { once(1); });
		order.spawn([&once] { once(3); });
		return order.run(10000) ? kernel.complaint : "no end";
	}

	/* A thread looks for a used entry without a hint, while an eviction moves the entry. */
	std::string look_beside_eviction()
	{
		/* Each entry is the root of the tree in turn; the middle entry is evicted first. */
		static constexpr uint64_t orders[][3] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}};
		uint64_t used = order.pick(2) * 2;
		auto use = [this](uint64_t which, mr_cache_ref *ref) {
			return acquire(cache, pd, owner, BASE + which * 2 * PAGE, 2 * PAGE, 1, ref);
		};

		if (!started)
			return "did not start";
		for (uint64_t which : orders[order.pick(3)]) {
			mr_cache_ref ref;

			if (use(which, &ref))
				return "could not be registered";
			if (which != used && cache.release(ref.index, ref.generation))
				return "could not be released";
		}

		mr_cache_ref again;

		if (use(2 - used, &again) || cache.release(again.index, again.generation))
			return "could not be used again";

		unsigned int before = kernel.reg_calls;

		order.spawn([this] { (void)cache.clean(owner, 0); });
		order.spawn([this, used] {
			mr_cache_ref ref;

			if (acquire(cache, pd, owner, BASE + (used * 2 + 1) * PAGE, PAGE, 1,
				    &ref) ||
			    cache.release(ref.index, ref.generation))
				kernel.complain("could not be registered and released");
		});
		if (!order.run(10000))
			return "no end";
		if (kernel.reg_calls != before)
			kernel.complain("registered again");
		return kernel.complaint;
	}

	/*
	 * A context is opened, used and closed while another context works. When the context is
	 * freed, no thread may still use an old hint to its entries, or evict them.
	 */
	void opener()
	{
		for (uintptr_t n = 1; n <= 4; n++) {
			void *context = reinterpret_cast<void *>(n * 64);
			mr_cache_ref ref;

			for (int uses = 0; uses < 3; uses++) {
				uint64_t addr = BASE + (8 + order.pick(2)) * PAGE;

				if (!acquire(cache, context, context, addr, PAGE, 1, &ref) &&
				    cache.release(ref.index, ref.generation))
					kernel.complain("could not be released");
			}
			if (cache.drain(nullptr, context))
				kernel.complain("could not be flushed");
			for (auto *mr : kernel.live)
				if (mr->what.owner == context)
					kernel.complain("its PD could not be deallocated");
			if (cache.drain(context, nullptr))
				kernel.complain("could not be flushed");
			closed = n;
		}
	}

	std::string closing()
	{
		if (!started)
			return "did not start";
		kernel.before_dereg = [this](const fake_kernel::mr &mr) {
			if (reinterpret_cast<uintptr_t>(mr.what.owner) <= closed * 64)
				kernel.complain("deregistered in a closed context");
		};
		order.spawn([this] { user(); });
		order.spawn([this] { opener(); });
		order.spawn([this] {
			for (int n = 0; n < 6; n++) {
				cache.shrink(1);
				schedule::wait();
			}
		});
		return order.run(1000000) ? kernel.complaint : "no end";
	}

	/*
	 * Makes any request for one of two contexts. It must not end `kept`, which another request
	 * uses. Returns false if the request ended the context.
	 */
	bool request(void *of, const void *kept)
	{
		ibv_mr_cache_stats s = {};
		ibv_mr_cache_limits bounds = {UINT64_MAX, 1 + order.pick(3)};
		const void *before;
		mr_cache_ref ref;
		int shared;

		if (of == closes)
			return true;
		switch (order.pick(12)) {
		case 0:
			(void)cache.drain(nullptr, of);
			return true;
		case 1:
			if (of == kept || (cache.env.ends && of == cache.env.ends->what.owner))
				return true;
			before = std::exchange(closes, of);
			(void)cache.drain(of, nullptr);
			kernel.close(of);
			closes = before;
			return false;
		case 2:
			(void)cache.clean(of, 0);
			return true;
		case 3:
			(void)cache.limits(of, &bounds, nullptr);
			return true;
		case 4:
			if (!cache.query(of, &s) && s.hits > 1000)
				kernel.complain("hits that there were not");
			return true;
		case 5:
			cache.shrink(order.pick(2));
			return true;
		case 6:
			kernel.suspend();
			kernel.suspect(BASE, BASE + order.pick(PAGES) * PAGE, order.pick(2));
			return true;
		}

		const uint64_t first = order.pick(PAGES), count = 1 + order.pick(2);
		const uint32_t access = order.pick(4) ? 1 : order.pick(2) ? 3 : 3 | MR_CACHE_EXACT;
		const bool was_child = is_child;

		if (acquire(cache, of, of, BASE + first * PAGE, count * PAGE, access, &ref))
			return true;
		if (!ref.mr)
			kernel.complain("no registration");
		else if (was_child == is_child && !mr_of(ref).live)
			kernel.complain("one that has ended");
		else if (was_child == is_child && mr_of(ref).what.owner != of)
			kernel.complain("another one's");
		if (order.pick(4) || forget(cache, ref, &shared))
			if (cache.release(ref.index, ref.generation))
				kernel.complain("could not be released");
		return true;
	}

	void *context(bool second) { return reinterpret_cast<void *>(second ? 128UL : 64UL); }

	/* One thread. A signal handler runs at some point of its work. */
	std::string interrupted(const std::function<void(const void *kept)> &handler)
	{
		const void *kept = nullptr;

		if (!started)
			return "did not start";
		order.signal(1 + order.pick(1200), [&] { handler(kept); });
		order.spawn([&] {
			for (int n = 0; n < 40; n++) {
				void *of = context(is_child || order.pick(2));

				kept = of;
				request(of, nullptr);
			}
			(void)cache.drain(context(true), nullptr);
			(void)cache.drain(context(false), nullptr);
		});
		if (!order.run(100000))
			return "no end";
		if (order.waits)
			kernel.complain("waited for itself");
		return kernel.complaint;
	}

	/* The handler makes requests too, also for a context that it closes. */
	std::string handled()
	{
		std::string complaint = interrupted([this](const void *kept) {
			bool open[2] = {true, true};

			for (uint32_t n = 1 + order.pick(4); n; n--) {
				const bool second = order.pick(2);

				open[second] = open[second] && request(context(second), kept);
			}
		});

		return complaint.empty() && !kernel.live.empty() ? "something left" : complaint;
	}

	/*
	 * The handler forks, and returns in the child, where the cache's memory is all zeros. The
	 * child must not end the parent's registrations. Then the child opens its own context.
	 */
	std::string forked()
	{
		std::set<const fake_kernel::mr *> parents;
		std::string complaint;

		kernel.before_dereg = [&](const fake_kernel::mr &mr) {
			if (parents.count(&mr))
				kernel.complain("a child deregistered its parent's");
		};
		complaint = interrupted([&](const void *) {
			is_child = true;
			memset(memory, 0, size);
			parents.insert(kernel.live.begin(), kernel.live.end());
			parents.erase(cache.env.ends);
			kernel.forked();
			if (order.pick(2))
				(void)cache.covers(context(true), BASE, PAGE, 1);
			/*
			 * Registrations that the child makes before the call returns stay
			 * cached.
			 */
			for (uint32_t n = cache.env.calls ? order.pick(4) : 0; n; n--)
				request(context(true), context(true));
		});
		for (auto *mr : kernel.live)
			if (is_child && !parents.count(mr) && mr->what.generation > 1)
				complaint += " something left";
		return complaint;
	}

	std::string run()
	{
		if (!started)
			return "did not start";
		for (int n = 0; n < 3; n++)
			order.spawn([this] { user(); });
		order.spawn([this] { invalidator(); });
		order.spawn([this] { cleaner(); });
		if (!order.run(1000000))
			return "no end";
		for (auto *mr : kernel.live)
			if (*mr->word & mr_cache::entry_word<scheduled_env>::UNLINKED)
				kernel.complain("unlinked, unused and not torn down");
		(void)cache.query(owner, &seen);
		if (kernel.complaint.empty() &&
		    (cache.drain(owner, nullptr) || !kernel.live.empty()))
			return "something left";
		return kernel.complaint;
	}

	fake_kernel kernel;
	schedule order;
	mr_cache::cache<scheduled_env> cache;
	void *memory;
	size_t size;
	bool is_child = false;
	const void *closes = nullptr;
	void *const pd = &kernel;
	void *const owner = &kernel;
	bool started;
	ibv_mr_cache_stats seen = {};
	uintptr_t closed = 0;
};

/* With RUN_SEED, runs only this seed. */
void in_orders(uint64_t last, std::string (world::*of)())
{
	const char *only = getenv("RUN_SEED");
	const uint64_t first = only ? strtoull(only, nullptr, 0) : 1;

	for (uint64_t seed = first; seed <= (only ? first : last); seed++) {
		world w(seed);

		INFO("RUN_SEED=" << seed);
		REQUIRE((w.*of)() == "");
	}
}

} // namespace

TEST_CASE("the cache keeps its promises in every order that was tried")
{
	const char *only = getenv("RUN_SEED"), *more = getenv("RUN_SEEDS");
	uint64_t first = only ? strtoull(only, nullptr, 0) : 1;
	uint64_t last = only ? first : more ? strtoull(more, nullptr, 0) : 1500;
	uint64_t hits = 0, settled = 0, invalidated = 0, restored = 0;

	for (uint64_t seed = first; seed <= last; seed++) {
		world w(seed);
		std::string complaint = w.run();

		INFO("RUN_SEED=" << seed);
		REQUIRE(complaint == "");
		hits += w.seen.hits;
		settled += w.seen.suspects;
		invalidated += w.seen.invalidations;
		restored += w.seen.restorations;
	}
	/* Interleavings without events prove nothing, so the test requires some events. */
	if (!only) {
		CHECK(hits > last);
		CHECK(settled > last / 100);
		CHECK(invalidated > last / 10);
		CHECK(restored > last / 50);
	}
}

TEST_CASE("a registration that arrives while another is deregistered is not waited for")
{
	in_orders(2000, &world::arrival);
}

TEST_CASE("a context is closed during others' work")
{
	in_orders(2000, &world::closing);
}

TEST_CASE("an entry of the index is found during changes of it")
{
	in_orders(2000, &world::look_beside_eviction);
}

TEST_CASE("a signal handler in the middle of anything waits for nothing")
{
	in_orders(6000, &world::handled);
}

TEST_CASE("a child that a signal handler forked in the middle of anything has a cache")
{
	in_orders(6000, &world::forked);
}
