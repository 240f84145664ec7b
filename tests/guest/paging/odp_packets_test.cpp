// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging as a peer sees it, packet by packet. The tests check the answers that come while
 * the device waits for a page, and the number and PSNs of these answers.
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "capability.h"
#include "odp.h"
#include "raw_peer.h"
#include "slow_memory.h"
#include "port_counter.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t page = 4096;

/* The pages that a peer accesses stay absent until the test supplies them. */
struct slow_responder {
	cable wire;
	std::unique_ptr<slow_memory> slow = slow_memory::make(4 * page);
	memory plain = anonymous(4 * page);
	owned<ibv_mr> all = register_all(wire.on(), all_rights);

	std::byte *at(std::size_t offset = 0) const { return slow->bytes().addr + offset; }
	/* Drops pages, so that the device has to wait for them again. */
	void take_away(std::size_t offset, std::size_t length) const
	{
		REQUIRE(madvise(at(offset), length, MADV_DONTNEED) == 0);
	}
};

/*
 * Are these all responses to a read, in order, from this PSN on, with the right bytes?
 */
bool answers(const std::vector<raw_peer::packet> &packets, uint32_t psn, std::size_t count,
	     std::byte value)
{
	if (packets.size() != count)
		return false;
	for (const auto &one : packets)
		if (one.is_ack() || one.psn != psn++ || one.data != std::vector(mtu, value))
			return false;
	return true;
}

/* The peer gets one RNR NAK with this PSN. */
void told_later(const raw_peer &peer, uint32_t psn)
{
	const auto told = peer.all(1);

	REQUIRE(told.size() == 1);
	CHECK(told.front().is_rnr());
	CHECK(told.front().psn == psn);
}

/* Are these the responses to the first part of a read, followed by an RNR NAK for the rest? */
bool answers_a_part(std::vector<raw_peer::packet> packets, uint32_t psn, std::size_t count,
		    std::byte value)
{
	if (packets.empty() || !packets.back().is_rnr() || packets.back().psn != psn + count)
		return false;
	packets.pop_back();
	return answers(packets, psn, count, value);
}

} // namespace

TEST_CASE("packets: a read that waits counts once, and is answered once", "[veth odp][userfaultfd]")
{
	slow_responder s;
	raw_peer peer(s.wire);

	peer.read(0, s.at(), s.all->rkey, 3 * mtu);
	REQUIRE(s.slow->faulted());
	told_later(peer, 0);
	s.slow->answer(std::byte{0x5a});
	peer.read(0, s.at(), s.all->rkey, 3 * mtu);
	const auto first = peer.next(time_limit);
	REQUIRE(first);
	CHECK(first->psn == 0);
	CHECK(first->msn == 1);
	CHECK(answers(peer.all(2), 1, 2, std::byte{0x5a}));
}

TEST_CASE("packets: a partly answered read continues where it stopped", "[veth odp][userfaultfd]")
{
	slow_responder s;
	raw_peer peer(s.wire);

	s.slow->answer(std::byte{0x11});
	std::memset(s.at(), 0x11, page);
	s.take_away(page, page);
	peer.read(0, s.at(), s.all->rkey, 2 * page);
	REQUIRE(s.slow->faulted());
	CHECK(answers_a_part(peer.all(5), 0, 4, std::byte{0x11}));
	peer.read(0, s.at(), s.all->rkey, 2 * page); /* as if no packet of the message had come */
	CHECK(answers_a_part(peer.all(5), 0, 4, std::byte{0x11}));
	s.slow->answer(std::byte{0x22});
	peer.read(4, s.at(page), s.all->rkey, page);
	const auto rest = peer.all(4);
	CHECK(answers(rest, 4, 4, std::byte{0x22}));
	CHECK(rest.front().msn == 1);
}

/* Each page comes fast, but all pages together take longer than a peer may wait for an answer. */
TEST_CASE("packets: a packet of many absent pages gets an RNR NAK in time",
	  "[veth odp][userfaultfd]")
{
	constexpr std::size_t many = 27, each = 32;
	const cable wire;
	const auto slow = slow_memory::make(many * page);
	const std::vector<std::byte> data(many * each, std::byte{0x33});
	const owned<ibv_mr> all = register_all(wire.on(), all_rights);
	const owned<ibv_srq> receives = shared_queue(wire.on(), 1, many);
	const raw_peer peer(wire, IBV_QPT_RC, 4, receives.get());
	std::vector<piece> pieces;

	for (std::size_t i = 0; i < many; i++)
		pieces.push_back({{slow->bytes().addr + i * page, each}, all->lkey});
	post_receive(receives.get(), pieces);

	std::size_t there = 0;
	bool told = false;
	peer.message(0, data);
	while (!told && there < many) {
		std::optional<raw_peer::packet> later;
		/* The device waits for the next page, or has sent the RNR NAK instead. */
		REQUIRE(happens([&] { return slow->faulted(0ms) || (later = peer.next(0ms)); }));
		if (!later) {
			std::this_thread::sleep_for(12ms);
			peer.message(0, data);
			later = peer.next(3ms);
		}
		told = later && later->is_rnr();
		slow->answer({}, ++there * page);
	}
	REQUIRE(told);
	/*
	 * From then on the device sends the RNR NAK immediately if it would have to wait for a
	 * page.
	 */
	for (; there < many; there++) {
		peer.all();
		peer.message(0, data);
		const auto later = peer.next(time_limit);
		REQUIRE(later);
		CHECK(later->is_rnr());
		slow->answer({}, (there + 1) * page);
	}
	peer.all();
	peer.message(0, data);
	const auto done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_SUCCESS);
	for (std::size_t i = 0; i < many; i++)
		CHECK(std::equal(data.begin(), data.begin() + each, slow->bytes().addr + i * page));
	CHECK(no_thread_waits());
}

TEST_CASE("packets: a read that is repeated is answered again, when its pages are there",
	  "[veth odp][userfaultfd]")
{
	slow_responder s;
	raw_peer peer(s.wire);

	s.slow->answer(std::byte{0x11});
	std::memset(s.at(), 0x11, page);
	peer.read(0, s.at(), s.all->rkey, 3 * mtu);
	CHECK(answers(peer.all(3), 0, 3, std::byte{0x11}));
	s.take_away(0, page);
	peer.read(0, s.at(), s.all->rkey, 3 * mtu);
	REQUIRE(s.slow->faulted());
	told_later(peer, 0);
	s.slow->answer(std::byte{0x22});
	peer.read(0, s.at(), s.all->rkey, 3 * mtu);
	CHECK(answers(peer.all(3), 0, 3, std::byte{0x22}));
}

/* A read must not need more pages at a time than can be in memory. */
TEST_CASE("packets: a repeated read continues where it waited", "[veth odp][userfaultfd]")
{
	slow_responder s;
	raw_peer peer(s.wire);

	s.slow->answer(std::byte{0x11});
	std::memset(s.at(), 0x11, 4 * page);
	peer.read(0, s.at(), s.all->rkey, 4 * page);
	CHECK(answers(peer.all(16), 0, 16, std::byte{0x11}));
	s.take_away(page, 3 * page);
	peer.read(0, s.at(), s.all->rkey, 4 * page);
	REQUIRE(s.slow->faulted());
	CHECK(answers_a_part(peer.all(5), 0, 4, std::byte{0x11}));
	for (uint32_t next = 1; next < 4; next++) {
		s.slow->answer(std::byte{0x22}, (next + 1) * page);
		peer.read(4 * next, s.at(next * page), s.all->rkey, (4 - next) * page);
		if (next < 3)
			CHECK(answers_a_part(peer.all(5), 4 * next, 4, std::byte{0x22}));
		else
			CHECK(answers(peer.all(4), 4 * next, 4, std::byte{0x22}));
	}
}

/* The queue pair must remember two reads. A read that waited must not replace either of them. */
TEST_CASE("packets: reads before a read that waited can be repeated", "[veth odp][userfaultfd]")
{
	slow_responder s;
	raw_peer peer(s.wire, IBV_QPT_RC, 2);
	const range here = s.plain.registered();

	std::memset(here.addr, 0x11, mtu);
	peer.read(0, here.addr, s.all->rkey, mtu);
	CHECK(answers(peer.all(1), 0, 1, std::byte{0x11}));
	peer.read(1, s.at(), s.all->rkey, mtu);
	REQUIRE(s.slow->faulted());
	told_later(peer, 1);
	s.slow->answer(std::byte{0x22});
	peer.read(1, s.at(), s.all->rkey, mtu);
	CHECK(answers(peer.all(1), 1, 1, std::byte{0x22}));
	peer.read(0, here.addr, s.all->rkey, mtu);
	CHECK(answers(peer.all(1), 0, 1, std::byte{0x11}));
}

/* The device may have sent the first response before the memory was deregistered. */
TEST_CASE("packets: a read that is repeated too late is refused, and ends no other request",
	  "[veth]")
{
	const cable wire;
	const device &on = wire.on();
	memory gone = anonymous(page), stays = anonymous(page);
	const range here = gone.registered(), there = stays.registered();
	const owned<ibv_mr> other = on.register_memory(there, all_rights);
	uint64_t word = 0;
	owned<ibv_mr> mr = on.register_memory(here, all_rights);
	raw_peer peer(wire);
	const auto gone_is = GENERATE(as<std::string>{}, "its registration", "its memory",
				      "its memory, on demand");

	INFO("gone is " << gone_is);
	if (gone_is == "its memory") {
		SKIP_IF(!on.can_revoke(), "the driver can't revoke");
		REQUIRE(ibv_reg_mr_notify(mr.get(), &word) == 0);
	} else if (gone_is != "its registration") {
		SKIP_IF(!offers_all(on), "no on-demand paging");
		mr = register_all(on, all_rights);
	}
	const uint32_t rkey = mr->rkey;
	std::memset(here.addr, 0x11, page);
	std::memset(there.addr, 0x22, page);
	peer.read(0, here.addr, rkey, 3 * mtu);
	CHECK(answers(peer.all(3), 0, 3, std::byte{0x11}));

	const std::size_t before = pinned_bytes();
	if (gone_is == "its registration")
		mr.reset();
	else
		unmap_all(gone);
	if (gone_is == "its memory")
		REQUIRE(happens([&] { return pinned_bytes() < before; }));
	peer.read(1, here.addr + mtu, rkey, 2 * mtu);
	const auto refused = peer.next(time_limit);
	REQUIRE(refused);
	CHECK(refused->is_error());
	CHECK(refused->psn == 1);
	peer.read(3, there.addr, other->rkey, mtu);
	CHECK(answers(peer.all(1), 3, 1, std::byte{0x22}));
}

/*
 * A repeated read may ask for a part of the first request's range, but not for bytes outside it.
 */
TEST_CASE("packets: a repeated read stays within its window", "[veth]")
{
	const cable wire;
	const device &on = wire.on();
	const memory both = anonymous(2 * page);
	const range here = both.registered();
	const owned<ibv_mr> mr = on.register_memory(here, all_rights | IBV_ACCESS_MW_BIND);
	const owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1));
	loopback link(on);
	ibv_mw_bind first_page{};
	raw_peer peer(wire);

	REQUIRE(window);
	first_page.send_flags = IBV_SEND_SIGNALED;
	first_page.bind_info = {mr.get(), number(here.addr), page, IBV_ACCESS_REMOTE_READ};
	check_verb(ibv_bind_mw(link.near_end(), window.get(), &first_page), "ibv_bind_mw");
	REQUIRE(link.wait().status == IBV_WC_SUCCESS);
	std::memset(here.addr, 0x11, page);
	std::memset(here.addr + page, 0x22, page);
	peer.read(0, here.addr, window->rkey, page);
	CHECK(answers(peer.all(4), 0, 4, std::byte{0x11}));

	peer.read(0, here.addr + page - 4, window->rkey, 4);
	const auto part = peer.next(time_limit);
	REQUIRE(part);
	CHECK(part->data == std::vector(4, std::byte{0x11}));
	for (std::size_t at = 2 * page; at > page; at -= page / 4) {
		peer.read(0, here.addr + at - 4, window->rkey, 4);
		for (const auto &one : peer.all())
			CHECK(one.data.empty());
	}
	/* The whole request can still be repeated, too. */
	peer.read(0, here.addr, window->rkey, page);
	CHECK(answers(peer.all(4), 0, 4, std::byte{0x11}));
}

/*
 * The address in the request is relative to the window. The queue pair remembers the address in the
 * MR.
 */
TEST_CASE("packets: a read by a window with addresses of its own is repeated", "[veth]")
{
	const cable wire;
	const device &on = wire.on();
	const memory both = anonymous(2 * page);
	const range here = both.registered();
	const owned<ibv_mr> mr(ibv_reg_mr_iova(on.pd(), here.addr, here.length, 0,
					       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
						       IBV_ACCESS_MW_BIND));
	const raw_peer peer(wire);
	const owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_2));

	REQUIRE(mr);
	REQUIRE(window);
	std::memset(here.addr, 0x11, page);
	std::memset(here.addr + page, 0x22, page);
	peer.allow_requests();
	const uint32_t rkey =
		post_bind(peer.qp(), window.get(),
			  {mr.get(), page, page, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED});
	const auto bound = peer.completed(time_limit);
	REQUIRE(bound);
	REQUIRE(bound->status == IBV_WC_SUCCESS);
	peer.read(0, nullptr, rkey, page);
	CHECK(answers(peer.all(4), 0, 4, std::byte{0x22}));
	peer.read(2, reinterpret_cast<void *>(2 * mtu), rkey, 2 * mtu);
	CHECK(answers(peer.all(2), 2, 2, std::byte{0x22}));
	peer.read(0, nullptr, rkey, page);
	CHECK(answers(peer.all(4), 0, 4, std::byte{0x22}));
}

TEST_CASE("packets: later requests do not change how a read is repeated", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	const range here = m.registered();
	const owned<ibv_mr> mr = wire.on().register_memory(here, all_rights);
	const raw_peer peer(wire);

	std::memset(here.addr, 0x11, page);
	SECTION("an empty write after a read")
	{
		peer.read(0, here.addr, mr->rkey, page);
		CHECK(answers(peer.all(4), 0, 4, std::byte{0x11}));
		peer.write(4, nullptr, 0, {});
		CHECK(peer.all(1).front().is_ack());
		peer.read(0, here.addr, mr->rkey, page);
		CHECK(answers(peer.all(4), 0, 4, std::byte{0x11}));
	}
	SECTION("a read after an empty one")
	{
		peer.read(0, nullptr, 7, 0);
		CHECK(peer.all(1).front().data.empty());
		peer.read(1, here.addr, mr->rkey, page);
		CHECK(answers(peer.all(4), 1, 4, std::byte{0x11}));
		peer.read(0, nullptr, 7, 0);
		const auto again = peer.next(time_limit);
		REQUIRE(again);
		CHECK(again->psn == 0);
		CHECK_FALSE(again->is_error());
	}
}

/* The repeated request has the PSN of an earlier request, but is a different request. */
TEST_CASE("packets: a request is repeated as one of its own kind, from its own bytes", "[veth]")
{
	const cable wire;
	const memory m = anonymous(2 * page);
	const range here = m.registered();
	/* The last page of the address space, and the page before it. */
	constexpr uint64_t from = -2 * page, last = -mtu;
	const owned<ibv_mr> mr(
		ibv_reg_mr_iova(wire.on().pd(), here.addr, here.length, from, all_rights));
	const raw_peer peer(wire, IBV_QPT_RC, 1);

	REQUIRE(mr);
	std::memset(here.addr, 0, 2 * page);
	peer.read(0, reinterpret_cast<void *>(from), mr->rkey, page);
	CHECK(answers(peer.all(4), 0, 4, {}));
	SECTION("bytes behind it")
	{
		peer.read(3, reinterpret_cast<void *>(last), mr->rkey, mtu);
		CHECK(peer.all().empty());
		peer.read(3, reinterpret_cast<void *>(from + 3 * mtu), mr->rkey, mtu);
		CHECK(answers(peer.all(1), 3, 1, {}));
	}
	SECTION("a read, and it was an atomic operation")
	{
		/* The value of the atomic is the address where the read would begin. */
		std::memcpy(here.addr, &from, sizeof(from));
		peer.fetch_and_add(4, reinterpret_cast<void *>(from), mr->rkey, 1);
		CHECK(peer.all(1).size() == 1);
		peer.read(4, reinterpret_cast<void *>(from), mr->rkey, mtu);
		CHECK(peer.all().empty());
		peer.fetch_and_add(4, reinterpret_cast<void *>(from), mr->rkey, 1);
		CHECK(peer.all(1).size() == 1);
	}
}

TEST_CASE("packets: a flush is answered again", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr =
		wire.on().register_memory(m.registered(), all_rights | IBV_ACCESS_FLUSH_GLOBAL);
	const raw_peer peer(wire, IBV_QPT_RC, 1);

	peer.read(0, m.registered().addr, mr->rkey, 8);
	CHECK(peer.all(1).size() == 1);
	for (int times = 0; times < 2; times++) {
		peer.flush(1, mr->rkey);
		const auto answer = peer.next(time_limit);
		REQUIRE(answer);
		CHECK(answer->psn == 1);
		CHECK_FALSE(answer->is_error());
	}
}

TEST_CASE("packets: a read is repeated only by the rights that its memory has at that time",
	  "[veth]")
{
	const cable wire;
	const device &on = wire.on();
	const memory m = anonymous(page);
	const range here = m.registered();
	const owned<ibv_mr> mr = on.register_memory(here, all_rights);
	const owned<ibv_pd> other(ibv_alloc_pd(on.context()));
	const raw_uverbs raw(on.context());
	const raw_peer peer(wire);

	REQUIRE(other);
	std::memset(here.addr, 0x11, page);
	peer.read(0, here.addr, mr->rkey, page);
	CHECK(answers(peer.all(4), 0, 4, std::byte{0x11}));
	SECTION("none to be read")
	{
		REQUIRE(raw.change_access(mr->handle, IBV_ACCESS_LOCAL_WRITE) == 0);
	}
	SECTION("those of another protection domain")
	{
		REQUIRE(raw.change_pd(mr->handle, other->handle) == 0);
	}
	peer.read(0, here.addr, mr->rkey, page);
	const auto refused = peer.next(time_limit);
	REQUIRE(refused);
	CHECK(refused->is_error());
	CHECK(refused->psn == 0);
}

TEST_CASE("packets: a write that says that it is empty has no payload", "[veth]")
{
	const cable wire;
	const raw_peer peer(wire);

	peer.write_length_0(0, std::vector(mtu, std::byte{0x11}));
	const auto refused = peer.next(time_limit);
	REQUIRE(refused);
	CHECK(refused->syndrome == raw_peer::makes_no_sense);
}

/*
 * The device checks the memory again before each response. If the memory was unmapped during the
 * read, the device refuses the rest.
 */
TEST_CASE("packets: the longest read is answered", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const raw_peer peer(s.wire);

	peer.read(0, s.plain.registered().addr, s.all->rkey, std::size_t{1} << 31);
	const auto answer = peer.next(time_limit);
	REQUIRE(answer);
	CHECK(answer->opcode == 0x0d);
	CHECK(answer->data.size() == mtu);
}

TEST_CASE("packets: a flush is refused with max_dest_rd_atomic 0", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), all_rights);
	const raw_peer peer(wire, IBV_QPT_RC, 0);

	peer.flush(0, mr->rkey);
	const auto refused = peer.next(time_limit);
	REQUIRE(refused);
	CHECK(refused->is_error());
}

/*
 * Without this limit a peer could use too much memory. The test depends on the machine's pace,
 * because all packets must come within the 20 ms for which the driver waits.
 */
TEST_CASE("packets: at most 512 packets wait", "[veth odp][userfaultfd][pace]")
{
	constexpr uint32_t sent = 700;
	slow_responder s;
	const std::vector<std::byte> word(8, std::byte{0x77});
	const range here = s.plain.registered();
	long done = 0;

	/*
	 * Repeats the test if the RNR NAK (after 20 ms) has dropped all packets, or if the page
	 * came before the responder had all these packets.
	 */
	for (int i = 0; i < 50 && (done == 0 || done >= 512); i++) {
		raw_peer peer(s.wire);

		const auto before = port_counter(s.wire.on(), "rcvd_pkts").value();
		const run_time time(1s);

		std::memset(here.addr, 0, here.length);
		s.slow->answer({});
		s.take_away(0, page);
		peer.write(0, s.at(), s.all->rkey, word);
		REQUIRE(s.slow->faulted());
		for (uint32_t psn = 1; psn < sent; psn++)
			peer.write(psn, here.addr + 8 * std::size_t{psn}, s.all->rkey, word);
		do {
			std::this_thread::sleep_for(1ms);
		} while (time.goes_on() &&
			 port_counter(s.wire.on(), "rcvd_pkts").value() < before + sent);
		s.slow->answer({});
		bool late = false;
		for (const auto &one : peer.all())
			late |= one.is_error();
		if (!late)
			done = std::count(here.addr, here.end(), word[0]) / 8;
	}
	SKIP_IF(done == 0, "too slow to send so many in 20 ms");
	CHECK(done > 1);
	CHECK(done < 512); /* 512 includes the request that waits for its page */
}

/*
 * The device drops an unreliable message that waits too long. The next message gets the receive
 * WQE.
 */
TEST_CASE("packets: a dropped message consumes no receive", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const range plain{s.plain.registered().addr, 8};
	const std::vector<std::byte> early(8, std::byte{0x11});
	const std::vector<std::byte> after(8, std::byte{0x22});
	volatile std::byte *const mark = plain.end();
	raw_peer peer(s.wire, IBV_QPT_UC);

	post_receive(peer.qp(), {{{s.at(), 8}, s.all->lkey}});
	peer.message(0, early);
	REQUIRE(s.slow->faulted());
	let_pass(50ms);
	peer.message(1, early);
	peer.write(2, plain.end(), s.all->rkey, after);
	REQUIRE(happens([&] { return *mark == after[0]; })); /* the first message was dropped */
	CHECK_FALSE(peer.completed(50ms));
	std::byte *into = s.at();
	uint32_t psn = 3;
	SECTION("the page comes")
	{
		s.slow->answer({});
	}
	SECTION("the queue pair is reset")
	{
		peer.reset();
		post_receive(peer.qp(), {{plain, s.all->lkey}});
		into = plain.addr;
		psn = 0;
	}
	peer.message(psn, after);
	const auto done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_SUCCESS);
	CHECK(std::equal(after.begin(), after.end(), into));
	CHECK_FALSE(peer.completed(50ms));
}

TEST_CASE("packets: a message that is dropped halfway harms no other", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const std::vector<std::byte> part_of(mtu, std::byte{0x11});
	const std::vector<std::byte> after(8, std::byte{0x77});
	volatile std::byte *const seen = s.plain.registered().addr;
	std::byte *const into = s.at(page - mtu); /* only the first part has its page */
	raw_peer peer(s.wire, IBV_QPT_UC);

	s.slow->answer({}, page);
	peer.write_part(raw_peer::part::first, 0, into, s.all->rkey, 3 * mtu, part_of);
	peer.write_part(raw_peer::part::middle, 1, into, s.all->rkey, 3 * mtu, part_of);
	REQUIRE(s.slow->faulted());
	let_pass(100ms);
	peer.write(2, s.plain.registered().addr, s.all->rkey, after);
	CHECK(happens([&] { return *seen == std::byte{0x77}; }));
	CHECK(std::equal(part_of.begin(), part_of.end(), into));
	s.slow->answer({});
}

TEST_CASE("packets: an unreliable write that lost a packet harms no other", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	std::byte *const here = m.registered().addr;
	const volatile std::byte *const seen = here + page - 1;
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), all_rights);
	const raw_peer peer(wire, IBV_QPT_UC);

	std::memset(here, 0, page);
	if (GENERATE(false, true)) { /* the dropped message had already taken a receive WQE */
		post_receive(peer.qp(), {{{here, 8}, mr->lkey}});
		peer.message(0, std::vector(mtu + 8, std::byte{0x22}));
	}
	peer.write_part(raw_peer::part::first, 0, here, mr->rkey, 2 * mtu,
			std::vector(mtu, std::byte{0x11}));
	peer.write(2, here + page - 8, mr->rkey, std::vector(8, std::byte{0x77}));
	CHECK(happens([&] { return *seen == std::byte{0x77}; }));
}

/*
 * The message's receive WQE completes with an error. Later messages use other WQEs of the shared
 * queue.
 */
TEST_CASE("packets: an unreliable message without an end harms no other", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), all_rights);
	const owned<ibv_srq> shared = shared_queue(wire.on(), 4);
	const raw_peer peer(wire, IBV_QPT_UC, 4, shared.get());
	const std::vector<std::byte> data(8, std::byte{0x22});
	std::optional<ibv_wc> done;

	for (int i = 0; i < 2; i++)
		post_receive(shared.get(), {{{m.registered().addr, 2 * mtu}, mr->lkey}});
	peer.begin_message(0); /* packet 1 is lost */
	peer.message(2, data);
	done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_REM_INV_REQ_ERR);
	peer.message(3, data);
	done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_SUCCESS);
}

/*
 * A packet that is too short ends its message, which releases its receive WQE. The next packet
 * needs another receive WQE.
 */
TEST_CASE("packets: an unreliable message with a short packet harms no other", "[veth]")
{
	const cable wire;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr = wire.on().register_memory(m.registered(), all_rights);
	const owned<ibv_srq> shared = shared_queue(wire.on(), 4);
	const raw_peer peer(wire, IBV_QPT_UC, 4, shared.get());
	std::optional<ibv_wc> done;

	for (int i = 0; i < 2; i++)
		post_receive(shared.get(), {{{m.registered().addr, 4 * mtu}, mr->lkey}});
	peer.begin_message(0);
	peer.continue_message(1, std::vector<std::byte>(8));
	done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_REM_INV_REQ_ERR);
	peer.continue_message(1, std::vector<std::byte>(mtu));
	peer.message(2, std::vector<std::byte>(8));
	done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->status == IBV_WC_SUCCESS);
	CHECK(done->byte_len == 8);
}

/* A dropped message leaves its receive WQE. An error of another request completes this WQE. */
TEST_CASE("packets: a receive of a shared queue is used once", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const range plain{s.plain.registered().addr, 8};
	const std::vector<std::byte> early(8, std::byte{0x11});
	const std::vector<std::byte> after(8, std::byte{0x22});
	const owned<ibv_srq> shared = shared_queue(s.wire.on(), 4);
	raw_peer peer(s.wire, IBV_QPT_UC, 4, shared.get());
	const auto post_shared = [&](uint64_t id, range into) {
		post_receive(shared.get(), {{into, s.all->lkey}}, id);
	};

	post_shared(1, {s.at(), 8});
	peer.message(0, early);
	REQUIRE(s.slow->faulted());
	let_pass(50ms);
	peer.message(1, early);
	CHECK_FALSE(peer.completed(50ms));
	peer.write(2, plain.addr, ~s.all->rkey, after);
	const auto ended = peer.completed(time_limit);
	REQUIRE(ended);
	CHECK(ended->wr_id == 1);
	CHECK(ended->status == IBV_WC_REM_ACCESS_ERR);
	post_shared(2, plain);
	peer.message(3, after);
	const auto done = peer.completed(time_limit);
	REQUIRE(done);
	CHECK(done->wr_id == 2);
	CHECK(done->status == IBV_WC_SUCCESS);
	CHECK(std::equal(after.begin(), after.end(), plain.addr));
	s.slow->answer({});
}

/* The page is after the end of a file. The fault fails, but succeeds after the file has grown. */
TEST_CASE("packets: an absent page is requested again", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const char *const place = "/run/odp_packets";
	mkdir(place, 0700);
	SKIP_IF(mount("none", place, "ramfs", 0, nullptr), "no ramfs");
	const int fd = open("/run/odp_packets/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	umount2(place, MNT_DETACH);
	REQUIRE(fd >= 0);
	void *const mapped = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	REQUIRE(mapped != MAP_FAILED);
	const memory file({static_cast<std::byte *>(mapped), page}, fd);
	/* An error does not end an unreliable connection. */
	raw_peer peer(s.wire, IBV_QPT_UC);
	const std::vector<std::byte> word(8, std::byte{0x77});
	volatile std::byte *const mark = s.plain.registered().addr;
	const auto arrives = [](volatile std::byte *at) {
		return happens([&] { return *at == std::byte{0x77}; });
	};

	peer.write(0, mapped, s.all->rkey, word);
	peer.write(1, s.plain.registered().addr, s.all->rkey, word);
	REQUIRE(arrives(mark)); /* the first write has failed */
	REQUIRE(ftruncate(fd, page) == 0);
	peer.write(2, mapped, s.all->rkey, word);
	CHECK(arrives(static_cast<std::byte *>(mapped)));
}

/*
 * A page arrives after its request has ended, and is dropped while no request waits. Then another
 * write has to wait for the page again.
 */
TEST_CASE("packets: an old response is ignored", "[veth odp][userfaultfd]")
{
	slow_responder s;
	const std::vector<std::byte> word(8, std::byte{0x77});
	const range here = s.plain.registered();
	const auto arrives = [](const std::byte *at) {
		const volatile std::byte *const seen = at;
		return happens([&] { return *seen == std::byte{0x77}; });
	};
	const auto refuse = [&] {
		REQUIRE(mprotect(s.at(), page, PROT_NONE) == 0);
		s.slow->wake();
	};
	const auto allow = [&] { REQUIRE(mprotect(s.at(), page, PROT_READ | PROT_WRITE) == 0); };
	std::unique_ptr<raw_peer> peer;
	uint32_t next = 1;
	const auto late = [&](ibv_qp_type type) {
		peer = std::make_unique<raw_peer>(s.wire, type);
		peer->write(0, s.at(), s.all->rkey, word);
		REQUIRE(s.slow->faulted());
		let_pass(100ms);
	};

	SECTION("the access has failed")
	{
		peer = std::make_unique<raw_peer>(s.wire, IBV_QPT_UC);
		peer->write(0, s.at(), s.all->rkey, word);
		REQUIRE(s.slow->faulted());
		refuse();
		peer->write(next++, here.addr, s.all->rkey, word);
		REQUIRE(arrives(here.addr)); /* the first write has failed */
		allow();
	}
	SECTION("the message has been dropped")
	{
		late(IBV_QPT_UC);
		peer->write(next++, here.addr, s.all->rkey, word);
		REQUIRE(arrives(here.addr)); /* the first write was dropped */
		refuse();
		REQUIRE(no_thread_waits());
		allow();
	}
	SECTION("the page came without it")
	{
		late(IBV_QPT_RC);
		peer->write(0, s.at(), s.all->rkey, word);
		for (int packets = 0; packets < 2; packets++) { /* no packet waits any more */
			const auto told = peer->next(time_limit);
			REQUIRE(told);
			REQUIRE(told->is_rnr());
		}
		refuse();
		REQUIRE(no_thread_waits());
		allow();
		s.slow->answer({});
		peer->write(0, s.at(), s.all->rkey, word);
		REQUIRE(arrives(s.at()));
		s.take_away(0, page);
	}
	SECTION("a read that was repeated is refused")
	{
		peer = std::make_unique<raw_peer>(s.wire);
		s.slow->fill({}, page);
		peer->read(0, s.at(), s.all->rkey, 8);
		REQUIRE(peer->next(time_limit));
		s.take_away(0, page);
		peer->read(0, s.at(), s.all->rkey, 8);
		REQUIRE(s.slow->faulted());
		const auto told = peer->next(time_limit);
		REQUIRE(told);
		REQUIRE(told->is_rnr()); /* the read does not wait any more */
		refuse();
		REQUIRE(no_thread_waits());
		allow();
		peer->read(1, s.at(), s.all->rkey, 8);
		CHECK(s.slow->faulted());
		s.slow->answer({});
		const auto answer = peer->next(time_limit);
		REQUIRE(answer);
		CHECK_FALSE(answer->is_error());
		return;
	}
	SECTION("the page came before it was refused")
	{
		late(IBV_QPT_RC);
		s.slow->fill({}, page);
		peer->write(0, s.at(), s.all->rkey, word);
		REQUIRE(arrives(s.at()));
		s.take_away(0, page);
		refuse();
		REQUIRE(no_thread_waits());
		allow();
	}
	peer->write(next, s.at(), s.all->rkey, word);
	CHECK(s.slow->faulted());
	s.slow->answer({});
	CHECK(arrives(s.at()));
}

/*
 * On the requester's side, a message that is sent again waits for a page, and is acknowledged
 * during the wait.
 */
TEST_CASE("packets: an old response is ignored while the requester waits for a page",
	  "[veth odp][userfaultfd]")
{
	constexpr uint8_t out_of_order = 0x60;
	slow_responder s;
	const raw_peer peer(s.wire);
	const auto write = [&](std::size_t from, uint32_t length) {
		post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{s.at(from), length}, s.all->lkey}}});
	};
	const auto succeeds = [&] {
		const auto wc = peer.completed(time_limit);
		return wc && wc->status == IBV_WC_SUCCESS;
	};

	peer.allow_requests(7);
	s.slow->fill(std::byte{0x11}, 2 * page);
	write(0, 2 * page);
	REQUIRE(peer.all(8).size() == 8);
	s.take_away(page, page);
	peer.acknowledge(0, out_of_order);
	REQUIRE(s.slow->faulted());
	peer.acknowledge(7);
	REQUIRE(succeeds());
	REQUIRE(mprotect(s.at(page), page, PROT_NONE) == 0);
	s.slow->wake();
	REQUIRE(no_thread_waits());
	REQUIRE(mprotect(s.at(page), page, PROT_READ | PROT_WRITE) == 0);
	REQUIRE(peer.all(4).size() == 4); /* the first page is sent again */
	write(page, page);
	CHECK(s.slow->faulted());
	s.slow->answer(std::byte{0x22});
	CHECK(peer.all(4).size() == 4);
	peer.acknowledge(11);
	CHECK(succeeds());
}

/*
 * The bind is complete when the requests before it are complete; the requester is still working on
 * these requests.
 */
TEST_CASE("packets: a queue is drained with a window bound after a repeated request",
	  "[veth odp][userfaultfd]")
{
	slow_responder s;
	const device &on = s.wire.on();
	const range where{s.plain.registered().addr, page};
	const owned<ibv_mr> mr =
		on.register_memory(where, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	const owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_2));
	const raw_peer peer(s.wire);

	REQUIRE(window);
	peer.allow_requests(7);
	s.slow->fill(std::byte{0x11}, 2 * page);
	post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{s.at(page - mtu), 2 * mtu}, s.all->lkey}}});
	post_bind(peer.qp(), window.get(),
		  {mr.get(), number(where.addr), page, IBV_ACCESS_REMOTE_READ});
	REQUIRE(peer.all(2).size() == 2);
	s.take_away(page, page);
	peer.acknowledge(0, raw_peer::out_of_order);
	REQUIRE(s.slow->faulted());
	REQUIRE(peer.all(1).size() == 1); /* the first of two packets, again */
	REQUIRE(peer.become(IBV_QPS_SQD));
	peer.acknowledge(1);
	for (int i = 0; i < 2; i++) {
		const auto wc = peer.completed(time_limit);
		REQUIRE(wc);
		CHECK(wc->status == IBV_WC_SUCCESS);
	}
	CHECK(happens([&] { return peer.drained(); }));
	for (int i = 0; i < 3; i++) /* up to the bind */
		post(peer.qp(), {IBV_WR_RDMA_WRITE, {{{where.addr, mtu}, s.all->lkey}}});
	CHECK(peer.become(IBV_QPS_RTS));
	CHECK(peer.all(3).size() == 3);
}
