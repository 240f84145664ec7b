/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Skipping, which Catch2 v2 does not know: the reporter counts it apart. */
#ifndef GUEST_SKIP_H
#define GUEST_SKIP_H

#include <string>

void skip_test(const std::string &reason);

#define SKIP_IF(condition, reason)                                                                 \
	do {                                                                                       \
		if (condition) {                                                                   \
			skip_test(reason);                                                         \
			return;                                                                    \
		}                                                                                  \
	} while (0)

#endif
