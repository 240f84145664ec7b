// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging of a range and of all memory. Every operation reaches the memory that the CPU
 * sees at that moment. Forbidden accesses are refused. Nothing is pinned between transfers.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "capability.h"
#include "loopback.h"
#include "odp.h"
#include "raw_uverbs.h"
#include "secret_memory.h"
#include "skip.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;

namespace {

constexpr std::size_t length = 64 << 10;

/* Each byte depends on its address and on the round. */
std::byte expected(const std::byte *at, unsigned int round)
{
	return static_cast<std::byte>((number(at) * 2654435761U >> 7) + round * 37);
}

void fill(range r, unsigned int round)
{
	for (std::size_t i = 0; i < r.length; i++)
		r.addr[i] = expected(r.addr + i, round);
}

bool is_zero(range r)
{
	for (std::size_t i = 0; i < r.length; i++)
		if (r.addr[i] != std::byte{0})
			return false;
	return true;
}

bool same(range a, range b)
{
	return a.length == b.length && std::memcmp(a.addr, b.addr, a.length) == 0;
}

struct two_buffers {
	device on;
	loopback link{on};
	memory near = anonymous(length);
	memory far = anonymous(length);

	range from() const { return near.registered(); }
	range to() const { return far.registered(); }
};

/* An MR of all memory, or of a range, for both ends. */
owned<ibv_mr> make(const device &on, const std::string &kind, range r)
{
	if (kind == "all")
		return register_all(on, all_rights);
	return on.register_memory(r, all_rights | (kind == "range" ? IBV_ACCESS_ON_DEMAND : 0));
}

} // namespace

TEST_CASE("the capability, and an MR of all memory")
{
	device on;
	ibv_device_attr_ex attr{};

	check_verb(ibv_query_device_ex(on.context(), nullptr, &attr), "ibv_query_device_ex");
	if (!offers_all(on)) {
		CHECK_FALSE(attr.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
		errno = 0;
		CHECK(ibv_register_mr_all(on.pd(), IBV_ACCESS_LOCAL_WRITE) == nullptr);
		CHECK(errno == EOPNOTSUPP);
		return;
	}
	CHECK(attr.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
	const auto &per = attr.odp_caps.per_transport_caps;
	/* Linux 7.3 has two more bits, for FLUSH and atomic WRITE. */
	CHECK((per.rc_odp_caps & ~0xc0U) ==
	      (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
	       IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV));
	CHECK(per.uc_odp_caps == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
				  IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV));
	CHECK(per.ud_odp_caps ==
	      (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV));

	const auto all = register_all(on, all_rights);
	CHECK(all->addr == nullptr);
	CHECK(all->length == SIZE_MAX);
	uint64_t word = 0;
	CHECK(ibv_reg_mr_notify(all.get(), &word) == EOPNOTSUPP);
}

TEST_CASE("every operation, across pages, at any offset", "[odp]")
{
	two_buffers s;
	const std::string kind = GENERATE("range", "all");
	const std::string other = GENERATE("range", "all", "pinned");
	const auto near_mr = make(s.on, kind, s.from());
	const auto far_mr = make(s.on, other, s.to());

	unsigned int round = 0;
	for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4095}}) {
		const range from{s.from().addr + offset, 20001};
		const range to{s.to().addr + 4096 - offset, 20001};
		const piece here{from, near_mr->lkey};
		const piece there{to, far_mr->lkey};

		CAPTURE(kind, other, offset);
		fill(from, ++round);
		CHECK(run(s.link, {IBV_WR_RDMA_WRITE, {here}, number(to.addr), far_mr->rkey}) ==
		      IBV_WC_SUCCESS);
		CHECK(same(from, to));

		fill(to, ++round);
		CHECK(run(s.link, {IBV_WR_RDMA_READ, {here}, number(to.addr), far_mr->rkey}) ==
		      IBV_WC_SUCCESS);
		CHECK(same(from, to));

		fill(from, ++round);
		const both sent = send(s.link, {here}, {there});
		CHECK(sent.sender == IBV_WC_SUCCESS);
		CHECK(sent.receiver == IBV_WC_SUCCESS);
		CHECK(same(from, to));
	}

	auto *const counter = reinterpret_cast<uint64_t *>(s.to().addr + 4096 + 8);
	auto *const old = reinterpret_cast<uint64_t *>(s.from().addr + 16);
	const piece result{{s.from().addr + 16, 8}, near_mr->lkey};
	*counter = 40;
	CHECK(run(s.link,
		  {IBV_WR_ATOMIC_FETCH_AND_ADD, {result}, number(counter), far_mr->rkey, 2, 0}) ==
	      IBV_WC_SUCCESS);
	CHECK(*counter == 42);
	CHECK(*old == 40);
	CHECK(run(s.link,
		  {IBV_WR_ATOMIC_CMP_AND_SWP, {result}, number(counter), far_mr->rkey, 42, 7}) ==
	      IBV_WC_SUCCESS);
	CHECK(*counter == 7);
	CHECK(*old == 42);
	CHECK(run(s.link,
		  {IBV_WR_ATOMIC_CMP_AND_SWP, {result}, number(counter), far_mr->rkey, 42, 8}) ==
	      IBV_WC_SUCCESS);
	CHECK(*counter == 7);
}

TEST_CASE("memory that is mapped, unmapped and mapped again after the registration", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	const auto from = s.on.register_memory(s.from());
	const range page{s.from().addr, page_size()};

	memory place = anonymous(length);
	const range r = place.registered();
	for (unsigned int round = 0; round < 20; round++) {
		/* the same addresses, other pages */
		REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
		if (round % 2)
			fill(r, round);
		const range part{r.addr + 3 * page_size() + 5, page_size()};
		fill(page, round);
		REQUIRE(s.link.write(from.get(), page, part.addr, all->rkey) == IBV_WC_SUCCESS);
		CHECK(same(page, part));
		if (round % 2 == 0)
			CHECK(is_zero({r.addr, 3 * page_size() + 5}));
		REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
		REQUIRE(s.link.read(from.get(), page, part.addr, all->rkey) == IBV_WC_SUCCESS);
		CHECK(is_zero(page));
	}
}

TEST_CASE("an access that the process may not make is refused", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	const range page{s.from().addr, page_size()};
	memory victim = anonymous(4 * page_size());
	std::byte *const at = victim.registered().addr;
	bool reads = false;
	/*
	 * Each error ends a queue pair. The test makes all queue pairs before the hole, because
	 * their mappings could get into the hole.
	 */
	loopback write_there(s.on), add_there(s.on), read_there(s.on), read_into(s.on),
		write_from(s.on), receive(s.on);

	SECTION("unmapped")
	{
		victim.forget({at, page_size()});
		REQUIRE(munmap(at, page_size()) == 0);
	}
	SECTION("no access at all")
	{
		REQUIRE(mprotect(at, page_size(), PROT_NONE) == 0);
	}
	SECTION("read-only")
	{
		REQUIRE(mprotect(at, page_size(), PROT_READ) == 0);
		reads = true;
	}
	SECTION("secret memory")
	{
		SKIP_IF(!make_secret({at, page_size()}), "no memfd_secret");
		std::memset(at, 0x55, page_size());
	}
	SECTION("beyond user space")
	{
		CHECK(run(s.link, {IBV_WR_RDMA_WRITE,
				   {{page, all->lkey}},
				   ~uint64_t{0} - 8192,
				   all->rkey}) == IBV_WC_REM_ACCESS_ERR);
		return;
	}

	CHECK(run(write_there, {IBV_WR_RDMA_WRITE, {{page, all->lkey}}, number(at), all->rkey}) ==
	      IBV_WC_REM_ACCESS_ERR);
	CHECK(run(add_there, {IBV_WR_ATOMIC_FETCH_AND_ADD,
			      {{{page.addr, 8}, all->lkey}},
			      number(at),
			      all->rkey,
			      1,
			      0}) == IBV_WC_REM_ACCESS_ERR);
	CHECK(run(read_there, {IBV_WR_RDMA_READ, {{page, all->lkey}}, number(at), all->rkey}) ==
	      (reads ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR));
	CHECK(run(read_into, {IBV_WR_RDMA_READ,
			      {{{at, page_size()}, all->lkey}},
			      number(page.addr),
			      all->rkey}) == IBV_WC_LOC_PROT_ERR);
	CHECK(run(write_from, {IBV_WR_RDMA_WRITE,
			       {{{at, page_size()}, all->lkey}},
			       number(page.addr),
			       all->rkey}) == (reads ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
	CHECK(send(receive, {{page, all->lkey}}, {{{at, page_size()}, all->lkey}}).receiver ==
	      IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("a packet that begins with access and ends without access is refused", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	memory victim = anonymous(4 * page_size());
	std::byte *const end = victim.registered().addr + page_size();
	const range across{end - 100, 200};
	const range here{s.from().addr, across.length};
	bool reads = false;
	loopback write_there(s.on), read_there(s.on);

	std::memset(victim.registered().addr, 0x55, 4 * page_size());
	SECTION("no access at all")
	{
		REQUIRE(mprotect(end, page_size(), PROT_NONE) == 0);
	}
	SECTION("read-only")
	{
		REQUIRE(mprotect(end, page_size(), PROT_READ) == 0);
		reads = true;
	}
	SECTION("secret memory")
	{
		SKIP_IF(!make_secret({end, page_size()}), "no memfd_secret");
		std::memset(end, 0x55, page_size());
	}

	CHECK(run(write_there,
		  {IBV_WR_RDMA_WRITE, {{here, all->lkey}}, number(across.addr), all->rkey}) ==
	      IBV_WC_REM_ACCESS_ERR);
	CHECK(run(read_there,
		  {IBV_WR_RDMA_READ, {{here, all->lkey}}, number(across.addr), all->rkey}) ==
	      (reads ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR));
}

TEST_CASE("without the right there is no access", "[odp]")
{
	two_buffers s;
	const auto local = register_all(s.on, IBV_ACCESS_LOCAL_WRITE);
	const auto none = register_all(s.on, 0);

	loopback to_remote(s.on);
	CHECK(run(to_remote, {IBV_WR_RDMA_WRITE,
			      {{s.from(), local->lkey}},
			      number(s.to().addr),
			      local->rkey}) == IBV_WC_REM_ACCESS_ERR);
	const auto far = s.on.register_memory(s.to());
	loopback works(s.on);
	CHECK(run(works,
		  {IBV_WR_RDMA_WRITE, {{s.from(), none->lkey}}, number(s.to().addr), far->rkey}) ==
	      IBV_WC_SUCCESS);
	loopback into_read_only(s.on);
	CHECK(run(into_read_only,
		  {IBV_WR_RDMA_READ, {{s.from(), none->lkey}}, number(s.to().addr), far->rkey}) !=
	      IBV_WC_SUCCESS);
}

TEST_CASE("an iova that is not the address", "[odp]")
{
	two_buffers s;
	constexpr uint64_t iova = 0x123450000;
	const owned<ibv_mr> mr(ibv_reg_mr_iova(s.on.pd(), s.to().addr, s.to().length, iova,
					       all_rights | IBV_ACCESS_ON_DEMAND));
	REQUIRE(mr);
	const auto from = s.on.register_memory(s.from());
	const range part{s.from().addr + 11, 9000};

	fill(part, 1);
	CHECK(s.link.write(from.get(), part, reinterpret_cast<void *>(iova + 4000), mr->rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(same(part, {s.to().addr + 4000, part.length}));
	CHECK(s.link.write(from.get(), part, reinterpret_cast<void *>(iova + s.to().length - 8999),
			   mr->rkey) == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a window onto a part of all memory", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights | IBV_ACCESS_MW_BIND);
	const owned<ibv_mw> window(ibv_alloc_mw(s.on.pd(), IBV_MW_TYPE_1));
	REQUIRE(window);
	ibv_mw_bind bind{};

	bind.send_flags = IBV_SEND_SIGNALED;
	bind.bind_info = {all.get(), number(s.to().addr), 2 * page_size(), IBV_ACCESS_REMOTE_WRITE};
	check_verb(ibv_bind_mw(s.link.near_end(), window.get(), &bind), "ibv_bind_mw");
	REQUIRE(s.link.wait().status == IBV_WC_SUCCESS);

	const range part{s.from().addr, page_size()};
	fill(part, 3);
	CHECK(s.link.write(all.get(), part, s.to().addr + 100, window->rkey) == IBV_WC_SUCCESS);
	CHECK(same(part, {s.to().addr + 100, part.length}));
	loopback beyond(s.on);
	CHECK(run(beyond, {IBV_WR_RDMA_WRITE,
			   {{part, all->lkey}},
			   number(s.to().addr + page_size() + 1),
			   window->rkey}) == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a window with addresses of its own", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights | IBV_ACCESS_MW_BIND);
	const owned<ibv_mw> window(ibv_alloc_mw(s.on.pd(), IBV_MW_TYPE_2));
	REQUIRE(window);

	/*
	 * the far end is the target, and a window of this type belongs to the target's queue pair
	 */
	const uint32_t rkey = post_bind(s.link.far_end(), window.get(),
					{all.get(), number(s.to().addr), 2 * page_size(),
					 IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED});
	REQUIRE(s.link.wait().status == IBV_WC_SUCCESS);

	const range part{s.from().addr, page_size()};
	fill(part, 4);
	CHECK(run(s.link, {IBV_WR_RDMA_WRITE, {{part, all->lkey}}, 100, rkey}) == IBV_WC_SUCCESS);
	CHECK(same(part, {s.to().addr + 100, part.length}));
	CHECK(run(s.link, {IBV_WR_RDMA_WRITE, {{part, all->lkey}}, page_size() + 1, rkey}) ==
	      IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("an atomic operation after the end of the range", "[odp]")
{
	two_buffers s;
	const range all = s.to();
	const auto half =
		s.on.register_memory({all.addr, all.length / 2}, all_rights | IBV_ACCESS_ON_DEMAND);
	const auto from = s.on.register_memory(s.from());
	const auto add = [&](std::size_t offset) {
		return run(s.link, {IBV_WR_ATOMIC_FETCH_AND_ADD,
				    {{{s.from().addr, 8}, from->lkey}},
				    number(all.addr) + offset,
				    half->rkey,
				    1,
				    0});
	};

	std::memset(all.addr, 0, all.length);
	CHECK(add(all.length / 2 - 8) == IBV_WC_SUCCESS);
	CHECK(add(all.length / 2) == IBV_WC_REM_ACCESS_ERR);
	CHECK(is_zero({all.addr + all.length / 2, 8}));
}

TEST_CASE("a range that wraps around is refused", "[odp]")
{
	const device on;
	void *const last = reinterpret_cast<void *>(~uint64_t{0} - 4095);

	CHECK(ibv_reg_mr(on.pd(), last, 8192, all_rights | IBV_ACCESS_ON_DEMAND) == nullptr);
	CHECK(errno == EINVAL);
}

TEST_CASE("pages of a device are not memory", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	std::ifstream maps("/proc/self/maps");
	uint64_t at = 0;

	/*
	 * Finds a mapping with VM_IO and VM_PFNMAP. In each process, [vvar] maps the vDSO's clock
	 * pages. In Linux 7.3, [vvar_vclock] also maps the pages of a hypervisor's clock.
	 */
	for (std::string line; std::getline(maps, line);)
		if (line.find("[vvar") != std::string::npos)
			at = std::stoull(line, nullptr, 16);
	SKIP_IF(!at, "no such pages");
	CHECK(run(s.link, {IBV_WR_RDMA_READ, {{{s.from().addr, 8}, all->lkey}}, at, all->rkey}) ==
	      IBV_WC_REM_ACCESS_ERR);
	loopback local(s.on);
	CHECK(run(local, {IBV_WR_RDMA_WRITE,
			  {{{reinterpret_cast<std::byte *>(at), 8}, all->lkey}},
			  number(s.to().addr),
			  all->rkey}) == IBV_WC_LOC_PROT_ERR);
}

/*
 * A process posts a message that the peer does not receive, and ends. Its child still has the
 * device open, and sees the message fail, because each retry reads the memory again.
 */
TEST_CASE("a process that has ended has no memory", "[odp]")
{
	int back[2];
	REQUIRE(pipe(back) == 0);
	const pid_t owner = child_that([&] {
		two_buffers own;
		const auto all = register_all(own.on, all_rights);
		const pid_t parent = getpid();

		post(own.link.near_end(), {IBV_WR_SEND, {{own.from(), all->lkey}}});
		usleep(50000);
		const bool waits = !own.link.poll();
		if (child_that([&] {
			    while (getppid() == parent)
				    usleep(1000);
			    const auto seen = static_cast<unsigned char>(own.link.wait().status);
			    return write(back[1], &seen, 1) == 1 ? 0 : 1;
		    }) < 0)
			return 1;
		_exit(waits ? 0 : 2); /* while everything is open */
	});
	int status = -1;
	REQUIRE(owner > 0);
	REQUIRE(waitpid(owner, &status, 0) == owner);
	CHECK(status == 0);
	unsigned char seen = 0;
	close(back[1]);
	REQUIRE(read(back[0], &seen, 1) == 1);
	CHECK(seen == IBV_WC_LOC_PROT_ERR);
	close(back[0]);
}

TEST_CASE("nothing is pinned between transfers", "[odp]")
{
	two_buffers s;
	const std::size_t before = pinned_bytes();
	const auto all = register_all(s.on, all_rights);
	constexpr std::size_t much = 128 << 20;
	memory large = anonymous(much);

	for (std::size_t at = 0; at + length <= much; at += 8 << 20)
		REQUIRE(s.link.write(all.get(), s.from(), large.registered().addr + at,
				     all->rkey) == IBV_WC_SUCCESS);
	CHECK(pinned_bytes() == before);
	CHECK(before == 0);
}

TEST_CASE("after a fork the device has the memory of the process that registered", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	const auto from = s.on.register_memory({s.from().addr, page_size()});
	const range page{s.from().addr, page_size()};
	const range target{s.to().addr, page_size()};
	int go[2];
	int back[2];

	fill(target, 1);
	REQUIRE(pipe(go) == 0);
	REQUIRE(pipe(back) == 0);
	const pid_t child = fork();
	REQUIRE(child >= 0);
	if (child == 0) {
		char c = 0;
		bool intact = read(go[0], &c, 1) == 1;
		for (std::size_t i = 0; i < target.length; i++)
			intact = intact && target.addr[i] == expected(target.addr + i, 1);
		c = intact;
		_exit(write(back[1], &c, 1) == 1 ? 0 : 1);
	}
	fill(page, 2);
	CHECK(s.link.write(from.get(), page, target.addr, all->rkey) == IBV_WC_SUCCESS);
	CHECK(same(page, target));
	char answer = 0;
	REQUIRE(write(go[1], "g", 1) == 1);
	REQUIRE(read(back[0], &answer, 1) == 1);
	CHECK(answer == 1); /* the child's copy has not changed */
	waitpid(child, nullptr, 0);
	for (const int fd : {go[0], go[1], back[0], back[1]})
		close(fd);
}

TEST_CASE("prefetching brings pages in", "[odp]")
{
	two_buffers s;
	const auto all = register_all(s.on, all_rights);
	const auto pinned = s.on.register_memory(s.from());
	memory cold = anonymous(length);
	const range r = cold.registered();
	std::vector<unsigned char> there(length / page_size());
	const auto present = [&] {
		REQUIRE(mincore(r.addr, r.length, there.data()) == 0);
		return std::count(there.begin(), there.end(), 1);
	};
	const auto advise = [&](uint32_t lkey, ibv_advise_mr_advice advice, uint32_t flags) {
		ibv_sge sge{number(r.addr), static_cast<uint32_t>(r.length), lkey};
		return ibv_advise_mr(s.on.pd(), advice, flags, &sge, 1);
	};

	REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
	CHECK(advise(all->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH) ==
	      0);
	CHECK(present() == 0);
	/* two bytes on two pages */
	ibv_sge edge{number(r.addr) + page_size() - 1, 2, all->lkey};
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1, &edge, 1) == 0);
	CHECK(present() == 2);
	/* the last page of the address space; the range must not wrap to the first page */
	ibv_sge last{~uint64_t{0xfff}, 0xfff, all->lkey};
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &last, 1) == 0);
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH, 1, &last, 1) == EFAULT);
	CHECK(advise(all->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, GENERATE(0, 1)) == 0);
	CHECK(present() == static_cast<long>(there.size()));

	CHECK(advise(all->lkey + (1000 << 8), IBV_ADVISE_MR_ADVICE_PREFETCH, 1) == ENOENT);
	CHECK(advise(all->lkey, static_cast<ibv_advise_mr_advice>(7), 1) == EOPNOTSUPP);
	CHECK(advise(pinned->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, 1) == EINVAL);
	const auto read_only = register_all(s.on, 0);
	CHECK(advise(read_only->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1) == EPERM);
	CHECK(advise(read_only->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, 1) == 0);
	cold.forget(r);
	REQUIRE(munmap(r.addr, r.length) == 0);
	CHECK(advise(all->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, 1) == EFAULT);
	CHECK(advise(all->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, 0) == 0); /* only a hint */
}

TEST_CASE("ranges that can't be prefetched", "[odp]")
{
	two_buffers s;
	constexpr uint64_t iova = 0x123450000;
	const owned<ibv_mr> mr(ibv_reg_mr_iova(s.on.pd(), s.to().addr, s.to().length, iova,
					       all_rights | IBV_ACCESS_ON_DEMAND));
	const owned<ibv_pd> other(ibv_alloc_pd(s.on.context()));
	REQUIRE(mr);
	REQUIRE(other);
	std::vector<unsigned char> there(s.to().length / page_size());
	const auto advise = [&](ibv_pd *pd, uint64_t at, uint32_t lkey) {
		ibv_sge sge{at, static_cast<uint32_t>(s.to().length), lkey};
		return ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
				     IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
	};

	REQUIRE(madvise(s.to().addr, s.to().length, MADV_DONTNEED) == 0);
	CHECK(advise(other.get(), iova, mr->lkey) == EPERM);
	CHECK(advise(s.on.pd(), iova, mr->lkey ^ 1) == ENOENT);
	CHECK(advise(s.on.pd(), iova + page_size(), mr->lkey) == EFAULT);
	/* if the second part can't be prefetched, the first part is not prefetched either */
	const auto part = static_cast<uint32_t>(page_size());
	ibv_sge two[] = {{iova, part, mr->lkey}, {iova, part, mr->lkey ^ 1}};
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
			    IBV_ADVISE_MR_FLAG_FLUSH, two, 2) == ENOENT);
	REQUIRE(mincore(s.to().addr, s.to().length, there.data()) == 0);
	CHECK(std::count(there.begin(), there.end(), 1) == 0);
	CHECK(advise(s.on.pd(), iova, mr->lkey) == 0);
	REQUIRE(mincore(s.to().addr, s.to().length, there.data()) == 0);
	CHECK(std::count(there.begin(), there.end(), 1) == static_cast<long>(there.size()));
}

/* A counter in "rdma statistic", the sum of all MRs. */
static long counter(const std::string &name)
{
	const std::string key = '"' + name + "\":";
	std::string said;
	char some[256];
	long sum = 0;
	FILE *const pipe = popen("rdma -j statistic show mr", "r");

	while (pipe && std::fgets(some, sizeof(some), pipe))
		said += some;
	if (pipe)
		pclose(pipe);
	INFO(said);
	REQUIRE(said.find(key) != std::string::npos);
	for (std::size_t at = 0; (at = said.find(key, at)) != std::string::npos;) {
		at += key.length();
		sum += std::stol(said.substr(at));
	}
	return sum;
}

TEST_CASE("counters: pages faulted in, waited for, prefetched", "[odp]")
{
	two_buffers s;
	const auto from = s.on.register_memory(s.from());
	const auto mr = s.on.register_memory(s.to(), all_rights | IBV_ACCESS_ON_DEMAND);
	const long pages = static_cast<long>(length / page_size());
	const auto drop = [&] { REQUIRE(madvise(s.to().addr, length, MADV_DONTNEED) == 0); };

	drop();
	CHECK(s.link.write(from.get(), s.from(), s.to().addr, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(counter("page_faults") >= pages);
	CHECK(counter("page_prefetch") == 0);
	drop();
	ibv_sge sge{number(s.to().addr), static_cast<uint32_t>(length), mr->lkey};
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1, &sge, 1) == 0);
	CHECK(counter("page_prefetch") == pages);
	drop();
	REQUIRE(mprotect(s.to().addr, page_size(), PROT_NONE) == 0);
	CHECK(ibv_advise_mr(s.on.pd(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1) == 0);
	CHECK(counter("page_prefetch") == 2 * pages - 1);
	REQUIRE(mprotect(s.to().addr, page_size(), PROT_READ | PROT_WRITE) == 0);

	const memory file = mapped_file(length);
	const auto of_file = s.on.register_memory(file.registered(), IBV_ACCESS_ON_DEMAND);
	REQUIRE(madvise(file.registered().addr, length, MADV_DONTNEED) == 0);
	CHECK(s.link.write(of_file.get(), file.registered(), s.to().addr, mr->rkey) ==
	      IBV_WC_SUCCESS);
	CHECK(counter("page_fault_waits") > 0);
}

/*
 * NUMA balancing removes the access to a page for a moment, to find out which node uses the page. A
 * wrong driver could leave the page in this state when it only reads the page. In a new process the
 * kernel begins its scan at the first address; in a process with two threads it may begin at any
 * address.
 */
TEST_CASE("counters: a page that NUMA balancing has marked is faulted in", "[odp]")
{
	const std::string debug = "/sys/kernel/debug/sched/numa_balancing/";

	try {
		another_node();
		const setting on("/proc/sys/kernel/numa_balancing", "1");
		const setting first(debug + "scan_delay_ms", "1");
		const setting often(debug + "scan_period_min_ms", "10");
		const setting always(debug + "scan_period_max_ms", "100");
		const pid_t child = child_that([] {
			two_buffers s;
			const auto mr = s.on.register_memory(s.from(), IBV_ACCESS_ON_DEMAND);
			const auto to = s.on.register_memory(s.to(), all_rights);
			bool written = false, faulted = false;

			std::thread([&] {
				faulted = happens([&] {
					written = s.link.write(mr.get(), s.from(), s.to().addr,
							       to->rkey) == IBV_WC_SUCCESS;
					return !written || counter("page_faults") > 0;
				});
			}).join();
			return !written || !faulted;
		});
		int status = -1;
		REQUIRE(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
	} catch (const unsupported &why) {
		SKIP_IF(true, why.what());
	}
}

TEST_CASE("a registration is on demand from beginning to end, or pinned", "[odp]")
{
	two_buffers s;
	const auto odp = s.on.register_memory(s.to(), all_rights | IBV_ACCESS_ON_DEMAND);
	const auto pinned = s.on.register_memory(s.from(), all_rights);

	const raw_uverbs raw(s.on.context());
	CHECK(raw.change_access(pinned->handle, all_rights | IBV_ACCESS_ON_DEMAND) == EOPNOTSUPP);
	CHECK(raw.change_access(odp->handle, all_rights) == EOPNOTSUPP);
	CHECK(raw.change_access(odp->handle, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND) == 0);
	CHECK(run(s.link, {IBV_WR_RDMA_WRITE,
			   {{s.from(), pinned->lkey}},
			   number(s.to().addr),
			   odp->rkey}) == IBV_WC_REM_ACCESS_ERR);
}
