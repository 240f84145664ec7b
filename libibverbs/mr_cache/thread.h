// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * What a thread knows of itself, for its signal handlers: a handler that comes to the cache may
 * have interrupted the cache in its own thread. If that has the mutex, or is about to take it, the
 * handler does without: a registration is plain, and the rest is left alone.
 */
#ifndef MR_CACHE_THREAD_H
#define MR_CACHE_THREAD_H

#include <cstdint>

namespace mr_cache {

struct thread_state {
	uint32_t inside; // calls of the registrar, one in the middle of another
	bool locks;	 // has the mutex, or is about to take it
};

} // namespace mr_cache

#endif // MR_CACHE_THREAD_H
