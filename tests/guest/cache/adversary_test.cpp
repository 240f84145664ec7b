// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Threads register buffers through the cache and RDMA-write from them, while the pages of the
 * buffers are replaced in every possible way. Each byte that arrives must be a byte of the buffer.
 * Other threads open contexts and PDs, use them likewise, close them, and keep asking the kernel to
 * reclaim idle pages. The test must also catch a cache that ignores the word.
 *
 * RUN_SECONDS sets how long the test runs (default 3), or RUN_COUNT sets how many registrations it
 * makes.
 * RUN_SEED sets the seed.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "device.h"
#include "loopback.h"
#include "post.h"
#include "run_time.h"
#include "system.h"

using namespace mr_notify;

namespace {

constexpr std::size_t buffer_pages = 4;
constexpr std::size_t chunk = 64;
constexpr int buffer_count = 64;
constexpr int worker_count = 3;
constexpr int owner_count = 2;
constexpr int plain = IBV_ACCESS_LOCAL_WRITE;

[[noreturn]] void give_up(const char *what)
{
	perror(what);
	std::abort();
}

/* A buffer at a fixed address. A thread that holds the mutex knows the contents. */
class buffer {
public:
	explicit buffer(range where) : where_(where) { fill(); }

	std::mutex mutex;
	std::vector<ibv_mr *> held; /* registrations that stay during changes */

	static std::size_t bytes() { return buffer_pages * page_size(); }
	range where() const { return where_; }

	void fill()
	{
		version_ = next_version++;
		for (std::size_t at = 0; at < where_.length; at += chunk)
			write(where_.addr + at, at);
	}

	bool matches(const std::byte *seen, std::size_t at) const
	{
		std::byte expected[chunk];

		write(expected, at);
		return std::memcmp(seen, expected, chunk) == 0;
	}

	/*
	 * Maps other pages, or changes the mapping in a harmless way. Then writes other contents.
	 */
	void change(unsigned int how)
	{
		const range r = where_;
		std::byte *last = r.end() - page_size();

		switch (how % 8) {
		case 0:
			map_over(r);
			break;
		case 1:
			map_over({last, page_size()});
			break;
		case 2:
			take_away_and_map();
			break;
		case 3:
			must(madvise(r.addr, r.length, MADV_DONTNEED), "MADV_DONTNEED");
			break;
		case 4:
			must(madvise(last, page_size(), MADV_DONTNEED), "MADV_DONTNEED");
			break;
		case 5:
			move_here();
			break;
		case 6:
			move_away();
			break;
		case 7:
			must(mprotect(r.addr, r.length, PROT_READ), "mprotect");
			must(mprotect(r.addr, r.length, PROT_READ | PROT_WRITE), "mprotect");
			break;
		}
		fill();
	}

private:
	static constexpr int protection = PROT_READ | PROT_WRITE;
	static constexpr int kind = MAP_PRIVATE | MAP_ANONYMOUS;
	static inline std::atomic<uint64_t> next_version = 1;

	static void must(int result, const char *what)
	{
		if (result)
			give_up(what);
	}

	static void map_over(range r)
	{
		if (mmap(r.addr, r.length, protection, kind | MAP_FIXED, -1, 0) != r.addr)
			give_up("mmap");
	}

	/* Unmaps the buffer, and maps it again. In between, another thread may map memory there. */
	void take_away_and_map()
	{
		must(munmap(where_.addr, where_.length), "munmap");
		for (int tries = 0; tries < 1000000; tries++) {
			if (mmap(where_.addr, where_.length, protection, kind | MAP_FIXED_NOREPLACE,
				 -1, 0) == where_.addr)
				return;
			usleep(10);
		}
		give_up("the address is taken");
	}

	static void *elsewhere(std::size_t length)
	{
		void *p = mmap(nullptr, length, protection, kind | MAP_POPULATE, -1, 0);

		if (p == MAP_FAILED)
			give_up("mmap");
		return p;
	}

	void move_here()
	{
		void *from = elsewhere(where_.length);

		if (mremap(from, where_.length, where_.length, MREMAP_MAYMOVE | MREMAP_FIXED,
			   where_.addr) != where_.addr)
			give_up("mremap");
	}

	/* MREMAP_DONTUNMAP: moves the pages, and keeps the mapping. Only for a single mapping. */
	void move_away()
	{
		void *to = mremap(where_.addr, where_.length, where_.length,
				  MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);

		if (to == MAP_FAILED && errno == EFAULT)
			map_over(where_);
		else if (to == MAP_FAILED)
			give_up("mremap");
		else
			must(munmap(to, where_.length), "munmap");
	}

	void write(std::byte *to, std::size_t at) const
	{
		uint64_t words[chunk / 8];

		for (std::size_t i = 0; i < chunk / 8; i++)
			words[i] = version_ << 24 ^ (at + i * 8);
		std::memcpy(to, words, chunk);
	}

	range where_;
	uint64_t version_ = 0;
};

/* How a buffer is registered and deregistered. */
struct registry {
	virtual ~registry() = default;
	virtual ibv_mr *get(const device &on, range r) = 0;
	virtual void put(ibv_mr *mr) = 0;
};

struct cached_registry : registry {
	ibv_mr *get(const device &on, range r) override
	{
		return ibv_reg_mr(on.pd(), r.addr, r.length, plain | IBV_ACCESS_CACHED);
	}
	void put(ibv_mr *mr) override
	{
		if (ibv_dereg_mr(mr))
			give_up("ibv_dereg_mr");
	}
};

/* A cache that has no word, and compares only addresses. */
struct naive_registry : registry {
	ibv_mr *get(const device &on, range r) override
	{
		const auto page =
			reinterpret_cast<uintptr_t>(r.addr) / (buffer_pages * page_size());
		const std::lock_guard lock(mutex);
		auto &mr = known[page];

		if (!mr)
			mr = on.register_memory(
				{reinterpret_cast<std::byte *>(page * buffer_pages * page_size()),
				 buffer_pages * page_size()},
				plain);
		return mr.get();
	}
	void put(ibv_mr *) override {}

	std::mutex mutex;
	std::map<uintptr_t, owned<ibv_mr>> known;
};

struct result {
	std::atomic<uint64_t> registrations = 0;
	std::atomic<uint64_t> changes = 0;
	std::atomic<uint64_t> forks = 0;
	std::atomic<uint64_t> stale = 0;   /* chunks that arrived with wrong bytes */
	std::atomic<uint64_t> refused = 0; /* transfers that the device refused */
	std::atomic<uint64_t> owners = 0;  /* PDs and contexts that were opened and closed */
	std::atomic<uint64_t> unclosed = 0;
};

class buffer_set {
public:
	buffer_set() : memory_(anonymous((buffer_count + 1) * buffer_bytes()))
	{
		/* Aligned to buffers, for the naive cache. */
		auto first = reinterpret_cast<uintptr_t>(memory_.registered().addr);
		first = (first + buffer_bytes() - 1) / buffer_bytes() * buffer_bytes();
		for (int i = 0; i < buffer_count; i++)
			buffers_.push_back(std::make_unique<buffer>(
				range{reinterpret_cast<std::byte *>(first + i * buffer_bytes()),
				      buffer_bytes()}));
	}

	static std::size_t buffer_bytes() { return buffer::bytes(); }
	buffer &operator[](std::size_t i) { return *buffers_[i]; }

private:
	memory memory_;
	std::vector<std::unique_ptr<buffer>> buffers_;
};

class worker {
public:
	worker(const device &on, buffer_set &buffers, registry &by, result &out, unsigned int seed)
	    : on_(on), buffers_(buffers), by_(by), out_(out), random_(seed), link_(on),
	      landing_(anonymous(buffers_at_once * registrations_each * chunk)),
	      target_(on.register_memory(landing_.registered()))
	{
	}

	template <class F> void run(const run_limit &until, F seen)
	{
		while (until.goes_on(out_.registrations, seen()))
			burst();
	}

private:
	static constexpr int buffers_at_once = 12;
	static constexpr int registrations_each = 30;

	/* Posts a work request for each buffer. All bytes of a chunk are in one registration. */
	struct job {
		buffer *from;
		std::size_t at[registrations_each];
		ibv_mr *mr[registrations_each];
		ibv_sge sge[registrations_each];
		ibv_send_wr wr;
	};

	std::byte *landing(int n) const
	{
		return landing_.registered().addr + n * registrations_each * chunk;
	}

	void burst()
	{
		job jobs[buffers_at_once];
		int n = 0;

		while (n == 0)
			for (int i = 0; i < buffers_at_once; i++)
				n += prepare(jobs[n], n);
		send(jobs, n);
		for (int i = 0; i < n; i++)
			finish(jobs[i], i);
	}

	bool prepare(job &to, int n)
	{
		buffer &one = buffers_[random_() % buffer_count];

		if (!one.mutex.try_lock())
			return false;
		if (random_() % 8 == 0) {
			one.change(random_());
			out_.changes++;
		}
		to.from = &one;
		to.wr = {};
		for (int i = 0; i < registrations_each; i++)
			add(to, i);
		to.wr.wr_id = static_cast<uint64_t>(n);
		to.wr.sg_list = to.sge;
		to.wr.num_sge = registrations_each;
		to.wr.opcode = IBV_WR_RDMA_WRITE;
		to.wr.send_flags = IBV_SEND_SIGNALED;
		to.wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(landing(n));
		to.wr.wr.rdma.rkey = target_->rkey;
		return true;
	}

	/* Adds a chunk, registered alone or in a larger range. */
	void add(job &to, int i)
	{
		const range all = to.from->where();
		const std::size_t at = random_() % (all.length / chunk) * chunk;
		const std::size_t before = random_() % 2 ? at : random_() % (at + 1);
		const std::size_t rest = all.length - at - chunk;
		const std::size_t after = random_() % 2 ? rest : random_() % (rest + 1);

		to.at[i] = at;
		to.mr[i] = by_.get(on_, {all.addr + at - before, before + chunk + after});
		if (!to.mr[i])
			give_up("ibv_reg_mr");
		to.sge[i] = {reinterpret_cast<uintptr_t>(all.addr + at), chunk, to.mr[i]->lkey};
		out_.registrations++;
	}

	void send(job *jobs, int n)
	{
		bool broken = false;

		std::memset(landing(0), 0xff, n * registrations_each * chunk);
		for (int i = 0; i + 1 < n; i++)
			jobs[i].wr.next = &jobs[i + 1].wr;
		post(link_->near_end(), jobs[0].wr);
		for (int i = 0; i < n; i++) {
			const ibv_wc wc = link_->wait();

			/* The first failed request; later requests are flushed. */
			if (wc.status != IBV_WC_SUCCESS && !broken)
				out_.refused++;
			broken = broken || wc.status != IBV_WC_SUCCESS;
		}
		if (broken)
			link_.emplace(on_);
	}

	void finish(job &of, int n)
	{
		for (int i = 0; i < registrations_each; i++)
			out_.stale += !of.from->matches(landing(n) + i * chunk, of.at[i]);
		for (ibv_mr *mr : of.from->held)
			by_.put(mr);
		of.from->held.clear();
		/* Some registrations stay in use while the buffer changes. */
		for (int i = 0; i < registrations_each; i++)
			if (i < 2 && random_() % 8 == 0)
				of.from->held.push_back(of.mr[i]);
			else
				by_.put(of.mr[i]);
		of.from->mutex.unlock();
	}

	const device &on_;
	buffer_set &buffers_;
	registry &by_;
	result &out_;
	std::minstd_rand random_;
	std::optional<loopback> link_;
	memory landing_;
	owned<ibv_mr> target_;
};

/* Child processes that write to the buffers, and exit without any clean-up. */
void fork_until(const std::atomic<bool> &stop, buffer_set &buffers, result &out)
{
	while (!stop) {
		const pid_t child = fork();

		if (child == 0) {
			for (int i = 0; i < buffer_count; i += 3) {
				const range r = buffers[i].where();
				/*
				 * The memory may be unmapped at the moment. Then a system call
				 * fails, but an access would end the child.
				 */
				int ends[2];
				if (pipe(ends) == 0 && write(ends[1], r.addr, 1) == 1 &&
				    read(ends[0], r.addr, 1) == 1) {
					close(ends[0]);
					close(ends[1]);
				}
			}
			_exit(0);
		}
		if (child < 0)
			give_up("fork");
		waitpid(child, nullptr, 0);
		out.forks++;
		usleep(20000);
	}
}

void shrink_until(const std::atomic<bool> &stop)
{
	while (!stop)
		write_system_file("/proc/sys/vm/drop_caches", "2");
}

/*
 * Opens PDs and contexts, makes a few registrations in each, deregisters them, and closes the PDs
 * and contexts. Some registrations are of shared buffers, others of the object's own buffers. The
 * pages of its own buffers are dropped while their registrations are idle.
 */
class short_lived {
public:
	short_lived(const device &on, buffer_set &buffers, result &out, unsigned int seed)
	    : on_(on), buffers_(buffers), out_(out), random_(seed),
	      own_(anonymous(own_buffers * buffer::bytes()))
	{
	}

	void run(const std::atomic<bool> &stop)
	{
		while (!stop) {
			if (random_() % 2)
				live_in_pd(on_.context());
			else
				live_in_context();
			out_.owners++;
		}
	}

private:
	static constexpr std::size_t own_buffers = 8;

	void live_in_context()
	{
		ibv_context *context = ibv_open_device(on_.context()->device);

		if (!context)
			give_up("ibv_open_device");
		live_in_pd(context);
		out_.unclosed += ibv_close_device(context) != 0;
	}

	void live_in_pd(ibv_context *context)
	{
		ibv_pd *pd = ibv_alloc_pd(context);

		if (!pd)
			give_up("ibv_alloc_pd");
		for (int i = 0; i < 24; i++)
			use(pd);
		out_.unclosed += ibv_dealloc_pd(pd) != 0;
	}

	void use(ibv_pd *pd)
	{
		if (random_() % 2) {
			const range r{own_.registered().addr +
					      random_() % own_buffers * buffer::bytes(),
				      buffer::bytes()};

			register_once(pd, r);
			if (random_() % 4 == 0 && madvise(r.addr, r.length, MADV_DONTNEED))
				give_up("MADV_DONTNEED");
			return;
		}
		buffer &one = buffers_[random_() % buffer_count];
		const std::unique_lock lock(one.mutex, std::try_to_lock);
		if (lock)
			register_once(pd, one.where());
	}

	void register_once(ibv_pd *pd, range r)
	{
		ibv_mr *mr = ibv_reg_mr(pd, r.addr, r.length, plain | IBV_ACCESS_CACHED);

		if (!mr)
			give_up("ibv_reg_mr");
		if (ibv_dereg_mr(mr))
			give_up("ibv_dereg_mr");
		out_.registrations++;
	}

	const device &on_;
	buffer_set &buffers_;
	result &out_;
	std::minstd_rand random_;
	memory own_;
};

enum class owners { stay, come_and_go };

/* Runs at least until seen() is true. */
template <class F>
void run(const device &on, registry &by, const run_limit &until, owners others, result &out, F seen)
{
	buffer_set buffers;
	std::atomic<bool> stop = false;
	std::vector<std::unique_ptr<worker>> workers;
	std::vector<std::thread> threads;
	const char *const chosen = std::getenv("RUN_SEED");
	const unsigned int seed =
		chosen ? static_cast<unsigned int>(std::strtoul(chosen, nullptr, 10))
		       : std::random_device()();

	std::printf("seed %u\n", seed);
	for (int i = 0; i < worker_count; i++)
		workers.push_back(std::make_unique<worker>(on, buffers, by, out, seed + i));
	std::vector<std::thread> beside;
	beside.emplace_back([&] { fork_until(stop, buffers, out); });
	beside.emplace_back([&] { shrink_until(stop); });
	for (int i = 0; others == owners::come_and_go && i < owner_count; i++)
		beside.emplace_back([&, i] {
			short_lived(on, buffers, out, seed + worker_count + i).run(stop);
		});
	for (auto &one : workers)
		threads.emplace_back([&] { one->run(until, seen); });
	for (std::thread &thread : threads)
		thread.join();
	stop = true;
	for (std::thread &thread : beside)
		thread.join();
	for (int i = 0; i < buffer_count; i++)
		for (ibv_mr *mr : buffers[i].held)
			by.put(mr);
	std::printf("%lu registrations, %lu changes, %lu forks, %lu owners: %lu stale, "
		    "%lu refused, %lu not closed\n",
		    out.registrations.load(), out.changes.load(), out.forks.load(),
		    out.owners.load(), out.stale.load(), out.refused.load(), out.unclosed.load());
}

} // namespace

TEST_CASE("adversary: no stale byte arrives")
{
	const device on;
	cached_registry by;
	result out;
	ibv_mr_cache_limits limits{};
	ibv_mr_cache_stats stats{};

	/*
	 * The limit is below the number of buffers, so the cache evicts some and registers them
	 * again.
	 */
	REQUIRE(ibv_reg_mr_limits(on.context(), nullptr, &limits) == 0);
	limits.max_entries = buffer_count * 3 / 4;
	REQUIRE(ibv_reg_mr_limits(on.context(), &limits, nullptr) == 0);

	run(on, by, run_limit::environment(), owners::come_and_go, out, [&] {
		return !ibv_query_mr_cache(on.context(), &stats) && stats.hits &&
		       stats.invalidations && stats.evictions && out.changes && out.forks &&
		       out.owners;
	});
	REQUIRE(ibv_query_mr_cache(on.context(), &stats) == 0);
	std::printf("%lu hits, %lu misses, %lu suspects, %lu invalidations, %lu evictions\n",
		    stats.hits, stats.misses, stats.suspects, stats.invalidations, stats.evictions);
	CHECK(out.stale == 0);
	CHECK(out.refused == 0);
	CHECK(out.changes > 0);
	CHECK(out.forks > 0);
	CHECK(out.owners > 0);
	CHECK(out.unclosed == 0);
	CHECK(stats.hits > 0);
	CHECK(stats.invalidations > 0);
	CHECK(stats.evictions > 0);
}

TEST_CASE("adversary: a cache that ignores the word is caught")
{
	const device on;
	naive_registry by;
	result out;

	const run_limit soon{UINT64_MAX, run_time(std::chrono::seconds(1))};
	run(on, by, soon, owners::stay, out, [&] { return out.stale > 0; });
	CHECK(out.stale > 0);
}
