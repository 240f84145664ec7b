/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The program's thread sanitizer, if it has one. It sees a program's look at an MR, and the
 * provider's free() of it, and not the atomics of the cache between them: so it is told that one
 * came after the other. The MRs of such a program have a mark, and its registrations take the slow
 * way, so that all other programs pay nothing.
 */
#ifndef IB_VERBS_MR_CACHE_SANITIZER_H
#define IB_VERBS_MR_CACHE_SANITIZER_H

#include <stdbool.h>

void __tsan_acquire(void *of) __attribute__((weak));
void __tsan_release(void *of) __attribute__((weak));

static inline bool has_thread_sanitizer(void)
{
	return __tsan_acquire && __tsan_release;
}

#endif /* IB_VERBS_MR_CACHE_SANITIZER_H */
