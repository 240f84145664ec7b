// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A key gives a peer access only to the registered bytes, with the given rights. Requests that a
 * user writes to a queue reach the same bytes, but no objects of the kernel. The tests check plain
 * and cached registrations.
 */
#include "catch.h"

#include <rdma/siw-abi.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "loopback.h"
#include "post.h"
#include "raw_uverbs.h"

using namespace mr_notify;

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t most = 20; /* the number of bytes on each side of a page boundary */

/* The memory of the requesting end. */
struct asker {
	explicit asker(const device &on) : mr(on.register_memory(m.registered())) {}

	range first(std::size_t length) const { return {m.registered().addr, length}; }

	memory m = anonymous(page);
	owned<ibv_mr> mr;
};

ibv_wc far_completion(loopback &link)
{
	ibv_wc wc = link.wait();

	while (wc.qp_num != link.far_end()->qp_num)
		wc = link.wait();
	return wc;
}

/* The first entry of this type in the mapped queues that has the wanted content, or nullptr. */
template <class T, class Wanted> T *find_mapped(const Wanted &wanted)
{
	std::ifstream maps("/proc/self/maps");

	for (std::string line; std::getline(maps, line);) {
		uintptr_t from = 0;
		uintptr_t to = 0;

		if (line.find("uverbs") == std::string::npos ||
		    std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &from, &to) != 2)
			continue;
		for (; from + 3 * sizeof(T) <= to; from += sizeof(T)) {
			auto *one = reinterpret_cast<T *>(from);

			if (wanted(one))
				return one;
		}
	}
	return nullptr;
}

/* Finds, by its key, the last request that siw's library wrote to the mapped send queue. */
siw_sqe *mapped_request(uint32_t lkey)
{
	return find_mapped<siw_sqe>([lkey](const siw_sqe *sqe) {
		return sqe->opcode == SIW_OP_WRITE && sqe->sge[0].lkey == lkey;
	});
}

/*
 * Finds, in the mapped queue, the length of the last bind request that soft-RoCE's library
 * wrote.
 */
volatile uint64_t *mapped_length(range window)
{
	const std::array<uint64_t, 2> wanted{reinterpret_cast<uintptr_t>(window.addr),
					     window.length};
	uint64_t *found = find_mapped<uint64_t>([&wanted](const uint64_t *at) {
		return !std::memcmp(at, &wanted, sizeof(wanted));
	});

	return found ? found + 1 : nullptr;
}

} // namespace

TEST_CASE("a short read that crosses a page brings its own bytes")
{
	const device on;
	const memory m = anonymous(2 * page);
	const range here = m.registered();
	const owned<ibv_mr> mr = on.register_memory(here, IBV_ACCESS_REMOTE_READ);
	const asker to(on);
	loopback link(on);
	int wrong = 0;

	for (std::size_t i = 0; i < here.length; i++)
		here.addr[i] = static_cast<std::byte>(i % 251);
	for (std::size_t length = 1; length <= 2 * most; length++)
		for (std::size_t at = page - most; at < page; at += length < 9 ? 1 : 3) {
			const range into = to.first(length);

			REQUIRE(link.read(to.mr.get(), into, here.addr + at, mr->rkey) ==
				IBV_WC_SUCCESS);
			wrong += !std::equal(into.addr, into.addr + length, here.addr + at);
		}
	CHECK(wrong == 0);
}

/* The registration has no word, so it keeps its pages. */
TEST_CASE("a transfer uses the registered pages, not the pages mapped there now")
{
	const device on;
	const std::size_t length = GENERATE(8, 32, 64);
	const memory m = anonymous(page);
	const range here = m.registered();
	const asker to(on);
	loopback link(on);
	const range into = to.first(length);

	std::memset(here.addr, 0x5a, page);
	std::memset(into.addr, 0x22, length);
	const owned<ibv_mr> mr = on.register_memory(here);
	REQUIRE(mmap(here.addr, page, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == here.addr);
	std::memset(here.addr, 0x11, page);
	INFO(length << " bytes");
	SECTION("a write")
	{
		REQUIRE(link.write(mr.get(), {here.addr, length}, into.addr, to.mr->rkey) ==
			IBV_WC_SUCCESS);
	}
	SECTION("a peer's read")
	{
		REQUIRE(link.read(to.mr.get(), into, here.addr, mr->rkey) == IBV_WC_SUCCESS);
	}
	CHECK(std::count(into.addr, into.end(), std::byte{0x5a}) ==
	      static_cast<std::ptrdiff_t>(length));
}

TEST_CASE("memory without the right to be read is not read")
{
	const device on;
	const int rights = GENERATE(0, IBV_ACCESS_REMOTE_WRITE);
	const memory m = anonymous(page);
	const owned<ibv_mr> mr =
		on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | rights);
	const asker to(on);
	loopback link(on);
	const range into = to.first(100);

	std::memset(m.registered().addr, 0x5a, page);
	std::memset(into.addr, 0x11, into.length);
	CHECK(link.refused(link.read(to.mr.get(), into, m.registered().addr, mr->lkey)));
	CHECK(*into.addr == std::byte{0x11});
}

TEST_CASE("an empty element of a list is skipped")
{
	const device on;
	const asker from(on);
	const asker to(on);
	loopback link(on);
	const range here = from.m.registered();
	const range there = to.m.registered();
	const uint32_t lkey = from.mr->lkey;

	for (std::size_t i = 0; i < page; i++)
		here.addr[i] = static_cast<std::byte>(i % 251);
	std::memset(there.addr, 0xff, page);
	post_receive(link.far_end(), {{{there.addr, 0}, to.mr->lkey}, {there, to.mr->lkey}});
	post(link.near_end(), {IBV_WR_SEND,
			       {{{here.addr + 7, 0}, lkey},
				{{here.addr, 100}, lkey},
				{{here.addr + 9, 0}, lkey},
				{{here.addr + 100, 2000}, lkey}}});
	const ibv_wc one = link.wait();
	const ibv_wc other = link.wait();
	CHECK(one.status == IBV_WC_SUCCESS);
	CHECK(other.status == IBV_WC_SUCCESS);
	CHECK(std::equal(here.addr, here.addr + 2100, there.addr));
	CHECK(there.addr[2100] == std::byte{0xff});
}

/*
 * The request has no element. Its entry in the queue still has the elements of an earlier request.
 */
TEST_CASE("a read of length 0 changes no memory")
{
	const device on;
	const asker from(on);
	const asker to(on);
	loopback link(on);
	const range into = to.first(100);
	const std::byte *there = from.m.registered().addr;

	for (int i = 0; i < 64; i++)
		REQUIRE(link.read(to.mr.get(), into, there, from.mr->rkey) == IBV_WC_SUCCESS);
	std::memset(into.addr, 0x11, into.length);
	post(link.near_end(), {IBV_WR_RDMA_READ, {}, number(there), from.mr->rkey});
	CHECK(link.wait().status == IBV_WC_SUCCESS);
	CHECK(std::count(into.addr, into.end(), std::byte{0x11}) == 100);
}

TEST_CASE("siw refuses a read into a list", "[iwarp]")
{
	const device on;
	const asker from(on);
	const asker to(on);
	loopback link(on);
	std::byte *const at = to.m.registered().addr;

	post(link.near_end(), {IBV_WR_RDMA_READ,
			       {{{at, 100}, to.mr->lkey}, {{at + 200, 100}, to.mr->lkey}},
			       number(from.m.registered().addr),
			       from.mr->rkey});
	CHECK(link.wait().status != IBV_WC_SUCCESS); /* the next request would wait forever */
}

TEST_CASE("a peer can't end a registration")
{
	const device on;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr = on.register_memory(m.registered(), IBV_ACCESS_REMOTE_READ);
	const asker to(on);
	{
		loopback link(on);

		post_receive(link.far_end(), {{to.first(100), to.mr->lkey}});
		post_receive(link.far_end(), {{to.first(100), to.mr->lkey}});
		link.start(IBV_WR_SEND_WITH_INV, to.mr.get(), to.first(1), nullptr, mr->rkey);
		CHECK(far_completion(link).status != IBV_WC_SUCCESS);
		CHECK(far_completion(link).status == IBV_WC_WR_FLUSH_ERR); /* the connection ends */
	}
	loopback link(on);
	CHECK(link.read(to.mr.get(), to.first(100), m.registered().addr, mr->rkey) ==
	      IBV_WC_SUCCESS);
}

TEST_CASE("a message that is longer than its receive is no error of the memory", "[roce]")
{
	const device on;
	const asker from(on);
	const asker to(on);
	loopback link(on);

	post_receive(link.far_end(), {{to.first(50), to.mr->lkey}});
	link.start(IBV_WR_SEND, from.mr.get(), from.first(100), nullptr, 0);
	const ibv_wc one = link.wait();
	const ibv_wc other = link.wait();
	CHECK(one.status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(other.status == IBV_WC_REM_INV_REQ_ERR);
}

/* The request contains a pointer to an object of the kernel. */
TEST_CASE("a work request that only the kernel may post is refused", "[roce]")
{
	const device on;
	loopback link(on);
	ibv_send_wr wr{};
	ibv_send_wr *bad = nullptr;

	wr.opcode = static_cast<ibv_wr_opcode>(0x20); /* IB_WR_REG_MR */
	wr.send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(link.near_end(), &wr, &bad) == 0)
		CHECK(link.wait().status == IBV_WC_LOC_QP_OP_ERR);
}

/* A window of length 0 has no MR. */
TEST_CASE("a request to bind a window may change while it is executed", "[roce]")
{
	const device on;
	const memory m = anonymous(page);
	const owned<ibv_mr> mr =
		on.register_memory(m.registered(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	const owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1));
	loopback link(on);
	std::atomic<bool> stop = false;
	ibv_mw_bind all{};
	const auto bind = [&] {
		check_verb(ibv_bind_mw(link.near_end(), window.get(), &all), "ibv_bind_mw");
		return link.wait().status;
	};

	REQUIRE(window);
	all.send_flags = IBV_SEND_SIGNALED;
	all.bind_info = {mr.get(), reinterpret_cast<uintptr_t>(m.registered().addr), page,
			 IBV_ACCESS_REMOTE_READ};
	REQUIRE(bind() == IBV_WC_SUCCESS);
	volatile uint64_t *const length = mapped_length(m.registered());
	REQUIRE(length);
	std::thread changing([&] {
		while (!stop) {
			*length = 0;
			*length = page;
		}
	});
	int failed = 0;
	for (int i = 0; i < 3000; i++)
		failed += bind() != IBV_WC_SUCCESS;
	stop = true;
	changing.join();
	CHECK(failed == 0);
}

/*
 * siw refuses operations that only the kernel may post, and operations that it does not implement.
 */
TEST_CASE("siw accepts only transfers from a queue that its user writes", "[iwarp]")
{
	const device on;
	const uint8_t opcode = GENERATE(SIW_OP_FETCH_AND_ADD, SIW_OP_COMP_AND_SWAP, SIW_OP_RECEIVE,
					SIW_OP_READ_RESPONSE, SIW_OP_INVAL_STAG, SIW_OP_REG_MR);
	const asker from(on);
	const asker to(on);
	loopback link(on);

	REQUIRE(link.write(from.mr.get(), from.first(page), to.m.registered().addr, to.mr->rkey) ==
		IBV_WC_SUCCESS);
	siw_sqe *const sent = mapped_request(from.mr->lkey);
	REQUIRE(sent);
	siw_sqe *const next = sent + 2; /* the entry after the read that follows @sent */
	REQUIRE(next->flags == 0);
	*next = *sent;
	next->opcode = opcode;
	next->flags = SIW_WQE_VALID | SIW_WQE_SIGNALLED;
	INFO("opcode " << +opcode);
	CHECK(raw_uverbs(on.context()).ring(link.near_end()->handle) == EINVAL);
}
