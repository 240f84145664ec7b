// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Which entries may be found: a tree for each set of rights, of entries that serve any part of
 * their range, sorted by PD and ordering (the key) and by start; and one tree of entries that serve
 * exactly their range and rights, which are sorted by these, too. A request for a part looks in the
 * tree of its own rights, then in those of the sets that contain them.
 *
 * The entries of a tree and key are an antichain: none contains another (insert() keeps it so).
 * Sorted by start they are then sorted by end too, and the last one that starts at or before addr
 * is the only candidate.
 *
 * The tree is a treap whose node i belongs to entry i: its priority is a hash of i, inserting
 * allocates nothing and cannot fail.
 *
 * The mutex of the cache guards all changes; search() may run beside them without it: every index
 * that it can read is one of a node, and its steps are limited. It may miss an entry and find one
 * that has gone. Neither matters: a found entry is verified by taking a reference, and a reader
 * that found none takes the mutex and asks again, unless version() tells that nothing has changed
 * since:
 *
 *   reader                         holder of the mutex
 *   n = version()
 *                                  inserts, erases
 *   search(): a false miss
 *                                  version becomes n + 1
 *   takes the mutex: it is not n any more, asks again
 *
 * [Required: version is stored after the change (release), and read before the
 * search (acquire): so the search sees all changes up to n, and a later one is
 * over, and counted, when the reader has the mutex.]
 */
#ifndef MR_CACHE_CATALOG_H
#define MR_CACHE_CATALOG_H

#include <cstddef>

#include "entry.h"

namespace mr_cache {

/* 0: none. */
struct neighbours {
	uint32_t before;
	uint32_t after;
};

template <class Env> class catalog {
public:
	static constexpr uint64_t UNKNOWN = ~0ULL; // no version

	/* Of all that may be found: another one whenever one came or went. */
	uint64_t version() const { return changes.load(std::memory_order_acquire); }

	/* The memory of the nodes of entries from this one on. */
	void *node_memory(uint32_t first) { return &nodes[first]; }
	static constexpr size_t node_bytes(uint32_t count) { return count * sizeof(node); }

	/* An entry to verify, or 0. Under the mutex it may be found, and 0 means none may. */
	uint32_t search(const request &want, const entry<Env> *entries) const
	{
		const uint32_t trees = get(present) & serving(want);

		return trees ? search(trees, want, entries) : 0;
	}

	/* Under the mutex: the last entry that starts at or before the address, and the first that
	 * starts after it. */
	neighbours beside(const request &want, uint64_t addr, const entry<Env> *entries) const
	{
		const neighbours found =
			beside(roots[tree_of(want)], {want.key, addr + 1, 0}, entries);

		return {alike(found.before, want), alike(found.after, want)};
	}

	/*
	 * Under the mutex. Calls retire(i), which erases it, for each entry i that lies within the
	 * new one; none among the same rights contains it. Is some of it in another one's range,
	 * too? One that serves exactly its range has nothing to do with others.
	 */
	template <class Retire>
	bool insert(uint32_t i, const entry<Env> *entries, const Retire &retire)
	{
		const entry<Env> &e = entries[i];
		const request range = e.own_range();
		const uint32_t tree = tree_of(range);
		const neighbours around = insert_at(roots[tree], i, first_of(range), entries);
		const uint32_t before = alike(around.before, range);
		uint32_t next = alike(around.after, range);

		set(present, get(present) | 1U << tree);
		changed();
		if (range.exact())
			return false;
		while (next && entries[next].end() <= e.end()) {
			retire(next);
			next = beside(range, e.start(), entries).after;
		}
		return (next && entries[next].start() < e.end()) ||
		       (before && entries[before].end() > e.start());
	}

	/* Under the mutex. */
	void erase(uint32_t index, const entry<Env> *entries)
	{
		const request range = entries[index].own_range();
		const uint32_t tree = tree_of(range);
		link *at = &roots[tree];
		uint32_t n;

		while ((n = get(*at)) && n != index)
			at = is_before(n, behind(range), entries) ? &nodes[n].right
								  : &nodes[n].left;
		if (!n)
			return;

		uint32_t left = get(nodes[index].left), right = get(nodes[index].right);

		while (left && right) {
			if (priority(left) >= priority(right)) {
				set(*at, left);
				at = &nodes[left].right;
				left = get(*at);
			} else {
				set(*at, right);
				at = &nodes[right].left;
				right = get(*at);
			}
		}
		set(*at, left ? left : right);
		if (!get(roots[tree]))
			set(present, get(present) & ~(1U << tree));
		changed();
	}

private:
	using link = typename Env::template atomic<uint32_t>;

	struct alignas(32) node {
		typename Env::template atomic<uint64_t> key;
		typename Env::template atomic<uint64_t> start;
		link left;
		link right;
	};

	/* Of an entry in the order of its tree; 0 of the length and rights where they do not
	 * matter. */
	struct place {
		uint64_t key;
		uint64_t start;
		uint64_t extent;
	};

	static constexpr uint32_t EXACT = RIGHTS + 1; // that tree
	static constexpr int STEPS = 256;	      // more than a treap of 2^20 is ever deep

	/* Relaxed: see above; the mutex orders the changes among themselves. */
	static uint32_t get(const link &l) { return l.load(std::memory_order_relaxed); }
	static void set(link &l, uint32_t n) { l.store(n, std::memory_order_relaxed); }

	void changed()
	{
		changes.store(changes.load(std::memory_order_relaxed) + 1,
			      std::memory_order_release);
	}

	static uint32_t tree_of(const request &range)
	{
		return range.exact() ? EXACT : range.access & RIGHTS;
	}

	/* The trees that may serve it, as bits: of the sets of rights that contain its own. */
	static uint32_t serving(const request &want)
	{
		static constexpr uint16_t sets[RIGHTS + 1] = {
			0xffff, 0xaaaa, 0xcccc, 0x8888, 0xf0f0, 0xa0a0, 0xc0c0, 0x8080,
			0xff00, 0xaa00, 0xcc00, 0x8800, 0xf000, 0xa000, 0xc000, 0x8000,
		};

		return want.exact() ? 1U << EXACT : sets[want.access & RIGHTS];
	}

	static uint64_t extent_of(const request &range)
	{
		return range.exact() ? range.length << 4 | (range.access & RIGHTS) : 0;
	}
	static place first_of(const request &range)
	{
		return {range.key, range.exact() ? range.addr : range.addr & ~Env::page_mask(),
			extent_of(range)};
	}
	/* All that start at the same place, or before. */
	static place behind(const request &range)
	{
		const uint64_t extent = extent_of(range);

		return {range.key, range.addr + !extent, extent + !!extent};
	}

	bool is_before(uint32_t n, const place &of, const entry<Env> *entries) const
	{
		const uint64_t key = nodes[n].key.load(std::memory_order_relaxed);

		if (key != of.key) [[unlikely]]
			return key < of.key;

		const uint64_t start = nodes[n].start.load(std::memory_order_relaxed);

		if (start != of.start) [[likely]]
			return start < of.start;
		return of.extent && extent_of(entries[n].own_range()) < of.extent;
	}

	/* It, if it is of the same PD and ordering. */
	uint32_t alike(uint32_t n, const request &want) const
	{
		return nodes[n].key.load(std::memory_order_relaxed) == want.key ? n : 0;
	}

	[[gnu::noinline]] uint32_t search(uint32_t trees, const request &want,
					  const entry<Env> *entries) const
	{
		const place at = behind(want);

		/* The lowest of the sets that contain a set is itself. */
		for (; trees; trees &= trees - 1) {
			uint32_t found = beside(roots[__builtin_ctz(trees)], at, entries).before;

			if (found && entries[found].fits(want))
				return found;
		}
		return 0;
	}

	/* The last one before that place, and the first one that is not. */
	neighbours beside(const link &root, const place &at, const entry<Env> *entries) const
	{
		neighbours found = {};
		uint32_t n = get(root);

		for (int steps = 0; n && steps < STEPS; steps++)
			n = get(goes_right(n, at, entries, &found) ? nodes[n].right
								   : nodes[n].left);
		return found;
	}

	/* From there to that place. */
	bool goes_right(uint32_t n, const place &to, const entry<Env> *entries,
			neighbours *passed) const
	{
		const bool right = is_before(n, to, entries);

		(right ? passed->before : passed->after) = n;
		return right;
	}

	static uint32_t priority(uint32_t index)
	{
		uint32_t x = index * 0x9e3779b1;

		return (x ^ x >> 15) * 0x85ebca77;
	}

	/* Returns its neighbours. */
	neighbours insert_at(link &root, uint32_t index, const place &where,
			     const entry<Env> *entries)
	{
		const uint32_t least = priority(index);
		neighbours found = {};
		link *left = &nodes[index].left, *right = &nodes[index].right, *at = &root;
		uint32_t n;

		nodes[index].key.store(where.key, std::memory_order_relaxed);
		nodes[index].start.store(where.start, std::memory_order_relaxed);
		while ((n = get(*at)) && priority(n) >= least)
			at = goes_right(n, where, entries, &found) ? &nodes[n].right
								   : &nodes[n].left;
		/* The nodes below become the two subtrees of the new node. */
		while (n) {
			const bool is_left = goes_right(n, where, entries, &found);
			link *&side = is_left ? left : right;

			set(*side, n);
			side = is_left ? &nodes[n].right : &nodes[n].left;
			n = get(*side);
		}
		set(*left, 0);
		set(*right, 0);
		set(*at, index);
		return found;
	}

	typename Env::template atomic<uint64_t> changes;
	link present; // which roots are not empty
	link roots[RIGHTS + 2];

	/* The last: they are made accessible as entries are (arena.h). */
	node nodes[Env::entries];
};

} // namespace mr_cache

#endif // MR_CACHE_CATALOG_H
