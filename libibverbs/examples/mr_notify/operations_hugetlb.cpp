// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table with reserved huge pages (hugetlbfs). For these pages the MMU
 * notifiers report CLEAR instead of UNMAP.
 */
#include "rows.h"

#include <sys/mman.h>

namespace mr_notify {
namespace {

memory with_witness(std::size_t)
{
	memory m = shared_hugetlb(2 * huge_page_size());
	const range whole = m.registered();

	m.set_registered({whole.addr, huge_page_size()});
	m.set_witness({m.registered().end(), whole.length - huge_page_size()});
	return m;
}

void punch_witness(memory &m)
{
	punch(m.fd(), m.witness(), {m.registered().addr, 0});
}

} // namespace

void add_hugetlb(rows &all)
{
	all.invalidates("munmap of hugetlb", private_hugetlb, unmap_all);
	all.invalidates("munmap of shared hugetlb", shared_hugetlb, unmap_all);
	all.invalidates("mremap of hugetlb, moved", private_hugetlb,
			[](memory &m) { move(m, m.registered(), 0, huge_page_size()); });
	all.invalidates("MADV_DONTNEED of hugetlb", private_hugetlb, drop_all);
	all.invalidates("ftruncate of hugetlb", shared_hugetlb,
			[](memory &m) { check(ftruncate(m.fd(), 0) == 0, "ftruncate"); });
	all.invalidates("hole punched in hugetlb", shared_hugetlb,
			[](memory &m) { punch(m.fd(), m.registered(), m.registered()); });

	all.harmless("MADV_DONTNEED of shared hugetlb", shared_hugetlb, drop_all);
	all.harmless("hugetlb hole punched next to the range", with_witness, punch_witness);
	all.harmless("mprotect of hugetlb", private_hugetlb, [](memory &m) {
		const range r = m.registered();
		check(mprotect(r.addr, r.length, PROT_READ) == 0, "mprotect");
	});
}

} // namespace mr_notify
