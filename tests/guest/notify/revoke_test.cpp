// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* After INVALID the device can't reach the pages any more, in any way. */
#include "catch.h"

#include <algorithm>
#include <cstring>

#include "loopback.h"
#include "post.h"
#include "skip.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 16 * 4096;

/*
 * The memory is a file. After unmapping the range, the test reads the file, and so detects writes
 * by the device.
 */
struct file_target : watched {
	explicit file_target(const device &on)
	    : watched(on, shared_file(length), device::all_rights | IBV_ACCESS_MW_BIND)
	{
	}

	bool untouched() const
	{
		std::vector<char> bytes(length);
		REQUIRE(pread(m.fd(), bytes.data(), length, 0) == static_cast<ssize_t>(length));
		return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0x5a; });
	}

	range whole = m.registered();
};

struct attacker {
	explicit attacker(const device &on)
	    : m(anonymous(length)), mr(on.register_memory(m.registered()))
	{
		std::memset(m.registered().addr, 0x77, length);
	}

	range bytes() const { return m.registered(); }

	memory m;
	owned<ibv_mr> mr;
};

bool has_atomics(const device &on)
{
	ibv_device_attr attr{};

	REQUIRE(ibv_query_device(on.context(), &attr) == 0);
	return attr.atomic_cap != IBV_ATOMIC_NONE;
}

ibv_wc_status atomic(loopback &link, const attacker &from, const file_target &to)
{
	post(link.near_end(), {IBV_WR_ATOMIC_FETCH_AND_ADD,
			       {{{from.bytes().addr, 8}, from.mr->lkey}},
			       number(to.whole.addr),
			       to.mr->rkey,
			       1});
	return link.wait().status;
}

} // namespace

TEST_CASE("remote access to a revoked MR is refused", "[revoke]")
{
	const device on;
	file_target to(on);
	attacker from(on);
	loopback link(on);

	SECTION("write")
	{
		CHECK(link.write(from.mr.get(), from.bytes(), to.whole.addr, to.mr->rkey) ==
		      IBV_WC_SUCCESS);
		std::memset(to.whole.addr, 0x5a, length);
		to.invalidate();
		CHECK(link.refused(
			link.write(from.mr.get(), from.bytes(), to.whole.addr, to.mr->rkey)));
		CHECK(to.untouched());
	}
	SECTION("read")
	{
		to.invalidate();
		CHECK(link.refused(
			link.read(from.mr.get(), from.bytes(), to.whole.addr, to.mr->rkey)));
		CHECK(*from.bytes().addr == std::byte{0x77});
	}
}

TEST_CASE("an atomic operation on a revoked MR is refused", "[revoke]")
{
	const device on;
	SKIP_IF(!has_atomics(on), "no atomic operations");
	file_target to(on);
	attacker from(on);
	loopback link(on);

	CHECK(atomic(link, from, to) == IBV_WC_SUCCESS);
	std::memset(to.whole.addr, 0x5a, length);
	to.invalidate();
	CHECK(link.refused(atomic(link, from, to)));
	CHECK(to.untouched());
}

TEST_CASE("local access to a revoked MR is a protection error", "[revoke]")
{
	const device on;
	file_target gone(on);
	attacker peer(on);
	loopback link(on);

	gone.invalidate();
	CHECK(link.write(gone.mr.get(), gone.whole, peer.bytes().addr, peer.mr->rkey) ==
	      IBV_WC_LOC_PROT_ERR);
	CHECK(*peer.bytes().addr == std::byte{0x77});
}

TEST_CASE("a revoked receive buffer receives nothing", "[revoke]")
{
	const device on;
	file_target gone(on);
	attacker peer(on);
	loopback link(on);

	post_receive(link.far_end(), {{gone.whole, gone.mr->lkey}});
	gone.invalidate();
	link.start(IBV_WR_SEND, peer.mr.get(), {peer.bytes().addr, 64}, nullptr, 0);
	/* Over iWARP the send completes in any case. */
	ibv_wc wc = link.wait();
	while (wc.qp_num != link.far_end()->qp_num)
		wc = link.wait();
	CHECK(wc.status == IBV_WC_LOC_PROT_ERR);
	CHECK(gone.untouched());
}

TEST_CASE("a memory window of a revoked MR gives no access", "[revoke][mw]")
{
	const device on;
	file_target to(on);
	attacker from(on);
	loopback link(on);
	owned<ibv_mw> window(ibv_alloc_mw(on.pd(), IBV_MW_TYPE_1));
	REQUIRE(window);
	ibv_mw_bind bind{};

	bind.send_flags = IBV_SEND_SIGNALED;
	bind.bind_info = {to.mr.get(), reinterpret_cast<uintptr_t>(to.whole.addr), length,
			  IBV_ACCESS_REMOTE_WRITE};
	REQUIRE(ibv_bind_mw(link.far_end(), window.get(), &bind) == 0);
	REQUIRE(link.wait().status == IBV_WC_SUCCESS);
	CHECK(link.write(from.mr.get(), from.bytes(), to.whole.addr, window->rkey) ==
	      IBV_WC_SUCCESS);
	std::memset(to.whole.addr, 0x5a, length);

	/* Deregistration fails while the window is bound, so the MR stays armed. */
	CHECK(ibv_dereg_mr(to.mr.get()) != 0);
	to.invalidate();
	CHECK(link.refused(link.write(from.mr.get(), from.bytes(), to.whole.addr, window->rkey)));
	CHECK(to.untouched());
}
