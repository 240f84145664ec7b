// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The list alone. Random additions, removals and moves of the hand are compared with a vector.
 *
 * This test fails with each of these mistakes:
 *   The hand stays at a removed entry, or does not start again at the first entry.
 *   A removal does not update the neighbours, the first or the last entry.
 */
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "catch.h"

#include "owners.h"
#include "fake_kernel.h"

namespace {

using fake_entry = mr_cache::entry<fake_env>;

struct world {
	static constexpr uint32_t COUNT = 16;

	std::unique_ptr<fake_entry[]> entries = std::make_unique<fake_entry[]>(COUNT);
	mr_cache::entry_list<fake_env> list{};
	std::vector<uint32_t> expected;
	size_t hand = 0;

	void add_or_remove(uint32_t i)
	{
		auto at = std::find(expected.begin(), expected.end(), i);

		if (at == expected.end()) {
			list.add(entries.get(), i);
			/* From the last entry the hand moves to the first. */
			hand = hand == expected.size() ? 0 : hand;
			expected.push_back(i);
			return;
		}
		list.remove(entries.get(), i);
		hand -= static_cast<size_t>(at - expected.begin()) < hand;
		expected.erase(at);
	}

	void turn()
	{
		if (hand == expected.size())
			hand = 0;
		CHECK(list.turn(entries.get()) == (expected.empty() ? 0 : expected[hand]));
		hand += !expected.empty();
	}

	void look() const
	{
		std::vector<uint32_t> found;

		for (uint32_t i = list.begin(); i; i = list.after(entries.get(), i))
			found.push_back(i);
		CHECK(found == expected);
		CHECK(list.size() == expected.size());
	}
};

} // namespace

TEST_CASE("the list is in the order of additions, and its hand comes to all")
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		std::mt19937_64 random(seed);
		world w;

		INFO("seed " << seed);
		for (int n = 0; n < 2000; n++) {
			if (random() % 3)
				w.add_or_remove(1 +
						static_cast<uint32_t>(random() % (w.COUNT - 1)));
			else
				w.turn();
			w.look();
		}
	}
}
