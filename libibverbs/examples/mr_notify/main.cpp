// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * ibv_mr_notify checks whether this kernel, driver and machine report when a registration
 * becomes invalid. The program runs the scenario and all operations of the matrix on a
 * real device. See ibv_mr_notify(1) for the exit status.
 */
#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "all.h"
#include "loopback.h"
#include "operations.h"
#include "reclaim.h"
#include "report.h"

namespace {

enum status { right = 0, wrong = 1, failed = 2, no_capability = 3 };

struct options {
	std::string device;
	std::size_t size = std::size_t{1} << 20;
	bool json = false;
	bool cost = false;
	bool system = false;
	bool list = false;
	bool all = false;
	bool reclaim = false;
	std::string only;
};

const char *const needs_system = "disturbs the whole machine; only --system allows it";

bool is_named(const options &opt, const std::string &name)
{
	return name.find(opt.only) != std::string::npos;
}

/* Prints a row's line for the tests. @attempt returns "" or a complaint, or throws unsupported. */
bool print_line(const std::string &name, const std::function<std::string()> &attempt)
{
	std::string wrong;

	try {
		wrong = attempt();
		fmt::print("{} {}{}{}\n", wrong.empty() ? "ok" : "not ok", name,
			   wrong.empty() ? "" : ": ", wrong);
	} catch (const mr_notify::unsupported &reason) {
		fmt::print("skip {}: {}\n", name, reason.what());
	} catch (const std::exception &reason) {
		wrong = reason.what();
		fmt::print("not ok {}: could not be tried: {}\n", name, wrong);
	}
	std::fflush(stdout);
	return wrong.empty();
}

/* Prints a line for each operation. */
template <class C>
bool print_operations(const options &opt, C &check, const std::vector<mr_notify::operation> &table,
		      std::size_t length)
{
	bool ok = true;

	for (const mr_notify::operation &what : table)
		ok &= print_line(what.name, [&] {
			if (what.disturbs == mr_notify::reach::system && !opt.system)
				throw mr_notify::unsupported(needs_system);
			return check.try_operation(what, length);
		});
	return ok;
}

struct {
	const char *name;
	std::string (mr_notify::reclaim_check::*attempt)(std::size_t);
} const reclaim_rows[] = {
	{"restored under the same keys", &mr_notify::reclaim_check::try_restore},
	{"in use: never suspended", &mr_notify::reclaim_check::try_in_use},
	{"a use since the last scan: one more scan is needed",
	 &mr_notify::reclaim_check::try_second_chance},
};

bool print_reclaim(const options &opt, mr_notify::reclaim_check &check,
		   const std::vector<mr_notify::operation> &table, std::size_t length)
{
	bool ok = true;

	for (const auto &row : reclaim_rows)
		if (is_named(opt, row.name))
			ok &= print_line(row.name, [&] { return (check.*row.attempt)(length); });
	return print_operations(opt, check, table, length) && ok;
}

/* Prints the lines for --all (an MR of all memory) or --reclaim (suspended registrations). */
status run_lines(const options &opt, const mr_notify::device &on,
		 const std::vector<mr_notify::operation> &table, std::size_t length)
{
	using namespace mr_notify;

	std::optional<all_check> all;
	std::optional<reclaim_check> reclaim;

	try {
		if (opt.all)
			all.emplace(on);
		else
			reclaim.emplace(on);
	} catch (const unsupported &reason) {
		fmt::print(stderr, "{}: {}\n", on.name(), reason.what());
		return no_capability;
	}
	const loopback reachable(on); /* throws if no row can be tried */
	const bool ok = all ? print_operations(opt, *all, table, length)
			    : print_reclaim(opt, *reclaim, table, length);
	return ok ? right : wrong;
}

status run(const options &opt)
{
	using namespace mr_notify;

	std::vector<operation> table = operations();
	std::erase_if(table, [&](const operation &what) { return !is_named(opt, what.name); });
	if (table.empty() &&
	    !(opt.reclaim && std::any_of(std::begin(reclaim_rows), std::end(reclaim_rows),
					 [&](const auto &row) { return is_named(opt, row.name); })))
		throw std::runtime_error("no operation has \"" + opt.only + "\" in its name");
	if (opt.list) {
		for (const operation &what : table)
			fmt::print("{}\n", what.name);
		return right;
	}

	const device on(opt.device);
	const std::size_t length =
		std::max((opt.size + page_size() - 1) / page_size(), std::size_t{4}) * page_size();
	if (opt.all || opt.reclaim)
		return run_lines(opt, on, table, length);
	if (!on.can_notify()) {
		fmt::print(stderr,
			   "{}: this kernel and driver do not notify about memory registrations\n",
			   on.name());
		return no_capability;
	}

	const auto out = opt.json ? json_report() : text_report(opt.cost);
	bool ok = true;

	out->start(on);
	const auto steps = run_scenario(on, length);
	ok = std::all_of(steps.begin(), steps.end(), [](const step &s) { return s.ok; });
	out->scenario(steps);
	byte_check bytes(on);
	for (const operation &what : table) {
		row one{what, {}, {}};
		out->begin(what);
		if (what.disturbs == reach::system && !opt.system)
			one.seen.skipped = needs_system;
		else
			one.seen = try_operation(on, bytes, what, length, opt.cost || opt.json);
		one.wrong = verdict(on, what, one.seen);
		ok = ok && one.wrong.empty();
		out->add(one);
	}
	out->finish();
	return ok ? right : wrong;
}

} // namespace

int main(int argc, char **argv)
{
	options opt;
	CLI::App app("Test whether the kernel reports when a memory registration becomes invalid");

	app.add_option("-d,--ib-dev", opt.device,
		       "RDMA device (default: $MR_NOTIFY_DEVICE, or the first device)");
	app.add_option("-s,--size", opt.size, "Bytes to register (default: 1048576)")
		->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
	const auto all = app.add_flag(
		"--all", opt.all,
		"Try each operation with one registration of all memory (ibv_register_mr_all)");
	const auto reclaim = app.add_flag(
		"--reclaim", opt.reclaim,
		"Suspend an idle registration before each operation (needs root; shrinks all "
		"caches of the system)");
	reclaim->excludes(all);
	app.add_flag("--json", opt.json, "Print JSON instead of tables, with all times")
		->excludes(all)
		->excludes(reclaim);
	app.add_flag("--cost", opt.cost,
		     "Also print how much longer each operation takes if the registration is armed")
		->excludes(all)
		->excludes(reclaim);
	app.add_flag(
		"--system", opt.system,
		"Also try operations that disturb the whole machine (swap, drop caches, poison "
		"pages)");
	app.add_flag("--list", opt.list, "Only print the names of the operations");
	app.add_option("--only", opt.only, "Try only the operations with TEXT in their names")
		->type_name("TEXT");

	try {
		app.parse(argc, argv);
		const status ended = run(opt);
		if (std::fflush(stdout) || std::ferror(stdout))
			throw std::runtime_error("the output could not be written");
		return ended;
	} catch (const CLI::ParseError &e) { /* --help also throws this exception */
		return app.exit(e) ? failed : right;
	} catch (const std::exception &e) {
		fmt::print(stderr, "ibv_mr_notify: {}\n", e.what());
		return failed;
	}
}
