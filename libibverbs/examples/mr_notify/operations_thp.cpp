// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table with transparent huge pages. Some operations change one half of a huge page,
 * which splits the page. Other operations make the kernel try to collapse small pages.
 */
#include "rows.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "system.h"
#include "witness.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace mr_notify {
namespace {

/* Only the first half of this transparent huge page is registered. */
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

action advising_other_half(int advice, const char *name)
{
	return [=](memory &m) { advise(unregistered_half(m), advice, name); };
}

/*
 * Maps two aligned ranges of a huge page's size with small pages. Half of the first range is
 * registered, and the second range is the witness. khugepaged must not touch the ranges yet, or it
 * would collapse the witness before the row has recorded the witness's pages.
 */
memory two_places(int flags, int fd)
{
	const std::size_t huge = huge_page_size();
	void *window = mmap(nullptr, 3 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(window != MAP_FAILED, "mmap");
	const auto misaligned = reinterpret_cast<std::uintptr_t>(window) % huge;
	std::byte *first = static_cast<std::byte *>(window) + (misaligned ? huge - misaligned : 0);
	memory m({static_cast<std::byte *>(window), 3 * huge}, fd);
	check(mmap(first, 2 * huge, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == first,
	      "mmap");
	check(madvise(first, 2 * huge, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
	std::memset(first, 0x5a, 2 * huge);
	m.set_registered({first, huge / 2});
	m.set_witness({first + huge, huge});
	return m;
}

memory small_pages(std::size_t)
{
	return two_places(MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

memory small_pages_of_shared_memory(std::size_t)
{
	const int fd = memfd_create("mr_notify", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, static_cast<off_t>(2 * huge_page_size())))
		fail("memfd");
	return two_places(MAP_SHARED, fd);
}

void allow_huge_pages(const memory &m)
{
	advise({m.registered().addr, 2 * huge_page_size()}, MADV_HUGEPAGE, "MADV_HUGEPAGE");
}

/* Repeats MADV_COLLAPSE, which returns EAGAIN while another task has one of the pages. */
template <class F> bool in_the_end(F &&collapsed)
{
	for (int i = 0; i < 1000; i++) {
		if (collapsed())
			return true;
		if (errno != EAGAIN)
			return false;
		usleep(1000);
	}
	return false;
}

/* The kernel refuses to collapse the first range, which has pinned pages. The error varies. */
void collapse(memory &m)
{
	allow_huge_pages(m);
	static_cast<void>(madvise(m.registered().addr, huge_page_size(), MADV_COLLAPSE));
	const range r = m.witness();
	check(in_the_end([&] { return madvise(r.addr, r.length, MADV_COLLAPSE) == 0; }),
	      "MADV_COLLAPSE");
}

void collapse_from_outside(memory &m)
{
	/* Pages that the child also maps would stay in place. */
	advise({m.registered().addr, 2 * huge_page_size()}, MADV_DONTFORK, "MADV_DONTFORK");
	allow_huge_pages(m);
	in_child([&] {
		advise_parent({m.registered().addr, huge_page_size()}, MADV_COLLAPSE);
		child_check(in_the_end([&] { return advise_parent(m.witness(), MADV_COLLAPSE); }));
	});
}

/*
 * Waits until khugepaged has collapsed the witness, and then for two more passes. The pass in
 * progress may have visited the first range too early. The settings make khugepaged faster. They
 * also remove its pause of a minute after it finds no free huge page.
 */
void let_khugepaged_pass(memory &m)
{
	const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
	const setting enabled(folder + "enabled", "always");
	const setting pages(folder + "khugepaged/pages_to_scan", "100000");
	const setting pause(folder + "khugepaged/alloc_sleep_millisecs", "1");
	const setting sleep(folder + "khugepaged/scan_sleep_millisecs", "1");
	const auto passes = [&] {
		return std::stoull(read_system_file(folder + "khugepaged/full_scans"));
	};
	const auto before = frames(m.witness());
	const auto collapsed = [&] {
		const auto now = frames(m.witness());
		/* During an attempt the range is unmapped for a moment. */
		return now != before && std::find(now.begin(), now.end(), 0) == now.end();
	};

	allow_huge_pages(m);
	if (!happens(collapsed))
		throw unsupported("khugepaged collapsed nothing within minutes");
	const auto then = passes();
	if (!happens([&] { return passes() >= then + 2; }))
		throw unsupported("khugepaged did not complete a pass within minutes");
}

} // namespace

void add_transparent_huge(rows &all)
{
	const action drop = advising(MADV_DONTNEED, "MADV_DONTNEED");

	all.invalidates("munmap of a huge page (THP)", transparent_huge, unmap_all);
	all.invalidates("munmap in a huge page (THP)", transparent_huge,
			[](memory &m) { unmap(m, middle_page(m.registered())); });
	all.invalidates("MADV_DONTNEED of a huge page (THP)", transparent_huge, drop);
	all.invalidates("MADV_DONTNEED in a huge page (THP)", transparent_huge, [](memory &m) {
		advise(middle_page(m.registered()), MADV_DONTNEED, "MADV_DONTNEED");
	});

	all.harmless("MADV_NOHUGEPAGE (THP)", transparent_huge,
		     advising(MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"));
	all.harmless("munmap of the other half of a THP", half_a_huge_page,
		     [](memory &m) { unmap(m, unregistered_half(m)); });
	all.harmless("mremap of the other half of a THP", half_a_huge_page,
		     [](memory &m) { move(m, unregistered_half(m)); });
	all.harmless("mprotect of the other half of a THP", half_a_huge_page, [](memory &m) {
		const range r = unregistered_half(m);
		check(mprotect(r.addr, r.length, PROT_READ) == 0, "mprotect");
	});
	all.harmless("MADV_DONTNEED of the other half of a THP", half_a_huge_page,
		     advising_other_half(MADV_DONTNEED, "MADV_DONTNEED"));
	all.harmless("MADV_FREE of the other half of a THP", half_a_huge_page,
		     advising_other_half(MADV_FREE, "MADV_FREE"));
	all.harmless("MADV_DONTFORK of the other half of a THP", half_a_huge_page,
		     advising_other_half(MADV_DONTFORK, "MADV_DONTFORK"));
	all.harmless("mlock of the other half of a THP", half_a_huge_page, [](memory &m) {
		const range r = unregistered_half(m);
		check(mlock(r.addr, r.length) == 0, "mlock");
	});
	all.harmless("MADV_COLLAPSE", small_pages, witnessed(collapse));
	all.harmless("MADV_COLLAPSE of shared memory", small_pages_of_shared_memory,
		     witnessed(collapse));
	all.harmless("process_madvise(MADV_COLLAPSE)", small_pages,
		     witnessed(collapse_from_outside), reach::process_once);
	all.harmless("khugepaged passes", small_pages, let_khugepaged_pass, reach::system);
}

} // namespace mr_notify
