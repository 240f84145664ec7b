// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which a process changes its own address space by munmap, mmap over a
 * mapping, mremap, brk or shmdt. Other rows change the protection or the locking, but no page.
 */
#include "rows.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <cstring>
#include <thread>

namespace mr_notify {
namespace {

memory anonymous_with_neighbours(std::size_t length)
{
	memory m = anonymous(length + 2 * page_size());

	m.set_registered({m.registered().addr + page_size(), length});
	return m;
}

action protecting(int protection)
{
	return [=](memory &m) {
		const range r = m.registered();

		check(mprotect(r.addr, r.length, protection) == 0, "mprotect");
		if (protection & PROT_READ)
			return;
		/* The check of the bytes must be able to read the memory. */
		check(mprotect(r.addr, r.length, PROT_READ | PROT_WRITE) == 0, "mprotect");
	};
}

void protect_by_key(memory &m)
{
	const range r = m.registered();
	const int key = pkey_alloc(0, 0);

	if (key < 0)
		throw unsupported("no memory protection keys");
	const bool ok = pkey_mprotect(r.addr, r.length, PROT_READ | PROT_WRITE, key) == 0 &&
			pkey_mprotect(r.addr, r.length, PROT_READ | PROT_WRITE, 0) == 0;
	pkey_free(key);
	check(ok, "pkey_mprotect");
}

memory on_the_heap(std::size_t length)
{
	/* Makes room in the heap, so that registering does not extend the heap above our part. */
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

void move_onto(memory &m)
{
	const range r = m.registered();
	void *other =
		mmap(nullptr, r.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(other != MAP_FAILED, "mmap");
	m.forget(r);
	check(mremap(other, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED, r.addr) !=
		      MAP_FAILED,
	      "mremap");
	m.own(r);
}

void shrink(memory &m)
{
	const range r = m.registered();

	m.forget(other_half(r));
	check(mremap(r.addr, r.length, half(r).length, 0) != MAP_FAILED, "mremap");
}

/* Leaves address space free after the range, so that the range can grow. */
memory anonymous_with_room(std::size_t length)
{
	memory m = anonymous(2 * length);

	unmap(m, other_half(m.registered()));
	m.set_registered({m.registered().addr, length});
	return m;
}

void grow(memory &m)
{
	const range r = m.registered();

	check(mremap(r.addr, r.length, r.length + page_size(), 0) == r.addr, "mremap");
	m.own({r.end(), page_size()});
}

void map_over(memory &m)
{
	const range r = middle_page(m.registered());

	m.forget(r);
	check(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED,
	      "mmap");
	m.own(r);
}

/* Maps the first page of the file at the place of the middle page. */
void map_other_page(memory &m)
{
	const range r = middle_page(m.registered());

	m.forget(r);
	check(syscall(SYS_remap_file_pages, r.addr, r.length, 0, 0, 0) == 0, "remap_file_pages");
	m.own(r);
}

void detach(memory &m)
{
	const range r = m.registered();

	m.forget(r);
	check(shmdt(r.addr) == 0, "shmdt");
}

} // namespace

void add_mapping(rows &all)
{
	all.invalidates("munmap", anonymous, unmap_all);
	all.invalidates("munmap of one page", anonymous,
			[](memory &m) { unmap(m, middle_page(m.registered())); });
	all.invalidates("munmap of more than the range", anonymous_with_neighbours, [](memory &m) {
		const range r = m.registered();
		unmap(m, {r.addr - page_size(), r.length + 2 * page_size()});
	});
	all.invalidates("munmap by another thread", anonymous,
			[](memory &m) { std::thread([&] { unmap_all(m); }).join(); });
	all.invalidates("munmap of shared memory", shared_file, unmap_all);
	all.invalidates("mmap(MAP_FIXED) over one page", anonymous, map_over);
	all.invalidates("mremap, moved", anonymous, [](memory &m) { move(m, m.registered()); });
	all.invalidates("mremap(MREMAP_DONTUNMAP)", anonymous,
			[](memory &m) { move(m, m.registered(), MREMAP_DONTUNMAP); });
	all.invalidates("mremap of other memory onto the range", anonymous, move_onto);
	all.invalidates("mremap, shrunk", anonymous, shrink);
	all.invalidates("remap_file_pages", shared_file, map_other_page);
	all.invalidates("brk, shrunk", on_the_heap, shrink_heap);
	all.invalidates("shmdt", sysv, detach);

	all.harmless("mprotect(PROT_NONE) and back", anonymous, protecting(PROT_NONE));
	all.harmless("mprotect(PROT_READ)", anonymous, protecting(PROT_READ));
	all.harmless("mprotect of shared memory", shared_file, protecting(PROT_READ));
	all.harmless("pkey_mprotect", anonymous, protect_by_key);
	all.harmless("munmap of the neighbours", anonymous_with_neighbours, [](memory &m) {
		const range r = m.registered();
		unmap(m, {r.addr - page_size(), page_size()});
		unmap(m, {r.end(), page_size()});
	});
	all.harmless("mremap, grown in place", anonymous_with_room, grow);
	all.harmless("mlock and munlock", anonymous, [](memory &m) {
		const range r = m.registered();
		check(mlock(r.addr, r.length) == 0 && munlock(r.addr, r.length) == 0, "mlock");
	});
}

} // namespace mr_notify
