// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Chooses the range that a miss registers. The result is the range of the request, or the union of
 * the request and idle entries that overlap the request.
 *
 * If a program registers a sliding window, each position is a new range and leaves an idle entry.
 * So 4,000 windows of 256 KiB, a page apart, would pin 1,000 MiB for a buffer of 16 MiB. So the
 * cache registers a union if its parts would pin DEEP times its size. A union of MANY parts needs
 * only SHALLOW times its size. The union with the highest ratio wins, so windows become blocks, and
 * blocks grow. A union is never larger than the sum of its parts, so unions never register more
 * bytes than the requests. Adjacent entries may be different buffers, and are not merged.
 */
#ifndef MR_CACHE_MERGE_H
#define MR_CACHE_MERGE_H

#include "arena.h"

namespace mr_cache {

template <class Env> class merge {
public:
	/* `bytes` is the largest size of a union. */
	merge(const request &wanted, const arena<Env> &in, uint64_t bytes)
	    : a(in), want(wanted), most(bytes)
	{
	}

	/* Call this under the mutex. */
	request range()
	{
		const uint64_t size = end - start,
			       largest = size < most / MOST ? MOST * size : most;
		uint64_t pinned = size;
		double deepest = 0;
		request best = want;

		/* A peer's key covers only the request. One-page ranges can't overlap partly. */
		if (want.access & (RIGHTS ^ MR_CACHE_LOCAL_WRITE) || size <= Env::page_mask() + 1 ||
		    size >= largest)
			return want;
		beside = a.index.beside(want, start);
		for (uint32_t looks = 0, taken = 0; looks < LOOKS && taken < ENOUGH; looks++) {
			const uint64_t left = more(beside.before, true),
				       right = more(beside.after, false);
			const bool to_left = left <= right;

			if ((to_left ? left : right) > largest - (end - start))
				break;

			const entry<Env> &e = a.entries[to_left ? beside.before : beside.after];
			const uint64_t from = e.start(), to = e.end();

			if (may_go(e)) {
				start = from < start ? from : start;
				end = to > end ? to : end;
				pinned += to - from;

				const double depth = static_cast<double>(pinned) /
						     static_cast<double>(end - start);

				taken++;
				if (end - start > size && depth >= deepest &&
				    depth >= (taken < MANY ? DEEP : SHALLOW)) {
					best = {want.key, start, end - start, want.access};
					deepest = depth;
				}
			}
			step(to_left, from);
		}
		return best;
	}

private:
	static constexpr uint32_t LOOKS = 16;		// the most entries to check
	static constexpr uint32_t MANY = 6, ENOUGH = 8; // numbers of entries in a union
	static constexpr double DEEP = 4, SHALLOW = 2;
	static constexpr uint64_t MOST = 4;
	static constexpr uint64_t NONE = UINT64_MAX;

	static bool may_go(const entry<Env> &e)
	{
		return !(e.word.peek_relaxed() & (e.word.KERNEL | e.word.REFS));
	}

	/* Returns by how many bytes the entry extends the union, or NONE if they don't overlap. */
	uint64_t more(uint32_t i, bool to_left) const
	{
		const entry<Env> &e = a.entries[i];

		if (!i || (to_left ? e.end() <= start : e.start() >= end))
			return NONE;
		return to_left ? start - e.start() : e.end() > end ? e.end() - end : 0;
	}

	void step(bool to_left, uint64_t from)
	{
		if (!to_left)
			beside.after = a.index.beside(want, from).after;
		else
			beside.before = from ? a.index.beside(want, from - 1).before : 0;
	}

	const arena<Env> &a;
	const request &want;
	const uint64_t most;
	uint64_t start = want.addr & ~Env::page_mask();
	uint64_t end = (want.addr + want.length + Env::page_mask()) & ~Env::page_mask();
	neighbours beside = {};
};

} // namespace mr_cache

#endif // MR_CACHE_MERGE_H
