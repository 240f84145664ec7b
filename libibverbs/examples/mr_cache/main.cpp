// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_mr_cache shows whether registrations are cached here, the limits, and the time that
 * the cache saves. The program registers a buffer plainly and through the cache, gives the
 * buffer other pages, and shows the cache's counters. With --env it prints the environment
 * in which the installed libraries leave registrations to the cache. See ibv_mr_cache(1)
 * for the exit status.
 */
#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "environment.h"
#include "libraries.h"

using namespace mr_notify;

namespace {

enum status { right = 0, wrong = 1, failed = 2, no_cache = 3 };

struct options {
	std::string device;
	std::size_t size = std::size_t{1} << 20;
	unsigned int rounds = 100;
	bool json = false;
	bool env = false;
};

/* Returns the nanoseconds per round in the best of three series. A round does not read
 * the clock, because reading the clock may cost more than a hit. */
double best_time(unsigned int rounds, const std::function<void()> &what)
{
	using namespace std::chrono;
	auto best = nanoseconds::max();

	for (int series = 0; series < 3; series++) {
		const auto start = steady_clock::now();
		for (unsigned int i = 0; i < rounds; i++)
			what();
		best = std::min(best, duration_cast<nanoseconds>(steady_clock::now() - start));
	}
	return static_cast<double>(best.count()) / rounds;
}

class exercise {
public:
	exercise(const device &on, const options &opt)
	    : on_(on), rounds_(opt.rounds), buffer_(anonymous(opt.size))
	{
	}

	/* Times a registration with notification and without the cache, in any environment. */
	double plain() const
	{
		constexpr int tracked = 1 << 28;
		return best_time(rounds_, [this] { reg(tracked); });
	}
	double hit() const
	{
		reg(IBV_ACCESS_CACHED);
		return best_time(rounds_, [this] { reg(IBV_ACCESS_CACHED); });
	}
	double miss() const
	{
		return best_time(rounds_, [this] {
			reg(IBV_ACCESS_CACHED);
			check_verb(ibv_reg_mr_clean(on_.context(), 0), "ibv_reg_mr_clean");
		});
	}

	/* Returns true if the cache still has the registration after the buffer got other
	 * pages. */
	bool finds_stale() const
	{
		const range r = buffer_.registered();

		reg(IBV_ACCESS_CACHED);
		if (!ibv_is_reg(on_.pd(), r.addr, r.length, rights))
			throw std::runtime_error(fmt::format(
				"{} bytes are not cached: check the limits "
				"(RDMAV_MR_CACHE_MAX_BYTES, RDMAV_MR_CACHE_MAX_ENTRIES)",
				r.length));
		if (mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != r.addr)
			fail("mmap");
		return ibv_is_reg(on_.pd(), r.addr, r.length, rights);
	}

private:
	static constexpr int rights = IBV_ACCESS_LOCAL_WRITE;

	void reg(int flag) const { on_.register_memory(buffer_.registered(), rights | flag); }

	const device &on_;
	unsigned int rounds_;
	memory buffer_;
};

nlohmann::ordered_json look(const device &on, const options &opt)
{
	const char *variable = std::getenv("RDMAV_MR_CACHE");
	ibv_mr_cache_limits limits{};
	ibv_mr_cache_stats stats{};
	const exercise with(on, opt);

	check_verb(ibv_reg_mr_limits(on.context(), nullptr, &limits), "ibv_reg_mr_limits");
	nlohmann::ordered_json out{
		{"device", on.name()},
		{"revoke", on.can_revoke()},
		{"RDMAV_MR_CACHE", variable ? variable : "unset"},
		{"max_bytes", limits.max_bytes},
		{"max_entries", limits.max_entries},
		{"size", opt.size},
		{"plain_ns", with.plain()},
		{"miss_ns", with.miss()},
		{"hit_ns", with.hit()},
		{"stale", with.finds_stale()},
	};
	check_verb(ibv_query_mr_cache(on.context(), &stats), "ibv_query_mr_cache");
	out["hits"] = stats.hits;
	out["misses"] = stats.misses;
	out["suspects"] = stats.suspects;
	out["invalidations"] = stats.invalidations;
	out["evictions"] = stats.evictions;
	out["suspensions"] = stats.suspensions;
	out["restorations"] = stats.restorations;
	return out;
}

void print(const nlohmann::ordered_json &seen)
{
	for (const auto &[name, value] : seen.items())
		fmt::print("{:<16} {}\n", name,
			   value.is_string() ? value.get<std::string>() : value.dump());
}

/* Returns the named device. If name is empty, returns MR_NOTIFY_DEVICE's device or all devices. */
std::vector<std::string> chosen_devices(const std::string &name)
{
	int count = 0;
	std::vector<std::string> out;
	const std::unique_ptr<ibv_device *[], decltype(&ibv_free_device_list)> list(
		ibv_get_device_list(&count), ibv_free_device_list);

	if (!name.empty() || std::getenv("MR_NOTIFY_DEVICE"))
		return {name};
	for (int i = 0; list && i < count; i++)
		out.emplace_back(ibv_get_device_name(list[i]));
	return out;
}

/*
 * Returns mpirun's options for the variables that Open MPI does not pass to other
 * machines by itself. LD_LIBRARY_PATH is for libraries outside of the system's folders.
 */
std::string passed_on(const mr_cache::environment &to_set)
{
	std::string out;

	for (const auto &one : to_set.lines)
		if (!one.assignment.starts_with("OMPI_"))
			out += " -x " + one.assignment.substr(0, one.assignment.find('='));
	if (!to_set.ours() && std::getenv("LD_LIBRARY_PATH"))
		out += " -x LD_LIBRARY_PATH";
	return out;
}

/* Prints a sentence for the user on standard error, because the shell evaluates standard output. */
void tell(const std::string &sentence)
{
	fmt::print(stderr, "ibv_mr_cache: {}\n", sentence);
}

/* A shell evaluates standard output, so the output must be complete or empty. */
status print_environment(const std::string &name)
{
	const char *variable = std::getenv("RDMAV_MR_CACHE");
	const auto found = mr_cache::find_libraries();
	const auto to_set = mr_cache::environment_for(found);
	std::vector<std::string> cannot;
	unsigned int can = 0;
	bool failed_to_open = false;

	for (const auto &reason : found.failed)
		tell(reason);
	if (!to_set.useful()) {
		tell("nothing to gain: the loader finds no UCX, no libfabric, and no Open MPI "
		     "that is older than 5.0");
		return no_cache;
	}
	if (to_set.ours() && variable && std::string(variable) == "0") {
		tell("RDMAV_MR_CACHE=0 switches the cache off");
		return no_cache;
	}
	const auto chosen = chosen_devices(name);
	if (chosen.empty()) {
		tell("no RDMA device on this machine: run ibv_mr_cache where the job will run");
		return no_cache;
	}
	for (const auto &one : chosen) {
		try {
			const device on(one);
			if (on.can_notify())
				can++;
			else
				cannot.push_back(on.name());
		} catch (const std::exception &reason) { /* another device may work */
			if (chosen.size() == 1)
				throw;
			tell(reason.what());
			failed_to_open = true;
		}
	}
	if (!can && failed_to_open)
		return failed;
	if (!can) {
		tell("nothing to gain: no RDMA device here notifies about memory registrations");
		return no_cache;
	}
	for (const auto &one : to_set.lines)
		fmt::print("export {} # {}\n", one.assignment, one.reason);
	for (const auto &one : to_set.kept)
		fmt::print("# {} keeps its own cache, and reads the word that the kernel marks\n",
			   one);
	for (const auto &one : cannot)
		fmt::print("# not for {}, which can't notify: {}\n", one,
			   to_set.ours() ? "libibverbs caches nothing" : "the libraries use hooks");
	if (found.mpich)
		fmt::print("# MPICH {}.{}: mpiexec itself passes the variables to other machines\n",
			   found.mpich->is.major, found.mpich->is.minor);
	for (const auto &one : to_set.risks)
		tell("WARNING: " + one);
	if (const auto options = passed_on(to_set); found.open_mpi && !options.empty()) {
		const auto command =
			"Open MPI: to pass the variables to other machines, use mpirun" + options;
		fmt::print("# {}\n", command);
		tell(command);
	}
	return right;
}

status run(const options &opt)
{
	if (opt.env)
		return print_environment(opt.device);

	const device on(opt.device);
	ibv_mr_cache_limits limits{};

	if (ibv_reg_mr_limits(on.context(), nullptr, &limits)) {
		fmt::print(stderr, "{}: {}\n", on.name(),
			   on.can_notify()
				   ? "no cache: RDMAV_MR_CACHE=0 is set, RLIMIT_MEMLOCK is below "
				     "1 MiB, or RLIMIT_AS leaves no room"
				   : "this kernel and driver do not notify about memory "
				     "registrations");
		return no_cache;
	}

	const auto seen = look(on, opt);
	if (opt.json)
		fmt::print("{}\n", seen.dump(2));
	else
		print(seen);
	return seen["stale"] ? wrong : right;
}

} // namespace

int main(int argc, char **argv)
{
	options opt;
	CLI::App app("Try the cache of memory registrations, and show its limits");

	app.add_option("-d,--ib-dev", opt.device,
		       "RDMA device (default: $MR_NOTIFY_DEVICE, or the first device)");
	auto *const size =
		app.add_option("-s,--size", opt.size, "Bytes to register (default: 1048576)")
			->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
	auto *const rounds = app.add_option("-n,--rounds", opt.rounds,
					    "Registrations of each kind to measure (default: 100)")
				     ->check(CLI::Range(1U, 1000000U));
	auto *const json = app.add_flag("--json", opt.json, "Print JSON instead of lines");
	app.add_flag("--env", opt.env,
		     "Print the environment for the MPI, UCX and libfabric installed here")
		->excludes(size, rounds, json);

	try {
		app.parse(argc, argv);
		const status ended = run(opt);
		if (std::fflush(stdout) || std::ferror(stdout))
			throw std::runtime_error("the output could not be written");
		return ended;
	} catch (const CLI::ParseError &e) { /* --help also throws this exception */
		return app.exit(e) ? failed : right;
	} catch (const std::exception &e) {
		fmt::print(stderr, "ibv_mr_cache: {}\n", e.what());
		return failed;
	}
}
