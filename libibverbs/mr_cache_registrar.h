/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * How the core of the cache registers: by the verbs. And the marks of the MRs that it
 * hands out (cached_mr.h).
 */
#ifndef IB_VERBS_MR_CACHE_REGISTRAR_H
#define IB_VERBS_MR_CACHE_REGISTRAR_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "ibverbs.h"
#include "mr_cache_sanitizer.h"

/* mr_type without a generation: a view that was freed; an MR that its user keeps. */
#define CACHED_MR_FREED CACHED_MR
#define CACHED_MR_TAKEN CACHED_MR

/* The marks of an MR with a reference of that generation. */
static inline uint32_t type_of(uint32_t generation)
{
	return CACHED_MR | (has_thread_sanitizer() ? CACHED_MR_TOLD : 0) |
	       (generation & CACHED_MR_GENERATION);
}

static inline bool is_rounded(const struct ibv_mr *mr)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);

	return ((uintptr_t)mr->addr | mr->length) % page;
}

/* Starts the cache of the process, once; false: it has none. */
bool mr_cache_start(void);
/*
 * While the process ends only the kernel is told: a provider may have ended before, and exit()
 * have interrupted an allocator.
 */
void mr_cache_registrar_ends(bool ends);

#endif /* IB_VERBS_MR_CACHE_REGISTRAR_H */
