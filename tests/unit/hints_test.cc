// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The hints alone: what was learnt is found, by whom it is for and by no other, and
 * a bucket keeps the last two.
 *
 * Broken on purpose, each of these was seen to fail here:
 *   rights or the domain not part of the hash
 *   the offset in the page part of it
 *   the second hint of a bucket not looked at
 *   a hint that is there already learnt again, which drops the other
 *   tags not compared
 *   a table that grows too late, or beyond its memory
 */
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "fake_kernel.h"
#include "hints.h"

namespace {

using mr_cache::wish;
using table = mr_cache::hints<fake_env>;

constexpr uint32_t BITS = table::MOST;
char pds[16];

wish page(uint64_t number, uint32_t access = 1, void *pd = pds)
{
	return {pd, number * 4096, 4096, access};
}

/* So many pages whose hints share a bucket: in an empty table, what is learnt thrice ousts. */
std::vector<wish> in_one_bucket(size_t count)
{
	std::vector<wish> found = {page(1)};

	for (uint64_t number = 2; found.size() < count; number++) {
		const std::unique_ptr<table> t(new table());

		t->learn(found[0], BITS, 1);
		t->learn(page(number), BITS, 2);
		t->learn(page(number), BITS, 3);
		if (!t->look(found[0], BITS))
			found.push_back(page(number));
	}
	return found;
}

} // namespace

TEST_CASE("a hint is found by whom it is for")
{
	const std::unique_ptr<table> t(new table());

	CHECK(t->look(page(7), BITS) == 0);
	t->learn(page(7), BITS, 42);
	CHECK(t->look(page(7), BITS) == 42);
	/* Another part of the page, of any length. */
	CHECK(t->look({pds, 7 * 4096 + 100, 5, 1}, BITS) == 42);
	CHECK(t->look(page(7, 3), BITS) == 0);
	CHECK(t->look(page(7, 1 | MR_CACHE_RELAXED_ORDERING), BITS) == 0);
	CHECK(t->look(page(7, 1, pds + 8), BITS) == 0);
	for (uint64_t number = 8; number < 1000; number++)
		CHECK(t->look(page(number), BITS) == 0);
	/* The largest index that there can be. */
	t->learn(page(7), BITS, table::INDEX);
	CHECK(t->look(page(7), BITS) == table::INDEX);
}

TEST_CASE("a bucket keeps the last two hints")
{
	const std::unique_ptr<table> t(new table());
	const std::vector<wish> same = in_one_bucket(3);

	t->learn(same[0], BITS, 1);
	t->learn(same[1], BITS, 2);
	t->learn(same[1], BITS, 2);
	CHECK(t->look(same[0], BITS) == 1);
	CHECK(t->look(same[1], BITS) == 2);
	t->learn(same[2], BITS, 3);
	CHECK(t->look(same[0], BITS) == 0);
	CHECK(t->look(same[1], BITS) == 2);
	CHECK(t->look(same[2], BITS) == 3);
}

TEST_CASE("the hints grow with the entries, within their memory")
{
	CHECK(table::grow(2, 4) == 2);
	CHECK(table::grow(2, 5) == 3);
	CHECK(table::grow(table::MOST, 1000) == table::MOST);
}
