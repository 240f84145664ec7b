// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One cached registration. Its word, range and rights are in one cache line. CPUs fetch lines in
 * pairs. An entry occupies a pair of lines, so threads that use adjacent entries do not take lines
 * from each other. The second line has the fields that the mutex guards. Entries stay mapped. So a
 * reader may compare fields while they change, and compares them again after get() (word.h).
 *
 * addr and length are the range of the MR. With MR_CACHE_EXACT an entry serves only this range,
 * otherwise any part of its pages. Sizes count whole pages, because the kernel pins whole pages.
 */
#ifndef MR_CACHE_ENTRY_H
#define MR_CACHE_ENTRY_H

#include "mr_cache_core.h"
#include "word.h"

namespace mr_cache {

/* An entry also serves requests for fewer of these rights. Relaxed ordering must match. */
constexpr uint32_t RIGHTS = MR_CACHE_LOCAL_WRITE | MR_CACHE_REMOTE_WRITE | MR_CACHE_REMOTE_READ |
			    MR_CACHE_REMOTE_ATOMIC;

struct request {
	request(void *pd, uint64_t addr_, uint64_t length_, uint32_t access_)
	    : key(key_of(pd, access_)), addr(addr_), length(length_), access(access_)
	{
	}

	/* A key is the PD's address with RELAXED_ORDERING and EXACT in its two unused low bits. */
	static uint64_t key_of(void *pd, uint32_t access)
	{
		return reinterpret_cast<uintptr_t>(pd) + (access >> 20 & 3);
	}
	void *pd() const { return reinterpret_cast<void *>(key - (access >> 20 & 3)); }

	request(uint64_t key_, uint64_t addr_, uint64_t length_, uint32_t access_)
	    : key(key_), addr(addr_), length(length_), access(access_)
	{
	}

	bool exact() const { return access & MR_CACHE_EXACT; }

	/* Can the range be rounded to pages, and does the cache know all flags? */
	bool is_possible(uint64_t page_mask) const
	{
		uint64_t end;

		return key > 3 && length &&
		       !(access & ~(RIGHTS | MR_CACHE_RELAXED_ORDERING | MR_CACHE_EXACT)) &&
		       !__builtin_add_overflow(addr, length, &end) && end <= ~page_mask;
	}

	uint64_t key;
	uint64_t addr;
	uint64_t length;
	uint32_t access;
};

/* The mutex guards the state. The word is CLOSED in all states except OPEN. */
enum class state : uint8_t {
	FREE,
	MAKING,	       // a thread registers the entry
	OPEN,	       // in the index, or UNLINKED
	DEREGISTERING, // a thread deregisters the entry, or will do so
	DEREG_FAILED,  // the deregistration is tried again when the PD or the owner ends
};

constexpr uint64_t LATE = 1; // a deadline that has passed

template <class Env> class alignas(128) entry {
public:
	entry_word<Env> word;

	/* The answer is reliable only if the caller has a reference. */
	bool fits(const request &want) const
	{
		const uint32_t allowed = access.load(std::memory_order_relaxed);

		if (key.load(std::memory_order_relaxed) != want.key)
			return false;
		if (want.exact())
			return shows(want) && allowed == want.access;
		return contains(want) && !(want.access & ~allowed);
	}

	bool is_for(const request &want) const
	{
		return key.load(std::memory_order_relaxed) == want.key && shows(want) &&
		       access.load(std::memory_order_relaxed) == want.access;
	}

	bool shows(const request &want) const
	{
		return shown_addr() == want.addr && shown_length() == want.length;
	}

	/* Returns false for an empty range, and for a range that wraps around. */
	bool contains(const request &want) const
	{
		const uint64_t offset = want.addr - start(), all = size();

		return offset < all && want.length - 1 < all - offset;
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
	request own_range() const
	{
		return {pd_key(), shown_addr(), shown_length(),
			access.load(std::memory_order_relaxed)};
	}
	void *registration() const { return mr.load(std::memory_order_relaxed); }
	uint64_t last_use() const { return stamp.load(std::memory_order_relaxed); }

	/* This store is cheap, because taking the reference has already fetched the cache line. */
	void use(uint64_t now) { stamp.store(now, std::memory_order_relaxed); }

	/* Call this only while the word is closed. */
	void describe(const request &want)
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
	/* The cache's mutex guards these fields. */
	alignas(64) uint32_t link; // the next free entry, or the next entry to deregister
	uint32_t owner;		   // an index in owners
	enum state state;
	bool settles;	// a thread is settling the entry
	uint64_t until; // the deadline of waits for the entry, or LATE; 0 if no thread has waited
	struct {
		uint32_t next, prev;
	} of_owner;	// the neighbours in the list of the owner
	uint32_t views; // 1 + the number of requests that were merged into the entry
};

} // namespace mr_cache

#endif // MR_CACHE_ENTRY_H
