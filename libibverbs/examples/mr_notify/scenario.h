/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The scenario comes from the proposal of 2009 (Squyres). A program registers
 * memory, transfers, frees the memory without deregistering, sees the word,
 * registers again, and transfers again.
 */
#ifndef MR_NOTIFY_SCENARIO_H
#define MR_NOTIFY_SCENARIO_H

#include <string>
#include <vector>

#include "device.h"

namespace mr_notify {

struct step {
	std::string what;
	bool ok;
	std::string seen; /* the observation, for readers of the report */
};

std::vector<step> run_scenario(const device &on, std::size_t length);

} // namespace mr_notify

#endif
