// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * One of the registrations of a long transfer ends during the transfer. The transfer fails, the
 * kernel unpins the pages immediately, and the device stops accessing them. RUN_SECONDS sets how
 * long the writes go on (default: four rounds). In most rounds no page is freed while TCP copies
 * it.
 */
#include "catch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "loopback.h"
#include "skip.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 4 << 20;
constexpr int rounds = 4;
constexpr auto sent = std::byte{0x77};
constexpr auto nothing = std::byte{0};

const char *const too_fast = "each transfer was over before its registration was";

void fill(range r, std::byte value)
{
	std::memset(r.addr, static_cast<int>(value), r.length);
}

/* The end that stays. */
struct peer {
	explicit peer(const device &on) : m(anonymous(length)), mr(on.register_memory(bytes())) {}

	range bytes() const { return m.registered(); }

	memory m;
	owned<ibv_mr> mr;
};

/* The end that loses its registration. */
struct ending_mr : watched {
	ending_mr(const device &on, memory mapped, std::size_t before = pinned_bytes())
	    : watched(on, std::move(mapped)), pinned_before(before)
	{
	}

	void revoke()
	{
		invalidate();
		CHECK(pinned_bytes() == pinned_before);
	}

	void deregister()
	{
		REQUIRE(ibv_dereg_mr(mr.release()) == 0);
		CHECK(pinned_bytes() == pinned_before);
	}

	std::size_t pinned_before;
	range whole = m.registered();
};

void wait_for_first_byte(range r)
{
	while (std::atomic_ref<std::byte>(*r.addr).load() == nothing)
		std::this_thread::yield();
}

/*
 * A read writes the file's memory in order, so the end of the file comes last. After the
 * registration has ended, the device must not write there.
 */
constexpr std::size_t end_of_file = 64 << 10;

void rewrite_end(int fd)
{
	const std::vector<char> bytes(end_of_file, 0x5a);

	REQUIRE(pwrite(fd, bytes.data(), end_of_file, length - end_of_file) ==
		static_cast<ssize_t>(end_of_file));
}

bool end_is_rewritten(int fd)
{
	std::vector<char> bytes(end_of_file);

	REQUIRE(pread(fd, bytes.data(), end_of_file, length - end_of_file) ==
		static_cast<ssize_t>(end_of_file));
	return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0x5a; });
}

ibv_wc_status outcome(loopback &link)
{
	ibv_wc wc = link.wait();

	/* Over iWARP a write is complete when a later read is complete. */
	while (wc.status == IBV_WC_SUCCESS && wc.opcode != IBV_WC_RDMA_READ &&
	       link.near_end()->context->device->transport_type == IBV_TRANSPORT_IWARP)
		wc = link.wait();
	return wc.status;
}

/*
 * Posts reads. During the transfer, their destination memory gets another owner. Returns the
 * statuses of the unfinished reads.
 */
template <class F> std::vector<ibv_wc_status> cut_reads(const device &on, F take_away)
{
	const peer from(on);
	std::vector<ibv_wc_status> failed;

	fill(from.bytes(), sent);
	for (int round = 0; round < rounds; round++) {
		ending_mr into(on, shared_file(length));
		fill(into.whole, nothing);
		loopback link(on);
		link.start(IBV_WR_RDMA_READ, into.mr.get(), into.whole, from.bytes().addr,
			   from.mr->rkey);
		wait_for_first_byte(into.whole);
		take_away(into);
		rewrite_end(into.m.fd());
		const ibv_wc_status status = outcome(link);
		CHECK(end_is_rewritten(into.m.fd()));
		if (status != IBV_WC_SUCCESS)
			failed.push_back(status);
	}
	return failed;
}

} // namespace

TEST_CASE("a read in progress does not continue into revoked memory", "[revoke]")
{
	const device on;
	const auto failed = cut_reads(on, [](ending_mr &into) { into.revoke(); });
	for (const ibv_wc_status status : failed)
		CHECK(status == IBV_WC_LOC_PROT_ERR);
	SKIP_IF(failed.empty(), too_fast);
}

TEST_CASE("a write in progress does not continue from revoked memory", "[revoke]")
{
	const device on;
	const peer to(on);
	const char *const seconds = std::getenv("RUN_SECONDS");
	const auto end = std::chrono::steady_clock::now() +
			 std::chrono::seconds(seconds ? std::atoi(seconds) : 0);
	int cut = 0;

	for (int round = 0; round < rounds || std::chrono::steady_clock::now() < end; round++) {
		/*
		 * siw passes the pages of an unsignaled write to TCP. A later read shows that the
		 * write is complete.
		 */
		const bool silent = on.is_iwarp() && round % 2;
		const unsigned int flags = silent ? 0 : IBV_SEND_SIGNALED;
		ending_mr from(on, anonymous(length));
		fill(from.whole, sent);
		fill(to.bytes(), nothing);
		loopback link(on);
		/* siw sends inside the system call that posts. */
		std::thread sending([&] {
			link.start(IBV_WR_RDMA_WRITE, from.mr.get(), from.whole, to.bytes().addr,
				   to.mr->rkey, flags);
		});
		wait_for_first_byte(to.bytes());
		from.revoke();
		/* Freed pages are soon overwritten, by the kernel's poison or by this memory. */
		const memory other = anonymous(length);
		fill(other.registered(), std::byte{0x5a});
		sending.join();
		const ibv_wc_status status = outcome(link);
		CHECK(std::all_of(to.bytes().addr, to.bytes().end(),
				  [](std::byte b) { return b == nothing || b == sent; }));
		if (status == IBV_WC_SUCCESS)
			continue;
		cut++;
		CHECK(status == IBV_WC_LOC_PROT_ERR);
	}
	SKIP_IF(!cut, too_fast);
}

TEST_CASE("deregistration unpins the pages in the middle of a transfer", "[iwarp]")
{
	const device on;
	const auto failed = cut_reads(on, [](ending_mr &into) { into.deregister(); });
	SKIP_IF(failed.empty(), too_fast);
}
