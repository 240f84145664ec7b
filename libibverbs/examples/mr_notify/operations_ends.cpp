// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which the process that armed the registration exits, or in which a signal or
 * the OOM killer ends the process. Another process watches the word.
 */
#include "rows.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstring>

#include "system.h"
#include "trial.h"
#include "victim.h"

namespace mr_notify {
namespace {

/* Observes a registration whose owner has ended or is about to end. */
observation see(const victim &one, std::size_t length)
{
	observation seen;

	seen.word_after = one.word();
	seen.pages = length / page_size();
	return seen;
}

/* The process ends by itself. */
std::function<observation(const device &, std::size_t)> ending(std::function<void()> how)
{
	return [how = std::move(how)](const device &on, std::size_t length) {
		victim one(on, length, how);

		one.begin();
		one.wait_for_end();
		observation seen = see(one, length);
		seen.word_settled = one.word();
		return seen;
	};
}

observation kill_it(const device &on, std::size_t length)
{
	victim one(on, length);

	check(kill(one.process(), SIGKILL) == 0, "kill");
	one.wait_for_end();
	observation seen = see(one, length);
	seen.word_settled = one.word();
	return seen;
}

/* Observes that a process loses its memory before it exits, for example to the OOM reaper. */
void look_before_exit(victim &one, observation &seen)
{
	/* A worker of the kernel revokes the registration before the process exits. */
	happens([&] { return one.pinned_bytes() == 0; });
	seen.pages_pinned = one.pinned_bytes() / page_size();
	seen.word_settled = one.word();
	one.wait_for_end();
}

observation release_its_memory(const device &on, std::size_t length)
{
	victim one(on, length);

	one.stop_at_exit();
	check(kill(one.process(), SIGKILL) == 0, "kill");
	one.wait_for_stop();
	const auto fd = static_cast<int>(syscall(SYS_pidfd_open, one.process(), 0));
	const bool ok = syscall(SYS_process_mrelease, fd, 0) == 0;
	const int error = errno;
	observation seen = see(one, length);
	close(fd);
	errno = error;
	check(ok, "process_mrelease");
	look_before_exit(one, seen);
	return seen;
}

/* Lets the other process enter a control group with too little memory. */
observation run_out_of_memory(const device &on, std::size_t length)
{
	constexpr std::size_t limit = std::size_t{32} << 20;
	const control_group group("ibv_mr_notify_victim");
	write_system_file(group.path() + "/memory.max", std::to_string(limit));
	try {
		write_system_file(group.path() + "/memory.swap.max", "0");
	} catch (const unsupported &) {
		/* The machine has no swap. */
	}
	victim one(on, length, [&] {
		group.enter();
		void *much = mmap(nullptr, 2 * limit, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (much != MAP_FAILED)
			std::memset(much, 1, 2 * limit);
	});

	one.stop_at_exit();
	one.begin();
	one.wait_for_stop();
	/* The reaper gives the process two seconds to exit by itself. */
	happens([&] { return one.word() != 0; });
	observation seen = see(one, length);
	look_before_exit(one, seen);
	return seen;
}

} // namespace

void add_ends(rows &all)
{
	const auto add = [&](const char *name, const auto &watch,
			     reach disturbs = reach::process_once) {
		all.add({name, effect::invalidates, nullptr, nullptr, disturbs, watch});
	};

	add("owner exits, seen by another process", ending([] { _exit(0); }));
	add("owner executes another program", ending([] { execl("/bin/true", "true", nullptr); }));
	add("owner is killed, seen by another process", kill_it);
	add("process_mrelease of the owner", release_its_memory);
	add("OOM killer and reaper", run_out_of_memory, reach::system);
}

} // namespace mr_notify
