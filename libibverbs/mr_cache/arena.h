// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * All memory of a cache: one mapping, reserved whole, made accessible as entries and hints become
 * more (so a process that locks all its memory pays only for used parts), never moved and never
 * given back. All bytes 0 is its valid first state.
 *
 * So a fork needs nothing but zeros: the mapping is wiped in a child (MADV_WIPEONFORK), whether it
 * was made by fork() or by a raw clone(). The child finds generation 0, begins anew, and never sees
 * an entry, a held mutex or an MR of its parent. Accessible parts stay accessible there.
 */
#ifndef MR_CACHE_ARENA_H
#define MR_CACHE_ARENA_H

#include <cerrno>
#include <cstddef>

#include "catalog.h"
#include "hints.h"
#include "operations.h"
#include "owners.h"
#include "pds.h"

namespace mr_cache {

template <class Env> struct arena {
	template <class T> using atomic = typename Env::template atomic<T>;

	/* Read by every hit; written by misses and evictions only. */
	struct alignas(128) {
		atomic<uint32_t> generation; // 0: begin anew
		atomic<uint32_t> hint_bits;
		atomic<uint64_t> epoch; // the upper bits of stamps
		atomic<uint32_t> high;	// entries from here on were never used; 0 is no entry
		atomic<uint32_t> birth; // a thread is beginning anew
	} hot;

	/* Innermost lock: guards all that is below and is not atomic. Never held in the registrar.
	 */
	alignas(128) typename Env::mutex mutex;
	operations<Env> making;
	uint32_t burying;     // entries that are being deregistered
	bool late;	      // and that takes long: they are not waited for
	uint64_t buried;      // so many were
	uint32_t free_entry;  // linked by entry.link
	uint32_t doubtful;    // the same, of closed contexts: the kernel may have their words still
	uint32_t turn;	      // the owner that gives next, if any may
	uint32_t hand;	      // the entry that was looked at last, see miss.h
	uint64_t entry_count; // of the catalog
	uint64_t views;	      // of these: each may have a hint
	owners<Env> owner;
	pds<Env> pd;
	catalog<Env> index; // its end, and all that follows, becomes accessible in pieces
	entry<Env> entries[Env::entries];
	hints<Env> hint;

	/* A wrong epoch or sequence makes eviction choose worse, no more. */
	uint64_t now() const
	{
		return hot.epoch.load(std::memory_order_relaxed) << 32 | Env::tick();
	}

	uint32_t index_of(const entry<Env> &e) const { return static_cast<uint32_t>(&e - entries); }

	/*
	 * With a reference, taken in that generation: to be handed out, as one that is used.
	 * EOPNOTSUPP: a signal handler has forked since, and this is the child.
	 */
	int hit(uint32_t i, uint32_t generation, mr_cache_ref *ref)
	{
		entry<Env> &e = entries[i];

		e.use(now());
		*ref = {e.registration(), e.shown_addr(), e.shown_length(), i, generation};
		return hot.generation.load(std::memory_order_acquire) == generation ? 0
										    : EOPNOTSUPP;
	}

	uint32_t hint_bits() const { return hot.hint_bits.load(std::memory_order_relaxed); }

	bool commit_head()
	{
		auto *nodes = static_cast<char *>(index.ranges.node_memory(0));

		return Env::commit(
			this, static_cast<size_t>(nodes - reinterpret_cast<char *>(this)), false);
	}
	/*
	 * Before the entry is used for the first time. More than the first piece are in huge pages:
	 * small ones cost so many a look-up dear.
	 */
	bool commit_entry(uint32_t i)
	{
		uint32_t count = Env::entries - i < PIECE ? Env::entries - i : PIECE;

		return i % PIECE || (Env::commit(&entries[i], count * sizeof(entries[i]), i != 0) &&
				     Env::commit(index.ranges.node_memory(i),
						 index.ranges.node_bytes(count), i != 0));
	}
	bool commit_hints(uint32_t bits)
	{
		return Env::commit(&hint, hint.bytes(bits), bits > hint.LEAST);
	}

private:
	static constexpr uint32_t PIECE = 1024; // entries
};

} // namespace mr_cache

#endif // MR_CACHE_ARENA_H
