// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which the kernel tries to move pages. The reason is a request, NUMA
 * balancing or compaction. Pinned pages stay.
 */
#include "rows.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <chrono>

#include "system.h"
#include "witness.h"

namespace mr_notify {
namespace {

constexpr unsigned long move_flag = 1 << 1; /* MPOL_MF_MOVE */
constexpr int bind_policy = 2;		    /* MPOL_BIND */
constexpr int local_policy = 4;		    /* MPOL_LOCAL */

/* Moves the pages to the other node and then to node 0, so that at least one move is real. */
template <class F> void to_node_and_back(F &&to)
{
	const unsigned int other = another_node();

	to(other);
	to(0U);
}

bool move_pages_of(pid_t process, range r, unsigned int node)
{
	const std::size_t count = r.length / page_size();
	std::vector<void *> pages(count);
	const std::vector<int> nodes(count, static_cast<int>(node));
	std::vector<int> status(count);

	for (std::size_t i = 0; i < count; i++)
		pages[i] = r.addr + i * page_size();
	return syscall(SYS_move_pages, process, count, pages.data(), nodes.data(), status.data(),
		       move_flag) >= 0;
}

void move_by_itself(memory &m)
{
	to_node_and_back([&](unsigned int node) {
		check(move_pages_of(0, m.with_witness(), node), "move_pages");
	});
}

void move_from_outside(memory &m)
{
	to_node_and_back([&](unsigned int node) {
		in_child([&] { child_check(move_pages_of(getppid(), m.with_witness(), node)); });
	});
}

/* Moves the whole process away from the witness's node. */
void migrate_process(memory &m)
{
	const unsigned int other = another_node();
	void *page = m.witness().addr;
	int node = 0;

	check(syscall(SYS_move_pages, 0, 1UL, &page, nullptr, &node, 0) == 0, "move_pages");
	const unsigned long from = 1UL << node;
	const unsigned long to = node ? 1UL : 1UL << other;
	check(syscall(SYS_migrate_pages, 0, 8 * sizeof(from), &from, &to) >= 0, "migrate_pages");
}

void bind(memory &m)
{
	const range r = m.with_witness();

	to_node_and_back([&](unsigned int node) {
		const unsigned long nodes = 1UL << node;
		/* With MPOL_MF_STRICT, a page that does not move would cause EIO. */
		check(syscall(SYS_mbind, r.addr, r.length, bind_policy, &nodes, 8 * sizeof(nodes),
			      move_flag) == 0,
		      "mbind");
	});
	check(syscall(SYS_mbind, r.addr, r.length, local_policy, nullptr, 0UL, 0) == 0, "mbind");
}

/* Lets a thread use all of the memory until the kernel has tried to move the memory. */
void balance(memory &m)
{
	const std::string debug = "/sys/kernel/debug/sched/numa_balancing/";

	another_node();
	const std::size_t before = proc_number("/proc/vmstat", "numa_hint_faults ");
	const setting on("/proc/sys/kernel/numa_balancing", "1");
	const setting first(debug + "scan_delay_ms", "1");
	const setting often(debug + "scan_period_min_ms", "10");
	const setting always(debug + "scan_period_max_ms", "100");
	const auto deadline = std::chrono::steady_clock::now() + time_limit;
	constexpr std::size_t enough = 200;
	std::size_t faults = 0;

	std::thread([&] {
		const range r = m.with_witness();
		do {
			for (std::byte *at = r.addr; at < r.end(); at += page_size())
				static_cast<void>(*static_cast<volatile std::byte *>(at));
			faults = proc_number("/proc/vmstat", "numa_hint_faults ") - before;
		} while (faults < enough && std::chrono::steady_clock::now() < deadline);
	}).join();
	if (faults < enough)
		throw unsupported("no NUMA balancing for minutes");
}

/* Frees every second page of the witness, so that there is work for compaction. */
memory fragmented(std::size_t length)
{
	memory m = anonymous_with_witness(length);

	for (std::byte *at = m.witness().addr; at < m.witness().end(); at += 2 * page_size())
		advise({at, page_size()}, MADV_DONTNEED, "MADV_DONTNEED");
	return m;
}

void compact(memory &)
{
	const std::size_t before = proc_number("/proc/vmstat", "compact_isolated ");

	write_system_file("/proc/sys/vm/compact_memory", "1");
	if (proc_number("/proc/vmstat", "compact_isolated ") == before)
		throw unsupported("there was nothing to compact");
}

} // namespace

void add_migration(rows &all)
{
	all.harmless("move_pages", anonymous_with_witness, witnessed(move_by_itself),
		     reach::process_once);
	all.harmless("move_pages of shared memory", shared_file_with_witness,
		     witnessed(move_by_itself), reach::process_once);
	all.harmless("move_pages of a mapped file", mapped_file, move_by_itself,
		     reach::process_once);
	all.harmless("move_pages by another process", unshared_with_witness,
		     witnessed(move_from_outside), reach::process_once);
	all.harmless("mbind(MPOL_MF_MOVE)", anonymous_with_witness, witnessed(bind),
		     reach::process_once);
	all.harmless("mbind of shared memory", shared_file_with_witness, witnessed(bind),
		     reach::process_once);
	all.harmless("migrate_pages", anonymous_with_witness, witnessed(migrate_process),
		     reach::process_once);
	all.harmless("NUMA balancing", anonymous_with_witness, balance, reach::system);
	all.harmless("NUMA balancing of shared memory", shared_file_with_witness, balance,
		     reach::system);
	all.harmless("memory compacted", fragmented, compact, reach::system);
}

} // namespace mr_notify
