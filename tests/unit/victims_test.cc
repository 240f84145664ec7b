// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The choice of victims alone: the oldest first, and none that is used, or was since the
 * look.
 *
 * Broken on purpose, each of these was seen to fail here:
 *   the youngest collected, or the batch not sorted
 *   an entry in use collected
 *   one that was used since the look given all the same
 *   one whose owner or user changed since given all the same
 *   invalid ones not first
 *   looks that always begin at the same place, or are not limited
 *   looks at all that are not owed, or not paid for by victims, or by later looks
 */
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "catch.h"

#include "fake_kernel.h"
#include "victims.h"

namespace {

struct large_env : fake_env {
	static constexpr uint32_t entries = 4097;
};

constexpr uint32_t OWNER = 3;

/* Entries of one owner, in a random order of use. */
template <class Env> struct world {
	mr_cache::victims<Env> oldest{};
	typename mr_cache::victims<Env>::list list{};
	std::vector<mr_cache::entry<Env>> entries{Env::entries};
	std::vector<uint32_t> by_age;

	explicit world(uint64_t seed)
	{
		for (uint32_t i = 1; i < Env::entries; i++) {
			by_age.push_back(i);
			entries[i].owner = OWNER;
			list.add(entries.data(), i);
		}
		std::shuffle(by_age.begin(), by_age.end(), std::mt19937_64(seed));
		for (uint32_t age = 0; age < by_age.size(); age++)
			entries[by_age[age]].use(100 + age);
	}

	uint32_t collect(bool may_go_on = false)
	{
		return oldest.collect(list, entries.data(), may_go_on);
	}
	uint32_t next() { return oldest.next(OWNER, entries.data()); }
	auto &word(uint32_t age) { return entries[by_age[age]].word; }
};

} // namespace

TEST_CASE("the oldest go first")
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		world<fake_env> w(seed);

		INFO("seed " << seed);
		w.collect();
		/* A sixteenth of 64. */
		for (size_t age = 0; age < 4; age++)
			REQUIRE(w.next() == w.by_age[age]);
		REQUIRE(w.next() == 0);
	}
}

TEST_CASE("of few entries the very oldest goes each time")
{
	world<fake_env> w(1);

	for (uint32_t i = 20; i < fake_env::entries; i++)
		w.list.remove(w.entries.data(), i);
	for (uint32_t age = 0, gone = 0; gone < 19; age++) {
		if (w.by_age[age] >= 20)
			continue;
		w.collect();
		REQUIRE(w.next() == w.by_age[age]);
		REQUIRE(w.next() == 0);
		w.list.remove(w.entries.data(), w.by_age[age]);
		gone++;
	}
	w.collect();
	CHECK(w.next() == 0);
}

TEST_CASE("a used entry does not go")
{
	world<fake_env> w(3);

	w.word(0).take_acquire();
	w.collect();
	CHECK(w.next() == w.by_age[1]);
	/* Since then: used and given back, in use, given to another owner's registration. */
	w.entries[w.by_age[2]].use(1000);
	w.word(3).take_acquire();
	w.entries[w.by_age[4]].owner = 1;
	CHECK(w.next() == 0);
}

TEST_CASE("invalid ones go first")
{
	world<fake_env> w(4);
	const uint32_t youngest = w.by_age.back();

	*w.entries[youngest].word.raw() |= w.entries[youngest].word.INVALID;
	w.collect();
	CHECK(w.next() == youngest);
	CHECK(w.next() == w.by_age[0]);
}

TEST_CASE("a look at many is at some, and the next one at others")
{
	world<large_env> w(5);
	std::vector<bool> seen(large_env::entries);
	uint32_t idle = 0;

	/* All in use but for the last ones. */
	for (uint32_t i = 1; i < large_env::entries - 8; i++)
		w.entries[i].word.take_acquire();
	w.collect();
	CHECK(w.next() == 0);
	for (int look = 0; look < 200 && !idle; look++) {
		w.collect();
		idle = w.next();
	}
	CHECK(idle >= large_env::entries - 8);
}

TEST_CASE("looks in vain become short")
{
	world<large_env> w(6);
	uint32_t first, second;

	for (uint32_t i = 1; i < large_env::entries; i++)
		w.entries[i].word.take_acquire();
	for (int look = 0; look < 8; look++)
		w.collect();
	first = w.list.turn(w.entries.data());
	w.collect();
	second = w.list.turn(w.entries.data());
	CHECK((second - first + large_env::entries) % large_env::entries < 40);
}

TEST_CASE("a look at all entries is owed, until it is paid")
{
	world<large_env> w(7);
	const uint32_t all = large_env::entries - 1;
	uint32_t looked = 0;

	for (uint32_t i = 1; i < large_env::entries; i++)
		w.entries[i].word.take_acquire();
	for (; looked < all && !w.oldest.owes() == !looked; looked += w.collect(true))
		REQUIRE(w.next() == 0);
	CHECK(looked == all);
	/* By looks. */
	for (looked = 0; w.oldest.owes(); looked += w.collect())
		REQUIRE(looked < all);
	CHECK(looked > all - 512);

	/* By victims: this look's 32, of which each is worth it. */
	for (uint32_t i = 1; i < large_env::entries; i++)
		w.entries[i].word.give_release();
	w.collect(true);
	CHECK(w.oldest.owes());
	CHECK(w.next());
	CHECK(!w.oldest.owes());
}
