// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which memory stays mapped, but the kernel drops or may drop its
 * pages. The operations are madvise, truncation, and holes in shared memory.
 */
#include "rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace mr_notify {
namespace {

void cut(memory &m, std::size_t length)
{
	check(ftruncate(m.fd(), static_cast<off_t>(length)) == 0, "ftruncate");
}

void drop_middle(memory &m)
{
	advise(middle_page(m.registered()), MADV_DONTNEED, "MADV_DONTNEED");
}

void clear_soft_dirty(memory &)
{
	const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		throw unsupported("no /proc/self/clear_refs");
	const bool ok = write(fd, "4", 1) == 1;
	const int error = errno;
	close(fd);
	errno = error;
	check(ok, "clear_refs");
}

} // namespace

void add_dropping(rows &all)
{
	all.invalidates("MADV_DONTNEED", anonymous, drop_all);
	all.invalidates("MADV_DONTNEED of one page", anonymous, drop_middle);
	all.invalidates("MADV_DONTNEED by another thread", anonymous,
			[](memory &m) { std::thread([&] { drop_all(m); }).join(); });
	all.invalidates("MADV_DONTNEED of a private file", private_file, drop_all);
	all.invalidates("MADV_REMOVE", shared_file, advising(MADV_REMOVE, "MADV_REMOVE"));
	all.invalidates("ftruncate", shared_file, [](memory &m) { cut(m, 0); });
	all.invalidates("ftruncate of a part", shared_file,
			[](memory &m) { cut(m, half(m.registered()).length); });
	all.invalidates("ftruncate, then back to the old length", shared_file, [](memory &m) {
		cut(m, 0);
		cut(m, m.registered().length);
	});
	all.invalidates("hole punched", shared_file, [](memory &m) {
		punch(m.fd(), middle_page(m.registered()), m.registered());
	});

	all.harmless("MADV_DONTNEED of shared memory", shared_file, drop_all);
	all.harmless("MADV_FREE", anonymous, advising(MADV_FREE, "MADV_FREE"));
	all.harmless("MADV_WILLNEED", anonymous, advising(MADV_WILLNEED, "MADV_WILLNEED"));
	all.harmless("MADV_DONTFORK", anonymous, advising(MADV_DONTFORK, "MADV_DONTFORK"));
	all.harmless("MADV_WIPEONFORK", anonymous, advising(MADV_WIPEONFORK, "MADV_WIPEONFORK"));
	all.harmless("MADV_COLD", anonymous, advising(MADV_COLD, "MADV_COLD"));
	all.harmless("MADV_PAGEOUT", anonymous, advising(MADV_PAGEOUT, "MADV_PAGEOUT"));
	all.harmless("MADV_PAGEOUT of shared memory", shared_file,
		     advising(MADV_PAGEOUT, "MADV_PAGEOUT"));
	all.harmless("ftruncate, made longer", shared_file,
		     [](memory &m) { cut(m, 2 * m.registered().length); });
	all.harmless("hole punched next to the range", shared_file_with_witness, [](memory &m) {
		range whole = m.registered();
		whole.length += m.witness().length;
		punch(m.fd(), m.witness(), whole);
	});
	all.harmless("soft-dirty cleared", anonymous, clear_soft_dirty);
}

} // namespace mr_notify
