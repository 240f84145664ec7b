// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word of an entry: validity, life and references in one atomic, so one
 * instruction takes a reference and tells whether it is worth anything.
 *
 *   63          34 33     32        10  9        8       7        0
 *   | uses (30)   | FULL | references | UNLINKED | CLOSED | kernel  |
 *
 * kernel   INVALID, SUSPECT and SUSPENDED, set by the kernel, asynchronously
 * CLOSED   unowned: free or being registered (with one reference), or being deregistered
 * UNLINKED not in the index any more: its last user tears it down
 * FULL     the top bit of the references: 8 million more would overflow
 * uses     references taken in this life; by its top bit (FOLD) the next reader adds them up
 *
 * A release too many borrows from uses, above the flags. The word changes by read-modify-write
 * only: a reader may add a reference to any word, at any time, on the strength of an old hint. So
 * open() adds, too: a store would lose such a reference, and giving it back would take the owner's.
 *
 * A reader takes its reference first, and compares the fields then. The other order loses:
 *
 *   reader                         evictor and the next owner
 *   compares: the range fits
 *                                  closes, deregisters, registers another range, opens
 *   get(): not closed, valid
 *   uses the MR of another range
 *
 * While it has the reference close() fails, so the fields stay as they were before open().
 * [Required: open() releases, get() acquires. A user's work with the MR comes before its
 * deregistration: put() releases, close() acquires.] A word has a reference while it is registered:
 * the kernel may suspend an idle registration as soon as it is armed.
 */
#ifndef MR_CACHE_WORD_H
#define MR_CACHE_WORD_H

#include <atomic>
#include <cstdint>

namespace mr_cache {

template <class Env> class entry_word {
public:
	static constexpr uint64_t INVALID = 1;
	static constexpr uint64_t SUSPECT = 2;
	static constexpr uint64_t SUSPENDED = 4;
	static constexpr uint64_t KERNEL = 0xff;
	static constexpr uint64_t CLOSED = 1 << 8;
	static constexpr uint64_t UNLINKED = 1 << 9;
	static constexpr uint64_t REF = 1 << 10;
	/* The kernel's mask of "in use". */
	static constexpr uint64_t REFS = 0xffffff * REF;
	static constexpr uint64_t FULL = 1ULL << 33;
	static constexpr uint64_t USE = 1ULL << 34;
	static constexpr uint64_t FOLD = 1ULL << 63;

	static bool usable(uint64_t seen)
	{
		return !(seen & (KERNEL | CLOSED | UNLINKED | FULL | FOLD));
	}
	static bool used(uint64_t seen) { return seen & REFS; }
	static bool idle(uint64_t seen) { return !(seen & (REFS | CLOSED)); }
	static uint64_t uses(uint64_t seen) { return seen / USE; }
	static bool suspended(uint64_t seen) { return seen & SUSPENDED; }
	/* The thread that finds this tears it down. */
	static bool over(uint64_t seen) { return idle(seen) && seen & (INVALID | UNLINKED); }

	/* A guess. */
	uint64_t peek_relaxed() const { return value.load(std::memory_order_relaxed); }

	/* The word before tells whether to keep the reference. Pairs with open(). */
	uint64_t get_acquire() { return value.fetch_add(REF + USE, std::memory_order_acquire); }

	/* For a reference that was not used. True: the entry is over. A child may have no
	 * reference. */
	bool put_unused_release()
	{
		const uint64_t seen = value.fetch_sub(REF + USE, std::memory_order_release);

		if (used(seen))
			return over(seen - REF - USE);
		value.fetch_add(REF + USE, std::memory_order_relaxed);
		return false;
	}
	uint64_t put_release() { return value.fetch_sub(REF, std::memory_order_release); }

	/* After this put() the caller has nothing to do: there are users, or the entry is idle. */
	static bool simple(uint64_t seen)
	{
		uint64_t references = seen & REFS;

		if (references && !(seen & (INVALID | UNLINKED | CLOSED)))
			return true;
		return references > REF && !(seen & CLOSED);
	}
	/* This put() was one too many. A closed word may have references: its own, and readers'. */
	static bool unused(uint64_t seen) { return !used(seen) || seen & CLOSED; }

	void undo_put_relaxed() { value.fetch_add(REF, std::memory_order_relaxed); }

	/* From open to closed, uses back to 0; false if it has references. */
	bool close_acquire(uint64_t *seen)
	{
		*seen = peek_relaxed();
		do {
			if (!idle(*seen))
				return false;
		} while (!value.compare_exchange_weak(*seen, (*seen & KERNEL) | CLOSED,
						      std::memory_order_acquire,
						      std::memory_order_relaxed));
		return true;
	}

	/* A fresh entry's word is 0, which would be open. */
	void free_fresh_relaxed() { value.fetch_add(CLOSED + REF, std::memory_order_relaxed); }

	/* Closed, and the kernel has let go of it: clears the kernel's bits. */
	void clean_relaxed() { value.fetch_and(~(KERNEL | UNLINKED), std::memory_order_relaxed); }

	/*
	 * The same, with the reference for the next registration. That comes first: until a closed
	 * context's file is gone, the kernel may set and clear bits.
	 */
	void free_relaxed()
	{
		value.fetch_add(REF, std::memory_order_relaxed);
		clean_relaxed();
	}
	void unhold_relaxed() { value.fetch_sub(REF, std::memory_order_relaxed); }

	/* From closed to open, with so many more references. */
	uint64_t open_release(uint64_t references)
	{
		return value.fetch_add(references * REF - CLOSED, std::memory_order_release);
	}

	/* A reader that gets a reference after this gives it back. */
	void mark_unlinked_relaxed() { value.fetch_or(UNLINKED, std::memory_order_relaxed); }

	/* Takes the top bit of uses out, to be counted under the mutex. */
	bool fold_relaxed() { return value.fetch_and(~FOLD, std::memory_order_relaxed) & FOLD; }

	uint64_t *raw() { return reinterpret_cast<uint64_t *>(&value); }

private:
	typename Env::template atomic<uint64_t> value;
};

} // namespace mr_cache

#endif // MR_CACHE_WORD_H
