/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The counters of the first port of a device. */
#ifndef GUEST_PORT_COUNTER_H
#define GUEST_PORT_COUNTER_H

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "device.h"

/*
 * Reads a counter by its name in sysfs. Returns nullopt if the driver lacks the counter. The kernel
 * caches values for 10 ms.
 */
inline std::optional<uint64_t> port_counter(const mr_notify::device &on, const std::string &name)
{
	std::ifstream file("/sys/class/infiniband/" + on.name() + "/ports/1/hw_counters/" + name);
	uint64_t value = 0;

	return file >> value ? std::optional(value) : std::nullopt;
}

#endif
