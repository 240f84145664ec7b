/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Runs the test matrix with one MR of all memory. The MR is never armed, registered
 * again or pinned. After each operation the device must see the same bytes as the
 * CPU.
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
	/* Throws unsupported if the device has no MR of all memory. */
	explicit all_check(const device &on);

	/* Returns "" or the complaint. If the operation throws unsupported, this
	 * function throws it, too. */
	std::string try_operation(const operation &what, std::size_t length);

private:
	std::string look(range page);
	bool ended_well(ibv_wc_status status);

	const device &on_;
	owned<ibv_mr> all_;
	memory peer_;
	/*
	 * An error breaks a connection, so a row needs several connections. The row
	 * makes all of them before the operation. A later connection could map
	 * memory in the range that the operation has unmapped.
	 */
	std::deque<loopback> links_;
	unsigned char pattern_ = 0;
};

} // namespace mr_notify

#endif
