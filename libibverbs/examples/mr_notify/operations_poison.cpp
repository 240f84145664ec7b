// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which the memory itself fails, or is about to fail. The kernel
 * takes a failed page from all its users. If a pinned page is only about to fail, the
 * kernel leaves the page in place.
 */
#include "rows.h"

#include <sys/mman.h>

#include <csignal>

#include "witness.h"

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

namespace mr_notify {
namespace {

/* Ignores SIGBUS, which would end a process that poisons its own page. */
void poison(memory &m)
{
	struct sigaction ignore = {}, before = {};

	ignore.sa_handler = [](int) {};
	sigaction(SIGBUS, &ignore, &before);
	const range r = middle_page(m.registered());
	const bool ok = madvise(r.addr, r.length, MADV_HWPOISON) == 0 || errno == EBUSY;
	const int error = errno;
	sigaction(SIGBUS, &before, nullptr);
	errno = error;
	check(ok, "MADV_HWPOISON");
}

/* If any page of a huge page is poisoned, the kernel records this at the first page. */
memory end_of_shared_hugetlb(std::size_t length)
{
	memory m = shared_hugetlb(length);
	const range whole = m.registered();

	m.set_registered({whole.end() - length, length});
	return m;
}

void soft_offline(memory &m)
{
	const range r = middle_page(m.registered());

	advise({m.witness().addr, page_size()}, MADV_SOFT_OFFLINE, "MADV_SOFT_OFFLINE");
	if (madvise(r.addr, r.length, MADV_SOFT_OFFLINE) == 0)
		throw not_refused("a pinned page was taken offline");
}

} // namespace

void add_poison(rows &all)
{
	all.invalidates("MADV_HWPOISON", anonymous, poison, reach::system);
	all.invalidates("MADV_HWPOISON of shared memory", shared_file, poison, reach::system);
	all.invalidates("MADV_HWPOISON of shared hugetlb", end_of_shared_hugetlb, poison,
			reach::system);

	all.harmless("MADV_SOFT_OFFLINE, refused", anonymous_with_witness, witnessed(soft_offline),
		     reach::system);
	all.harmless("MADV_SOFT_OFFLINE, shared memory, refused", shared_file_with_witness,
		     witnessed(soft_offline), reach::system);
}

} // namespace mr_notify
