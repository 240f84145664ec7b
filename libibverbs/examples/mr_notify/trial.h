/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Tries one row of the table. Does an operation on registered memory, and then observes the
 * word and the pinned pages.
 */
#ifndef MR_NOTIFY_TRIAL_H
#define MR_NOTIFY_TRIAL_H

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "bytes.h"
#include "operation.h"

namespace mr_notify {

struct observation {
	uint64_t word_after = 0;   /* right after the system call */
	uint64_t word_settled = 0; /* after ibv_settle_mr_notify() */
	std::size_t pages = 0;	   /* registered */
	std::size_t pages_pinned = 0;
	std::optional<bool> reached;	    /* do device and CPU see the same bytes? */
	std::optional<bool> refused;	    /* was the device's access refused? */
	std::chrono::nanoseconds plain{};   /* the operation with an unarmed MR */
	std::chrono::nanoseconds armed{};   /* the operation with an armed MR */
	std::optional<std::string> skipped; /* the reason why the row was not tried */
	std::optional<std::string> failed;  /* the error of the attempt */
};

/*
 * With @cost the operation runs three times with an unarmed registration and three times
 * with an armed registration. The times are the best times. All other fields are from the
 * last round, or from the first round with a complaint. Without @cost, or if is_timed() is
 * false, the operation runs once, with an armed registration.
 */
observation try_operation(const device &on, byte_check &bytes, const operation &what,
			  std::size_t length, bool cost);

/* Are the times of this operation meaningful? */
bool is_timed(const operation &what);

/* Compares an observation with the contract. Returns "" or the complaint. */
std::string verdict(const device &on, const operation &what, const observation &seen);

/* Waits until this many bytes are pinned. Returns the last number seen. */
std::size_t wait_for_pinned(std::size_t bytes);

} // namespace mr_notify

#endif
