// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Measures how registrations, with and without notification, slow down operations of the process.
 * In the row OP/STATE/N the process has one of these states:
 *  never       the process has no registration (also runs on a kernel without notification)
 *  registered  N registrations without a word: the cost of pinning alone
 *  armed       N registrations, each with its own word
 *  counted     N registrations, each with its own word that counts users, as in the cache
 * Operations:
 *  - munmap of 16 unregistered pages
 *  - a fault that copies an unregistered page
 *  - fork
 *  - munmap of 16 registered pages, and of 10,000 pages with a registration each
 *  - the end of a process with these 10,000 registrations
 *  - registering 16 pages
 * slab_bytes is the kernel memory for a registration, on average over the registrations that a row
 * added.
 */
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "device.h"

using namespace mr_notify;

namespace {

constexpr int access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr int track = 1 << 28; /* the cache's registrations also have this flag */
constexpr std::size_t most = 100000;
constexpr std::size_t shared_pages = 256;
constexpr std::size_t piece_pages = 16;

enum class state { never, registered, armed, counted };
constexpr uint64_t users = ~uint64_t{0xff};

void arm(state what, ibv_mr *mr, uint64_t *word)
{
	if (what == state::armed)
		check_verb(ibv_reg_mr_notify(mr, word), "ibv_reg_mr_notify");
	if (what == state::counted)
		check_verb(ibv_reg_mr_notify_reclaim(mr, word, users), "ibv_reg_mr_notify_reclaim");
}

int access_for(state what)
{
	return what < state::armed ? access_flags : access_flags | track;
}

std::size_t piece()
{
	return piece_pages * page_size();
}

const device &the_device()
{
	static const device on;

	return on;
}

/* Bytes of slab in the whole guest. */
double slab_bytes()
{
	std::ifstream file("/proc/meminfo");
	std::string name;
	double kilobytes = 0;

	while (file >> name >> kilobytes) {
		if (name == "Slab:")
			return kilobytes * 1024;
		std::getline(file, name);
	}
	return 0;
}

/*
 * The registrations share a few pages, because a fork copies pinned pages for the child. Copying
 * many pages would hide all other times.
 */
class crowd {
public:
	/* Returns the bytes of slab for each added registration. */
	double become(state what, std::size_t count)
	{
		if (what != what_ || count < mrs_.size())
			mrs_.clear();
		what_ = what;
		if (mrs_.size() == count)
			return bytes_each_;
		const std::size_t had = mrs_.size();
		const double before = slab_bytes();
		while (mrs_.size() < count)
			add(what);
		bytes_each_ = (slab_bytes() - before) / static_cast<double>(count - had);
		return bytes_each_;
	}

private:
	void add(state what)
	{
		const std::size_t i = mrs_.size();
		const range at{memory_.registered().addr + i % shared_pages * page_size(),
			       page_size()};

		mrs_.push_back(the_device().register_memory(at, access_for(what)));
		arm(what, mrs_.back().get(), &words_[i]);
	}

	memory memory_ = anonymous(shared_pages * page_size());
	std::vector<uint64_t> words_ = std::vector<uint64_t>(most);
	std::vector<owned<ibv_mr>> mrs_;
	state what_ = state::never;
	double bytes_each_ = 0;
};

/* Opens the device when it is first needed, because the state "never" must not open it. */
double prepare(state what, std::size_t count)
{
	static crowd *all; /* never freed */

	if (what == state::never)
		return 0;
	if (!all)
		all = new crowd;
	return all->become(what, count);
}

template <class F> double timed(F &&f)
{
	const auto start = std::chrono::steady_clock::now();

	f();
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/* Maps small pages, because a huge page would be faulted in and unmapped in one step. */
range map_piece(bool populated)
{
	void *addr =
		mmap(nullptr, piece(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (addr == MAP_FAILED)
		fail("mmap");
	madvise(addr, piece(), MADV_NOHUGEPAGE); /* fails on a kernel without huge pages */
	if (populated)
		std::memset(addr, 1, piece());
	return {static_cast<std::byte *>(addr), piece()};
}

double unmap(range r)
{
	return timed([&] { munmap(r.addr, r.length); });
}

double munmap_elsewhere(state)
{
	return unmap(map_piece(true));
}

/* Reading maps the zero page, and writing replaces the zero page, so each page causes an event. */
double fault_elsewhere(state)
{
	const range r = map_piece(false);
	volatile auto *bytes = reinterpret_cast<volatile char *>(r.addr);

	for (std::size_t i = 0; i < r.length; i += page_size())
		static_cast<void>(bytes[i]);
	const double took = timed([&] {
		for (std::size_t i = 0; i < r.length; i += page_size())
			bytes[i] = 1;
	});
	munmap(r.addr, r.length);
	return took / piece_pages;
}

double fork_child(state)
{
	pid_t child = 0;
	const double took = timed([&] {
		child = fork();
		if (child == 0)
			_exit(0);
	});

	waitpid(child, nullptr, 0);
	return took;
}

double munmap_own(state what)
{
	const range r = map_piece(true);
	static uint64_t word;
	owned<ibv_mr> mr;

	mr = the_device().register_memory(r, access_flags);
	word = 0;
	arm(what, mr.get(), &word);
	return unmap(r);
}

struct many {
	explicit many(state what)
	{
		const std::size_t length = many_pages * page_size();
		void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (addr == MAP_FAILED)
			fail("mmap");
		madvise(addr, length, MADV_NOHUGEPAGE);
		all = {static_cast<std::byte *>(addr), length};
		for (std::size_t i = 0; i < many_pages; i++) {
			const range page{all.addr + i * page_size(), page_size()};

			mrs.push_back(on.register_memory(page, access_for(what)));
			arm(what, mrs.back().get(), &words[i]);
		}
	}

	static constexpr std::size_t many_pages = 10000;
	device on;
	range all;
	std::vector<uint64_t> words = std::vector<uint64_t>(many_pages);
	std::vector<owned<ibv_mr>> mrs;
};

double munmap_many(state what)
{
	const many registered(what);

	return unmap(registered.all);
}

/*
 * Measures from the time when the parent asks the child to end until the parent has waited for it.
 */
double exit_many(state what)
{
	int ready[2];
	int go[2];
	char byte = 0;

	if (pipe(ready) || pipe(go))
		fail("pipe");
	const pid_t child = fork();
	if (child == 0) {
		const many registered(what);

		if (write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1)
			_exit(0);
		_exit(1);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		fail("the child");
	const double took = timed([&] {
		if (write(go[1], &byte, 1) != 1)
			fail("write");
		waitpid(child, nullptr, 0);
	});
	for (const int fd : {ready[0], go[0], go[1]})
		close(fd);
	return took;
}

double registering(state)
{
	static const range r = map_piece(true);
	owned<ibv_mr> mr;

	return timed([&] { mr = the_device().register_memory(r, access_flags); });
}

double median(std::vector<double> values)
{
	std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
	return values[values.size() / 2];
}

/*
 * The result is the median of the iterations, because a busy machine interrupts some of them.
 */
void add(const char *name, double (*operation)(state), state what, std::size_t count,
	 int iterations)
{
	static const char *const names[] = {"never", "registered", "armed"};
	const std::string full = std::string(name) + '/' + names[static_cast<int>(what)] + '/' +
				 std::to_string(count);
	const auto run = [=](benchmark::State &bench) {
		const double slab = prepare(what, count);
		std::vector<double> times;

		for (auto _ : bench) {
			times.push_back(operation(what));
			bench.SetIterationTime(times.back());
		}
		bench.counters["median_ns"] = median(times) * 1e9;
		bench.counters["slab_bytes"] = slab;
	};

	benchmark::RegisterBenchmark(full.c_str(), run)->UseManualTime()->Iterations(iterations);
}

/*
 * The states registered, armed and counted take turns, so that other load affects all states. The
 * result is the median of the ratios.
 */
void add_turns(const char *name, double (*operation)(state), int iterations)
{
	const auto run = [=](benchmark::State &bench) {
		std::vector<double> plain, armed, counted;

		for (auto _ : bench) {
			plain.push_back(operation(state::registered));
			armed.push_back(operation(state::armed) / plain.back());
			counted.push_back(operation(state::counted) / plain.back());
			bench.SetIterationTime(plain.back());
		}
		bench.counters["median_ns"] = median(plain) * 1e9;
		bench.counters["armed"] = median(armed);
		bench.counters["counted"] = median(counted);
	};

	benchmark::RegisterBenchmark((std::string(name) + "/turns/0").c_str(), run)
		->UseManualTime()
		->Iterations(iterations);
}

void add_all(state what, std::size_t count)
{
	add("munmap", munmap_elsewhere, what, count, 501);
	add("fault", fault_elsewhere, what, count, 101);
	add("fork", fork_child, what, count, 31);
}

} // namespace

/* The state "never" comes first, because a process keeps its notifier after it has armed an MR. */
int main(int argc, char **argv)
{
	add_all(state::never, 0);
	add("register", registering, state::never, 0, 201);
	add_all(state::registered, 1000);
	add_all(state::registered, most);
	add_turns("munmap_own", munmap_own, 201);
	add_turns("munmap_many", munmap_many, 15);
	add_turns("exit_many", exit_many, 5);
	add_all(state::armed, 1000);
	add_all(state::armed, most);
	benchmark::Initialize(&argc, argv);
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
