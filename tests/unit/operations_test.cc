// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Which registration in progress will serve a request. The test tries all ranges and requests of a
 * few pages.
 */
#include <vector>

#include "catch.h"

#include "fake_kernel.h"
#include "arena.h"

using mr_cache::request;

namespace {

constexpr uint64_t PAGE = 4096;
constexpr uint32_t LOCAL = MR_CACHE_LOCAL_WRITE, EXACT = LOCAL | MR_CACHE_EXACT;

void *const pd = reinterpret_cast<void *>(64);

} // namespace

TEST_CASE("a registration under way is found for all requests that it will serve")
{
	std::vector<mr_cache::entry<fake_env>> entries(3);
	mr_cache::operations<fake_env> making{};
	const uint32_t access = GENERATE(LOCAL, EXACT);
	constexpr uint64_t END = 20;

	/* A registration of each size that serves none of these requests. */
	entries[2].describe({pd, 100 * PAGE, 1 + GENERATE(0ULL, 3 * PAGE), LOCAL});
	making.add(2);
	for (uint64_t start = 0; start < END; start++) {
		for (uint64_t end = start + 1; end <= END; end++) {
			entries[1].describe(
				{pd, start * PAGE + 7, (end - start) * PAGE - 11, access});
			making.add(1);
			for (uint64_t first = 0; first < END; first++) {
				for (uint64_t last = first + 1; last <= END; last++) {
					const request want(pd, first * PAGE + 7,
							   (last - first) * PAGE - 11, access);
					const bool serves = access == EXACT
								    ? first == start && last == end
								    : start <= first && last <= end;

					REQUIRE(making.find(want, entries.data()) == serves);
				}
			}
			entries[1].until = mr_cache::LATE;
			CHECK(!making.find(
				{pd, start * PAGE + 7, (end - start) * PAGE - 11, access},
				entries.data()));
			entries[1].until = 0;
			making.remove(1);
		}
	}
	CHECK(!making.find({pd, 7, PAGE - 11, access}, entries.data()));
	making.remove(2);
}

TEST_CASE("the newest of many registrations under way are found")
{
	constexpr uint32_t NEWEST = 16, ALL = 40;
	std::vector<mr_cache::entry<fake_env>> entries(ALL + 1);
	mr_cache::operations<fake_env> making{};
	uint32_t found = 0;
	const auto is_found = [&](uint32_t i) {
		return making.find({pd, i * PAGE, PAGE, LOCAL}, entries.data()) == i;
	};

	for (uint32_t i = 1; i <= ALL; i++) {
		entries[i].describe({pd, i * PAGE, PAGE, LOCAL});
		making.add(i);
		CHECK(is_found(i));
		CHECK(is_found(i < NEWEST ? 1 : i));
	}
	for (uint32_t i = 1; i <= ALL; i++)
		found += is_found(i);
	CHECK(found == NEWEST);
	for (uint32_t i = 1; i <= ALL; i++) {
		making.remove(i);
		CHECK(!is_found(i));
	}
}
