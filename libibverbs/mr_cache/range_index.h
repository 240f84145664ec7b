// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The authoritative answer to "which entry contains this range?": for each
 * domain (key: PD and ordering) and each set of rights a tree of entries by start.
 *
 * The entries of a tree are an antichain: none contains another (insert() keeps it so). Sorted
 * by start they are then sorted by end too, and the last one that starts at or before addr is
 * the only candidate.
 * A request looks among its own rights, then among those that contain them.
 *
 * The tree is a treap whose node i belongs to entry i: its priority is a hash of
 * i, inserting allocates nothing and cannot fail. All memory is type-stable. The
 * mutex of the cache guards all changes; search() may run beside them without it
 * (catalog.h): every index that it can read is one of a node, and its steps are limited.
 */
#ifndef MR_CACHE_RANGE_INDEX_H
#define MR_CACHE_RANGE_INDEX_H

#include <cstddef>

#include "entry.h"

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

	/* What the first one needs, and the last one that came. */
	void touch_first()
	{
		Env::touch(this,
			   sizeof(*this) - sizeof(nodes) - sizeof(domains) + 2 * sizeof(*domains));
	}
	auto *last_domain() { return &domains[domain_count]; }

	/* An entry to verify, or 0. Under the mutex it is in the index, and 0 means none is. */
	uint32_t search(const wish &want, const entry<Env> *entries) const
	{
		const domain &d = domains[lookup(want.key)];
		uint32_t present = d.present.load(std::memory_order_relaxed);

		return present ? search(d, present, want, entries) : 0;
	}

	/*
	 * Under the mutex. Of the same rights: the last entry that starts at or before the address,
	 * and the first that starts after it.
	 */
	neighbours beside(const wish &want, uint64_t addr) const
	{
		const domain &d = domains[lookup(want.key)];
		uint32_t n = get(d.roots[want.access & RIGHTS]);
		neighbours found = {};

		while (n) {
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
	 * new one; none among the same rights contains it. False if there are too many domains.
	 * *overlaps: some of it is in another one's range, too.
	 */
	template <class Retire>
	bool insert(uint32_t index, const entry<Env> *entries, const Retire &retire, bool *overlaps)
	{
		const entry<Env> &e = entries[index];
		const uint64_t start = e.start();
		const uint32_t rights = e.rights();
		uint32_t to = lookup(e.pd_key());

		if (!to)
			to = add_domain(e.pd_key());
		if (!to)
			return false;

		domain &d = domains[to];
		const neighbours beside = insert_at(d.roots[rights], index, start);
		uint32_t next = beside.after;

		d.present.store(d.present.load(std::memory_order_relaxed) | 1U << rights,
				std::memory_order_relaxed);
		while (next && entries[next].end() <= e.end()) {
			retire(next);
			next = successor(d.roots[rights], start);
		}
		*overlaps = (next && starts_at(next) < e.end()) ||
			    (beside.before && entries[beside.before].end() > start);
		return true;
	}

	/* Under the mutex. */
	void erase(uint32_t index, uint64_t key, uint32_t rights)
	{
		uint32_t which = lookup(key);
		domain &d = domains[which];
		link *at = &d.roots[rights];
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
		if (!get(d.roots[rights]))
			drop_rights(which, rights);
	}

private:
	using link = typename Env::template atomic<uint32_t>;

	struct node {
		typename Env::template atomic<uint64_t> start;
		link left;
		link right;
	};

	struct domain {
		typename Env::template atomic<uint64_t> key;
		link next;
		typename Env::template atomic<uint32_t> present; // which roots are not empty
		link roots[RIGHTS + 1];
	};

	[[gnu::noinline]] uint32_t search(const domain &d, uint32_t present, const wish &want,
					  const entry<Env> *entries) const
	{
		/* The lowest of the sets that contain a set is itself. */
		for (uint32_t more = present & containing(want.access & RIGHTS); more;
		     more &= more - 1) {
			uint32_t found = predecessor(d.roots[__builtin_ctz(more)], want.addr);

			if (found && entries[found].fits(want))
				return found;
		}
		return 0;
	}

	static constexpr uint32_t HEADS = 1024;
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

	uint32_t predecessor(const link &root, uint64_t addr) const
	{
		uint32_t best = 0, n = get(root);

		for (int steps = 0; n && steps < STEPS; steps++) {
			if (starts_at(n) <= addr) {
				best = n;
				n = get(nodes[n].right);
			} else {
				n = get(nodes[n].left);
			}
		}
		return best;
	}

	uint32_t successor(const link &root, uint64_t addr) const
	{
		uint32_t best = 0, n = get(root);

		while (n) {
			if (starts_at(n) > addr) {
				best = n;
				n = get(nodes[n].left);
			} else {
				n = get(nodes[n].right);
			}
		}
		return best;
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

	static uint32_t bucket(uint64_t key)
	{
		return static_cast<uint32_t>(key * 0x9e3779b97f4a7c15 >> 54) % HEADS;
	}

	/* The domain, or 0, which is always empty. */
	uint32_t lookup(uint64_t key) const
	{
		uint32_t i = get(heads[bucket(key)]);

		for (uint32_t steps = 0; i && steps < Env::domains; steps++) {
			if (domains[i].key.load(std::memory_order_relaxed) == key)
				return i;
			i = get(domains[i].next);
		}
		return 0;
	}

	/* 0 if there are too many. */
	uint32_t add_domain(uint64_t key)
	{
		uint32_t i = free_domain;

		if (i)
			free_domain = domains[i].next.load(std::memory_order_relaxed);
		else if (domain_count + 1 < Env::domains)
			i = ++domain_count;
		else
			return 0;

		auto &head = heads[bucket(key)];

		domains[i].key.store(key, std::memory_order_relaxed);
		domains[i].next.store(head.load(std::memory_order_relaxed),
				      std::memory_order_relaxed);
		head.store(i, std::memory_order_relaxed);
		return i;
	}

	void drop_rights(uint32_t which, uint32_t rights)
	{
		domain &d = domains[which];
		uint32_t left = d.present.load(std::memory_order_relaxed) & ~(1U << rights);

		d.present.store(left, std::memory_order_relaxed);
		if (!left)
			drop_domain(which);
	}

	void drop_domain(uint32_t which)
	{
		domain &d = domains[which];
		link *at = &heads[bucket(d.key.load(std::memory_order_relaxed))];

		while (get(*at) && get(*at) != which)
			at = &domains[get(*at)].next;
		set(*at, get(d.next));
		set(d.next, free_domain);
		free_domain = which;
	}

	/* The cache's mutex guards these two. */
	uint32_t domain_count;
	uint32_t free_domain;

	link heads[HEADS];
	domain domains[Env::domains];
	/* The last: they are made accessible as entries are (arena.h). */
	node nodes[Env::entries];
};

} // namespace mr_cache

#endif // MR_CACHE_RANGE_INDEX_H
