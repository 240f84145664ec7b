// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One cached registration: its word and what it is a registration of, in one
 * cache line. The line beside it stays empty: CPUs fetch lines in pairs, and two
 * threads that use neighbours would take them from each other. Entries are never
 * freed, only reused, so that an old index may be read at any time; what was read
 * counts after a reference was taken (word.h).
 *
 * The fields that readers compare are atomics: they are written while the word
 * is CLOSED (by the one who closed it, or got it from the free list), and a
 * reader may look at the same time. Relaxed is enough: before take() a wrong
 * value costs a needless look-up, after it take() orders them.
 *
 * addr and length are what the first user asked for, and what the MR shows;
 * what is registered, and counts in bytes, is that rounded out to pages.
 */
#ifndef MR_CACHE_ENTRY_H
#define MR_CACHE_ENTRY_H

#include "mr_cache_core.h"
#include "word.h"

namespace mr_cache {

/* Rights that contain each other; relaxed ordering does not, it is part of the key. */
constexpr uint32_t RIGHTS = MR_CACHE_LOCAL_WRITE | MR_CACHE_REMOTE_WRITE | MR_CACHE_REMOTE_READ |
			    MR_CACHE_REMOTE_ATOMIC;

/* What a user wants, as the look-ups need it. */
struct wish {
	wish(void *pd, uint64_t addr_, uint64_t length_, uint32_t access_)
	    : key(key_of(pd, access_)), addr(addr_), length(length_), access(access_)
	{
	}

	/* PDs are at least two bytes apart. */
	static uint64_t key_of(void *pd, uint32_t access)
	{
		return reinterpret_cast<uintptr_t>(pd) + !!(access & MR_CACHE_RELAXED_ORDERING);
	}

	uint64_t key;
	uint64_t addr;
	uint64_t length;
	uint32_t access;
};

template <class Env> class alignas(128) entry {
public:
	entry_word<Env> word;

	/* Does it, as far as one can see, contain the range and allow the access? */
	bool fits(const wish &want) const
	{
		return key.load(std::memory_order_relaxed) == want.key && contains(want) &&
		       !(want.access & ~access.load(std::memory_order_relaxed));
	}

	/* The range alone. Empty ranges and those around the end of memory never are. */
	bool contains(const wish &want) const
	{
		uint64_t from = start();
		uint64_t offset = want.addr - from;
		uint64_t size = end() - from;

		return offset < size && want.length - 1 < size - offset;
	}

	uint64_t start() const { return shown_addr() & ~Env::page_mask(); }
	uint64_t end() const
	{
		return (shown_addr() + shown_length() + Env::page_mask()) & ~Env::page_mask();
	}
	uint64_t size() const { return end() - start(); }
	uint64_t shown_addr() const { return addr.load(std::memory_order_relaxed); }
	uint64_t shown_length() const { return length.load(std::memory_order_relaxed); }
	uint64_t pd_key() const { return key.load(std::memory_order_relaxed); }
	uint32_t rights() const { return access.load(std::memory_order_relaxed) & RIGHTS; }
	void *registration() const { return mr.load(std::memory_order_relaxed); }
	uint64_t last_use() const { return stamp.load(std::memory_order_relaxed); }

	/*
	 * Recency: the line has just been taken for the reference, so this costs
	 * no other CPU anything. A lost or late one makes eviction choose worse.
	 */
	void use(uint64_t now) { stamp.store(now, std::memory_order_relaxed); }

	/* Only while closed. */
	void describe(const wish &want)
	{
		key.store(want.key, std::memory_order_relaxed);
		addr.store(want.addr, std::memory_order_relaxed);
		length.store(want.length, std::memory_order_relaxed);
		access.store(want.access, std::memory_order_relaxed);
	}
	void register_as(void *registered) { mr.store(registered, std::memory_order_relaxed); }
	void forget() { key.store(0, std::memory_order_relaxed); }

private:
	template <class T> using atomic = typename Env::template atomic<T>;

	atomic<uint64_t> key;
	atomic<uint64_t> addr;
	atomic<uint64_t> length;
	atomic<void *> mr;
	atomic<uint64_t> stamp;
	atomic<uint32_t> access;

public:
	/* The cache's mutex guards these. */
	uint32_t link;	// the next on the free list, or of those to be deregistered
	uint32_t owner; // an index in owners
	uint32_t unused;
};

} // namespace mr_cache

#endif // MR_CACHE_ENTRY_H
