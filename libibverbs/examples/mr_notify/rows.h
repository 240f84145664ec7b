/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The common parts of the files operations_*.cpp. Each file adds its rows to an object of class
 * rows. The functions below are steps that many rows use.
 */
#ifndef MR_NOTIFY_ROWS_H
#define MR_NOTIFY_ROWS_H

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "operation.h"

namespace mr_notify {

using mapper = std::function<memory(std::size_t length)>;
using action = std::function<void(memory &)>;

class rows {
public:
	void invalidates(std::string name, mapper map, action apply,
			 reach disturbs = reach::process)
	{
		add({std::move(name), effect::invalidates, std::move(map), std::move(apply),
		     disturbs});
	}
	void harmless(std::string name, mapper map, action apply, reach disturbs = reach::process)
	{
		add({std::move(name), effect::harmless, std::move(map), std::move(apply),
		     disturbs});
	}
	void add(operation one) { all_.push_back(std::move(one)); }
	std::vector<operation> take() { return std::move(all_); }

private:
	std::vector<operation> all_;
};

void add_mapping(rows &);
void add_dropping(rows &);
void add_fork(rows &);
void add_transparent_huge(rows &);
void add_hugetlb(rows &);
void add_files(rows &);
void add_userfaultfd(rows &);
void add_io_uring(rows &);
void add_processes(rows &);
void add_ends(rows &);
void add_reclaim(rows &);
void add_migration(rows &);
void add_poison(rows &);

/* Does nothing if ok. Otherwise throws unsupported if errno says that the kernel lacks the
 * operation, and std::system_error for other values of errno. */
void check(bool ok, const char *what);

range half(range r);
range other_half(range r);
range middle_page(range r);

void unmap(memory &m, range r);
void unmap_all(memory &m);
void drop_all(const memory &m);
/* Moves the range by mremap() to another place with this alignment. */
void move(memory &m, range from, int extra_flags = 0, std::size_t alignment = page_size());
void advise(range r, int advice, const char *name);
action advising(int advice, const char *name);
/* Punches a hole into the part of the file that r maps. Range `whole` maps the file from its start
 * on. */
void punch(int fd, range r, range whole);
memory private_hugetlb(std::size_t length);
memory shared_hugetlb(std::size_t length);

/* Children don't map this memory, because the kernel does not move or swap a page that two
 * processes map. */
memory unshared_with_witness(std::size_t length);

/* Does nothing if ok. Otherwise ends the child. The status is not_here if errno says that a right
 * is missing, and 1 for other values of errno. */
constexpr int not_here = 2;
void child_check(bool ok);

/* A child calls this for process_madvise() on its parent's memory. Returns true on success. */
bool advise_parent(range r, int advice);

/* Runs a function in a child, which exits without running destructors. */
template <class F> void in_child(F &&function)
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		errno = 0;
		function();
		_exit(0);
	}
	check(child > 0, "fork");
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == not_here)
		throw unsupported("the child has no right to do this");
	if (status != 0)
		throw std::runtime_error("the child failed");
}

} // namespace mr_notify

#endif
