// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which another process makes the change. The word must be set before
 * the system call of that process returns.
 */
#include "rows.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <csignal>
#include <cstring>

namespace mr_notify {
namespace {

action advising_from_outside(int advice)
{
	return [=](memory &m) {
		in_child([&] { child_check(advise_parent(m.registered(), advice)); });
	};
}

/* process_madvise() allows only advice that keeps the contents. */
void drop_from_outside(memory &m)
{
	in_child([&] {
		for (const int advice : {MADV_DONTNEED, MADV_FREE, MADV_REMOVE})
			child_check(!advise_parent(m.registered(), advice) && errno == EINVAL);
	});
}

void write_from_outside(memory &m)
{
	in_child([&] {
		std::array<char, 4096> text{};
		text.fill(0x66);
		const iovec from{text.data(), text.size()};
		const iovec to{m.registered().addr, text.size()};
		child_check(process_vm_writev(getppid(), &from, 1, &to, 1, 0) ==
			    static_cast<ssize_t>(text.size()));
	});
}

int unmap_for_all(void *registered)
{
	const auto *r = static_cast<const range *>(registered);

	return munmap(r->addr, r->length) ? 1 : 0;
}

/* Starts a separate process with the same address space. */
void unmap_by_sharer(memory &m)
{
	alignas(16) std::array<std::byte, 65536> stack;
	range r = m.registered();
	int status = 0;

	m.forget(r);
	const pid_t sharer = clone(unmap_for_all, stack.data() + stack.size(),
				   CLONE_VM | CLONE_VFORK | SIGCHLD, &r);
	check(sharer > 0, "clone");
	while (waitpid(sharer, &status, 0) < 0 && errno == EINTR)
		;
	if (status)
		throw std::runtime_error("the other process can't unmap");
}

/* The child changes its own mapping of the shared memory. */
action doing_to_its_view(int (*what)(range))
{
	return [=](memory &m) { in_child([&] { child_check(what(m.registered()) == 0); }); };
}

int punch_first_page(int fd)
{
	return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			 static_cast<off_t>(page_size()));
}

/* Opens the file again, for a second file description. */
int open_again(int fd)
{
	const std::string path = "/proc/self/fd/" + std::to_string(fd);

	return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

} // namespace

void add_processes(rows &all)
{
	all.invalidates("munmap by a process that shares all memory", anonymous, unmap_by_sharer,
			reach::process_once);
	all.invalidates(
		"ftruncate by another process", shared_file,
		[](memory &m) { in_child([&] { child_check(ftruncate(m.fd(), 0) == 0); }); },
		reach::process_once);
	all.invalidates(
		"open(O_TRUNC) by another process", shared_file,
		[](memory &m) {
			const std::string path = "/proc/self/fd/" + std::to_string(m.fd());
			in_child([&] { child_check(open(path.c_str(), O_RDWR | O_TRUNC) >= 0); });
		},
		reach::process_once);
	all.invalidates(
		"hole punched by another process", shared_file,
		[](memory &m) {
			in_child([&] { child_check(punch_first_page(open_again(m.fd())) == 0); });
		},
		reach::process_once);
	all.invalidates(
		"hole in hugetlb by another process", shared_hugetlb,
		[](memory &m) {
			in_child([&] {
				child_check(fallocate(m.fd(),
						      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
						      static_cast<off_t>(huge_page_size())) == 0);
			});
		},
		reach::process_once);
	all.invalidates(
		"MADV_REMOVE by another process", shared_file,
		doing_to_its_view([](range r) { return madvise(r.addr, r.length, MADV_REMOVE); }),
		reach::process_once);
	all.invalidates(
		"MADV_REMOVE by another process, SysV", sysv,
		doing_to_its_view([](range r) { return madvise(r.addr, r.length, MADV_REMOVE); }),
		reach::process_once);

	all.harmless("munmap by a process that shares the file", shared_file,
		     doing_to_its_view([](range r) { return munmap(r.addr, r.length); }),
		     reach::process_once);
	all.harmless("munmap of hugetlb by another process", shared_hugetlb,
		     doing_to_its_view([](range r) { return munmap(r.addr, r.length); }),
		     reach::process_once);
	all.harmless("shmdt by another process", sysv,
		     doing_to_its_view([](range r) { return shmdt(r.addr); }), reach::process_once);
	all.harmless(
		"MADV_DONTNEED by another process", shared_file,
		doing_to_its_view([](range r) { return madvise(r.addr, r.length, MADV_DONTNEED); }),
		reach::process_once);
	all.harmless("process_madvise(MADV_COLD)", anonymous, advising_from_outside(MADV_COLD),
		     reach::process_once);
	all.harmless("process_madvise(MADV_WILLNEED)", shared_file,
		     advising_from_outside(MADV_WILLNEED), reach::process_once);
	all.harmless("process_madvise(MADV_DONTNEED), refused", anonymous, drop_from_outside,
		     reach::process_once);
	all.harmless("process_vm_writev by another process", anonymous, write_from_outside,
		     reach::process_once);
}

} // namespace mr_notify
