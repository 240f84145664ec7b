// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The hints alone. At any position of the buffers, a request finds the hint of an entry that serves
 * the request, and finds no other hint.
 *
 * This test fails with each of these mistakes:
 *   The hash lacks the rights or the domain.
 *   The hash of a range that is not exact includes the offset in the page.
 *   The second hint of a bucket is not checked.
 *   An old hint with the same tag is kept.
 *   Each use of a part replaces another hint.
 *   No use of a part replaces another hint.
 *   Tags are not compared.
 *   The table grows too late, or beyond its memory.
 */
#include <memory>

#include "catch.h"

#include "fake_kernel.h"
#include "hints.h"

namespace {

using mr_cache::request;
constexpr uint64_t PAGE = 4096;
char pds[16];

request page(uint64_t number, uint32_t access = 1, void *pd = pds)
{
	return {pd, number * PAGE, PAGE, access};
}

template <class Env> struct world {
	std::unique_ptr<mr_cache::hints<Env>> table{new mr_cache::hints<Env>()};
	uint32_t last = mr_cache::hints<Env>::MOST;

	static uint64_t hash(const request &want) { return mr_cache::hints<Env>::hash_of(want); }
	void learn(const request &want, uint32_t index) { table->learn(hash(want), last, index); }
	uint32_t lookup(const request &want) const { return table->lookup(hash(want), last); }
};

/* Half as many entries as buckets. */
struct large_env : fake_env {
	static constexpr uint32_t entries = 1025;
	static constexpr uint32_t most_hint_bits = 11;
};

} // namespace

TEST_CASE("a hint is found by the requests that it is for")
{
	world<fake_env> w;

	CHECK(w.lookup(page(7)) == 0);
	w.learn(page(7), 42);
	CHECK(w.lookup(page(7)) == 42);
	/* The hint also serves another part of the page, with any length. */
	CHECK(w.lookup({pds, 7 * PAGE + 100, 5, 1}) == 42);
	CHECK(w.lookup(page(7, 3)) == 0);
	CHECK(w.lookup(page(7, 1 | MR_CACHE_RELAXED_ORDERING)) == 0);
	CHECK(w.lookup(page(7, 1, pds + 8)) == 0);
	for (uint64_t number = 8; number < 1000; number++)
		CHECK(w.lookup(page(number)) == 0);
	/* The entry with the highest index. */
	w.learn(page(9), fake_env::entries - 1);
	CHECK(w.lookup(page(9)) == fake_env::entries - 1);
}

TEST_CASE("exact ranges of one page have hints of their own")
{
	world<large_env> w;
	constexpr uint32_t EXACT = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT;

	for (uint32_t i = 1; i <= 64; i++)
		w.learn({pds, 7 * PAGE + i * 64, 64, EXACT}, i);
	for (uint32_t i = 1; i <= 64; i++) {
		CHECK(w.lookup({pds, 7 * PAGE + i * 64, 64, EXACT}) == i);
		CHECK(w.lookup({pds, 7 * PAGE + i * 64, 63, EXACT}) != i);
	}
}

TEST_CASE("nearly all have a place, however they lie")
{
	for (uint64_t apart : {1, 2, 3, 5, 16, 17, 33, 64, 100, 257, 512, 4097}) {
		world<large_env> w;
		uint32_t lost = 0;

		INFO(apart << " pages apart");
		for (uint32_t i = 1; i < large_env::entries; i++)
			w.learn(page(i * apart), i);
		for (uint32_t i = 1; i < large_env::entries; i++)
			lost += w.lookup(page(i * apart)) != i;
		CHECK(lost < large_env::entries / 12);
	}
}

TEST_CASE("most exact ranges have a place, however they lie")
{
	constexpr uint32_t EXACT = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT;
	uint32_t lost = 0, all = 0;

	for (uint64_t apart :
	     {8, 16, 48, 64, 100, 512, 4096, 4112, 8192, 32768, 65536, 69632, 1 << 21})
		for (uint64_t length : {uint64_t{8}, apart}) {
			world<large_env> w;
			const auto nth = [=](uint32_t i) {
				return request(pds, PAGE + i * apart, length, EXACT);
			};

			for (uint32_t i = 1; i < large_env::entries; i++)
				w.learn(nth(i), i);
			for (uint32_t i = 1; i < large_env::entries; i++, all++)
				lost += w.lookup(nth(i)) != i;
		}
	CHECK(lost < all / 10);
}

TEST_CASE("ranges from one place, of any length, have hints of their own")
{
	world<large_env> w;
	constexpr uint32_t EXACT = MR_CACHE_REMOTE_READ | MR_CACHE_EXACT;
	uint32_t lost = 0;

	for (uint32_t i = 1; i <= 256; i++)
		w.learn({pds, 7 * PAGE, i * 64, EXACT}, i);
	for (uint32_t i = 1; i <= 256; i++)
		lost += w.lookup({pds, 7 * PAGE, i * 64, EXACT}) != i;
	CHECK(lost < 256 / 20);
}

TEST_CASE("old hints take no place from new ones")
{
	world<large_env> w;
	uint32_t lost = 0;

	for (uint64_t generation = 0; generation < 8; generation++)
		for (uint32_t i = 1; i < large_env::entries; i++)
			w.learn(page(generation * 100000 + i * 17), i);
	/* If a request learns another entry, the new hint replaces the request's old hint. */
	for (uint32_t i = 1; i < large_env::entries; i++)
		for (uint32_t times = 0; times < 2; times++)
			w.learn(page(700000 + i * 17), i);
	for (uint32_t i = 1; i < large_env::entries; i++)
		lost += w.lookup(page(700000 + i * 17)) != i;
	CHECK(lost < large_env::entries / 10);
}

TEST_CASE("parts for which there is no place leave most other hints alone")
{
	world<large_env> w;
	uint32_t kept = 0, learnt = 0;

	for (uint32_t i = 1; i < large_env::entries; i++)
		w.learn(page(i * 17), i);
	w.learn(page(1 << 20), 1);
	for (uint64_t n = 0; n < 2048; n++)
		w.table->learn_part(w.hash(page((1 << 20) + n)), w.last, 1, n);
	for (uint32_t i = 1; i < large_env::entries; i++)
		kept += w.lookup(page(i * 17)) == i;
	CHECK(kept > large_env::entries * 3 / 4);
	/* A frequent request gets a hint even if both places are taken. */
	for (uint32_t n = 0; n < 8 * 2048; n++)
		w.learn(page((1 << 22) + n * 17), 2);
	for (uint64_t n = 0; n < 2048; n++)
		for (uint64_t now = 0; now < 100 && w.lookup(page((1 << 20) + n)) != 1; now++)
			w.table->learn_part(w.hash(page((1 << 20) + n)), w.last, 1, now);
	for (uint64_t n = 0; n < 2048; n++)
		learnt += w.lookup(page((1 << 20) + n)) == 1;
	CHECK(learnt > 2048 * 3 / 4);
}

TEST_CASE("a hint that is wrong by now is replaced at once")
{
	world<large_env> w;

	for (uint32_t i = 1; i < large_env::entries; i++)
		w.learn(page(i * 17), i);
	for (uint32_t i = 1; i < large_env::entries; i++) {
		if (w.lookup(page(i * 17)) != i)
			continue;
		w.table->learn_part(w.hash(page(i * 17)), w.last, large_env::entries - i, 1);
		CHECK(w.lookup(page(i * 17)) == large_env::entries - i);
	}
}

TEST_CASE("the hints grow with the entries, within their memory")
{
	using table = mr_cache::hints<fake_env>;

	CHECK(table::grow(3, 2) == 3);
	CHECK(table::grow(3, 3) == 7);
	CHECK(table::grow(table::MOST, 1000) == table::MOST);
}
