// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The index alone, with random insertions and removals. Each result is compared with a linear
 * search of a list.
 *
 * This test fails with each of these mistakes:
 *   A candidate is not verified, or not searched in larger sets of rights.
 *   A set of rights is not recognized as a superset.
 *   A split or a merge of the treap loses a subtree.
 *   The predecessor must lie before the address, or the successor after it.
 *   insert() does not check the end of the entry that starts after the new entry.
 *   The index returns an entry of another PD or of another ordering.
 *   The index does not distinguish exact entries.
 */
#include <memory>
#include <random>
#include <vector>

#include "catch.h"

#include "fake_kernel.h"
#include "catalog.h"

namespace {

using mr_cache::request;

constexpr uint64_t PAGE = 4096;

struct world {
	static constexpr uint32_t COUNT = fake_env::entries;

	std::unique_ptr<mr_cache::catalog<fake_env>> index{new mr_cache::catalog<fake_env>()};
	std::unique_ptr<mr_cache::entry<fake_env>[]> entries =
		std::make_unique<mr_cache::entry<fake_env>[]>(COUNT);
	bool in[COUNT] = {};
	char pds[8];

	bool alike(uint32_t i, const request &want) const
	{
		return in[i] && entries[i].pd_key() == want.key &&
		       entries[i].rights() == (want.access & mr_cache::RIGHTS);
	}

	void erase(uint32_t i)
	{
		index->erase(i, entries.get());
		in[i] = false;
	}

	/* Like the cache, removes contained entries, and does not add a contained entry. */
	void add(uint32_t i, const request &what)
	{
		for (uint32_t other = 1; other < COUNT; other++)
			if (alike(other, what) && (what.exact() ? entries[other].shows(what)
								: entries[other].contains(what)))
				return;

		bool within[COUNT] = {};

		for (uint32_t other = 1; other < COUNT; other++)
			within[other] = !what.exact() && alike(other, what) &&
					entries[other].start() >= what.addr &&
					entries[other].end() <= what.addr + what.length;
		insert(i, what, within);
		for (uint32_t other = 1; other < COUNT; other++)
			REQUIRE(!(within[other] && in[other]));
	}

	/* Removes exactly the entries within the range. */
	void insert(uint32_t i, const request &what, const bool *within = nullptr)
	{
		bool expected = false;

		entries[i].describe(what);
		for (uint32_t other = 1; other < COUNT; other++)
			expected |= !what.exact() && alike(other, what) &&
				    !(within && within[other]) &&
				    entries[other].start() < entries[i].end() &&
				    entries[i].start() < entries[other].end();
		REQUIRE(index->insert(i, entries.get(), [&](uint32_t other) {
			REQUIRE((within && within[other]));
			erase(other);
		}) == expected);
		in[i] = true;
	}

	/* The last entry that starts at or before the address, and the first after it. */
	void look_beside(const request &want)
	{
		const mr_cache::neighbours found = index->beside(want, want.addr);
		uint32_t before = 0, after = 0;

		for (uint32_t i = 1; i < COUNT; i++) {
			if (!alike(i, want))
				continue;
			uint32_t &side = entries[i].start() <= want.addr ? before : after;

			if (!side ||
			    (entries[i].start() < entries[side].start()) == (&side == &after))
				side = i;
		}
		REQUIRE(found.before == before);
		REQUIRE(found.after == after);
	}

	void look(const request &want)
	{
		if (!want.exact())
			look_beside(want);

		uint32_t found = index->search(want, entries.get());
		bool expected = false;

		for (uint32_t i = 1; i < COUNT; i++)
			expected |= in[i] && entries[i].fits(want);
		REQUIRE(!!found == expected);
		REQUIRE((!found || (in[found] && entries[found].fits(want))));
	}

	request any(std::mt19937_64 &random)
	{
		uint64_t first = random() % 64, count = 1 + random() % 6;

		return {&pds[random() % 2 * 4], first * PAGE, count * PAGE,
			static_cast<uint32_t>(random() % 16) |
				(random() % 4 ? 0 : MR_CACHE_RELAXED_ORDERING) |
				(random() % 4 ? 0 : MR_CACHE_EXACT)};
	}
};

} // namespace

TEST_CASE("the index answers as a list would")
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		std::mt19937_64 random(seed);
		world w;

		INFO("seed " << seed);
		for (int n = 0; n < 2000; n++) {
			uint32_t i = 1 + static_cast<uint32_t>(random() % (w.COUNT - 1));

			if (w.in[i])
				w.erase(i);
			else
				w.add(i, w.any(random));
			w.look(w.any(random));
		}
	}
}

/* All entries of a deep tree are looked up. */
TEST_CASE("no entry is lost in one tree")
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		std::mt19937_64 random(seed);
		world w;

		INFO("seed " << seed);
		for (int n = 0; n < 1000; n++) {
			uint32_t i = 1 + static_cast<uint32_t>(random() % (w.COUNT - 1));
			const uint64_t start = i * 37 % w.COUNT * PAGE;

			if (w.in[i])
				w.erase(i);
			else
				w.insert(i, {w.pds, start, PAGE, 1});
			for (uint32_t page = 0; page < w.COUNT; page++)
				w.look({w.pds, page * PAGE + 7, 9, 1});
		}
	}
}
