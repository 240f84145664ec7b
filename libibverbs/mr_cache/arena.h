// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * All memory of a cache: one mapping, reserved whole, committed where touched, never
 * moved and never given back. All bytes 0 is its valid first state.
 *
 * So a fork needs nothing but zeros: the mapping is wiped in a child
 * (MADV_WIPEONFORK), whether it was made by fork() or by a raw clone(). The child
 * finds generation 0, begins anew, and never sees an entry, a held mutex or
 * an MR of its parent.
 */
#ifndef MR_CACHE_ARENA_H
#define MR_CACHE_ARENA_H

#include "entry.h"
#include "hints.h"
#include "owners.h"
#include "range_index.h"
#include "victims.h"

namespace mr_cache {

template <class Env> struct arena {
	template <class T> using atomic = typename Env::template atomic<T>;

	/* What every hit reads; written by misses and evictions only. */
	struct alignas(64) {
		atomic<uint32_t> generation; // 0: begin anew
		atomic<uint32_t> hint_bits;
		atomic<uint64_t> epoch; // the upper bits of stamps
		atomic<uint32_t> birth; // somebody is beginning anew
	} hot;

	/* A registration on its way; on the stack of the thread that makes it. */
	struct pending {
		const mr_cache_request *request;
		uint64_t key;
		pending *next;
	};

	/* Innermost lock: guards all that is below and is not atomic. Never held in the registrar.
	 */
	alignas(64) typename Env::mutex mutex;
	typename Env::condition arrived; // a registration on its way did, or did not
	pending *on_the_way;
	uint32_t waiting;    // for that
	uint32_t free_entry; // linked by entry.link
	uint32_t high;	     // entries from here on were never used; 0 is no entry
	uint64_t entry_count;
	victims<Env> batch;
	owners<Env> owner;

	alignas(4096) entry<Env> entries[Env::entries];
	hints<Env> hint;
	range_index<Env> index;
};

} // namespace mr_cache

#endif // MR_CACHE_ARENA_H
