// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "rows.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cstring>

namespace mr_notify {

void check(bool ok, const char *what)
{
	if (ok)
		return;
	if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM ||
	    errno == EACCES)
		throw unsupported(std::string(what) + ": " + std::strerror(errno));
	fail(what);
}

range half(range r)
{
	return {r.addr, r.length / 2};
}

range other_half(range r)
{
	return {r.addr + r.length / 2, r.length - r.length / 2};
}

range middle_page(range r)
{
	return {r.addr + r.length / 2 / page_size() * page_size(), page_size()};
}

void unmap(memory &m, range r)
{
	m.forget(r);
	check(munmap(r.addr, r.length) == 0, "munmap");
}

void unmap_all(memory &m)
{
	unmap(m, m.registered());
}

void move(memory &m, range from, int extra_flags, std::size_t alignment)
{
	const std::size_t room = from.length + alignment;
	void *window = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(window != MAP_FAILED, "mmap");
	const auto misaligned = reinterpret_cast<std::uintptr_t>(window) % alignment;
	void *place = static_cast<std::byte *>(window) + (misaligned ? alignment - misaligned : 0);
	if (!(extra_flags & MREMAP_DONTUNMAP))
		m.forget(from);
	check(mremap(from.addr, from.length, from.length,
		     MREMAP_MAYMOVE | MREMAP_FIXED | extra_flags, place) != MAP_FAILED,
	      "mremap");
	m.own({static_cast<std::byte *>(window), room});
}

void advise(range r, int advice, const char *name)
{
	check(madvise(r.addr, r.length, advice) == 0, name);
}

void drop_all(const memory &m)
{
	advise(m.registered(), MADV_DONTNEED, "MADV_DONTNEED");
}

action advising(int advice, const char *name)
{
	return [=](memory &m) { advise(m.registered(), advice, name); };
}

void punch(int fd, range r, range whole)
{
	check(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, r.addr - whole.addr,
			static_cast<off_t>(r.length)) == 0,
	      "fallocate");
}

memory private_hugetlb(std::size_t length)
{
	return hugetlb(length, false);
}

memory shared_hugetlb(std::size_t length)
{
	return hugetlb(length, true);
}

memory unshared_with_witness(std::size_t length)
{
	memory m = anonymous_with_witness(length);

	advise({m.registered().addr, 2 * length}, MADV_DONTFORK, "MADV_DONTFORK");
	return m;
}

void child_check(bool ok)
{
	if (!ok)
		_exit(errno == EPERM || errno == EACCES || errno == ENOSYS ? not_here : 1);
}

bool advise_parent(range r, int advice)
{
	const iovec part{r.addr, r.length};
	const auto parent = static_cast<int>(syscall(SYS_pidfd_open, getppid(), 0));

	errno = 0;
	return syscall(SYS_process_madvise, parent, &part, 1UL, advice, 0U) >= 0;
}

} // namespace mr_notify
