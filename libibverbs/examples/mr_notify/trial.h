/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * One row of the table: an operation done to registered memory, and the
 * word and the pinned pages afterwards.
 */
#ifndef MR_NOTIFY_TRIAL_H
#define MR_NOTIFY_TRIAL_H

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "bytes.h"
#include "operations.h"

namespace mr_notify {

struct observation {
	uint64_t word_after = 0;   /* right after the system call */
	uint64_t word_settled = 0; /* after ibv_settle_mr_notify() */
	std::size_t pages = 0;	   /* registered */
	std::size_t pages_pinned = 0;
	std::optional<bool> reached;	    /* same bytes for device and CPU; or never asked */
	std::optional<bool> refused;	    /* the device has no access; or never asked */
	std::chrono::nanoseconds plain{};   /* the operation beside an unarmed MR */
	std::chrono::nanoseconds armed{};   /* the same beside an armed one */
	std::optional<std::string> skipped; /* why there is nothing to see */
	std::optional<std::string> failed;  /* the error in trying it */
};

/*
 * For its cost: does it beside an unarmed registration and beside an armed one,
 * three times each. The times are the best ones, the rest is that of the last
 * round, which is the first wrong one if any was wrong. Else, and where times mean
 * nothing, it is done once, beside an armed one.
 */
observation try_operation(const device &on, byte_check &bytes, const operation &what,
			  std::size_t length, bool cost);

/* Whether its times mean anything. */
bool is_timed(const operation &what);

/* The contract's judgment of an observation: empty, or the complaint. */
std::string verdict(const device &on, const operation &what, const observation &seen);

/* Waits until as many bytes are pinned; the last number seen. */
std::size_t wait_for_pinned(std::size_t bytes);

} // namespace mr_notify

#endif
