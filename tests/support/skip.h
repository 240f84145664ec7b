/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Skips a case, which Catch2 v2 does not support. The reporter counts skipped cases separately. */
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
