// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "operations.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace mr_notify {
namespace {

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

/* A transparent huge page of which only the first half is registered. */
memory half_a_huge_page(std::size_t)
{
	memory m = transparent_huge(huge_page_size());

	m.set_registered(half(m.registered()));
	return m;
}

range unregistered_half(const memory &m)
{
	return {m.registered().end(), m.registered().length};
}

memory anonymous_with_neighbours(std::size_t length)
{
	memory m = anonymous(length + 2 * page_size());

	m.set_registered({m.registered().addr + page_size(), length});
	return m;
}

void unmap(memory &m, range r)
{
	m.forget(r);
	check(munmap(r.addr, r.length) == 0, "munmap");
}

void advise(range r, int advice, const char *name)
{
	check(madvise(r.addr, r.length, advice) == 0, name);
}

std::function<void(memory &)> advising(int advice, const char *name)
{
	return [=](memory &m) { advise(m.registered(), advice, name); };
}

std::function<void(memory &)> protecting(int protection)
{
	return [=](memory &m) {
		const range r = m.registered();

		check(mprotect(r.addr, r.length, protection) == 0, "mprotect");
		if (protection & PROT_READ)
			return;
		/* Readable again for whoever looks at the bytes. */
		check(mprotect(r.addr, r.length, PROT_READ | PROT_WRITE) == 0, "mprotect");
	};
}

/* Runs a function in a child, which exits without running destructors. */
template <class F> void in_child(F &&function)
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		function();
		_exit(0);
	}
	check(child > 0, "fork");
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (status != 0)
		throw std::runtime_error("the child failed");
}

void child_check(bool ok)
{
	if (!ok)
		_exit(1);
}

void punch(int fd, range r, range whole)
{
	check(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, r.addr - whole.addr,
			static_cast<off_t>(r.length)) == 0,
	      "fallocate");
}

memory on_the_heap(std::size_t length)
{
	/* Room for what registering allocates, so that our part stays on top. */
	mallopt(M_TRIM_THRESHOLD, -1);
	free(malloc(std::size_t{1} << 16));

	const auto misaligned = reinterpret_cast<std::uintptr_t>(sbrk(0)) % page_size();
	if (misaligned &&
	    sbrk(static_cast<intptr_t>(page_size() - misaligned)) == reinterpret_cast<void *>(-1))
		fail("sbrk");
	void *addr = sbrk(static_cast<intptr_t>(length));
	if (addr == reinterpret_cast<void *>(-1))
		fail("sbrk");
	std::memset(addr, 0x5a, length);
	memory m;
	m.set_registered({static_cast<std::byte *>(addr), length});
	return m;
}

void shrink_heap(memory &m)
{
	const range r = m.registered();

	if (sbrk(0) != r.end())
		throw unsupported("malloc has extended the heap in between");
	check(sbrk(-static_cast<intptr_t>(r.length)) != reinterpret_cast<void *>(-1), "sbrk");
}

void move(memory &m, int extra_flags)
{
	const range r = m.registered();
	void *place = mmap(nullptr, r.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(place != MAP_FAILED, "mmap");
	m.own({static_cast<std::byte *>(place), r.length});
	if (!(extra_flags & MREMAP_DONTUNMAP))
		m.forget(r);
	check(mremap(r.addr, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED | extra_flags,
		     place) != MAP_FAILED,
	      "mremap");
}

void move_onto(memory &m)
{
	const range r = m.registered();
	void *other =
		mmap(nullptr, r.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(other != MAP_FAILED, "mmap");
	check(mremap(other, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED, r.addr) !=
		      MAP_FAILED,
	      "mremap");
}

void shrink(memory &m)
{
	const range r = m.registered();

	m.forget(other_half(r));
	check(mremap(r.addr, r.length, half(r).length, 0) != MAP_FAILED, "mremap");
}

void map_over(memory &m)
{
	const range r = middle_page(m.registered());

	check(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED,
	      "mmap");
}

void write_system_file(const char *path, const char *text)
{
	const int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		throw unsupported(std::string(path) + ": " + std::strerror(errno));
	const bool ok = write(fd, text, std::strlen(text)) >= 0;
	close(fd);
	check(ok, path);
}

std::function<void(memory &)> writing(const char *path, const char *text)
{
	return [=](memory &) { write_system_file(path, text); };
}

void write_protect_by_userfaultfd(memory &m)
{
	const range r = m.registered();
	const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));

	if (fd < 0)
		throw unsupported("no userfaultfd");
	uffdio_api api{};
	api.api = UFFD_API;
	api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	uffdio_register reg{};
	reg.range = {reinterpret_cast<std::uintptr_t>(r.addr), r.length};
	reg.mode = UFFDIO_REGISTER_MODE_WP;
	uffdio_writeprotect protect{};
	protect.range = reg.range;
	protect.mode = UFFDIO_WRITEPROTECT_MODE_WP;
	const bool ok = ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &reg) == 0 &&
			ioctl(fd, UFFDIO_WRITEPROTECT, &protect) == 0;
	close(fd); /* which takes the protection away again */
	if (!ok)
		throw unsupported("userfaultfd can't write-protect");
}

/* To any node that will have them: the pages are pinned and must stay. */
void move_to_node_0(memory &m)
{
	void *page = m.registered().addr;
	int node = 0;
	int status = 0;

	check(syscall(SYS_move_pages, 0, 1UL, &page, &node, &status, 1 << 1 /* MPOL_MF_MOVE */) >=
		      0,
	      "move_pages");
}

/* Poisoning a page of one's own ends in a SIGBUS, which is no news here. */
void poison(memory &m)
{
	struct sigaction ignore {};
	struct sigaction before {};

	ignore.sa_handler = [](int) {};
	sigaction(SIGBUS, &ignore, &before);
	const range r = middle_page(m.registered());
	const bool ok = madvise(r.addr, r.length, MADV_HWPOISON) == 0 || errno == EBUSY;
	const int error = errno;
	sigaction(SIGBUS, &before, nullptr);
	errno = error;
	check(ok, "MADV_HWPOISON");
}

void add_invalidating(std::vector<operation> &all)
{
	const auto add = [&](std::string name, auto map, std::function<void(memory &)> apply,
			     reach disturbs = reach::process) {
		all.push_back(
			{std::move(name), effect::invalidates, map, std::move(apply), disturbs});
	};
	const auto huge_private = [](std::size_t n) { return hugetlb(n, false); };
	const auto huge_shared = [](std::size_t n) { return hugetlb(n, true); };
	const auto unmap_all = [](memory &m) { unmap(m, m.registered()); };
	const auto drop_all = advising(MADV_DONTNEED, "MADV_DONTNEED");

	add("munmap", anonymous, unmap_all);
	add("munmap of one page", anonymous,
	    [](memory &m) { unmap(m, middle_page(m.registered())); });
	add("munmap of more than the range", anonymous_with_neighbours, [](memory &m) {
		const range r = m.registered();
		unmap(m, {r.addr - page_size(), r.length + 2 * page_size()});
	});
	add("munmap by another thread", anonymous,
	    [](memory &m) { std::thread([&] { unmap(m, m.registered()); }).join(); });
	add("munmap of shared memory", shared_file, unmap_all);
	add("munmap of a huge page (THP)", transparent_huge, unmap_all);
	add("munmap of hugetlb", huge_private, unmap_all);
	add("mmap(MAP_FIXED) over one page", anonymous, map_over);
	add("mremap, moved", anonymous, [](memory &m) { move(m, 0); });
	add("mremap(MREMAP_DONTUNMAP)", anonymous, [](memory &m) { move(m, MREMAP_DONTUNMAP); });
	add("mremap of something onto it", anonymous, move_onto);
	add("mremap, shrunk", anonymous, shrink);
	add("mremap of hugetlb, moved", huge_private, [](memory &m) {
		const range r = m.registered();
		const std::size_t huge = huge_page_size();
		void *window = mmap(nullptr, r.length + huge, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		check(window != MAP_FAILED, "mmap");
		m.own({static_cast<std::byte *>(window), r.length + huge});
		const auto misaligned = reinterpret_cast<std::uintptr_t>(window) % huge;
		std::byte *place =
			static_cast<std::byte *>(window) + (misaligned ? huge - misaligned : 0);
		m.forget(r);
		check(mremap(r.addr, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED, place) !=
			      MAP_FAILED,
		      "mremap");
	});
	add("brk, shrunk", on_the_heap, shrink_heap);
	add("shmdt", sysv, [](memory &m) {
		const range r = m.registered();
		m.forget(r);
		check(shmdt(r.addr) == 0, "shmdt");
	});
	add("MADV_DONTNEED", anonymous, drop_all);
	add("MADV_DONTNEED of one page", anonymous,
	    [](memory &m) { advise(middle_page(m.registered()), MADV_DONTNEED, "MADV_DONTNEED"); });
	add("MADV_DONTNEED by another thread", anonymous,
	    [=](memory &m) { std::thread([&] { drop_all(m); }).join(); });
	add("MADV_DONTNEED of a private file", private_file, drop_all);
	add("MADV_DONTNEED of a huge page (THP)", transparent_huge, drop_all);
	add("MADV_DONTNEED in a huge page (THP)", transparent_huge,
	    [](memory &m) { advise(middle_page(m.registered()), MADV_DONTNEED, "MADV_DONTNEED"); });
	add("MADV_DONTNEED of hugetlb", huge_private, drop_all);
	add("MADV_REMOVE", shared_file, advising(MADV_REMOVE, "MADV_REMOVE"));
	add("ftruncate", shared_file,
	    [](memory &m) { check(ftruncate(m.fd(), 0) == 0, "ftruncate"); });
	add("ftruncate of a part", shared_file, [](memory &m) {
		check(ftruncate(m.fd(), static_cast<off_t>(half(m.registered()).length)) == 0,
		      "ftruncate");
	});
	add("ftruncate by another process", shared_file,
	    [](memory &m) { in_child([&] { child_check(ftruncate(m.fd(), 0) == 0); }); });
	add("ftruncate of hugetlb", huge_shared,
	    [](memory &m) { check(ftruncate(m.fd(), 0) == 0, "ftruncate"); });
	add("hole punched", shared_file,
	    [](memory &m) { punch(m.fd(), middle_page(m.registered()), m.registered()); });
	add("hole punched by another process", shared_file, [](memory &m) {
		in_child([&] {
			child_check(fallocate(m.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
					      static_cast<off_t>(page_size())) == 0);
		});
	});
	add("hole punched in hugetlb", huge_shared,
	    [](memory &m) { punch(m.fd(), m.registered(), m.registered()); });
	add("MADV_HWPOISON", anonymous, poison, reach::system);
}

void add_harmless(std::vector<operation> &all)
{
	const auto add = [&](std::string name, auto map, std::function<void(memory &)> apply,
			     reach disturbs = reach::process) {
		all.push_back({std::move(name), effect::harmless, map, std::move(apply), disturbs});
	};
	const auto huge_private = [](std::size_t n) { return hugetlb(n, false); };
	const auto huge_shared = [](std::size_t n) { return hugetlb(n, true); };

	add("mprotect(PROT_NONE) and back", anonymous, protecting(PROT_NONE));
	add("mprotect(PROT_READ)", anonymous, protecting(PROT_READ));
	add("mprotect of shared memory", shared_file, protecting(PROT_READ));
	add("munmap of the neighbours", anonymous_with_neighbours, [](memory &m) {
		const range r = m.registered();
		unmap(m, {r.addr - page_size(), page_size()});
		unmap(m, {r.end(), page_size()});
	});
	add("fork, the child exits", anonymous, [](memory &) { in_child([] {}); });
	add("fork, the child writes", anonymous, [](memory &m) {
		in_child([&] { std::memset(m.registered().addr, 1, m.registered().length); });
	});
	add("fork, the child unmaps", anonymous, [](memory &m) {
		in_child([&] {
			child_check(munmap(m.registered().addr, m.registered().length) == 0);
		});
	});
	add("fork, both write", anonymous, [](memory &m) {
		in_child([&] { std::memset(m.registered().addr, 1, m.registered().length); });
		std::memset(m.registered().addr, 2, m.registered().length);
	});
	add("fork with a huge page (THP)", transparent_huge, [](memory &m) {
		in_child([&] { std::memset(m.registered().addr, 1, m.registered().length); });
	});
	add("fork with private hugetlb", huge_private, [](memory &) { in_child([] {}); });
	add("MADV_DONTNEED of shared memory", shared_file,
	    advising(MADV_DONTNEED, "MADV_DONTNEED"));
	add("MADV_DONTNEED of shared hugetlb", huge_shared,
	    advising(MADV_DONTNEED, "MADV_DONTNEED"));
	add("MADV_FREE", anonymous, advising(MADV_FREE, "MADV_FREE"));
	add("MADV_COLD", anonymous, advising(MADV_COLD, "MADV_COLD"));
	add("MADV_PAGEOUT", anonymous, advising(MADV_PAGEOUT, "MADV_PAGEOUT"));
	add("MADV_PAGEOUT of shared memory", shared_file, advising(MADV_PAGEOUT, "MADV_PAGEOUT"));
	add("MADV_DONTFORK", anonymous, advising(MADV_DONTFORK, "MADV_DONTFORK"));
	add("MADV_MERGEABLE (KSM)", anonymous, advising(MADV_MERGEABLE, "MADV_MERGEABLE"));
	add("MADV_NOHUGEPAGE (THP)", transparent_huge,
	    advising(MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"));
	add("MADV_COLLAPSE", anonymous, [](memory &m) {
		const range r = m.registered();
		/* It refuses pinned pages, one way or another. */
		if (madvise(r.addr, r.length, MADV_COLLAPSE) && errno == EINVAL &&
		    r.length >= 2 * huge_page_size())
			throw unsupported("no MADV_COLLAPSE");
	});
	add("mlock and munlock", anonymous, [](memory &m) {
		const range r = m.registered();
		check(mlock(r.addr, r.length) == 0 && munlock(r.addr, r.length) == 0, "mlock");
	});
	add("munmap of the other half of a THP", half_a_huge_page,
	    [](memory &m) { unmap(m, unregistered_half(m)); });
	add("mprotect of the other half of a THP", half_a_huge_page, [](memory &m) {
		const range r = unregistered_half(m);
		check(mprotect(r.addr, r.length, PROT_READ) == 0, "mprotect");
	});
	add("MADV_DONTNEED of the other half of a THP", half_a_huge_page,
	    [](memory &m) { advise(unregistered_half(m), MADV_DONTNEED, "MADV_DONTNEED"); });
	add("MADV_DONTFORK of the other half of a THP", half_a_huge_page,
	    [](memory &m) { advise(unregistered_half(m), MADV_DONTFORK, "MADV_DONTFORK"); });
	add("mlock of the other half of a THP", half_a_huge_page, [](memory &m) {
		const range r = unregistered_half(m);
		check(mlock(r.addr, r.length) == 0, "mlock");
	});
	add("userfaultfd write-protection", anonymous, write_protect_by_userfaultfd);
	add("move_pages", anonymous, move_to_node_0);
	add("soft-dirty cleared", anonymous, writing("/proc/self/clear_refs", "4"));
	add("memory compacted", anonymous, writing("/proc/sys/vm/compact_memory", "1"),
	    reach::system);
	add("caches dropped", shared_file, writing("/proc/sys/vm/drop_caches", "3"), reach::system);
}

} // namespace

std::vector<operation> operations()
{
	std::vector<operation> all;

	add_invalidating(all);
	add_harmless(all);
	return all;
}

} // namespace mr_notify
