// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging at random, in several processes. Some threads make transfers whose bytes are
 * known (odp/arena.h). Others make accesses that fail, wait, or are abandoned
 * (odp/random_access.h). At the same time, processes are killed or execute another program, and the
 * device is removed. RUN_SECONDS sets the time (default 3). RUN_SEED sets the first seed.
 */
#include "catch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "odp/arena.h"
#include "slow_memory.h"
#include "odp/random_access.h"
#include "pins.h"
#include "removal.h"
#include "rows.h"
#include "run_time.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;

namespace {

constexpr auto round_length = 8s;

enum class ending { finishes, is_killed, executes };

bool command(const std::string &line)
{
	return std::system(line.c_str()) == 0;
}

/* A separate device, which a round can remove. */
bool make_device()
{
	return command("ip link add odp-dummy type dummy && ip link set odp-dummy mtu 5000 up && "
		       "ip addr add 10.0.9.1/24 dev odp-dummy && "
		       "rdma link add odp0 type rxe netdev odp-dummy");
}

/* @ready: gets a byte when the device is open. */
bool run_one(uint64_t seed, ending how, int ready)
{
	const device on("odp0");
	check(write(ready, "x", 1) == 1, "write");
	arena known(on, seed);
	random_access unknown(on, seed);
	const run_time time(round_length);

	known.start();
	unknown.start();
	while (how == ending::is_killed ||
	       (time.goes_on(known.count().transfers >= 20 && unknown.count().refused) &&
		!known.count().failed)) {
		std::this_thread::sleep_for(20ms);
		if (how == ending::executes && known.count().transfers >= 20)
			execl("/bin/true", "true", nullptr);
	}
	unknown.stop();
	known.stop();
	known.print("process");
	std::printf("process: seed %" PRIu64 ": of the random accesses %" PRIu64 " done, %" PRIu64
		    " refused, %" PRIu64 " abandoned\n",
		    seed, unknown.count().done.load(), unknown.count().refused.load(),
		    unknown.count().abandoned.load());
	std::fflush(stdout);
	return !known.count().wrong && !known.count().failed && unknown.count().refused;
}

pid_t start(uint64_t seed, ending how)
{
	int ends[2];
	char byte = 0;

	check(pipe(ends) == 0, "pipe");
	const pid_t child = child_that([=] { return run_one(seed, how, ends[1]) ? 0 : 1; });
	close(ends[1]);
	check(read(ends[0], &byte, 1) == 1, "a process");
	close(ends[0]);
	return child;
}

pid_t remove_device()
{
	const pid_t removal = fork();

	if (removal == 0) {
		execlp("rdma", "rdma", "link", "del", "odp0", nullptr);
		_exit(1);
	}
	return removal;
}

int end_of(pid_t child)
{
	int status = -1;

	return waitpid(child, &status, 0) == child ? status : -1;
}

} // namespace

TEST_CASE("many processes: one is killed or executes, and their device is removed", "[odp]")
{
	const char *const text = std::getenv("RUN_SEED");
	uint64_t seed = text ? std::strtoull(text, nullptr, 0) : 1;
	const run_time time;

	do {
		const int64_t before = pins();

		REQUIRE(make_device());
		const pid_t finishing[] = {start(seed, ending::finishes),
					   start(seed + 1, ending::finishes)};
		const bool executes = seed % 2;
		const pid_t victim =
			start(seed + 2, executes ? ending::executes : ending::is_killed);
		std::this_thread::sleep_for(1s + std::chrono::milliseconds(seed * 7919 % 2000));

		/* The kernel removes the device after its last user. Until then everything works */
		const pid_t removal = removal_waits() ? remove_device() : 0;
		if (!executes) {
			std::this_thread::sleep_for(300ms);
			kill(victim, SIGKILL);
		}
		INFO("seed " << seed);
		CHECK(WIFSIGNALED(end_of(victim)) == !executes);
		for (const pid_t child : finishing)
			CHECK(end_of(child) == 0);
		CHECK(end_of(removal ? removal : remove_device()) == 0);
		CHECK(no_thread_waits());
		CHECK(pins_come_back_to(before));
		REQUIRE(command("ip link del odp-dummy"));
		seed += 3;
	} while (time.goes_on());
}
