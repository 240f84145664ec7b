// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The choice of victims alone. The victim is the oldest of some entries, and never an entry in use.
 *
 * This test fails with each of these mistakes:
 *   The victim is the youngest or the first of the scanned entries.
 *   The victim is an entry in use.
 *   Invalid entries are not preferred.
 *   Scans always start at the same place, skip an entry after the last scanned entry, or have no
 *   limit.
 */
#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "catch.h"

#include "fake_kernel.h"
#include "owners.h"

namespace {

struct large_env : fake_env {
	static constexpr uint32_t entries = 4097;
};

constexpr uint32_t OWNER = 3;

/* Entries of one owner, in a random order of use. */
template <class Env> struct world {
	mr_cache::entry_list<Env> list{};
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

	uint32_t next(uint32_t most = 256) { return list.oldest_idle(entries.data(), most); }
	/* The entry is removed permanently. */
	uint32_t evict()
	{
		const uint32_t i = next();

		if (i)
			list.remove(entries.data(), i);
		return i;
	}
	/* As many entries as one scan covers. */
	void keep_few()
	{
		for (uint32_t i = 33; i < Env::entries; i++)
			list.remove(entries.data(), i);
		std::erase_if(by_age, [](uint32_t i) { return i > 32; });
	}
	void use_all()
	{
		for (uint32_t i = 1; i < Env::entries; i++)
			entries[i].word.get_acquire();
	}
	auto &word(uint32_t age) { return entries[by_age[age]].word; }
};

} // namespace

TEST_CASE("the oldest of each look goes")
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		world<fake_env> w(seed);

		INFO("seed " << seed);
		/* The list has the order of the indices, 1 to 64. */
		for (uint32_t n = 0, last = 0; n < 64; n++) {
			const auto of_look = [last](uint32_t i) {
				return (i + 63 - last) % 64 < 32;
			};
			const uint32_t victim = w.next();

			REQUIRE(victim == *std::find_if(w.by_age.begin(), w.by_age.end(), of_look));
			last = victim;
		}
	}
}

TEST_CASE("of few entries the very oldest goes each time")
{
	world<fake_env> w(1);

	w.keep_few();
	for (const uint32_t i : w.by_age)
		REQUIRE(w.evict() == i);
	CHECK(w.evict() == 0);
}

TEST_CASE("a used entry does not go")
{
	world<fake_env> w(3);
	const uint32_t first = w.next();

	w.entries[first].word.get_acquire();
	w.next();
	CHECK(w.next() != first);
	w.next();
	w.use_all();
	CHECK(w.next(UINT32_MAX) == 0);
}

TEST_CASE("invalid ones go first")
{
	world<fake_env> w(4);
	w.keep_few();
	*w.word(31).raw() |= w.word(31).INVALID;
	CHECK(w.evict() == w.by_age[31]);
	CHECK(w.evict() == w.by_age[0]);
}

TEST_CASE("a look at many is at some, and the next one at others")
{
	world<large_env> w(5);
	const uint32_t all = large_env::entries - 1;
	uint32_t looks = 1;

	w.use_all();
	w.entries[all].word.put_release();
	/* The scan reaches this entry after all other entries. */
	while (w.next() != all)
		REQUIRE(++looks <= all / 256);
	CHECK(looks == all / 256);
}

TEST_CASE("all are looked at where that is asked for")
{
	world<large_env> w(8);
	const uint32_t last = large_env::entries - 1;

	w.use_all();
	REQUIRE(w.next() == 0);
	w.entries[last].word.put_release();
	CHECK(w.next(UINT32_MAX) == last);
}
