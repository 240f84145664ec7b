// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Memory runs out, or a copy from user space fails, at each point of arming, settling and
 * registering in turn. The calls may fail, but must not leave anything half done. Needs a kernel
 * with CONFIG_FAULT_INJECTION (tests/lab's "debug").
 */
#include "catch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "device.h"
#include "requirement.h"
#include "stress/faults.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;
using stress::at_each_place;
using stress::most_places;

namespace {

constexpr std::size_t length = 16 * 4096;
constexpr int track = 1 << 28;
/* A file whose pages come back only by a page fault, unlike shmem and hugetlb. */
class plain_file {
public:
	plain_file()
	{
		char name[] = "/tmp/ramfs-XXXXXX";
		if (!mkdtemp(name) || mount("none", name, "ramfs", 0, nullptr))
			throw unsupported("no ramfs");
		fd_ = open((std::string(name) + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC,
			   0600);
		umount2(name, MNT_DETACH);
		rmdir(name);
		if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(length)))
			fail("file on ramfs");
	}
	~plain_file() { close(fd_); }

	memory map() const
	{
		void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
		if (addr == MAP_FAILED)
			fail("mmap");
		memory m({static_cast<std::byte *>(addr), length});
		for (std::size_t at = 0; at < length; at += page_size())
			m.registered().addr[at] = std::byte{1};
		return m;
	}

private:
	int fd_ = -1;
};

const requirements needs({{"fault injection", "no fault injection in this kernel",
			   [] { return stress::faults().possible(); }}});

} // namespace

TEST_CASE("faults: arming fails and nothing has happened", "[fault injection]")
{
	const stress::faults faults;
	const device on;
	const int access = IBV_ACCESS_LOCAL_WRITE | GENERATE(0, track);
	constexpr uint64_t mine = 0x1234500;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		memory m = anonymous(length);
		memory words = anonymous(page_size());
		auto *at = reinterpret_cast<uint64_t *>(words.registered().addr);
		const auto mr = on.register_memory(m.registered(), access);
		const std::size_t before = pinned_bytes();

		*at = mine;
		int error = -1;
		const bool hit = faults.inject(n, [&] { error = ibv_reg_mr_notify(mr.get(), at); });
		INFO("place " << n << ", errno " << error);
		if (error) {
			failed++;
			CHECK(hit);
			CHECK((error == ENOMEM || error == EFAULT));
			CHECK(*at == mine);
			CHECK(pinned_bytes() == before);
			CHECK(ibv_settle_mr_notify(mr.get()) == EINVAL);
			REQUIRE(ibv_reg_mr_notify(mr.get(), at) == 0);
		}
		CHECK(*at == mine);
		const range r = m.registered();
		m.forget(r);
		REQUIRE(munmap(r.addr, r.length) == 0);
		CHECK(*at == (mine | IBV_MR_NOTIFY_INVALID));
		return hit;
	});
	WARN("arming, access " << access << ": " << places << " places, " << failed
			       << " that made it fail");
	CHECK(failed > 0);
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: a stale registration is never armed as a valid one", "[fault injection]")
{
	const stress::faults faults;
	const device on;

	at_each_place([&](unsigned int n) {
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		word w;
		int error = -1;

		REQUIRE(madvise(m.registered().addr, length, MADV_DONTNEED) == 0);
		const bool hit =
			faults.inject(n, [&] { error = ibv_reg_mr_notify(mr.get(), w.address()); });
		INFO("place " << n << ", errno " << error);
		CHECK(w.value() == (error ? 0 : IBV_MR_NOTIFY_INVALID));
		return hit;
	});
}

TEST_CASE("faults: settling fails and the word stays as it was, or right", "[fault injection]")
{
	const stress::faults faults;
	const device on;
	const bool dropped = GENERATE(false, true);
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		watched it(on, dropped ? anonymous(length) : shared_file(length));
		const uint64_t right = dropped ? IBV_MR_NOTIFY_INVALID : 0;
		int error = -1;

		REQUIRE(madvise(it.m.registered().addr, length, MADV_DONTNEED) == 0);
		const bool hit =
			faults.inject(n, [&] { error = ibv_settle_mr_notify(it.mr.get()); });
		const uint64_t value = it.w.value();
		INFO("place " << n << ", errno " << error);
		if (error) {
			failed++;
			CHECK((error == ENOMEM || error == EFAULT));
		} else {
			CHECK(value == right);
		}
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		CHECK(it.w.value() == right);
		return hit;
	});
	WARN("settling " << (dropped ? "what changed" : "what did not") << ": " << places
			 << " places, " << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: restoring fails and the MR stays suspended", "[fault injection]")
{
	const stress::faults faults;
	const device on;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		memory m = anonymous(length);
		const std::size_t before = pinned_bytes();
		const auto mr = on.register_memory(m.registered());
		word w;
		int error = -1;

		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00) == 0);
		write_system_file("/proc/sys/vm/drop_caches", "2");
		REQUIRE(w.value() == IBV_MR_NOTIFY_SUSPENDED);
		REQUIRE(wait_for_pinned(before + page_size()) == before + page_size());
		const bool hit = faults.inject(n, [&] { error = ibv_settle_mr_notify(mr.get()); });
		INFO("place " << n << ", errno " << error);
		if (error) {
			failed++;
			CHECK((error == ENOMEM || error == EFAULT));
			CHECK(w.value() == IBV_MR_NOTIFY_SUSPENDED);
			CHECK(pinned_bytes() == before + page_size());
			REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
		}
		CHECK(w.value() == 0);
		CHECK(pinned_bytes() == before + length + page_size());
		return hit;
	});
	WARN("restoring: " << places << " places, " << failed << " that made it fail");
	CHECK(failed > 0);
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: a page fault that fails for lack of memory leaves the range valid",
	  "[fault injection]")
{
	const stress::faults faults;
	const device on;
	const plain_file file;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		watched it(on, file.map(), 0);
		int error = -1;

		REQUIRE(madvise(it.m.registered().addr, length, MADV_DONTNEED) == 0);
		const bool hit =
			faults.inject(n, [&] { error = ibv_settle_mr_notify(it.mr.get()); });
		INFO("place " << n << ", errno " << error);
		CHECK((error == 0 || error == ENOMEM || error == EFAULT));
		failed += error != 0;
		CHECK((it.w.value() & IBV_MR_NOTIFY_INVALID) == 0);
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		CHECK(it.w.value() == 0);
		return hit;
	});
	WARN("settling a file: " << places << " places, " << failed << " that made it fail");
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: registering with tracking fails cleanly, or tracks", "[fault injection]")
{
	const stress::faults faults;
	const device on;
	unsigned int failed = 0;

	const unsigned int places = at_each_place([&](unsigned int n) {
		memory m = anonymous(length);
		const std::size_t before = pinned_bytes();
		ibv_mr *made = nullptr;
		word w;

		const bool hit = faults.inject(n, [&] {
			made = ibv_reg_mr(on.pd(), m.registered().addr, length,
					  IBV_ACCESS_LOCAL_WRITE | track);
		});
		const owned<ibv_mr> mr(made);
		INFO("place " << n);
		if (!mr) {
			failed++;
			CHECK(hit);
			CHECK(wait_for_pinned(before) == before);
			return hit;
		}
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		CHECK(w.value() == 0);
		const range r = m.registered();
		m.forget(r);
		REQUIRE(munmap(r.addr, r.length) == 0);
		CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
		return hit;
	});
	WARN("registering: " << places << " places, " << failed << " that made it fail");
	CHECK(failed > 0);
	CHECK(places < most_places - 1);
}

TEST_CASE("faults: everything fails now and then, while a thread unmaps", "[fault injection]")
{
	const stress::faults faults;
	const device on;
	const std::size_t before = pinned_bytes();
	uint64_t failed = 0;
	uint64_t late = 0;
	uint64_t strange = 0;

	for (int i = 0; i < 300; i++) {
		memory m = shared_file(length);
		const range r = m.registered();
		std::atomic<bool> gone = false;
		std::atomic<int> rounds = 0; /* as a clock, because a call may take any time */
		word w;
		owned<ibv_mr> mr;
		std::thread other([&] {
			while (rounds < i % 10 * 2)
				std::this_thread::yield();
			munmap(r.addr, r.length);
			gone = true;
		});
		faults.sometimes([&] {
			mr.reset(ibv_reg_mr(on.pd(), r.addr, length, i % 2 ? track : 0));
			for (int j = 0; mr && j < 20; j++, rounds++) {
				const int arming = ibv_reg_mr_notify(mr.get(), w.address());
				const bool over = gone;
				failed += arming != 0;
				strange += arming && arming != ENOMEM && arming != EFAULT;
				if (arming)
					continue;
				late += over && !w.value();
				ibv_settle_mr_notify(mr.get());
				while (ibv_unreg_mr_notify(mr.get()))
					failed++;
				*w.address() = 0;
			}
		});
		rounds = 20;
		other.join();
		m.forget(r);
	}
	WARN(failed << " calls failed");
	CHECK(failed > 0);
	CHECK(late == 0);
	CHECK(strange == 0);
	CHECK(wait_for_pinned(before) == before);
}
