/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The test matrix. The operation of each row changes the memory of a registration, or only
 * seems to change it. The row says whether the registration must survive. ibv_mr_notify
 * prints the matrix as a table, and the tests check each row.
 */
#ifndef MR_NOTIFY_OPERATIONS_H
#define MR_NOTIFY_OPERATIONS_H

#include <vector>

#include "operation.h"

namespace mr_notify {

/* All operations, in the order of the table. */
std::vector<operation> operations();

} // namespace mr_notify

#endif
