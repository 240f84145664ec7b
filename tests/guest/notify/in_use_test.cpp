// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A word may count its users. Then the kernel sets INVALID immediately, but the device keeps the
 * pages until the last user has left.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "loopback.h"
#include "post.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;

namespace {

constexpr std::size_t length = 16 * 4096;
constexpr uint64_t mask = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr uint64_t invalid = IBV_MR_NOTIFY_INVALID;

std::atomic_ref<uint64_t> at(word &w)
{
	return std::atomic_ref<uint64_t>(*w.address());
}

/* A registration whose second half may be unmapped, and a user of the first half. */
struct shared_by_users {
	explicit shared_by_users(uint64_t in_use = mask)
	{
		REQUIRE(raw.arm(mr->handle, w.address(), in_use) == 0);
	}

	/* Unmaps the second half. */
	void cut() { unmap(m, {m.registered().addr + length / 2, length / 2}); }
	ibv_wc_status write_to_the_rest()
	{
		if (!link)
			link.emplace(on);
		const auto status =
			link->write(from.get(), source.registered(), m.registered().addr, mr->rkey);
		if (status != IBV_WC_SUCCESS)
			was_refused = link->refused(status);
		return status;
	}
	/* Waits until the worker has run. The worker's delay doubles each time. */
	bool refused_in_the_end()
	{
		return happens([&] { return write_to_the_rest() != IBV_WC_SUCCESS; }) &&
		       was_refused;
	}

	device on;
	raw_uverbs raw{on.context()};
	memory m = anonymous(length);
	memory source = anonymous(4096);
	owned<ibv_mr> from = on.register_memory(source.registered());
	owned<ibv_mr> mr = on.register_memory(m.registered());
	word w;
	std::optional<loopback> link;
	bool was_refused = false;
};

} // namespace

TEST_CASE("a mask may have the application's bits only")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const std::size_t before = pinned_bytes();
	word w;

	for (const uint64_t bad : {uint64_t{0}, uint64_t{1}, uint64_t{0x80}, uint64_t{0x180}})
		CHECK(raw.arm(mr->handle, w.address(), bad) == EINVAL);
	CHECK(pinned_bytes() == before);
	CHECK(ibv_settle_mr_notify(mr.get()) == EINVAL); /* it is not armed */
	CHECK(raw.arm(mr->handle, w.address(), uint64_t{1} << 63) == 0);
}

TEST_CASE("a registration with a bad mask fails", "[roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	word w;

	const auto fails = [&](uint64_t *address, uint64_t bad) {
		const auto made = raw.register_armed(on.pd(), m.registered().addr, length, address,
						     {raw_uverbs::in_use(bad)});
		CHECK(made.error == EINVAL);
	};
	fails(w.address(), 0);
	fails(w.address(), 0x1ff);
	fails(nullptr, mask); /* a mask without a word */
	CHECK(pinned_bytes() == before);
}

TEST_CASE("a registration that names its word and a mask", "[revoke][roce]")
{
	const device on;
	const raw_uverbs raw(on.context());
	memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	word w;

	*w.address() = one_user;
	const auto made = raw.register_armed(on.pd(), m.registered().addr, length, w.address(),
					     {raw_uverbs::in_use(mask)});
	REQUIRE(made.error == 0);
	unmap_all(m);
	CHECK(w.value() == (one_user | invalid));
	CHECK(raw.settle(made.handle) == 0);
	CHECK(pinned_bytes() == before + length + page_size());
	at(w) -= one_user;
	CHECK(raw.settle(made.handle) == 0);
	CHECK(pinned_bytes() == before);
	CHECK(raw.deregister(made.handle) == 0);
}

TEST_CASE("a user of an invalid registration continues", "[revoke]")
{
	shared_by_users all;

	at(all.w) += one_user;
	const std::size_t before = pinned_bytes();
	all.cut();
	CHECK(all.w.value() == (one_user | invalid));
	CHECK(ibv_settle_mr_notify(all.mr.get()) == 0);
	usleep(200000); /* the worker has compared by now */
	CHECK(pinned_bytes() == before);
	CHECK(all.write_to_the_rest() == IBV_WC_SUCCESS);

	SECTION("until the last one has gone, which the kernel finds out")
	{
		at(all.w) -= one_user;
		CHECK(all.refused_in_the_end());
		CHECK(happens([&] { return pinned_bytes() <= before - length; }));
	}
	SECTION("until it is settled when the last one has gone")
	{
		at(all.w) -= one_user;
		CHECK(ibv_settle_mr_notify(all.mr.get()) == 0);
		CHECK(pinned_bytes() == before - length - page_size());
		CHECK(all.write_to_the_rest() != IBV_WC_SUCCESS);
		CHECK(all.was_refused);
	}
	SECTION("also when the kernel has left the word to them")
	{
		CHECK(ibv_unreg_mr_notify(all.mr.get()) == 0);
		usleep(200000); /* the worker does not run again */
		CHECK(pinned_bytes() == before - page_size());
		CHECK(all.write_to_the_rest() == IBV_WC_SUCCESS);
	}
	SECTION("until it is deregistered")
	{
		all.mr.reset();
		CHECK(pinned_bytes() == before - length - page_size());
		CHECK(all.w.value() == (one_user | invalid));
	}
	SECTION("and no other MR has its word")
	{
		const auto other = all.on.register_memory(all.source.registered());
		CHECK(ibv_reg_mr_notify(other.get(), all.w.address()) == EBUSY);
		at(all.w) -= one_user;
		REQUIRE(ibv_settle_mr_notify(all.mr.get()) == 0);
		at(all.w) = 0;
		CHECK(ibv_reg_mr_notify(other.get(), all.w.address()) == 0);
	}
}

/* Checks the result immediately, before the worker could run. */
TEST_CASE("disarming does the rest of the worker's work", "[revoke]")
{
	shared_by_users all;

	const std::size_t before = pinned_bytes();
	all.cut();
	CHECK(ibv_unreg_mr_notify(all.mr.get()) == 0);
	CHECK(pinned_bytes() == before - length - page_size());
	CHECK(all.w.value() == invalid);
	CHECK(all.write_to_the_rest() != IBV_WC_SUCCESS);
	CHECK(all.was_refused);
}

TEST_CASE("only the bits of the mask count", "[revoke]")
{
	shared_by_users all(uint64_t{1} << 40);

	at(all.w) |= one_user;
	all.cut();
	CHECK(all.refused_in_the_end());
}

TEST_CASE("without a mask the device loses the pages with any word", "[revoke]")
{
	const device on;
	memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const std::size_t before = pinned_bytes();
	word w;

	*w.address() = ~uint64_t{IBV_MR_NOTIFY_KERNEL_MASK};
	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	unmap_all(m);
	CHECK(wait_for_pinned(before - length) == before - length);
}

/* Another part of the registration is unmapped while a receive is posted. */
TEST_CASE("a posted receive in the part that stays is filled")
{
	shared_by_users all;
	loopback link(all.on);

	at(all.w) += one_user;
	*all.source.registered().addr = std::byte{0x33};
	post_receive(link.far_end(), {{{all.m.registered().addr, 4096}, all.mr->lkey}});
	all.cut();
	REQUIRE(ibv_settle_mr_notify(all.mr.get()) == 0);
	link.start(IBV_WR_SEND, all.from.get(), all.source.registered(), nullptr, 0);
	CHECK(link.wait().status == IBV_WC_SUCCESS);
	CHECK(link.wait().status == IBV_WC_SUCCESS);
	CHECK(*all.m.registered().addr == std::byte{0x33});
}

/* The child registers with its parent's device, so the registration outlives the child. */
TEST_CASE("the end of the address space ends its users", "[revoke]")
{
	const device on;
	const raw_uverbs raw(on.context());
	const memory shared = shared_file(page_size());
	auto *const words = reinterpret_cast<uint64_t *>(shared.registered().addr);
	const memory source = anonymous(4096);
	const auto from = on.register_memory(source.registered());
	const memory m = anonymous(length);
	int status = 0;

	words[0] = one_user;
	const pid_t child = fork();
	if (child == 0) {
		ibv_mr *mr = ibv_reg_mr(on.pd(), m.registered().addr, length,
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (!mr || raw.arm(mr->handle, &words[0], mask))
			_exit(1);
		words[1] = mr->rkey;
		_exit(0);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(status == 0);
	CHECK(words[0] == (one_user | invalid));
	CHECK(happens([&] {
		loopback link(on);
		const auto answer = link.write(from.get(), source.registered(), m.registered().addr,
					       static_cast<uint32_t>(words[1]));
		return answer != IBV_WC_SUCCESS && link.refused(answer);
	}));
}

TEST_CASE("race: a user that got a reference of a valid registration is never refused", "[revoke]")
{
	const run_time time;
	uint64_t refused = 0;
	uint64_t went_on = 0;
	uint64_t rounds = 0;

	do {
		shared_by_users all;
		std::atomic<bool> ready = false;

		all.link.emplace(all.on);
		std::thread cutting([&] {
			while (!ready)
				;
			usleep(static_cast<useconds_t>(rounds % 8 * 300));
			all.cut();
			for (int i = 0; i < 20; i++)
				ibv_settle_mr_notify(all.mr.get());
		});
		ready = true;
		for (;;) {
			const bool valid = !(at(all.w).fetch_add(one_user) & invalid);
			if (valid) {
				refused += all.write_to_the_rest() != IBV_WC_SUCCESS;
				went_on += (all.w.value() & invalid) != 0;
			}
			at(all.w) -= one_user;
			if (!valid)
				break;
		}
		cutting.join();
		rounds++;
	} while (time.goes_on());
	INFO(rounds << " rounds, " << went_on << " writes while it became invalid");
	CHECK(refused == 0);
}
