// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The authoritative answer to "which entry contains this range?": for each PD, ordering and set of
 * rights a tree of entries by start. A request looks among its own rights, then among those that
 * contain them.
 *
 * The entries of a tree are an antichain: none contains another (insert() keeps it so). Sorted by
 * start they are then sorted by end too, and the last one that starts at or before addr is the only
 * candidate.
 *
 * The tree is a treap whose node i belongs to entry i: its priority is a hash of i, inserting
 * allocates nothing and cannot fail. The mutex guards all changes; search() may run beside them
 * without it (catalog.h): every index that it can read is one of a node, and its steps are limited.
 */
#ifndef MR_CACHE_RANGE_INDEX_H
#define MR_CACHE_RANGE_INDEX_H

#include <cstddef>

#include "pds.h"

namespace mr_cache {

/* 0: none. */
struct neighbours {
	uint32_t before;
	uint32_t after;
};

template <class Env> class range_index {
public:
	/* The memory of the nodes of entries from this one on. */
	void *node_memory(uint32_t first) { return &nodes[first]; }
	static constexpr size_t node_bytes(uint32_t count) { return count * sizeof(node); }

	/* An entry to verify, or 0. Under the mutex it is in the index, and 0 means none is. */
	uint32_t search(const trees<Env> &of, const request &want, const entry<Env> *entries) const
	{
		uint32_t present = get(of.present);

		return present ? search(of, present, want, entries) : 0;
	}

	/* The last entry that starts at or before the address, and the first that starts after. */
	neighbours beside(const typename trees<Env>::link &root, uint64_t addr) const
	{
		neighbours found = {};
		uint32_t n = get(root);

		for (int steps = 0; n && steps < STEPS; steps++) {
			if (starts_at(n) <= addr) {
				found.before = n;
				n = get(nodes[n].right);
			} else {
				found.after = n;
				n = get(nodes[n].left);
			}
		}
		return found;
	}

	/*
	 * Under the mutex. Calls retire(i), which erases it, for each entry i that lies within the
	 * new one; none among the same rights contains it. Is some of it in another one's range,
	 * too?
	 */
	template <class Retire>
	bool insert(trees<Env> &to, uint32_t index, const entry<Env> *entries, const Retire &retire)
	{
		const entry<Env> &e = entries[index];
		const uint64_t start = e.start();
		link &root = to.roots[e.rights()];
		const neighbours around = insert_at(root, index, start);
		uint32_t next = around.after;

		set(to.present, get(to.present) | 1U << e.rights());
		while (next && entries[next].end() <= e.end()) {
			retire(next);
			next = beside(root, start).after;
		}
		return (next && starts_at(next) < e.end()) ||
		       (around.before && entries[around.before].end() > start);
	}

	/* Under the mutex. */
	void erase(trees<Env> &from, uint32_t index, uint32_t rights)
	{
		link *at = &from.roots[rights];
		uint32_t n;

		while ((n = get(*at)) && n != index)
			at = starts_at(n) <= starts_at(index) ? &nodes[n].right : &nodes[n].left;
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
		if (!get(from.roots[rights]))
			set(from.present, get(from.present) & ~(1U << rights));
	}

private:
	using link = typename trees<Env>::link;

	struct node {
		typename Env::template atomic<uint64_t> start;
		link left;
		link right;
	};

	[[gnu::noinline]] uint32_t search(const trees<Env> &of, uint32_t present,
					  const request &want, const entry<Env> *entries) const
	{
		/* The lowest of the sets that contain a set is itself. */
		for (uint32_t more = present & containing(want.access & RIGHTS); more;
		     more &= more - 1) {
			uint32_t found = beside(of.roots[__builtin_ctz(more)], want.addr).before;

			if (found && entries[found].fits(want))
				return found;
		}
		return 0;
	}

	static constexpr int STEPS = 256; // more than a treap of 2^20 is ever deep

	/* Relaxed: see above; the mutex orders the changes among themselves. */
	static uint32_t get(const link &l) { return l.load(std::memory_order_relaxed); }
	static void set(link &l, uint32_t n) { l.store(n, std::memory_order_relaxed); }
	uint64_t starts_at(uint32_t n) const
	{
		return nodes[n].start.load(std::memory_order_relaxed);
	}

	static uint32_t priority(uint32_t index)
	{
		uint32_t x = index * 0x9e3779b1;

		return (x ^ x >> 15) * 0x85ebca77;
	}

	/* The sets of rights, as bits of a mask, that contain these. */
	static uint32_t containing(uint32_t rights)
	{
		static constexpr uint16_t sets[RIGHTS + 1] = {
			0xffff, 0xaaaa, 0xcccc, 0x8888, 0xf0f0, 0xa0a0, 0xc0c0, 0x8080,
			0xff00, 0xaa00, 0xcc00, 0x8800, 0xf000, 0xa000, 0xc000, 0x8000,
		};

		return sets[rights];
	}

	/* Returns the last one that starts before it, and the next that starts there or after it.
	 */
	neighbours insert_at(link &root, uint32_t index, uint64_t start)
	{
		const uint32_t least = priority(index);
		neighbours found = {};
		uint32_t n;
		link *at = &root;

		while ((n = get(*at)) && priority(n) >= least) {
			if (starts_at(n) < start) {
				found.before = n;
				at = &nodes[n].right;
			} else {
				found.after = n;
				at = &nodes[n].left;
			}
		}

		/* The nodes below become the two subtrees of the new node. */
		link *left = &nodes[index].left, *right = &nodes[index].right;

		nodes[index].start.store(start, std::memory_order_relaxed);
		while (n) {
			if (starts_at(n) < start) {
				found.before = n;
				set(*left, n);
				left = &nodes[n].right;
				n = get(*left);
			} else {
				found.after = n;
				set(*right, n);
				right = &nodes[n].left;
				n = get(*right);
			}
		}
		set(*left, 0);
		set(*right, 0);
		set(*at, index);
		return found;
	}

	/* The last: they are made accessible as entries are (arena.h). */
	node nodes[Env::entries];
};

} // namespace mr_cache

#endif // MR_CACHE_RANGE_INDEX_H
