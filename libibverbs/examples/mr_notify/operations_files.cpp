// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table with memory that the device may only read. A mapped file can't be
 * registered for writing, and the kernel may drop its clean pages at any time. If private
 * memory is registered before its first write, the write must leave the pages in place.
 */
#include "rows.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "system.h"
#include "witness.h"

namespace mr_notify {
namespace {

memory untouched(std::size_t length, int flags, int fd)
{
	void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | flags, fd, 0);

	check(addr != MAP_FAILED, "mmap");
	memory m({static_cast<std::byte *>(addr), length}, fd);
	m.set_read_only();
	return m;
}

memory untouched_anonymous(std::size_t length)
{
	return untouched(length, MAP_ANONYMOUS, -1);
}

memory untouched_private_file(std::size_t length)
{
	const int fd = memfd_create("mr_notify", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, static_cast<off_t>(length)))
		fail("memfd");
	return untouched(length, 0, fd);
}

void write_all(memory &m)
{
	std::memset(m.registered().addr, 0x77, m.registered().length);
}

bool in_page_cache(range r)
{
	std::vector<unsigned char> pages(r.length / page_size());

	check(mincore(r.addr, r.length, pages.data()) == 0, "mincore");
	for (const unsigned char page : pages)
		if (!(page & 1))
			return false;
	return true;
}

void drop_caches(memory &m)
{
	/* The kernel does not drop pages that are mapped. */
	advise(m.with_witness(), MADV_DONTNEED, "MADV_DONTNEED");
	write_system_file("/proc/sys/vm/drop_caches", "1");
	if (in_page_cache(m.witness()))
		throw unsupported("the kernel did not drop the file's pages");
}

} // namespace

void add_files(rows &all)
{
	all.invalidates("munmap of a mapped file", mapped_file, unmap_all);

	all.harmless("MADV_DONTNEED of a mapped file", mapped_file,
		     advising(MADV_DONTNEED, "MADV_DONTNEED"));
	all.harmless("MADV_PAGEOUT of a mapped file", mapped_file, witnessed([](memory &m) {
			     advise(m.with_witness(), MADV_PAGEOUT, "MADV_PAGEOUT");
		     }));
	all.harmless("caches dropped", mapped_file, drop_caches, reach::system);
	all.harmless("first write, read-only MR", untouched_anonymous, write_all);
	all.harmless("first write to a file, read-only MR", untouched_private_file, write_all);
}

} // namespace mr_notify
