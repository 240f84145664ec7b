// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A program runs in a memory control group with compressed swap. The group has a quarter of the
 * memory that the program's buffers need. The program takes its buffers in turn: it fills a buffer,
 * registers it, writes it to a peer by RDMA, compares every byte, and deregisters it. If the kernel
 * reclaims idle registrations, the program finishes. If they stay pinned, the program is killed.
 *
 * Prints a line for each way to register. PRESSURE_MIB sets the size of the group; the buffers are
 * four times as large.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "child.h"
#include "loopback.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;

namespace {

constexpr std::size_t buffer = std::size_t{256} << 10;
constexpr std::size_t block = 512; /* has equal bytes, so it compresses well */
constexpr std::size_t megabyte = std::size_t{1} << 20;
constexpr int rounds = 2;

std::size_t group_size()
{
	const char *const text = std::getenv("PRESSURE_MIB");

	return (text ? std::strtoul(text, nullptr, 10) : 24) * megabyte;
}

/* The contents of a block; they depend on the block and the round. */
uint64_t value_of(std::size_t which, int round)
{
	return (which * 0x9e3779b97f4a7c15) ^ static_cast<uint64_t>(round);
}

void fill(std::byte *bytes, std::size_t first, int round)
{
	for (std::size_t at = 0; at < buffer; at += block) {
		const uint64_t value = value_of((first + at) / block, round);

		std::memcpy(bytes + at, &value, sizeof(value));
		for (std::size_t done = sizeof(value); done < block; done *= 2)
			std::memcpy(bytes + at + done, bytes + at, done);
	}
}

bool is_filled(const std::byte *bytes, std::size_t first, int round)
{
	for (std::size_t at = 0; at < buffer; at += block) {
		const uint64_t value = value_of((first + at) / block, round);
		const std::byte *const its = bytes + at;

		/* All words are equal if each is equal to the word before. */
		if (std::memcmp(its, &value, sizeof(value)) != 0 ||
		    std::memcmp(its, its + sizeof(value), block - sizeof(value)) != 0)
			return false;
	}
	return true;
}

/* Keeps its registrations for the next rounds. */
class registrations {
public:
	registrations(const device &on, std::size_t count, bool cached)
	    : on_(on), cached_(cached), kept_(count)
	{
	}

	ibv_mr *get(std::size_t which, range r)
	{
		if (!kept_[which])
			kept_[which] = on_.register_memory(
				r, IBV_ACCESS_LOCAL_WRITE | (cached_ ? IBV_ACCESS_CACHED : 0));
		return kept_[which].get();
	}
	void put(std::size_t which)
	{
		if (cached_)
			kept_[which].reset();
	}

private:
	const device &on_;
	bool cached_;
	std::vector<owned<ibv_mr>> kept_;
};

struct outcome {
	child_result child;
	double seconds;

	std::string text() const
	{
		if (WIFSIGNALED(child.status))
			return WTERMSIG(child.status) == SIGKILL ? "killed: out of memory"
								 : "ended by a signal";
		return finished() ? "finished" : "failed";
	}
	bool finished() const
	{
		return WIFEXITED(child.status) && !WEXITSTATUS(child.status) &&
		       child.lines.size() == 1;
	}
	bool killed() const
	{
		return WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGKILL;
	}
};

/* @limit: the file of the control group with the limit */
outcome run(const char *title, const char *limit, const std::vector<std::string> &environment)
{
	using clock = std::chrono::steady_clock;

	const control_group group("pressure");
	std::vector<std::string> all = environment;

	write_system_file(group.path() + "/" + limit, std::to_string(group_size()));
	if (std::string(limit) != "memory.max")
		write_system_file(group.path() + "/memory.max", std::to_string(2 * group_size()));
	all.push_back("PRESSURE_GROUP=" + group.path());
	all.emplace_back("RDMAV_MR_CACHE");

	const auto begin = clock::now();
	outcome seen{run_child("pressure: goes round its buffers", all), 0};

	seen.seconds = std::chrono::duration<double>(clock::now() - begin).count();
	std::printf("%-32s %-12s %-22s %6.1f s  %s\n", title, limit, seen.text().c_str(),
		    seen.seconds, seen.child.lines.empty() ? "" : seen.child.lines[0].c_str());
	std::fflush(stdout);
	return seen;
}

} // namespace

TEST_CASE("pressure: goes round its buffers", "[.]")
{
	const bool cached = std::getenv("PRESSURE_CACHED");
	const char *const group = std::getenv("PRESSURE_GROUP");
	const std::size_t size = 4 * group_size();

	REQUIRE(group);
	write_system_file(std::string(group) + "/cgroup.procs", "0");

	const device on;
	loopback link(on);
	auto *const area = static_cast<std::byte *>(
		mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	const memory to = anonymous(buffer);
	const auto to_mr = on.register_memory(to.registered());
	registrations registered(on, size / buffer, cached);
	std::size_t peak = 0;

	REQUIRE(area != MAP_FAILED);
	for (int round = 1; round <= rounds; round++)
		for (std::size_t at = 0; at < size; at += buffer) {
			const range r{area + at, buffer};

			/*
			 * Checks the contents of the last round, which are in swap. Then uses a
			 * registration that the kernel may have suspended.
			 */
			REQUIRE((round == 1 || is_filled(r.addr, at, round - 1)));
			fill(r.addr, at, round);
			REQUIRE(link.write(registered.get(at / buffer, r), r, to.registered().addr,
					   to_mr->rkey) == IBV_WC_SUCCESS);
			REQUIRE(is_filled(to.registered().addr, at, round));
			peak = std::max(peak, pinned_bytes());
			registered.put(at / buffer);
		}

	std::string said = "pinned at most " + std::to_string(peak / megabyte) + " MiB";
	ibv_mr_cache_stats stats{};

	if (cached) {
		REQUIRE(ibv_query_mr_cache(on.context(), &stats) == 0);
		said += ", " + std::to_string(stats.suspensions) + " suspensions, " +
			std::to_string(stats.restorations) + " restorations, " +
			std::to_string(stats.misses) + " misses";
	}
	tell(said);
}

TEST_CASE("pressure: a program with more buffers than memory finishes")
{
	try {
		need_swap(6 * group_size());
		const control_group probe("probe");
	} catch (const unsupported &why) {
		skip_test(why.what());
		return;
	}
	std::printf("control group: %zu MiB; buffers: %zu MiB, %d rounds\n",
		    group_size() / megabyte, 4 * group_size() / megabyte, rounds);
	CHECK(run("cached", "memory.max", {"PRESSURE_CACHED=1"}).finished());
	CHECK(run("cached", "memory.high", {"PRESSURE_CACHED=1"}).finished());
	CHECK(run("cached, RDMAV_MR_CACHE_RECLAIM=0", "memory.max",
		  {"PRESSURE_CACHED=1", "RDMAV_MR_CACHE_RECLAIM=0"})
		      .killed());
	CHECK(run("plain, kept", "memory.max", {}).killed());
}
