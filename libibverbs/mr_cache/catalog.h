// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The catalog is the index of the entries that requests may find. Each set of rights has a tree. A
 * tree has the entries that serve any part of their range, sorted by key (PD and relaxed ordering),
 * then by start. Entries that serve exactly their range and rights are in hash chains. A request
 * for a part searches the tree of its own rights, then the trees of larger sets of rights.
 *
 * insert() ensures that no entry contains another entry of the same tree and key. So the entries
 * are sorted by end, too. Only the last entry that starts at or before the address of a request can
 * serve the request. The trees are treaps. Node i belongs to entry i, so inserting cannot fail. The
 * priority of node i is a hash of i.
 *
 * The mutex guards all changes. search() may run without the mutex, because it reads only indexes
 * of nodes, and its steps are limited. If search() returns a removed entry, the reader notices this
 * when it takes the reference. If search() returns 0 and the version has changed, the reader
 * searches again under the mutex. [Required: a change stores the version last (release), and a
 * reader loads the version before the search (acquire). So the search sees all earlier changes.]
 */
#ifndef MR_CACHE_CATALOG_H
#define MR_CACHE_CATALOG_H

#include <cstddef>

#include "entry.h"

namespace mr_cache {

/* The index 0 means that there is no entry. */
struct neighbours {
	uint32_t before;
	uint32_t after;
};

template <class Env> class catalog {
public:
	/* Changes when an entry is inserted or erased. */
	uint64_t version() const { return changes.load(std::memory_order_acquire); }

	/* Returns the address of the node of entry `first`. The nodes of later entries follow. */
	void *node_memory(uint32_t first) { return &nodes[first]; }
	static constexpr size_t node_bytes(uint32_t count) { return count * sizeof(node); }

	/* Returns an entry to verify, or 0. The result is exact only under the mutex. */
	uint32_t search(const request &want, const entry<Env> *entries) const
	{
		if (want.exact())
			return search_exact(want, entries);

		/* The request's own set comes first, because larger sets have higher numbers. */
		for (uint32_t trees = get(present) & containing(want.access & RIGHTS); trees;
		     trees &= trees - 1) {
			const link &root = roots[__builtin_ctz(trees)];
			const uint32_t found = beside(root, want.key, want.addr + 1).before;

			if (found && entries[found].fits(want))
				return found;
		}
		return 0;
	}

	/* Needs the mutex. Returns the last entry whose start is <= addr, and the next entry. */
	neighbours beside(const request &want, uint64_t addr) const
	{
		const neighbours found = beside(roots[want.access & RIGHTS], want.key, addr + 1);

		return {alike(found.before, want), alike(found.after, want)};
	}

	/* No entry with the same rights may contain entry i. If entry i contains entry n, calls
	 * retire(n), which erases entry n. Returns whether entry i overlaps another entry. */
	template <class Retire>
	bool insert(uint32_t i, const entry<Env> *entries, const Retire &retire)
	{
		const entry<Env> &e = entries[i];
		const request range = e.own_range();

		if (range.exact()) {
			link &head = heads[bucket(range)];

			set(nodes[i].left, get(head));
			set(head, i);
			changed();
			return false;
		}

		const neighbours around = insert_at(roots[e.rights()], i, range.key, e.start());
		const uint32_t before = alike(around.before, range);
		uint32_t next = alike(around.after, range);

		set(present, get(present) | 1U << e.rights());
		changed();
		while (next && entries[next].end() <= e.end()) {
			retire(next);
			next = beside(range, e.start()).after;
		}
		return (next && entries[next].start() < e.end()) ||
		       (before && entries[before].end() > e.start());
	}

	/* Needs the mutex. */
	void erase(uint32_t index, const entry<Env> *entries)
	{
		const request range = entries[index].own_range();
		const uint32_t rights = entries[index].rights();
		link *at = range.exact() ? &heads[bucket(range)] : &roots[rights];
		uint32_t n;

		while ((n = get(*at)) && n != index)
			at = !range.exact() && is_before(n, range.key, range.addr + 1)
				     ? &nodes[n].right
				     : &nodes[n].left;
		if (!n)
			return;

		uint32_t left = get(nodes[index].left), right = get(nodes[index].right);

		if (range.exact())
			right = 0;
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
		if (!get(roots[rights]))
			set(present, get(present) & ~(1U << rights));
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

	static constexpr uint32_t HEADS = Env::entries < 1 << 16 ? 16 : 1 << 14;
	static constexpr int STEPS = 256; // more than the depth of a treap of 2^20 nodes

	static uint32_t get(const link &l) { return l.load(std::memory_order_relaxed); }
	static void set(link &l, uint32_t n) { l.store(n, std::memory_order_relaxed); }
	void changed() { changes.store(version() + 1, std::memory_order_release); }

	static uint32_t bucket(const request &range)
	{
		uint64_t hash = (range.key * 0xff51afd7ed558ccd ^ range.addr) * 0x9e3779b97f4a7c15;

		hash = (hash ^ hash >> 32 ^ range.length) * 0xc4ceb9fe1a85ec53;
		return static_cast<uint32_t>(hash >> 40) % HEADS;
	}
	uint32_t search_exact(const request &want, const entry<Env> *entries) const
	{
		uint32_t i = get(heads[bucket(want)]);

		for (int steps = 0; i && steps < STEPS; steps++) {
			if (entries[i].fits(want))
				return i;
			i = get(nodes[i].left);
		}
		return 0;
	}

	/* Returns a mask of the sets of rights that contain these rights. */
	static uint32_t containing(uint32_t rights)
	{
		static constexpr uint16_t sets[RIGHTS + 1] = {
			0xffff, 0xaaaa, 0xcccc, 0x8888, 0xf0f0, 0xa0a0, 0xc0c0, 0x8080,
			0xff00, 0xaa00, 0xcc00, 0x8800, 0xf000, 0xa000, 0xc000, 0x8000,
		};

		return sets[rights];
	}

	bool is_before(uint32_t n, uint64_t key, uint64_t start) const
	{
		const uint64_t mine = nodes[n].key.load(std::memory_order_relaxed);

		if (mine != key) [[unlikely]]
			return mine < key;
		return nodes[n].start.load(std::memory_order_relaxed) < start;
	}

	/* Returns n if node n has the PD and ordering of the request, otherwise 0. */
	uint32_t alike(uint32_t n, const request &want) const
	{
		return nodes[n].key.load(std::memory_order_relaxed) == want.key ? n : 0;
	}

	neighbours beside(const link &root, uint64_t key, uint64_t start) const
	{
		neighbours found = {};
		uint32_t n = get(root);

		for (int steps = 0; n && steps < STEPS; steps++)
			n = get(goes_right(n, key, start, &found) ? nodes[n].right : nodes[n].left);
		return found;
	}

	bool goes_right(uint32_t n, uint64_t key, uint64_t start, neighbours *passed) const
	{
		const bool right = is_before(n, key, start);

		(right ? passed->before : passed->after) = n;
		return right;
	}

	static uint32_t priority(uint32_t index)
	{
		uint32_t x = index * 0x9e3779b1;

		return (x ^ x >> 15) * 0x85ebca77;
	}

	neighbours insert_at(link &root, uint32_t index, uint64_t key, uint64_t start)
	{
		const uint32_t least = priority(index);
		neighbours found = {};
		link *left = &nodes[index].left, *right = &nodes[index].right, *at = &root;
		uint32_t n;

		nodes[index].key.store(key, std::memory_order_relaxed);
		nodes[index].start.store(start, std::memory_order_relaxed);
		while ((n = get(*at)) && priority(n) >= least)
			at = goes_right(n, key, start, &found) ? &nodes[n].right : &nodes[n].left;
		/* The nodes below this place become the two subtrees of the new node. */
		while (n) {
			const bool is_left = goes_right(n, key, start, &found);
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
	link roots[RIGHTS + 1];
	link heads[HEADS];	  // the heads of the hash chains, linked by node.left
	node nodes[Env::entries]; // last, because nodes become accessible in pieces (arena.h)
};

} // namespace mr_cache

#endif // MR_CACHE_CATALOG_H
