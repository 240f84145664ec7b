/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* How many pages are pinned in the whole system. */
#ifndef GUEST_PINS_H
#define GUEST_PINS_H

#include <cstdint>
#include <fstream>
#include <string>

#include "system.h"

/* The number of pages that all processes have pinned. */
inline int64_t pins()
{
	/* Reading this file adds up the counts of all CPUs. */
	std::ifstream("/proc/sys/vm/stat_refresh").get();
	std::ifstream lines("/proc/vmstat");
	std::string name;
	int64_t value = 0;
	int64_t sum = 0;

	while (lines >> name >> value) {
		if (name == "nr_foll_pin_acquired")
			sum += value;
		if (name == "nr_foll_pin_released")
			sum -= value;
	}
	return sum;
}

inline bool pins_come_back_to(int64_t before)
{
	return mr_notify::happens([&] { return pins() == before; });
}

#endif
