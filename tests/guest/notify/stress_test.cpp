// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the test matrix, registrations, arming, settling, RDMA, forks and kills run at the same
 * time and at random, in several processes with several threads. Each registration has an oracle
 * (stress/slot.h), and a thread shrinks all caches without a pause. RUN_SECONDS sets the time
 * (default 5). RUN_SEED sets the first seed (default 1). A seed repeats the choices, but not the
 * timing.
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "pins.h"
#include "run_time.h"
#include "system.h"
#include "stress/many_threads.h"
#include "stress/given_back.h"

using namespace mr_notify;
using namespace std::chrono_literals;
using stress::loss;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr int threads = 3;
constexpr auto round_length = 8s;

uint64_t variable(const char *name, uint64_t otherwise)
{
	const char *text = std::getenv(name);

	return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

pid_t start(uint64_t seed, stress::instant end)
{
	const pid_t child = fork();

	if (child)
		return child;
	try {
		_exit(stress::run_threads(seed, threads, end) ? 1 : 0);
	} catch (const std::exception &problem) {
		std::fprintf(stderr, "seed %lu: %s\n", seed, problem.what());
		_exit(2);
	}
}

/* Lets the kernel merge and move pages by itself. */
void wake_the_kernel()
{
	std::ofstream("/sys/kernel/mm/ksm/run") << 1;
	std::ofstream("/proc/sys/kernel/numa_balancing") << 1;
	std::ofstream("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs") << 100;
}

} // namespace

TEST_CASE("stress: two processes, and one that is killed")
{
	const auto end = clock_type::now() + std::chrono::seconds(variable("RUN_SECONDS", 5));
	uint64_t seed = variable("RUN_SEED", 1);

	wake_the_kernel();
	do {
		const int64_t before = pins();
		const auto round = clock_type::now() + round_length;
		const pid_t children[] = {start(seed, round), start(seed + 1, round)};
		const pid_t victim = start(seed + 2, round + 1h);

		std::atomic<bool> stop = false;
		std::thread shrinking([&] {
			while (!stop)
				write_system_file("/proc/sys/vm/drop_caches", "2");
		});
		std::this_thread::sleep_for(1s + std::chrono::milliseconds(seed * 7919 % 2000));
		kill(victim, SIGKILL);
		waitpid(victim, nullptr, 0);
		for (const pid_t child : children) {
			int status = -1;
			CHECK(waitpid(child, &status, 0) == child);
			CHECK(status == 0);
		}
		stop = true;
		shrinking.join();
		INFO("seed " << seed);
		CHECK(pins_come_back_to(before));
		seed += 3;
	} while (clock_type::now() < end);
}

TEST_CASE("no write lands in a page after it was unpinned", "[revoke]")
{
	const device on;
	const auto how = GENERATE(loss::unmapped, loss::suspended);
	const run_time time;
	uint64_t rounds = 0;

	SECTION("file pages that another process maps")
	{
		/*
		 * Proves that the check works, because a peer does write through an unarmed
		 * registration.
		 */
		CHECK(stress::writes_into_a_file_of_another(on, loss::none) > 0);
		do {
			CHECK(stress::writes_into_a_file_of_another(on, how) == 0);
			rounds++;
		} while (time.goes_on());
	}
	SECTION("anonymous pages that another process gets")
	{
		uint64_t same = 0;
		do {
			const auto seen = stress::writes_into_memory_of_another(on, how);
			CHECK(seen.bytes == 0);
			same += seen.pages;
			rounds++;
		} while (time.goes_on(same));
		CHECK(same > 0); /* these pages were registered before */
	}
	CHECK(rounds > 0);
}
