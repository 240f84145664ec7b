// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An allocator registers the memory that it gets from the system, as MPI and storage libraries do.
 * When the provider allocates its struct for a registration, another registration can then begin
 * inside the first. Each of the two registrations must work as it does alone.
 */
#include "catch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "child.h"
#include "device.h"
#include "loopback.h"

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
}

using namespace mr_notify;

namespace {

/* Called once by an allocation of this thread, after `allocations_before` other allocations. */
thread_local std::function<void()> *hook = nullptr;
thread_local int allocations_before = 0;

void allocated()
{
	if (!hook || allocations_before-- > 0)
		return;
	const auto *const now = hook;
	hook = nullptr;
	(*now)();
}

} // namespace

extern "C" void *malloc(size_t size) noexcept
{
	allocated();
	return __libc_malloc(size);
}

extern "C" void *calloc(size_t count, size_t size) noexcept
{
	allocated();
	return __libc_calloc(count, size);
}

namespace {

constexpr int plain = IBV_ACCESS_LOCAL_WRITE;
const std::size_t length = 16 * page_size();

ibv_mr *reg(const device &on, range r, int access)
{
	return ibv_reg_mr(on.pd(), r.addr, r.length, access);
}

void replace(range r, int value)
{
	REQUIRE(mmap(r.addr, r.length, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r.addr);
	std::memset(r.addr, value, r.length);
}

/* The byte of a buffer that arrives by an RDMA write. */
std::byte arrives(const device &on, const ibv_mr *mr, range r)
{
	loopback link(on);
	const memory landing = anonymous(page_size());
	const owned<ibv_mr> to = on.register_memory(landing.registered());

	REQUIRE(link.write(mr, {r.addr, 8}, to->addr, to->rkey) == IBV_WC_SUCCESS);
	return landing.registered().addr[0];
}

/*
 * Repeats an outer registration. Makes an inner registration at the first allocation of the outer
 * registration, then at its second allocation, and so on. Returns the number of allocations.
 */
int nest(const device &on, int outer_access, int inner_access,
	 const std::function<void(ibv_mr *outer, range of_outer, ibv_mr *inner, range of_inner)>
		 &then)
{
	for (int nth = 0; nth < 100; nth++) {
		const memory one = anonymous(length), other = anonymous(length);
		ibv_mr *inner = nullptr;
		bool called = false;
		std::function<void()> now = [&] {
			called = true;
			inner = reg(on, other.registered(), inner_access);
		};

		ibv_reg_mr_clean(on.context(), 0);
		ibv_mr *prior = reg(on, {one.registered().addr, 1}, plain | IBV_ACCESS_CACHED);
		REQUIRE(prior);
		REQUIRE(ibv_dereg_mr(prior) == 0); /* now the cache exists */
		ibv_reg_mr_clean(on.context(), 0);
		allocations_before = nth;
		hook = &now;
		ibv_mr *outer = reg(on, one.registered(), outer_access);
		hook = nullptr;
		REQUIRE(outer);
		if (called) {
			REQUIRE(inner);
			INFO("at allocation " << nth);
			then(outer, one.registered(), inner, other.registered());
			CHECK(ibv_dereg_mr(inner) == 0);
		}
		CHECK(ibv_dereg_mr(outer) == 0);
		if (!called)
			return nth;
	}
	return 100;
}

void nest_and_replace(int outer_access, int inner_access)
{
	const device on;

	CHECK(nest(on, outer_access, inner_access,
		   [&](ibv_mr *outer, range of_outer, ibv_mr *inner, range of_inner) {
			   std::memset(of_outer.addr, 'o', length);
			   std::memset(of_inner.addr, 'i', length);
			   CHECK(outer->addr == of_outer.addr);
			   CHECK(inner->addr == of_inner.addr);
			   CHECK(arrives(on, outer, of_outer) == std::byte{'o'});
			   CHECK(arrives(on, inner, of_inner) == std::byte{'i'});
		   }) > 0);
	/* Each of the two registrations becomes stale independently. */
	for (const bool change_outer : {true, false})
		nest(on, outer_access, inner_access,
		     [&](ibv_mr *, range of_outer, ibv_mr *, range of_inner) {
			     const range changed = change_outer ? of_outer : of_inner;
			     const range kept = change_outer ? of_inner : of_outer;
			     const int access = change_outer ? inner_access : outer_access;

			     replace(changed, 'n');
			     CHECK_FALSE(ibv_is_reg(on.pd(), changed.addr, length, plain));
			     if (access & IBV_ACCESS_CACHED)
				     CHECK(ibv_is_reg(on.pd(), kept.addr, length, plain));
			     const owned<ibv_mr> again(reg(on, changed, plain | IBV_ACCESS_CACHED));
			     REQUIRE(again);
			     CHECK(arrives(on, again.get(), changed) == std::byte{'n'});
		     });
}

} // namespace

TEST_CASE("nested: a cached registration in the middle of a cached one")
{
	nest_and_replace(plain | IBV_ACCESS_CACHED, plain | IBV_ACCESS_CACHED);
}

TEST_CASE("nested: a plain registration in the middle of a cached one")
{
	nest_and_replace(plain | IBV_ACCESS_CACHED, plain);
}

TEST_CASE("nested: a cached registration in the middle of a plain one")
{
	nest_and_replace(plain, plain | IBV_ACCESS_CACHED);
}

TEST_CASE("nested: a plain registration in the middle of a cached registration stays unarmed")
{
	const device on;

	nest(on, plain | IBV_ACCESS_CACHED, plain, [&](ibv_mr *, range, ibv_mr *inner, range) {
		word w;

		CHECK(ibv_reg_mr_notify(inner, w.address()) == 0);
		CHECK(ibv_unreg_mr_notify(inner) == 0);
	});
}

TEST_CASE("nested: an armed registration in the middle of a cached registration has its own word")
{
	const device on;

	nest(on, plain | IBV_ACCESS_CACHED, plain,
	     [&](ibv_mr *, range of_outer, ibv_mr *inner, range of_inner) {
		     word w;

		     REQUIRE(ibv_reg_mr_notify(inner, w.address()) == 0);
		     replace(of_outer, 'n');
		     CHECK(w.value() == 0);
		     replace(of_inner, 'n');
		     CHECK(w.invalid());
	     });
}

/* The next case runs this hidden case as a program. */
TEST_CASE("nested: both by the variable", "[.]")
{
	nest_and_replace(plain, plain);
}

TEST_CASE("nested: two registrations that RDMAV_MR_CACHE=1 caches")
{
	CHECK(run_child("nested: both by the variable", {"RDMAV_MR_CACHE=1"}).status == 0);
}
