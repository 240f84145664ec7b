// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The kernel's own work and waits: events, locks and exits of one process do not delay
 * registrations of another process, and each call ends.
 */
#include "catch.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>
#include <vector>

#include "device.h"
#include "fuse_file.h"
#include "raw_uverbs.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t invalid = IBV_MR_NOTIFY_INVALID;
constexpr uint64_t suspect = IBV_MR_NOTIFY_SUSPECT;

/* Small pages, each allocated separately. */
memory small_pages(std::size_t length)
{
	memory m = anonymous(length);

	/* EINVAL: the kernel has no huge pages. */
	REQUIRE((madvise(m.registered().addr, length, MADV_NOHUGEPAGE) == 0 || errno == EINVAL));
	return m;
}

memory zero_pages(std::size_t length)
{
	void *const p = mmap(nullptr, length, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	REQUIRE(p != MAP_FAILED);
	memory m({static_cast<std::byte *>(p), length});
	REQUIRE((madvise(p, length, MADV_NOHUGEPAGE) == 0 || errno == EINVAL));
	REQUIRE(madvise(p, length, MADV_POPULATE_READ) == 0);
	return m;
}

/* A thread causes harmless events in a range until this object is destroyed. */
class events {
public:
	explicit events(range where)
	    : thread_([this, where] {
		      while (!stop_) {
			      madvise(where.addr, where.length, MADV_FREE);
			      *where.addr = std::byte{1};
			      count_++;
		      }
	      })
	{
		while (count_ < 3)
			usleep(100);
	}
	~events()
	{
		stop_ = true;
		thread_.join();
	}

private:
	std::atomic<bool> stop_ = false;
	std::atomic<uint64_t> count_ = 0;
	std::thread thread_;
};

/*
 * A memfd whose writer holds the inode lock, because it writes from a page that only this process
 * can supply (userfaultfd).
 */
class kept_file {
public:
	kept_file() : file_(shared_file(page_size()))
	{
		uffd_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
		uffdio_api api{};
		api.api = UFFD_API;
		if (uffd_ < 0 || ioctl(uffd_, UFFDIO_API, &api))
			throw unsupported("no userfaultfd");
		void *hole = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (hole == MAP_FAILED)
			fail("mmap");
		hole_ = memory({static_cast<std::byte *>(hole), page_size()});
		uffdio_register reg{};
		reg.range = {reinterpret_cast<uintptr_t>(hole), page_size()};
		reg.mode = UFFDIO_REGISTER_MODE_MISSING;
		if (ioctl(uffd_, UFFDIO_REGISTER, &reg))
			fail("UFFDIO_REGISTER");
		writer_ = std::thread([this, hole] {
			[[maybe_unused]] const auto written =
				pwrite(file_.fd(), hole, page_size(), 0);
		});
		uffd_msg message{};
		if (read(uffd_, &message, sizeof(message)) != sizeof(message))
			fail("userfaultfd");
	}
	~kept_file()
	{
		let_go();
		close(uffd_);
	}

	void let_go()
	{
		if (!writer_.joinable())
			return;
		uffdio_zeropage page{};
		page.range = {reinterpret_cast<uintptr_t>(hole_.registered().addr), page_size()};
		ioctl(uffd_, UFFDIO_ZEROPAGE, &page);
		writer_.join();
	}

	range mapped() const { return file_.registered(); }

private:
	memory file_;
	memory hole_;
	int uffd_ = -1;
	std::thread writer_;
};

} // namespace

/*
 * If each event delayed the comparison, the worker would compare only after 20 ms without an event.
 */
TEST_CASE("dropped memory is unpinned while events continue")
{
	constexpr auto pause = 15ms; /* less than 20 ms of kernel time, with any tick rate */
	const device on;
	const std::size_t length = 64 * page_size();
	std::optional<bool> returned;

	/* Repeats the test if the machine itself caused a pause. */
	happens([&] {
		watched it(on, small_pages(length));
		const range r = it.m.registered();

		const auto begin = kernel_time();
		REQUIRE(madvise(r.addr + length / 2, length / 2, MADV_DONTNEED) == 0);
		for (auto last = begin; last - begin < time_limit / 10;) {
			REQUIRE(madvise(r.addr, page_size(), MADV_FREE) == 0);
			*r.addr = std::byte{1};
			const bool back = it.w.value() == invalid;
			const auto now = kernel_time();
			if (now - last > pause)
				return false;
			last = now;
			if (back) {
				returned = true;
				return true;
			}
			usleep(1000);
		}
		returned = false;
		return true;
	});
	SKIP_IF(!returned, "the machine pauses by itself");
	CHECK(*returned);
}

/*
 * Settling finds a change that precedes the call, while events continue in other parts of the
 * range.
 */
TEST_CASE("a change is found while events continue")
{
	const device on;
	const std::size_t length = 256 * page_size();

	for (int i = 0; i < 20; i++) {
		watched it(on, small_pages(length));
		const range r = it.m.registered();

		const events harmless({r.addr, page_size()});
		REQUIRE(madvise(r.end() - page_size(), page_size(), MADV_DONTNEED) == 0);
		REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
		CHECK(it.w.value() == invalid);
	}
}

TEST_CASE("two events make only their own pages suspect")
{
	const device on;
	const std::size_t length = 64 * page_size();
	watched it(on, small_pages(length));
	const range r = it.m.registered();

	/* Settling must compare all pages that may have changed, not only the first. */
	for (const std::size_t first : {0, 1, 31, 63})
		for (const std::size_t second : {0, 2, 32, 62}) {
			INFO(first << ", " << second);
			for (const std::size_t page : {first, second})
				REQUIRE(madvise(r.addr + page * page_size(), page_size(),
						MADV_FREE) == 0);
			CHECK((it.w.value() & ~suspect) == 0); /* unless the worker was faster */
			REQUIRE(ibv_settle_mr_notify(it.mr.get()) == 0);
			CHECK(it.w.value() == 0);
		}
}

TEST_CASE("settling gives up while a file is kept locked")
{
	kept_file file;
	const device on;
	const range r = file.mapped();
	watched it(on, r);

	REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
	CHECK(ibv_settle_mr_notify(it.mr.get()) == EAGAIN);
	CHECK(it.w.value() == suspect);
	file.let_go();
	CHECK(ibv_settle_mr_notify(it.mr.get()) == 0);
	CHECK(it.w.value() == 0);
}

/* EBUSY of ibv_forget_mr() would mean that the caller must not use the MR any more. */
TEST_CASE("an MR that is being settled can't be deregistered, and stays usable")
{
	kept_file file;
	const device on;
	const raw_uverbs raw(on.context());
	const range r = file.mapped();
	const int access = IBV_ACCESS_LOCAL_WRITE | GENERATE(0, int{IBV_ACCESS_CACHED});

	CAPTURE(access);
	int error = 0;
	/* If the other thread deregisters before the settling begins, try again. */
	REQUIRE(happens([&] {
		ibv_mr *const mr = ibv_reg_mr(on.pd(), r.addr, r.length, access);
		word w;

		REQUIRE(mr);
		const uint32_t handle = mr->handle;
		if (!(access & IBV_ACCESS_CACHED))
			REQUIRE(ibv_reg_mr_notify(mr, w.address()) == 0);
		REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
		std::atomic<bool> begun = false;
		std::thread settling([&] {
			begun = true;
			raw.settle(handle);
		});
		CHECK(happens([&] { return begun.load(); }));
		usleep(100000);
		error = ibv_forget_mr(mr);
		settling.join();
		if (error)
			CHECK(ibv_forget_mr(mr) == 0);
		return error != 0;
	}));
	CHECK(error == EAGAIN);
}

TEST_CASE("a thread that waits for another's settling can be killed")
{
	kept_file file;
	const device on;
	const range r = file.mapped();
	watched it(on, r);

	REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
	/* The first call returns after a second; a busy machine may be too slow. */
	const bool killed = happens([&] {
		std::atomic<bool> back = false;
		std::thread first([&] {
			ibv_settle_mr_notify(it.mr.get());
			back = true;
		});
		usleep(100000); /* the call waits for the file */
		const pid_t child = fork();
		if (child == 0) {
			ibv_settle_mr_notify(it.mr.get());
			_exit(0);
		}
		usleep(200000); /* the child waits for the call */
		kill(child, SIGKILL);
		CHECK(waitpid(child, nullptr, 0) == child);
		const bool in_time = !back;
		first.join();
		return in_time;
	});
	CHECK(killed);
}

/*
 * While a FUSE server does not answer a page fault, the fault holds mmap_lock. This process has
 * more workers than a workqueue runs at the same time, so its workers must not wait for mmap_lock.
 */
TEST_CASE("a process whose mmap_lock is kept does not keep others from being revoked", "[revoke]")
{
	constexpr std::size_t many = 600;
	const device on;
	const std::unique_ptr<fuse_file> fuse = fuse_file::mount();
	SKIP_IF(!fuse, "no FUSE");
	const memory file = shared_file(2 * page_size());
	const memory ready = shared_file(page_size());
	auto *const armed = reinterpret_cast<uint64_t *>(ready.registered().addr);

	*armed = 0;
	const pid_t child = fork();
	if (child == 0) {
		const device mine;
		const memory words = anonymous(many * sizeof(uint64_t));
		auto *const word_at = reinterpret_cast<uint64_t *>(words.registered().addr);
		std::fill_n(word_at, many, 0);
		for (std::size_t i = 0; i < many; i++) {
			ibv_mr *mr = ibv_reg_mr(mine.pd(), file.registered().addr, page_size(),
						IBV_ACCESS_LOCAL_WRITE);
			if (!mr || ibv_reg_mr_notify(mr, &word_at[i]))
				_exit(1);
		}
		fuse->fault([&] { *armed = 1; });
		_exit(0);
	}
	REQUIRE(child > 0);
	int status = 0;
	REQUIRE(happens([&] {
		return std::atomic_ref<uint64_t>(*armed).load() == 1 ||
		       waitpid(child, &status, WNOHANG) == child;
	}));
	REQUIRE(status == 0);
	REQUIRE(fuse->wait_for_fault());
	/* The event comes from another process, so it needs no mmap_lock of this process. */
	punch(file.fd(), {file.registered().addr, page_size()}, file.registered());
	usleep(500000); /* all workers of this process have started */

	memory m = anonymous(page_size());
	const auto mr = on.register_memory(m.registered());
	const std::size_t before = pinned_bytes();
	word w;
	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	unmap_all(m);
	CHECK(happens([&] { return pinned_bytes() == before - page_size(); }));

	fuse->answer();
	kill(child, SIGKILL);
	CHECK(waitpid(child, nullptr, 0) == child);
}

/*
 * The removal of a notifier waits for all invalidations in progress. A worker may start during this
 * wait. If it still compared a large range when the tracker is freed, KASAN would report this, or
 * the kernel would crash. The test counts the MRs that the worker found stale, some of them just
 * before the removal.
 */
TEST_CASE("a worker finds stale an MR that is being deregistered", "[two cpus]")
{
	constexpr int enough = 50;
	const memory zeros = zero_pages(std::size_t{256} << 20);
	const range wide = zeros.registered();
	*wide.addr = std::byte{1};
	const events long_ones(wide);
	const memory m = small_pages(std::size_t{2048} * page_size());
	const range r = m.registered();
	std::chrono::duration<double> worker = 20ms; /* until it finds the MR stale, roughly */
	int tries = 0;
	int met = 0;

	for (const run_time time(30s); met < enough && time.goes_on(met > 0);) {
		const device on; /* closing the last context ends the pause of the workers */
		word w;
		auto mr = on.register_memory(r);

		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		const auto first = std::chrono::steady_clock::now();
		/* All pages must be suspect, so that the worker compares the whole range. */
		for (std::size_t at = 0; at < r.length; at += r.length / 64)
			REQUIRE(madvise(r.addr + at, page_size(), MADV_FREE) == 0);
		REQUIRE(madvise(r.end() - page_size(), page_size(), MADV_DONTNEED) == 0);
		std::this_thread::sleep_until(first + worker * (0.95 + 0.01 * (tries++ % 10)));
		const bool unknown = w.value() == suspect;
		mr.reset();
		met += unknown && w.value() == invalid;
		worker *= unknown ? 1.05 : 0.95;
	}
	CHECK(met > 0);
}
