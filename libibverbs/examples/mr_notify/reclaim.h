/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The test matrix with a registration that has been suspended: idle, and the
 * kernel has taken its pages back. Then no pin is in the way of code that moves,
 * merges or swaps pages; settling gives the device those that are mapped by then.
 */
#ifndef MR_NOTIFY_RECLAIM_H
#define MR_NOTIFY_RECLAIM_H

#include <string>

#include "bytes.h"
#include "operations.h"

namespace mr_notify {

class reclaim_check {
public:
	/* Throws unsupported where the device does not reclaim. */
	explicit reclaim_check(const device &on);

	/* Does it, and settles: empty, or the complaint. Throws unsupported as it does. */
	std::string try_operation(const operation &what, std::size_t length);

	/* Suspending by itself: rows that have no operation. */
	std::string try_restore(std::size_t length);
	std::string try_in_use(std::size_t length);
	std::string try_second_chance(std::size_t length);

private:
	/* @looked_once: the kernel has looked as often as it was asked to, and no more. */
	std::string second_chance(std::size_t length, bool &looked_once) const;

	const device &on_;
	byte_check bytes_;
};

} // namespace mr_notify

#endif
