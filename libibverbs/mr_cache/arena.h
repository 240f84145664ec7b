// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * All memory of a cache: one mapping, reserved whole, made accessible as entries and hints become
 * more (so a process that locks all its memory pays only for used parts), never moved and never
 * given back. All bytes 0 is its valid first state, so a fork needs nothing but zeros: the mapping
 * is wiped in a child (MADV_WIPEONFORK), also after a raw clone(). The child finds generation 0,
 * begins empty, and never sees an entry, a held mutex or an MR of its parent.
 */
#ifndef MR_CACHE_ARENA_H
#define MR_CACHE_ARENA_H

#include <cerrno>
#include <cstddef>

#include "catalog.h"
#include "hints.h"
#include "operations.h"
#include "owners.h"

namespace mr_cache {

template <class Env> struct arena {
	template <class T> using atomic = typename Env::template atomic<T>;

	/* Read by every hit; written by misses and evictions only. */
	struct alignas(128) {
		atomic<uint32_t> generation; // 0: not begun yet
		atomic<uint32_t> last_hint;
		atomic<uint64_t> epoch; // the upper bits of stamps
		atomic<uint32_t> high;	// entries from here on were never used; 0 is no entry
		atomic<uint32_t> birth; // a thread begins
	} hot;

	/* Innermost lock: guards all that is below and is not atomic. Never held in the registrar.
	 */
	alignas(128) typename Env::mutex mutex;
	operations<Env> making;
	uint32_t deregistering; // entries that are being deregistered
	bool late;		// and that takes long: they are not waited for
	uint64_t deregistered;	// so many were
	uint32_t free_entry;	// linked by entry.link
	uint32_t doubtful;   // the same, of closed contexts: the kernel may have their words still
	uint32_t turn;	     // the owner that gives next, if any may
	uint32_t hand;	     // the entry that was looked at last, see miss.h
	uint64_t views;	     // of the entries in the catalog: each may have a hint
	uint32_t ready;	     // the entries before this one have their memory
	uint32_t ready_hint; // and so have hints to that bucket
	owners<Env> owner;
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
	 * With a reference, taken in that generation. EOPNOTSUPP: a signal handler has forked
	 * since, and this is the child.
	 */
	int hit(uint32_t i, uint32_t generation, mr_cache_ref *ref)
	{
		entry<Env> &e = entries[i];

		e.use(now());
		*ref = {e.registration(), e.shown_addr(), e.shown_length(), i, generation};
		return hot.generation.load(std::memory_order_acquire) == generation ? 0
										    : EOPNOTSUPP;
	}

	uint32_t last_hint() const { return hot.last_hint.load(std::memory_order_relaxed); }

	/*
	 * The memory that the next misses need. It is made ready with the mutex free: signals are
	 * delivered at the end of system calls and page faults, and a handler does without a cache
	 * whose mutex its thread has.
	 */
	struct need {
		uint32_t entry; // from this one on; none
		uint32_t last;	// of hints, the last bucket; 0: none
		void *page;	// of the next owner, or NULL
	};

	/* Under the mutex, with the last owner that came. */
	need needed(uint32_t o)
	{
		const uint32_t high = hot.high.load(std::memory_order_relaxed);
		const uint32_t more = hint.grow(ready_hint, views + views / 2);

		return {high + AHEAD / 2 < ready || ready == Env::entries ? NONE : ready,
			more > ready_hint ? more : 0,
			page_behind(&owner[o])};
	}
	/* Without. */
	void prepare(const need &of)
	{
		if (of.entry != NONE)
			(void)make_ready(of.entry);
		if (of.last)
			(void)commit_hints(of.last);
		if (of.page)
			Env::touch(of.page, 1);
	}
	/* Again under the mutex. */
	void is_prepared(const need &of)
	{
		if (of.entry == ready)
			ready = end_of(of.entry);
		if (of.last > ready_hint)
			ready_hint = of.last;
	}

	/* Before anybody else sees it, or in a child. */
	bool prepare_first()
	{
		auto *nodes = static_cast<char *>(index.node_memory(0));
		const auto head = static_cast<size_t>(nodes - reinterpret_cast<char *>(this));

		if (!Env::commit(this, head, false) || !make_ready(0) || !commit_hints(hint.LEAST))
			return false;
		Env::touch(this, static_cast<size_t>(reinterpret_cast<char *>(&owner[2]) -
						     reinterpret_cast<char *>(this)));
		Env::touch(&index, 1); // its version and roots
		return true;
	}

	/* An entry that was never used; under the mutex if many threads are faster. */
	bool is_ready(uint32_t i)
	{
		if (i < ready)
			return true;
		if (!make_ready(ready))
			return false;
		ready = end_of(ready);
		return true;
	}

private:
	static constexpr uint32_t PIECE = 1024; // entries that become accessible at a time
	static constexpr uint32_t AHEAD = 256;	// that get their pages
	static constexpr uint32_t NONE = ~0U;

	static uint32_t end_of(uint32_t first)
	{
		return Env::entries - first < AHEAD ? Env::entries : first + AHEAD;
	}

	/* More than the first piece are in huge pages: small ones cost so many a look-up dear. */
	bool make_ready(uint32_t first)
	{
		const uint32_t piece = Env::entries - first < PIECE ? Env::entries - first : PIECE;
		const uint32_t count = end_of(first) - first;

		if (first % PIECE == 0 &&
		    !(Env::commit(&entries[first], piece * sizeof(entries[first]), first != 0) &&
		      Env::commit(index.node_memory(first), index.node_bytes(piece),
				  first != 0)))
			return false;
		Env::touch(&entries[first], count * sizeof(entries[first]));
		Env::touch(index.node_memory(first), index.node_bytes(count));
		return true;
	}
	bool commit_hints(uint32_t last)
	{
		if (!Env::commit(&hint, hint.bytes(last), last > hint.LEAST))
			return false;
		Env::touch(&hint, hint.bytes(last));
		return true;
	}

	/* The page in which the record behind that one ends, if it is another one. */
	template <class T> static void *page_behind(T *record)
	{
		const auto end = reinterpret_cast<uintptr_t>(record + 1) + sizeof(T) - 1;
		const auto page = end & ~Env::page_mask();

		return page > reinterpret_cast<uintptr_t>(record + 1) - 1
			       ? reinterpret_cast<void *>(page)
			       : nullptr;
	}
};

} // namespace mr_cache

#endif // MR_CACHE_ARENA_H
