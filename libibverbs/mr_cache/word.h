// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The notification word of an entry has the kernel's bits, the state of the entry and its
 * references. So one atomic instruction takes a reference and returns whether the entry is valid.
 *
 *   63          34 33     32        10  9        8       7        0
 *   | uses (30)   | FULL | references | UNLINKED | CLOSED | kernel  |
 *
 * kernel   INVALID, SUSPECT and SUSPENDED, which the kernel sets at any time
 * CLOSED   the entry is free, being registered, or ending, and no reader may use it
 * UNLINKED the entry is not in the index any more, and its last user deregisters it
 * FULL     the top bit of the references, set from 2^23 on, because 2^24 would overflow
 * uses     references taken since open(). A miss moves the top bit (FOLD) to the statistics
 *
 * If a caller releases more references than it has, the subtraction borrows from uses, and the
 * flags keep their values. All changes are read-modify-write, because a reader with an old hint may
 * add a reference to any word at any time. If open() stored a value, this reference would be lost,
 * and the reader would then drop the reference of another user. So open() uses an addition.
 *
 * A reader takes its reference before it compares the fields. The other order is wrong:
 *
 *   reader                         evictor and the next owner
 *   compares: the range fits
 *                                  closes, deregisters, registers another range, opens
 *   get(): not closed, valid
 *   uses the MR of another range
 *
 * While the reader has the reference, close() fails, so the fields do not change. [Required: get()
 * (acquire) pairs with open() (release). close() (acquire) pairs with put() (release), so a user's
 * work with the MR comes before the deregistration.] During the registration the word has a
 * reference. Otherwise the kernel could suspend the registration as soon as it is armed.
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
	/* The mask that the kernel gets as in_use. */
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
	/* If this is true, the thread that sees the word retires the entry. */
	static bool over(uint64_t seen) { return idle(seen) && seen & (INVALID | UNLINKED); }

	/* The value may be out of date. */
	uint64_t peek_relaxed() const { return value.load(std::memory_order_relaxed); }

	/* Returns the old word, which tells whether to keep the reference. Pairs with open(). */
	uint64_t get_acquire() { return value.fetch_add(REF + USE, std::memory_order_acquire); }

	/* Drops a reference that was not used. Returns true if the caller must retire the entry. In
	 * a child the word may have no reference. */
	bool put_unused_release()
	{
		const uint64_t seen = value.fetch_sub(REF + USE, std::memory_order_release);

		if (used(seen))
			return over(seen - REF - USE);
		value.fetch_add(REF + USE, std::memory_order_relaxed);
		return false;
	}
	uint64_t put_release() { return value.fetch_sub(REF, std::memory_order_release); }

	/* Is the release complete? If so, the entry has other users, or is valid and idle. */
	static bool simple(uint64_t seen)
	{
		uint64_t references = seen & REFS;

		if (references && !(seen & (INVALID | UNLINKED | CLOSED)))
			return true;
		return references > REF && !(seen & CLOSED);
	}
	/* Returns true if no user had a reference before put(). A closed word has no users. */
	static bool unused(uint64_t seen) { return !used(seen) || seen & CLOSED; }

	void undo_put_relaxed() { value.fetch_add(REF, std::memory_order_relaxed); }

	/* Closes the word and sets uses to 0. Returns false if the word has references. */
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

	/* The word of a new entry is 0, which would mean that the entry is open. */
	void free_fresh_relaxed() { value.fetch_add(CLOSED + REF, std::memory_order_relaxed); }

	/* Clears the kernel's bits. The word must be closed and disarmed. */
	void clean_relaxed() { value.fetch_and(~(KERNEL | UNLINKED), std::memory_order_relaxed); }

	/*
	 * Takes the reference for the next registration, and then clears the kernel's bits. Until
	 * the file of a closed context is released, the kernel may still change these bits.
	 */
	void free_relaxed()
	{
		value.fetch_add(REF, std::memory_order_relaxed);
		clean_relaxed();
	}
	void unhold_relaxed() { value.fetch_sub(REF, std::memory_order_relaxed); }

	uint64_t open_release(uint64_t references)
	{
		return value.fetch_add(references * REF - CLOSED, std::memory_order_release);
	}

	/* If a reader takes a reference later, the reader drops it again. */
	void mark_unlinked_relaxed() { value.fetch_or(UNLINKED, std::memory_order_relaxed); }

	/* Clears FOLD. If FOLD was set, the caller adds its value to the hits, under the mutex. */
	bool fold_relaxed() { return value.fetch_and(~FOLD, std::memory_order_relaxed) & FOLD; }

	uint64_t *raw() { return reinterpret_cast<uint64_t *>(&value); }

private:
	typename Env::template atomic<uint64_t> value;
};

} // namespace mr_cache

#endif // MR_CACHE_WORD_H
