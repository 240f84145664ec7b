/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The test matrix with an MR of all memory in place of a registration: after
 * each operation the device must see the CPU's bytes, with nothing armed,
 * nothing registered again and nothing pinned.
 */
#ifndef MR_NOTIFY_ALL_H
#define MR_NOTIFY_ALL_H

#include <deque>
#include <string>

#include "loopback.h"
#include "operations.h"

namespace mr_notify {

class all_check {
public:
	/* Throws unsupported where the device has no such MRs. */
	explicit all_check(const device &on);

	/* Does it, and looks: empty, or the complaint. Throws unsupported as the operation does. */
	std::string try_operation(const operation &what, std::size_t length);

private:
	std::string look(range page);
	bool ended_well(ibv_wc_status status);

	const device &on_;
	owned<ibv_mr> all_;
	memory peer_;
	/*
	 * An error breaks one. Those that may be needed are made before the operation: memory
	 * that is mapped after it may go where something has just been unmapped.
	 */
	std::deque<loopback> links_;
	unsigned char pattern_ = 0;
};

} // namespace mr_notify

#endif
