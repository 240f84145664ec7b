/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Runs the test matrix with suspended registrations. A suspended registration is idle,
 * and the kernel has unpinned its pages. So the kernel can move, merge and swap the
 * pages. Settling gives the device the pages that are mapped at that time.
 */
#ifndef MR_NOTIFY_RECLAIM_H
#define MR_NOTIFY_RECLAIM_H

#include <string>

#include "bytes.h"
#include "operation.h"

namespace mr_notify {

class reclaim_check {
public:
	/* Throws unsupported if the device can't restore registrations. */
	explicit reclaim_check(const device &on);

	/* Runs the operation and settles. Returns "" or the complaint. Passes exceptions
	 * on. */
	std::string try_operation(const operation &what, std::size_t length);

	/* These rows have no operation. They only suspend and restore. */
	std::string try_restore(std::size_t length);
	std::string try_in_use(std::size_t length);
	std::string try_second_chance(std::size_t length);

private:
	/* Sets @looked_once to true if each request to scan caused exactly one scan. */
	std::string second_chance(std::size_t length, bool &looked_once) const;

	const device &on_;
	byte_check bytes_;
};

} // namespace mr_notify

#endif
