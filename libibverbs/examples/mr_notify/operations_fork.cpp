// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which the process forks. Whatever the two processes do, the
 * parent keeps its registered pages, and the child gets copies.
 */
#include "rows.h"

#include <sys/mman.h>

#include <csignal>
#include <cstring>

namespace mr_notify {
namespace {

void write_in_child(memory &m)
{
	in_child([&] { std::memset(m.registered().addr, 1, m.registered().length); });
}

void write_in_both(memory &m)
{
	write_in_child(m);
	std::memset(m.registered().addr, 2, m.registered().length);
}

/* fork() copies registered huge pages, so the pool needs as many free huge pages. */
memory hugetlb_to_fork(std::size_t length)
{
	memory registered = private_hugetlb(length);

	private_hugetlb(length);
	return registered;
}

/* The parent writes while the child still has its copy. */
void write_beside_child(memory &m)
{
	const pid_t child = fork();

	if (child == 0) {
		pause();
		_exit(0);
	}
	check(child > 0, "fork");
	std::memset(m.registered().addr, 2, m.registered().length);
	kill(child, SIGKILL);
	waitpid(child, nullptr, 0);
}

} // namespace

void add_fork(rows &all)
{
	all.harmless("fork, the child exits", anonymous, [](memory &) { in_child([] {}); });
	all.harmless("fork, the child writes", anonymous, write_in_child);
	all.harmless("fork, the child unmaps", anonymous, [](memory &m) {
		in_child([&] {
			child_check(munmap(m.registered().addr, m.registered().length) == 0);
		});
	});
	all.harmless("fork, both write", anonymous, write_in_both);
	all.harmless("fork, the parent writes first", anonymous, write_beside_child,
		     reach::process_once);
	all.harmless("fork with a private file", private_file, write_in_both, reach::process_once);
	all.harmless("fork with a huge page (THP)", transparent_huge, write_in_child);
	all.harmless("fork with private hugetlb", hugetlb_to_fork,
		     [](memory &) { in_child([] {}); });
	all.harmless("fork with private hugetlb, both write", hugetlb_to_fork, write_in_both,
		     reach::process_once);
}

} // namespace mr_notify
