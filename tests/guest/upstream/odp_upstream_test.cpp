// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging of ranges, as upstream's rxe_odp.c has it since Linux 6.15 (machine next-odp):
 * every byte, iova, lengths, prefetching, atomics, flushes. The same holds for our own paging.
 *
 * RUN_SEED: the seed of the transfers (default 1).
 */
#include "catch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "loopback.h"
#include "odp.h"
#include "post.h"
#include "requirement.h"
#include "system.h"
#include "witness.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr int on_demand = all_rights | IBV_ACCESS_ON_DEMAND;
constexpr std::size_t gib = std::size_t{1} << 30;
constexpr std::byte untouched{0xff};

bool offers_ranges(const device &on)
{
	ibv_device_attr_ex attr{};

	check_verb(ibv_query_device_ex(on.context(), nullptr, &attr), "ibv_query_device_ex");
	return attr.odp_caps.general_caps & IBV_ODP_SUPPORT;
}

const requirements needs({{"ranges", "no on-demand paging of ranges",
			   [] { return offers_ranges(device()); }}});

/* The value of each byte depends on its place, and is never `untouched`. */
void fill(range r)
{
	for (std::size_t i = 0; i < r.length; i++)
		r.addr[i] = static_cast<std::byte>((i * 37 + i / 256) % 251);
}

void clear(range r)
{
	std::fill(r.addr, r.end(), untouched);
}

/* A registered range whose iova may differ from its address. */
struct buffer {
	buffer(const device &on, std::size_t pages, int access, uint64_t distance = 0)
	    : m(anonymous(pages * page_size())),
	      mr(ibv_reg_mr_iova(on.pd(), m.registered().addr, m.registered().length,
				 number(m.registered().addr) + distance, access)),
	      iova(number(m.registered().addr) + distance)
	{
		if (!mr)
			fail("ibv_reg_mr_iova");
	}

	range all() const { return m.registered(); }
	range part(std::size_t offset, std::size_t length) const
	{
		return {all().addr + offset, length};
	}
	piece local(std::size_t offset, std::size_t length) const
	{
		return {{reinterpret_cast<std::byte *>(iova + offset), length}, mr->lkey};
	}

	memory m;
	owned<ibv_mr> mr;
	uint64_t iova;
};

/* Bytes from one offset to another offset. */
struct transfer {
	std::size_t from, to, length;
};

/* Moves bytes by a write, read or message; returns the status. */
ibv_wc_status move(loopback &link, ibv_wr_opcode how, const buffer &source, const buffer &target,
		   const transfer &t)
{
	const piece from = source.local(t.from, t.length);
	const piece into = target.local(t.to, t.length);

	switch (how) {
	case IBV_WR_RDMA_WRITE:
		return run(link, {how, {from}, target.iova + t.to, target.mr->rkey});
	case IBV_WR_RDMA_READ:
		return run(link, {how, {into}, source.iova + t.from, source.mr->rkey});
	default:
		post_receive(link.far_end(), {into});
		post(link.near_end(), {how, {from}});
		/* if the sender fails, the receive does not end */
		const ibv_wc_status first = link.wait().status;

		return first ? first : link.wait().status;
	}
}

/* Did the bytes arrive, and nothing else? The source is filled, and the target cleared before. */
bool arrives(const buffer &source, const buffer &target, const transfer &t)
{
	const range want = source.part(t.from, t.length);
	const range got = target.part(t.to, t.length);
	const auto is_untouched = [](std::byte one) { return one == untouched; };

	return std::equal(want.addr, want.end(), got.addr) &&
	       std::all_of(target.all().addr, got.addr, is_untouched) &&
	       std::all_of(got.end(), target.all().end(), is_untouched);
}

bool moves(loopback &link, ibv_wr_opcode how, const buffer &source, const buffer &target,
	   const transfer &t)
{
	fill(source.all());
	clear(target.all());
	return move(link, how, source, target, t) == IBV_WC_SUCCESS && arrives(source, target, t);
}

int prefetch(const device &on, ib_uverbs_advise_mr_advice advice, uint32_t flags, const piece &what)
{
	std::vector<ibv_sge> list = elements({what});

	return ibv_advise_mr(on.pd(), advice, flags, list.data(), 1);
}

std::size_t present(range r)
{
	const auto pages = frames(r);

	return static_cast<std::size_t>(
		std::count_if(pages.begin(), pages.end(), [](uint64_t one) { return one != 0; }));
}

/* MADV_FREE and reclaim do not find pages on the per-CPU lists, where they leave pages, too. */
void empty_lists_of_cpus()
{
	write_system_file("/proc/sys/vm/drop_caches", "1");
}

/* A connection whose near end can send FLUSH and atomic WRITE. */
class extended {
public:
	explicit extended(const device &on)
	    : cq_(ibv_create_cq(on.context(), 16, nullptr, nullptr, 0))
	{
		ibv_qp_init_attr_ex init{};

		REQUIRE(cq_);
		init.send_cq = init.recv_cq = cq_.get();
		init.cap = {4, 4, 1, 1, 0};
		init.qp_type = IBV_QPT_RC;
		init.pd = on.pd();
		init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
		near_.reset(ibv_create_qp_ex(on.context(), &init));
		REQUIRE(near_);
		far_ = make_reliable(on, cq_.get());

		const address near = address_of(near_.get());
		address far = near;
		far.qp = far_->qp_num;
		connect_reliable(near_.get(), near, far);
		connect_reliable(far_.get(), far, near);

		ibv_qp_attr attr{};
		attr.qp_state = IBV_QPS_RTS;
		attr.qp_access_flags = all_rights | flush_rights;
		check_verb(ibv_modify_qp(far_.get(), &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS),
			   "ibv_modify_qp");
	}

	ibv_wc_status flush(const buffer &what, uint8_t type, uint8_t level)
	{
		return after([&](ibv_qp_ex *qp) {
			ibv_wr_flush(qp, what.mr->rkey, what.iova, what.all().length, type, level);
		});
	}
	ibv_wc_status write(const buffer &what, std::size_t offset, const void *value)
	{
		return after([&](ibv_qp_ex *qp) {
			ibv_wr_atomic_write(qp, what.mr->rkey, what.iova + offset, value);
		});
	}

	static constexpr int flush_rights = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;

private:
	template <class F> ibv_wc_status after(F asks)
	{
		ibv_qp_ex *const qp = ibv_qp_to_qp_ex(near_.get());
		ibv_wc wc{};

		ibv_wr_start(qp);
		qp->wr_flags = IBV_SEND_SIGNALED;
		asks(qp);
		check_verb(ibv_wr_complete(qp), "ibv_wr_complete");
		REQUIRE(happens([&] { return ibv_poll_cq(cq_.get(), 1, &wc) == 1; }));
		return wc.status;
	}

	owned<ibv_cq> cq_;
	owned<ibv_qp> near_;
	owned<ibv_qp> far_;
};

} // namespace

TEST_CASE("odp_upstream: a transfer may begin inside a page", "[ranges]")
{
	const device on;
	const bool is_source = GENERATE(true, false);
	const buffer source(on, 4, is_source ? on_demand : all_rights);
	const buffer target(on, 4, is_source ? all_rights : on_demand);
	loopback link(on);

	CAPTURE(is_source);
	for (const auto how : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND})
		CHECK(moves(link, how, source, target, {8, 16, 100}));
}

TEST_CASE("odp_upstream: a transfer may cross pages", "[ranges]")
{
	const device on;
	const bool is_source = GENERATE(true, false);
	const buffer source(on, 4, is_source ? on_demand : all_rights);
	const buffer target(on, 4, is_source ? all_rights : on_demand);
	loopback link(on);

	CAPTURE(is_source);
	for (const auto how : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
		CHECK(moves(link, how, source, target, {page_size() - 60, page_size() - 90, 200}));
		CHECK(moves(link, how, source, target, {8, 16, 3 * page_size()}));
	}
}

TEST_CASE("odp_upstream: each byte of 400 transfers is where it belongs", "[ranges]")
{
	constexpr std::size_t pages = 8;
	constexpr int count = 400;
	const ibv_wr_opcode how = GENERATE(IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND);
	const char *const seed = std::getenv("RUN_SEED");
	std::mt19937 random(seed ? static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) : 1);
	const auto below = [&](std::size_t limit) { return random() % limit; };
	const device on;
	const buffer pinned(on, pages, all_rights), source(on, pages, on_demand);
	const buffer other(on, pages, all_rights), target(on, pages, on_demand);
	loopback link(on);
	int wrong = 0;

	for (int i = 0; i < count; i++) {
		const std::size_t length = 1 + below(below(2) ? 3 * page_size() : 300);
		const transfer t{below(pages * page_size() - length),
				 below(pages * page_size() - length), length};
		const std::size_t kind = below(3);

		wrong += !moves(link, how, kind == 0 ? pinned : source, kind == 1 ? other : target,
				t);
	}
	std::printf("%d of %d transfers are wrong (opcode %d)\n", wrong, count, how);
	CHECK(wrong == 0);
}

TEST_CASE("odp_upstream: an iova need not be the address", "[ranges]")
{
	const device on;
	const uint64_t distance = GENERATE(uint64_t{1} << 20, -(uint64_t{1} << 20), uint64_t{4096});
	const buffer source(on, 4, on_demand, distance), target(on, 4, on_demand, distance);

	CAPTURE(distance);
	for (const auto how : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
		loopback link(on); /* a failure breaks the connection */

		CHECK(moves(link, how, source, target, {8, page_size() - 90, 200}));
	}
}

TEST_CASE("odp_upstream: atomic operations reach their 8 bytes", "[ranges]")
{
	const device on;
	const uint64_t distance = GENERATE(uint64_t{0}, uint64_t{1} << 20);
	const std::size_t offset = page_size() + 264;
	const buffer target(on, 4, on_demand, distance), result(on, 1, all_rights);
	loopback link(on);
	extended wide(on);
	const auto value = [&] {
		uint64_t is = 0;

		std::memcpy(&is, target.all().addr + offset, 8);
		return is;
	};
	const auto ask = [&](ibv_wr_opcode how, uint64_t compare_add, uint64_t swap) {
		return run(link, {how,
				  {result.local(0, 8)},
				  target.iova + offset,
				  target.mr->rkey,
				  compare_add,
				  swap});
	};

	CAPTURE(distance);
	clear(target.all());
	CHECK(ask(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0) == IBV_WC_SUCCESS);
	CHECK(value() == 7);
	CHECK(ask(IBV_WR_ATOMIC_CMP_AND_SWP, 7, 1234) == IBV_WC_SUCCESS);
	CHECK(value() == 1234);
	CHECK(wide.write(target, offset, "abcdefgh") == IBV_WC_SUCCESS);
	CHECK(std::memcmp(target.all().addr + offset, "abcdefgh", 8) == 0);
	std::fill_n(target.all().addr + offset, 8, untouched);
	CHECK(std::count(target.all().addr, target.all().end(), untouched) ==
	      static_cast<std::ptrdiff_t>(target.all().length));
}

TEST_CASE("odp_upstream: a range may have several GiB", "[ranges]")
{
	const device on;
	const std::size_t length = gib * GENERATE(1U, 2U, 3U, 4U, 5U);
	void *const at = mmap(nullptr, length, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	REQUIRE(at != MAP_FAILED);
	const memory m({static_cast<std::byte *>(at), length});
	const owned<ibv_mr> mr(ibv_reg_mr(on.pd(), at, length, on_demand));
	const buffer source(on, 1, all_rights);
	loopback link(on);

	CAPTURE(length / gib);
	CHECK(mr);
	if (!mr)
		return;
	fill(source.all());
	for (const std::size_t to : {std::size_t{8}, length - 100}) {
		const range target{m.registered().addr + to, 100};

		CHECK(run(link, {IBV_WR_RDMA_WRITE,
				 {source.local(8, 100)},
				 number(target.addr),
				 mr->rkey}) == IBV_WC_SUCCESS);
		CHECK(std::equal(target.addr, target.end(), source.all().addr + 8));
	}
}

TEST_CASE("odp_upstream: a prefetch needs the right that its advice needs", "[ranges]")
{
	const device on;
	const uint32_t flags = GENERATE(0U, IBV_ADVISE_MR_FLAG_FLUSH);
	const buffer readable(on, 4, IBV_ACCESS_ON_DEMAND);
	const piece all = readable.local(0, readable.all().length);

	CAPTURE(flags);
	CHECK(prefetch(on, IBV_ADVISE_MR_ADVICE_PREFETCH, flags, all) == 0);
	CHECK(prefetch(on, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, flags, all) == 0);
	CHECK(prefetch(on, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, all) == EPERM);
}

TEST_CASE("odp_upstream: a pinned range is not prefetched", "[ranges]")
{
	const device on;
	const uint32_t flags = GENERATE(0U, IBV_ADVISE_MR_FLAG_FLUSH);
	const buffer pinned(on, 4, all_rights);

	CAPTURE(flags);
	for (const auto advice :
	     {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
	      IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT})
		CHECK(prefetch(on, advice, flags, pinned.local(0, page_size())) == EINVAL);
}

TEST_CASE("odp_upstream: a prefetch names an iova in its range", "[ranges]")
{
	const device on;
	const uint64_t distance = GENERATE(uint64_t{0}, uint64_t{4096}, uint64_t{1} << 20);
	const buffer paged(on, 8, on_demand, distance);
	const std::size_t length = paged.all().length;
	const auto fetch = [&](std::size_t offset, std::size_t bytes) {
		return prefetch(on, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
				paged.local(offset, bytes));
	};

	CAPTURE(distance);
	REQUIRE(madvise(paged.all().addr, length, MADV_DONTNEED) == 0);
	REQUIRE(present(paged.all()) == 0);
	CHECK(fetch(2 * page_size(), 3 * page_size()) == 0);
	CHECK(present(paged.part(2 * page_size(), 3 * page_size())) == 3);
	CHECK(present(paged.all()) == 3);
	CHECK(fetch(length - page_size(), 2 * page_size()) == EFAULT);
	CHECK(fetch(-page_size(), page_size()) == EFAULT);
	CHECK(present(paged.all()) == 3);
}

TEST_CASE("odp_upstream: a persistent flush needs persistent memory", "[ranges]")
{
	const device on;
	const uint8_t level = GENERATE(IBV_FLUSH_RANGE, IBV_FLUSH_MR);
	const buffer volatile_memory(on, 4, on_demand | extended::flush_rights);
	extended link(on);

	CAPTURE(level);
	CHECK(link.flush(volatile_memory, IBV_FLUSH_GLOBAL, level) == IBV_WC_SUCCESS);
	CHECK(link.flush(volatile_memory, IBV_FLUSH_PERSISTENT, level) == IBV_WC_REM_ACCESS_ERR);
}

/*
 * MADV_FREE leaves pages that are writable and clean: reclaim drops a page that nobody has written
 * since.
 */
TEST_CASE("odp_upstream: bytes that a peer wrote are not dropped by reclaim", "[ranges]")
{
	const device on;
	const buffer source(on, 1, all_rights), target(on, 3, on_demand);
	const memory dropped = anonymous(page_size());
	loopback link(on);
	extended wide(on);
	const range written = target.part(0, page_size());
	const range added = target.part(page_size(), page_size());
	const range last = target.part(2 * page_size(), page_size());
	const auto is_untouched = [](std::byte one) { return one == untouched; };

	clear(source.all());
	clear(target.all());
	empty_lists_of_cpus();
	for (const range &one : {target.all(), dropped.registered()})
		REQUIRE(madvise(one.addr, one.length, MADV_FREE) == 0);
	empty_lists_of_cpus();
	CHECK(run(link, {IBV_WR_RDMA_WRITE,
			 {source.local(0, page_size())},
			 number(written.addr),
			 target.mr->rkey}) == IBV_WC_SUCCESS);
	CHECK(run(link, {IBV_WR_ATOMIC_FETCH_AND_ADD,
			 {source.local(0, 8)},
			 number(added.addr),
			 target.mr->rkey,
			 1,
			 0}) == IBV_WC_SUCCESS);
	CHECK(wide.write(target, 2 * page_size(), "abcdefgh") == IBV_WC_SUCCESS);
	REQUIRE(happens([&] {
		for (const range &one : {target.all(), dropped.registered()})
			madvise(one.addr, one.length, MADV_PAGEOUT);
		return present(dropped.registered()) == 0;
	}));
	CHECK(std::all_of(written.addr, written.end(), is_untouched));
	CHECK(std::all_of(added.addr + 8, added.end(), is_untouched));
	CHECK(std::memcmp(last.addr, "abcdefgh", 8) == 0);
	CHECK(std::all_of(last.addr + 8, last.end(), is_untouched));
}
