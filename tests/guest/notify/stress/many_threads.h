/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Threads that work on the same few slots, and replace them now and then. */
#ifndef STRESS_MANY_THREADS_H
#define STRESS_MANY_THREADS_H

#include <chrono>

#include "slot.h"

namespace stress {

using instant = std::chrono::steady_clock::time_point;

/* Runs the threads until `end`, prints their counts, returns the number of mistakes. */
uint64_t run_threads(uint64_t seed, int threads, instant end);

} // namespace stress

#endif
