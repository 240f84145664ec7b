// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A word belongs to one MR. The tests check when two words are the same, and when a word is free.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "device.h"
#include "pins.h"
#include "rows.h"
#include "trial.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 16 * 4096;

uint64_t *word_in(const memory &m)
{
	return reinterpret_cast<uint64_t *>(m.registered().addr);
}

memory second_mapping(const memory &of)
{
	void *addr = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, of.fd(), 0);

	if (addr == MAP_FAILED)
		throw std::runtime_error("mmap");
	return memory({static_cast<std::byte *>(addr), page_size()});
}

/* Two registrations; the word is armed for the first. */
struct two {
	device on;
	memory m = anonymous(length);
	memory n = anonymous(length);
	owned<ibv_mr> first = on.register_memory(m.registered());
	owned<ibv_mr> second = on.register_memory(n.registered());
};

} // namespace

TEST_CASE("a word is free again")
{
	two mrs;
	word w;

	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), w.address()) == 0);
	CHECK(ibv_reg_mr_notify(mrs.second.get(), w.address()) == EBUSY);
	SECTION("when it is disarmed")
	{
		REQUIRE(ibv_unreg_mr_notify(mrs.first.get()) == 0);
	}
	SECTION("when its MR is deregistered")
	{
		mrs.first.reset();
	}
	SECTION("when the kernel has said its last to it")
	{
		unmap_all(mrs.m);
		REQUIRE(ibv_settle_mr_notify(mrs.first.get()) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
		*w.address() = 0;
	}
	REQUIRE(ibv_reg_mr_notify(mrs.second.get(), w.address()) == 0);
	CHECK(w.value() == 0);
	unmap_all(mrs.n);
	CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("arming that fails leaves the word free")
{
	two mrs;
	word w;
	word other;

	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), w.address()) == 0);
	CHECK(ibv_reg_mr_notify(mrs.first.get(), other.address()) == EBUSY);
	CHECK(ibv_reg_mr_notify(mrs.second.get(), other.address()) == 0);
}

/* If two MRs shared a word, settling one MR would clear the bits of the other MR. */
TEST_CASE("settling one MR does not wipe out another one's bits")
{
	two mrs;
	word w;
	word other;

	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), w.address()) == 0);
	if (ibv_reg_mr_notify(mrs.second.get(), w.address()))
		REQUIRE(ibv_reg_mr_notify(mrs.second.get(), other.address()) == 0);
	REQUIRE(madvise(mrs.m.registered().addr, page_size(), MADV_FREE) == 0);
	drop_all(mrs.n);
	REQUIRE(ibv_settle_mr_notify(mrs.first.get()) == 0);
	CHECK((w.value() | other.value()) != 0);
}

TEST_CASE("one word at two addresses")
{
	two mrs;
	const memory file = shared_file(page_size());
	const memory again = second_mapping(file);

	*word_in(file) = 0;
	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), word_in(file)) == 0);
	CHECK(ibv_reg_mr_notify(mrs.second.get(), word_in(again)) == EBUSY);
	CHECK(ibv_reg_mr_notify(mrs.second.get(), word_in(again) + 1) == 0);
	REQUIRE(ibv_unreg_mr_notify(mrs.first.get()) == 0);
	CHECK(ibv_reg_mr_notify(mrs.first.get(), word_in(again)) == 0);
}

TEST_CASE("one word in two processes")
{
	two mrs;
	const memory file = shared_file(page_size());
	int status = 0;

	word_in(file)[0] = word_in(file)[1] = 0;
	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), word_in(file)) == 0);
	const pid_t child = fork();
	if (child == 0) {
		const device on;
		const memory mine = anonymous(length);
		const auto mr = on.register_memory(mine.registered());
		const int taken = ibv_reg_mr_notify(mr.get(), word_in(file));
		const int free = ibv_reg_mr_notify(mr.get(), word_in(file) + 1);
		_exit(taken == EBUSY && free == 0 ? 0 : 1);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(word_in(file)[0] == 0);
	CHECK(word_in(file)[1] == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("a word that was moved")
{
	two mrs;
	memory words = anonymous(page_size());
	const range r = words.registered();

	*word_in(words) = 0;
	REQUIRE(ibv_reg_mr_notify(mrs.first.get(), word_in(words)) == 0);
	/*
	 * The kernel finds a word by its page. The word of a page that moves to another address
	 * stays the same word, and a new page at the old address has a different word.
	 */
	const memory place = anonymous(page_size());
	auto *const moved = word_in(place);
	words.forget(r);
	REQUIRE(mremap(r.addr, r.length, r.length, MREMAP_MAYMOVE | MREMAP_FIXED,
		       place.registered().addr) == static_cast<void *>(moved));
	CHECK(ibv_reg_mr_notify(mrs.second.get(), moved) == EBUSY);
	void *const there = mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	REQUIRE(there == r.addr);
	const memory other({r.addr, r.length});
	REQUIRE(ibv_reg_mr_notify(mrs.second.get(), word_in(other)) == 0);
	unmap_all(mrs.m);
	CHECK(*moved == IBV_MR_NOTIFY_INVALID);
	CHECK(*word_in(other) == 0);
}

TEST_CASE("words in a page that is mapped again and again")
{
	constexpr int times = 100; // more iterations than the kernel makes
	const device on;
	memory m = anonymous(length);
	std::vector<owned<ibv_mr>> mrs;
	const memory words = anonymous(page_size());
	const range r = words.registered();
	const std::size_t before = pinned_bytes();

	for (int n = 0; n < times; n++) {
		REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
		mrs.push_back(on.register_memory(m.registered()));
		REQUIRE(ibv_reg_mr_notify(mrs.back().get(), word_in(words)) == 0);
	}
	mrs.push_back(on.register_memory(m.registered()));
	CHECK(ibv_reg_mr_notify(mrs.back().get(), word_in(words)) == EBUSY);
	REQUIRE(ibv_reg_mr_notify(mrs.back().get(), word_in(words) + 1) == 0);
	unmap_all(m);
	CHECK(word_in(words)[0] == IBV_MR_NOTIFY_INVALID);
	CHECK(word_in(words)[1] == IBV_MR_NOTIFY_INVALID);
	mrs.clear();
	CHECK(pinned_bytes() == before);
}
