/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Runs the test matrix with one MR of all memory. After each operation the
 * device must see the same bytes as the CPU, although nothing was armed,
 * registered again or pinned.
 */
#ifndef MR_NOTIFY_ALL_H
#define MR_NOTIFY_ALL_H

#include <deque>
#include <string>

#include "loopback.h"
#include "operation.h"

namespace mr_notify {

class all_check {
public:
	/* Throws unsupported if the device has no such MRs. */
	explicit all_check(const device &on);

	/* Returns "" or the complaint. Throws unsupported if the operation does. */
	std::string try_operation(const operation &what, std::size_t length);

private:
	std::string look(range page);
	bool ended_well(ibv_wc_status status);

	const device &on_;
	owned<ibv_mr> all_;
	memory peer_;
	/*
	 * An error breaks a connection. All connections are made before the operation. Later
	 * the memory that a connection maps could land in the range that the operation has
	 * unmapped.
	 */
	std::deque<loopback> links_;
	unsigned char pattern_ = 0;
};

} // namespace mr_notify

#endif
