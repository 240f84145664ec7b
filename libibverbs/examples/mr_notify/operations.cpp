// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* Orders the table. Invalidating rows come first. The rows are in operations_*.cpp. */
#include "operations.h"

#include <algorithm>

#include "rows.h"

namespace mr_notify {

std::vector<operation> operations()
{
	rows all;

	add_mapping(all);
	add_dropping(all);
	add_fork(all);
	add_transparent_huge(all);
	add_hugetlb(all);
	add_files(all);
	add_userfaultfd(all);
	add_io_uring(all);
	add_processes(all);
	add_ends(all);
	add_reclaim(all);
	add_migration(all);
	add_poison(all);

	std::vector<operation> table = all.take();
	std::stable_partition(table.begin(), table.end(), [](const operation &one) {
		return one.expected == effect::invalidates;
	});
	return table;
}

} // namespace mr_notify
