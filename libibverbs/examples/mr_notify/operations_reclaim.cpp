// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which the kernel tries to free the memory by swap, by reclaim at the
 * limit of a control group, or by merging pages (KSM). The witness's pages change. Pinned
 * pages stay, but the kernel unmaps shared pages for a moment.
 */
#include "rows.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "system.h"
#include "witness.h"

namespace mr_notify {
namespace {

mapper with_swap(mapper map)
{
	return [map = std::move(map)](std::size_t length) {
		need_swap();
		return map(length);
	};
}

mapper in_control_group(mapper map)
{
	return [map = with_swap(std::move(map))](std::size_t length) {
		need_control_group();
		return map(length);
	};
}

void page_out(memory &m)
{
	advise(m.with_witness(), MADV_PAGEOUT, "MADV_PAGEOUT");
}

void page_out_from_outside(memory &m)
{
	in_child([&] { child_check(advise_parent(m.with_witness(), MADV_PAGEOUT)); });
}

/* Sets the limit of the group to its present use, so the next pages push other pages
 * out. */
void press(memory &m)
{
	const std::string &group = need_control_group();
	constexpr std::size_t piece = std::size_t{4} << 20;
	const auto before = frames(m.witness());
	const setting limit(group + "/memory.max", read_system_file(group + "/memory.current"));
	std::vector<memory> more;

	for (int i = 0; i < 8 && frames(m.witness()) == before; i++)
		more.push_back(anonymous_with_witness(piece / 2));
}

void reclaim(memory &)
{
	/* The write fails with EAGAIN if the group has too little to reclaim. */
	try {
		write_system_file(need_control_group() + "/memory.reclaim", "64M");
	} catch (const unsupported &) {
	}
}

bool has_merged(range r)
{
	std::vector<uint64_t> pages = frames(r);

	std::sort(pages.begin(), pages.end());
	return std::adjacent_find(pages.begin(), pages.end()) != pages.end();
}

/*
 * In one half of the witness all pages are equal to the registered pages. In the other half the
 * pages are only equal to one another.
 */
void merge(memory &m)
{
	const std::string folder = "/sys/kernel/mm/ksm/";
	const setting pages(folder + "pages_to_scan", "10000");
	const setting sleep(folder + "sleep_millisecs", "1");

	std::memset(half(m.witness()).addr, 0x77, half(m.witness()).length);
	advise(m.with_witness(), MADV_MERGEABLE, "MADV_MERGEABLE");
	const setting run(folder + "run", "1");
	if (!happens([&] { return has_merged(half(m.witness())); }))
		throw unsupported("KSM merged nothing for minutes");
}

void unmerge(memory &m)
{
	merge(m);
	witnessed([](memory &merged) {
		advise(merged.with_witness(), MADV_UNMERGEABLE, "MADV_UNMERGEABLE");
	})(m);
}

} // namespace

void add_reclaim(rows &all)
{
	const mapper anonymous_memory = anonymous_with_witness;
	const mapper shared_memory = shared_file_with_witness;

	all.harmless("swapped out (MADV_PAGEOUT)", with_swap(anonymous_memory), witnessed(page_out),
		     reach::system);
	all.harmless("swapped out, shared memory", with_swap(shared_memory), witnessed(page_out),
		     reach::system);
	all.harmless("swapped out by process_madvise", with_swap(unshared_with_witness),
		     witnessed(page_out_from_outside), reach::system);
	all.harmless("reclaim (memory.reclaim)", in_control_group(anonymous_memory),
		     witnessed(reclaim), reach::system);
	all.harmless("reclaim of shared memory", in_control_group(shared_memory),
		     witnessed(reclaim), reach::system);
	all.harmless("memory pressure (memory.max)", in_control_group(anonymous_memory),
		     witnessed(press), reach::system);
	all.harmless("memory pressure, shared memory", in_control_group(shared_memory),
		     witnessed(press), reach::system);
	all.harmless("MADV_MERGEABLE", anonymous, advising(MADV_MERGEABLE, "MADV_MERGEABLE"));
	all.harmless("merged with others (KSM)", anonymous_memory, merge, reach::system);
	all.harmless("merged, and taken apart again (KSM)", anonymous_memory, unmerge,
		     reach::system);
}

} // namespace mr_notify
