// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The n-th allocation or copy fails, for each n, in calls that end or interrupt a notified MR:
 * suspending, the shrinker, disarming, changing rights, deregistering, closing, fork, and system
 * calls that change mapped memory. After each failure the contract holds. fault_test.cpp tests the
 * calls that arm, settle and restore.
 */
#include "catch.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "loopback.h"
#include "odp.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "stress/faults.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;
using stress::at_each_place;
using stress::most_places;

namespace {

constexpr std::size_t length = 16 * 4096;
constexpr uint64_t mask = 0xff00;
constexpr uint64_t in_use = 0x100;

bool is_shortage(int error)
{
	return error == ENOMEM || error == EFAULT;
}

void expect_notified(memory &m, word &w, uint64_t program_bits = 0)
{
	unmap_all(m);
	CHECK(w.value() == (program_bits | IBV_MR_NOTIFY_INVALID));
}

/* An MR that the kernel may suspend. */
struct suspendable {
	explicit suspendable(const device &on) : mr(on.register_memory(m.registered()))
	{
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), mask) == 0);
		pinned = pinned_bytes();
	}

	void suspend()
	{
		REQUIRE(ibv_suspend_mr_notify(mr.get()) == 0);
		REQUIRE(wait_for_pinned(pinned - length) == pinned - length);
	}

	bool is_valid() { return w.value() == 0 || w.value() == IBV_MR_NOTIFY_SUSPENDED; }

	/* After a failure a user takes the MR, and the kernel reports when its memory goes. */
	void expect_usable()
	{
		CHECK(is_valid());
		std::atomic_ref<uint64_t>(*w.address()).fetch_add(in_use);
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
		CHECK(w.value() == in_use);
		CHECK(pinned_bytes() == pinned);
		expect_notified(m, w, in_use);
	}

	memory m = anonymous(length);
	owned<ibv_mr> mr;
	word w;
	std::size_t pinned = 0;
};

/* How many MRs the kernel has. */
int registrations()
{
	FILE *const shown = popen("rdma resource show mr | wc -l", "r");
	int count = -1;

	REQUIRE(shown);
	REQUIRE(std::fscanf(shown, "%d", &count) == 1);
	REQUIRE(pclose(shown) == 0);
	return count;
}

} // namespace

TEST_CASE("faults: registering with a word fails cleanly, or arms", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;
	const int others = registrations();
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		memory m = anonymous(length);
		word w;
		word counter;
		ibv_mr_notify_attr attr{};
		owned<ibv_mr> mr;
		const std::size_t before = pinned_bytes();

		attr.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_CHANGES;
		attr.word = w.address();
		attr.in_use = mask;
		attr.changes = counter.address();
		const bool hit = faults.inject(n, [&] {
			errno = 0;
			mr.reset(ibv_reg_notified_mr(on.pd(), m.registered().addr, length, 0,
						     device::all_rights, &attr));
		});
		const int error = errno;
		INFO("place " << n << ", errno " << error);
		if (mr) {
			CHECK(w.value() == 0);
			expect_notified(m, w);
			CHECK(counter.value() == 1);
			return hit;
		}
		failed++;
		/* The MR was armed, and ended because the kernel could not return its keys. */
		const bool ended = error == EFAULT && w.value() == IBV_MR_NOTIFY_INVALID;
		CHECK((w.value() == 0 || ended));
		CHECK(is_shortage(error));
		CHECK(wait_for_pinned(before) == before);
		CHECK(registrations() == others);
		return hit;
	});
	WARN("registering with a word: " << places << " places, " << failed
					 << " that made it fail");
	CHECK(failed > 0);
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: suspending fails and the MR stays usable", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;

	const unsigned int places = at_each_place([&](unsigned int n) {
		suspendable it(on);
		int error = -1;

		const bool hit =
			faults.inject(n, [&] { error = ibv_suspend_mr_notify(it.mr.get()); });
		INFO("place " << n << ", errno " << error);
		CHECK((error == 0 || is_shortage(error)));
		CHECK(it.w.value() == (error ? 0 : IBV_MR_NOTIFY_SUSPENDED));
		it.expect_usable();
		return hit;
	});
	WARN("suspending: " << places << " places");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: the shrinker fails and the MR stays usable", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;

	const unsigned int places = at_each_place([&](unsigned int n) {
		/*
		 * Leaves only our shrinker with work. A failure in the guest's file system would
		 * break it.
		 */
		write_system_file("/proc/sys/vm/drop_caches", "2");
		suspendable it(on);

		const bool hit = faults.inject(n, [] {
			try {
				write_system_file("/proc/sys/vm/drop_caches", "2");
			} catch (const unsupported &) {
			}
		});
		INFO("place " << n);
		it.expect_usable();
		return hit;
	});
	WARN("the shrinker: " << places << " places");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: disarming fails and the MR stays armed", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;
	const bool suspended = GENERATE(false, true);
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		suspendable it(on);
		int error = -1;

		if (suspended)
			it.suspend();
		const bool hit =
			faults.inject(n, [&] { error = ibv_unreg_mr_notify(it.mr.get()); });
		INFO("place " << n << ", errno " << error);
		if (error) {
			failed++;
			CHECK(is_shortage(error));
			it.expect_usable();
			return hit;
		}
		unmap_all(it.m);
		CHECK(it.w.value() == 0);
		return hit;
	});
	WARN("disarming " << (suspended ? "a suspended MR: " : "an MR: ") << places << " places, "
			  << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: changing the rights fails and the MR stays armed", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;
	const raw_uverbs raw(on.context());
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		suspendable it(on);
		int error = -1;

		const bool hit = faults.inject(n, [&] {
			error = raw.change_access(it.mr->handle, IBV_ACCESS_LOCAL_WRITE);
		});
		INFO("place " << n << ", errno " << error);
		failed += error != 0;
		CHECK((error == 0 || is_shortage(error)));
		it.expect_usable();
		return hit;
	});
	WARN("changing rights: " << places << " places, " << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: deregistering fails and the MR stays armed", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;
	const int others = registrations();
	const bool suspended = GENERATE(false, true);
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		suspendable it(on);
		const std::size_t rest = it.pinned - length - page_size();
		int error = -1;

		if (suspended)
			it.suspend();
		REQUIRE(registrations() == others + 1);
		ibv_mr *const mr = it.mr.release();
		const bool hit = faults.inject(n, [&] { error = ibv_dereg_mr(mr); });
		INFO("place " << n << ", errno " << error);
		if (error) {
			failed++;
			CHECK(is_shortage(error));
			it.mr.reset(mr);
			it.expect_usable();
			return hit;
		}
		CHECK(wait_for_pinned(rest) == rest);
		CHECK(registrations() == others);
		unmap_all(it.m);
		CHECK(it.is_valid());
		return hit;
	});
	WARN("deregistering " << (suspended ? "a suspended MR: " : "an MR: ") << places
			      << " places, " << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: closing a device ends its MRs whatever fails", "[fault injection][suspend]")
{
	const stress::faults faults;

	const unsigned int places = at_each_place([&](unsigned int n) {
		const int others = registrations();
		const std::size_t before = pinned_bytes();
		word words[3];
		memory m = anonymous(length);
		bool hit = false;
		{
			auto on = std::make_unique<device>();
			for (word &w : words) {
				ibv_mr *const mr =
					ibv_reg_mr(on->pd(), m.registered().addr, length, 0);
				REQUIRE(mr);
				REQUIRE(ibv_reg_mr_notify_reclaim(mr, w.address(), mask) == 0);
				if (&w == &words[1])
					REQUIRE(ibv_suspend_mr_notify(mr) == 0);
			}
			hit = faults.inject(n, [&] { on.reset(); });
		}
		INFO("place " << n);
		for (word &w : words)
			CHECK(w.invalid());
		CHECK(wait_for_pinned(before) == before);
		CHECK(registrations() == others);
		return hit;
	});
	WARN("closing: " << places << " places");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: fork fails and the MR stays usable", "[fault injection][suspend]")
{
	const stress::faults faults;
	const device on;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		suspendable it(on);
		pid_t child = 0;
		int status = 0;

		const bool hit = faults.inject(n, [&] {
			child = fork();
			if (!child)
				_exit(0);
		});
		INFO("place " << n << ", child " << child);
		if (child > 0)
			REQUIRE(waitpid(child, &status, 0) == child);
		failed += child < 0;
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		it.expect_usable();
		return hit;
	});
	WARN("fork: " << places << " places, " << failed << " that made it fail");
	CHECK(failed > 0);
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: a change of memory fails and the word is right", "[fault injection]")
{
	struct change {
		const char *name;
		std::function<int(const mr_notify::range &)> apply;
		bool invalidates;
	};
	const auto as = GENERATE(
		change{"munmap of a part",
		       [](const mr_notify::range &r) {
			       return munmap(r.addr + page_size(), page_size());
		       },
		       true},
		change{"MADV_DONTNEED",
		       [](const mr_notify::range &r) {
			       return madvise(r.addr, r.length, MADV_DONTNEED);
		       },
		       true},
		change{"mremap",
		       [](const mr_notify::range &r) {
			       void *const to = mmap(nullptr, r.length, PROT_NONE,
						     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			       if (to == MAP_FAILED)
				       return -1;
			       const bool moved =
				       mremap(r.addr, r.length, r.length,
					      MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
			       munmap(to, r.length);
			       return moved ? 0 : -1;
		       },
		       true},
		change{"mprotect",
		       [](const mr_notify::range &r) {
			       return mprotect(r.addr + page_size(), page_size(), PROT_READ) ||
				      mprotect(r.addr + page_size(), page_size(),
					       PROT_READ | PROT_WRITE);
		       },
		       false});
	const stress::faults faults;
	const device on;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		watched it(on, anonymous(length));
		int error = -1;

		const bool hit = faults.inject(n, [&] { error = as.apply(it.m.registered()); });
		INFO(as.name << ", place " << n << ", result " << error);
		failed += error != 0;
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		if (!error && as.invalidates)
			CHECK(it.w.value() == IBV_MR_NOTIFY_INVALID);
		CHECK((it.w.value() & ~IBV_MR_NOTIFY_INVALID) == 0);
		CHECK((as.invalidates || it.w.value() == 0));
		return hit;
	});
	WARN(as.name << ": " << places << " places, " << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

/*
 * The process's threads with the name rxe_odp fault pages in. If a fault fails once, the device
 * tries again.
 */
TEST_CASE("faults: a page fault of the device fails and the transfer goes on",
	  "[fault injection][odp]")
{
	const stress::faults faults;
	const run_time time;
	const device on;
	const auto all = odp::register_all(on, odp::all_rights);
	loopback link(on);
	unsigned int failed = 0;
	unsigned int rounds = 0;

	for (; time.goes_on(rounds > 100 && failed > 10); rounds++) {
		memory from = anonymous(length);
		memory to = anonymous(length);
		const mr_notify::range source = from.registered();
		const mr_notify::range target = to.registered();
		ibv_wc_status status = IBV_WC_GENERAL_ERR;

		std::memset(source.addr, static_cast<int>(rounds), length);
		REQUIRE(madvise(target.addr, length, MADV_DONTNEED) == 0);
		failed += faults.in_threads("rxe_odp", rounds % 64, [&] {
			status = link.write(all.get(), source, target.addr, all->rkey);
		});
		INFO("round " << rounds);
		REQUIRE(status == IBV_WC_SUCCESS);
		CHECK(std::memcmp(source.addr, target.addr, length) == 0);
	}
	WARN("page faults: " << rounds << " transfers, " << failed << " with a failure");
}
