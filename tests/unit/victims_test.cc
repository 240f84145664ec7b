// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The choice of victims alone: the oldest first, of whom it was asked for, and none
 * that is used, or was since the scan.
 *
 * Broken on purpose, each of these was seen to fail here:
 *   the youngest collected, or the batch not sorted
 *   an entry in use, or of another owner, collected
 *   one that was used since the scan given all the same
 *   one whose owner or user changed since given all the same
 *   invalid ones not first
 *   the batch of one owner given to another
 */
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "fake_kernel.h"
#include "victims.h"

namespace {

using choice = mr_cache::victims<fake_env>;

struct world {
	static constexpr uint32_t COUNT = fake_env::entries;

	std::unique_ptr<choice> batch{new choice()};
	std::unique_ptr<mr_cache::entry<fake_env>[]> entries {
		new mr_cache::entry<fake_env>[ COUNT ]()
	};
	std::vector<uint32_t> by_age;

	/* Entries in a random order of use; every third is owner 1's, the others are owner 0's. */
	explicit world(uint64_t seed)
	{
		for (uint32_t i = 1; i < COUNT; i++) {
			by_age.push_back(i);
			entries[i].owner = i % 3 == 1;
		}
		std::shuffle(by_age.begin(), by_age.end(), std::mt19937_64(seed));
		for (uint32_t age = 0; age < by_age.size(); age++)
			entries[by_age[age]].use(100 + age);
	}

	void collect(uint32_t owner, uint64_t most)
	{
		batch->collect(owner, entries.get(), COUNT, most);
	}
	uint32_t next(uint32_t owner) { return batch->next(owner, entries.get()); }
};

} // namespace

TEST_CASE("the oldest go first")
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		world w(seed);
		const size_t most = 1 + seed % 20;

		INFO("seed " << seed);
		w.collect(choice::ANY, most);
		for (size_t age = 0; age < most; age++)
			REQUIRE(w.next(choice::ANY) == w.by_age[age]);
		REQUIRE(w.next(choice::ANY) == 0);
	}
}

TEST_CASE("at least one is collected")
{
	world w(1);

	w.collect(choice::ANY, 0);
	CHECK(w.next(choice::ANY) == w.by_age[0]);
	CHECK(w.next(choice::ANY) == 0);
}

TEST_CASE("only those of the owner go")
{
	world w(2);

	w.collect(1, w.COUNT);
	/* What was collected for one is not for another. */
	CHECK(w.next(0) == 0);
	CHECK(w.next(choice::ANY) == 0);
	for (uint32_t i : w.by_age)
		if (w.entries[i].owner == 1)
			CHECK(w.next(1) == i);
	CHECK(w.next(1) == 0);

	/* Older ones of others take no place in a small batch. */
	w.collect(1, 2);
	CHECK(w.next(1));
	CHECK(w.next(1));
}

TEST_CASE("what is used does not go")
{
	world w(3);

	w.entries[w.by_age[0]].word.take_acquire();
	w.collect(choice::ANY, 1);
	CHECK(w.next(choice::ANY) == w.by_age[1]);
	w.collect(choice::ANY, 6);
	/* Since then: used and given back, in use, given to another owner's registration. */
	w.entries[w.by_age[1]].use(1000);
	w.entries[w.by_age[2]].word.take_acquire();
	CHECK(w.next(choice::ANY) == w.by_age[3]);

	w.collect(0, 6);
	uint32_t first = w.next(0), second = 0;

	for (uint32_t i : w.by_age)
		if (w.entries[i].owner == 0 &&
		    w.entries[i].last_use() > w.entries[first].last_use() &&
		    w.entries[i].word.idle(w.entries[i].word.peek_relaxed()) &&
		    (!second || w.entries[i].last_use() < w.entries[second].last_use()))
			second = i;
	w.entries[second].owner = 1;
	CHECK(w.next(0) != second);
}

TEST_CASE("invalid ones go first")
{
	world w(4);
	const uint32_t youngest = w.by_age.back();

	*w.entries[youngest].word.raw() |= w.entries[youngest].word.INVALID;
	w.collect(choice::ANY, 2);
	CHECK(w.next(choice::ANY) == youngest);
	CHECK(w.next(choice::ANY) == w.by_age[0]);
}
