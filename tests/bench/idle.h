/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Measures the cost of an idle registration, for each cache. A row registers and deregisters 64 MiB
 * once, and the cache keeps the registration. Each row runs once. Its counters are the results, all
 * in MiB except `ms`.
 */
#ifndef BENCH_IDLE_H
#define BENCH_IDLE_H

#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace idle {

constexpr std::size_t size = 64 << 20;
constexpr std::size_t huge_page = 2 << 20;
constexpr std::size_t page = 4096;
constexpr int collapse = 25;		 /* MADV_COLLAPSE */
constexpr std::chrono::seconds pause{4}; /* time without use of a registration */

inline double mebibytes(double bytes)
{
	return bytes / (1 << 20);
}

/* The sum of all numbers that follow the word `wanted` in a file. */
inline double sum_of(const char *path, const std::string &wanted)
{
	std::ifstream file(path);
	std::string word;
	double value = 0;
	double sum = 0;

	while (file >> word)
		if (word == wanted && file >> value)
			sum += value;
	return sum;
}

/* Pinned memory of the whole system. */
inline double pinned()
{
	std::ifstream("/proc/sys/vm/stat_refresh").get();
	return mebibytes(page * (sum_of("/proc/vmstat", "nr_foll_pin_acquired") -
				 sum_of("/proc/vmstat", "nr_foll_pin_released")));
}

inline double huge_pages()
{
	return sum_of("/proc/self/smaps", "AnonHugePages:") / 1024;
}

/* The part of the memory that this process does not share. */
inline double own(const std::byte *at)
{
	std::vector<uint64_t> entries(size / page);
	const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	const auto got = pread(
		fd, entries.data(), entries.size() * sizeof(uint64_t),
		static_cast<off_t>(reinterpret_cast<uintptr_t>(at) / page * sizeof(uint64_t)));
	std::size_t pages = 0;

	close(fd);
	if (got < 0)
		return -1;
	for (const uint64_t entry : entries)
		pages += entry >> 56 & 1;
	return mebibytes(static_cast<double>(pages * page));
}

/* The part of the memory that is on this NUMA node. */
inline double on_node(std::byte *at, int node)
{
	std::vector<void *> pages;
	std::vector<int> nodes(size / page, -1);

	for (std::size_t i = 0; i < size; i += page)
		pages.push_back(at + i);
	if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0))
		return -1;
	return mebibytes(static_cast<double>(page) *
			 static_cast<double>(std::count(nodes.begin(), nodes.end(), node)));
}

/* 64 MiB of small pages, aligned to a huge page. */
class memory {
public:
	memory()
	{
		const auto first = reinterpret_cast<uintptr_t>(
			mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

		at_ = reinterpret_cast<std::byte *>((first + huge_page - 1) & ~(huge_page - 1));
		bind(0);
		(void)madvise(at_, size, MADV_NOHUGEPAGE);
		std::memset(at_, 1, size);
	}
	memory(const memory &) = delete;
	memory &operator=(const memory &) = delete;
	~memory()
	{
		if (at_)
			end();
	}

	std::byte *at() const { return at_; }
	/* Moves the memory to this NUMA node, if possible. */
	void bind(int node) const
	{
		const unsigned long nodes = 1UL << node;

		(void)syscall(SYS_mbind, at_, size, MPOL_BIND, &nodes, 64UL, MPOL_MF_MOVE);
	}
	/* Must be called only once, because another mapping may have this address later. */
	void end()
	{
		(void)munmap(at_, size);
		at_ = nullptr;
	}

private:
	std::byte *at_;
};

/* Adds a row; look(state, memory) is called when the memory is idle. */
template <class Use, class Look> void row(const char *name, Use use, Look look)
{
	benchmark::RegisterBenchmark(name, [use, look](benchmark::State &state) {
		memory buffer;

		for (auto _ : state) {
			const double before = pinned();

			use(buffer.at(), size);
			look(state, buffer, before);
		}
	})->Iterations(1);
}

inline void fork_now(benchmark::State &state, const memory &buffer)
{
	int copied[2];

	if (pipe(copied))
		return state.SkipWithError("pipe");
	const auto begin = std::chrono::steady_clock::now();
	const pid_t child = fork();
	const std::chrono::duration<double, std::milli> took =
		std::chrono::steady_clock::now() - begin;

	if (!child) {
		const double mine = own(buffer.at());
		_exit(write(copied[1], &mine, sizeof(mine)) != sizeof(mine));
	}
	double mine = -1;
	if (child < 0 || read(copied[0], &mine, sizeof(mine)) != sizeof(mine))
		state.SkipWithError("fork");
	waitpid(child, nullptr, 0);
	close(copied[0]);
	close(copied[1]);
	state.counters["ms"] = took.count();
	state.counters["copied"] = mine;
}

/* Adds all rows. use(address, length) registers and deregisters. */
template <class Use> void add(Use use)
{
	row("idle/pinned", use, [](auto &state, const memory &, double before) {
		state.counters["at_once"] = pinned() - before;
		std::this_thread::sleep_for(pause);
		state.counters["later"] = pinned() - before;
	});
	row("idle/unmapped", use, [](auto &state, memory &buffer, double before) {
		buffer.end();
		state.counters["pinned"] = pinned() - before;
	});
	row("idle/fork", use,
	    [](auto &state, const memory &buffer, double) { fork_now(state, buffer); });
	row("idle/swap", use, [](auto &state, const memory &buffer, double) {
		std::this_thread::sleep_for(pause);
		(void)madvise(buffer.at(), size, MADV_PAGEOUT);
		state.counters["out"] = sum_of("/proc/self/status", "VmSwap:") / 1024;
	});
	row("idle/node", use, [](auto &state, const memory &buffer, double) {
		std::this_thread::sleep_for(pause);
		buffer.bind(1);
		state.counters["moved"] = on_node(buffer.at(), 1);
	});
	row("idle/huge", use, [](auto &state, const memory &buffer, double) {
		std::this_thread::sleep_for(pause);
		const double before = huge_pages();
		(void)madvise(buffer.at(), size, MADV_HUGEPAGE);
		for (std::size_t at = 0; at < size; at += huge_page)
			(void)madvise(buffer.at() + at, huge_page, collapse);
		state.counters["huge"] = huge_pages() - before;
	});
}

} // namespace idle

#endif // BENCH_IDLE_H
