/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* The removal of a device that processes have open. */
#ifndef GUEST_REMOVAL_H
#define GUEST_REMOVAL_H

#include <sys/utsname.h>

#include <cstdio>
#include <utility>

/*
 * Before Linux 7.3 a removal waits for these processes. Since 7.3 it does not wait, and their words
 * say INVALID.
 */
inline bool removal_waits()
{
	utsname name{};
	int major = 0;
	int minor = 0;

	uname(&name);
	std::sscanf(name.release, "%d.%d", &major, &minor);
	return std::pair(major, minor) < std::pair(7, 3);
}

#endif
