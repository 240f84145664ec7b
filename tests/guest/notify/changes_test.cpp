// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * struct ibv_mr_notify_attr: registering and arming in one call, the counter and the eventfd that
 * report INVALID words, the idle time, suspension by a call, and the words that the library hands
 * out.
 */
#include "catch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "capability.h"
#include "device.h"
#include "loopback.h"
#include "rows.h"
#include "run_time.h"
#include "skip.h"
#include "sleeps.h"
#include "system.h"
#include "trial.h"
#include "watched.h"

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t length = 16 * 4096;
constexpr uint64_t users = 0xffff00;
constexpr uint64_t one_user = 0x100;
constexpr uint64_t invalid = IBV_MR_NOTIFY_INVALID;
constexpr uint64_t suspended = IBV_MR_NOTIFY_SUSPENDED;

uint64_t load(uint64_t *word)
{
	return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire);
}

/* A file descriptor of eventfd(2). */
class event {
public:
	explicit event(unsigned int start = 0) : fd_(eventfd(start, EFD_NONBLOCK | EFD_CLOEXEC))
	{
		REQUIRE(fd_ >= 0);
	}
	event(const event &) = delete;
	event &operator=(const event &) = delete;
	~event() { close(fd_); }

	int fd() const { return fd_; }
	/* Waits until the counter has increased by this number since the last read. */
	uint64_t counted(uint64_t wanted) const
	{
		eventfd_t sum = 0;

		happens([&] {
			eventfd_t more = 0;
			if (eventfd_read(fd_, &more) == 0)
				sum += more;
			return sum >= wanted;
		});
		return sum;
	}

private:
	int fd_;
};

struct free_word {
	void operator()(uint64_t *word) const { ibv_free_notify_word(word); }
};
using library_word = std::unique_ptr<uint64_t, free_word>;

library_word alloc_word(const device &on)
{
	library_word word(ibv_alloc_notify_word(on.context()));

	REQUIRE(word);
	return word;
}

/* Uses ibv_reg_mr_ex(), which calls ibv_reg_notified_mr(), if rdma-core has it. */
owned<ibv_mr> reg(const device &on, range r, const ibv_mr_notify_attr &attr,
		  int access = device::all_rights)
{
#ifdef IBV_REG_MR_MASK_NOTIFY
	ibv_mr_init_attr init{};

	init.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_NOTIFY;
	init.addr = r.addr;
	init.length = r.length;
	init.access = access;
	init.notify = &attr;
	return owned<ibv_mr>(ibv_reg_mr_ex(on.pd(), &init));
#else
	return owned<ibv_mr>(ibv_reg_notified_mr(
		on.pd(), r.addr, r.length, reinterpret_cast<uintptr_t>(r.addr), access, &attr));
#endif
}

/* Counters that processes share; all are 0 at first. */
struct shared_counters {
	shared_counters() { std::memset(m.registered().addr, 0, page_size()); }
	uint64_t *at(std::size_t i) const
	{
		return reinterpret_cast<uint64_t *>(m.registered().addr) + i;
	}

	memory m = shared_file(page_size());
};

/* A registration with a counter, made by ibv_reg_notified_mr(). */
struct counted_mr {
	counted_mr(const device &on, uint64_t *changes, uint64_t start = 0) : word(alloc_word(on))
	{
		ibv_mr_notify_attr attr{};

		*word = start;
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
		attr.word = word.get();
		attr.changes = changes;
		mr = reg(on, m.registered(), attr);
		REQUIRE(mr);
	}

	memory m = anonymous(length);
	library_word word;
	owned<ibv_mr> mr;
};

/* A registration with a counter, for a child that ends by _exit(). */
struct child_mr {
	explicit child_mr(uint64_t *changes)
	{
		ibv_mr_notify_attr attr{};

		attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
		attr.word = ibv_alloc_notify_word(on.context());
		attr.changes = changes;
		child_check(ibv_reg_notified_mr(on.pd(), m.registered().addr, length, 0, 0, &attr));
	}

	device on;
	memory m = anonymous(length);
};

/* A registration without users. The kernel may suspend it. */
struct idle_mr {
	explicit idle_mr(const device &on, uint32_t idle_ms = 0, uint64_t *changes = nullptr)
	    : word(alloc_word(on))
	{
		ibv_mr_notify_attr attr{};

		attr.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_IDLE_MS;
		attr.word = word.get();
		attr.in_use = users;
		attr.idle_ms = idle_ms;
		if (changes) {
			attr.comp_mask |= IBV_MR_NOTIFY_ATTR_CHANGES;
			attr.changes = changes;
		}
		mr = reg(on, m.registered(), attr);
		REQUIRE(mr);
	}

	memory m = anonymous(length);
	library_word word;
	owned<ibv_mr> mr;
};

} // namespace

TEST_CASE("one call registers and arms")
{
	const device on;
	const std::size_t before = pinned_bytes();
	memory m = anonymous(length);
	const auto word = alloc_word(on);
	ibv_mr_notify_attr attr{};

	*word = 0x500;
	attr.word = word.get();
	auto mr = reg(on, m.registered(), attr);
	REQUIRE(mr);
	CHECK(mr->addr == m.registered().addr);
	CHECK(mr->length == length);
	CHECK(pinned_bytes() == before + length + page_size());
	CHECK(ibv_reg_mr_notify(mr.get(), word.get()) == EBUSY);
	CHECK(ibv_settle_mr_notify(mr.get()) == 0);
	CHECK(load(word.get()) == 0x500);
	unmap_all(m);
	CHECK(load(word.get()) == (0x500 | invalid));
	mr.reset();
	CHECK(pinned_bytes() == before);
}

TEST_CASE("a registration by one call has the address and rights that were asked for")
{
	const device on;
	const memory m = anonymous(length);
	const memory source = anonymous(page_size());
	const auto from = on.register_memory(source.registered());
	const auto word = alloc_word(on);
	constexpr uint64_t iova = 0x40000000;
	ibv_mr_notify_attr attr{};
	loopback link(on);

	std::memset(source.registered().addr, 0x77, page_size());
	attr.word = word.get();
	const owned<ibv_mr> mr(ibv_reg_notified_mr(on.pd(), m.registered().addr, length, iova,
						   device::all_rights, &attr));
	REQUIRE(mr);
	CHECK(link.write(from.get(), source.registered(),
			 reinterpret_cast<std::byte *>(iova + page_size()),
			 mr->rkey) == IBV_WC_SUCCESS);
	CHECK(m.registered().addr[page_size()] == std::byte{0x77});
	CHECK(m.registered().addr[0] != std::byte{0x77});

	const auto other = alloc_word(on);
	attr.word = other.get();
	const auto local = reg(on, m.registered(), attr, IBV_ACCESS_LOCAL_WRITE);
	REQUIRE(local);
	CHECK(link.write(from.get(), source.registered(), m.registered().addr, local->rkey) !=
	      IBV_WC_SUCCESS);
}

TEST_CASE("a registration by one call is not a cached one")
{
	const device on;
	memory m = anonymous(length);
	const auto word = alloc_word(on);
	ibv_mr_notify_attr attr{};

	attr.word = word.get();
	const owned<ibv_mr> cached(ibv_reg_mr(on.pd(), m.registered().addr, length,
					      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_CACHED));
	REQUIRE(cached);
	auto mr = reg(on, m.registered(), attr, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_CACHED);
	REQUIRE(mr);
	CHECK(mr->lkey != cached->lkey);
	CHECK(ibv_settle_mr_notify(mr.get()) == 0); /* EINVAL for a cached registration */
}

#ifdef IBV_REG_MR_MASK_NOTIFY
TEST_CASE("ibv_reg_mr_ex takes a word with memory, an iova and a buffer")
{
	const device on;
	const auto word = alloc_word(on);
	const std::size_t before = pinned_bytes();
	ibv_mr_notify_attr notify{};
	ibv_mr_init_attr attr{};
	const auto fails = [&](uint64_t mask, int error) {
		attr.comp_mask = mask | IBV_REG_MR_MASK_NOTIFY;
		errno = 0;
		CHECK(!ibv_reg_mr_ex(on.pd(), &attr));
		CHECK(errno == error);
		CHECK(pinned_bytes() == before);
		CHECK(load(word.get()) == 0);
	};

	notify.word = word.get();
	void *const at = ibv_alloc_buf(on.pd(), length, &attr.buf);
	REQUIRE(at);
	attr.addr = at;
	attr.length = length;
	attr.access = device::all_rights;
	attr.iova = 0x40000000;
	fails(IBV_REG_MR_MASK_ADDR, EINVAL); /* no attributes */
	attr.notify = &notify;
	fails(0, EINVAL);
	fails(IBV_REG_MR_MASK_IOVA, EINVAL);
	fails(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA, EOPNOTSUPP);
	fails(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH, EOPNOTSUPP);
	attr.length++;
	fails(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF, EINVAL);
	attr.length--;
	{
		const memory source = anonymous(page_size());
		const auto from = on.register_memory(source.registered());
		loopback link(on);

		std::memset(source.registered().addr, 0x77, page_size());
		attr.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_BUF |
				 IBV_REG_MR_MASK_NOTIFY;
		const owned<ibv_mr> mr(ibv_reg_mr_ex(on.pd(), &attr));
		REQUIRE(mr);
		CHECK(mr->addr == at);
		CHECK(mr->length == length);
		CHECK(link.write(from.get(), source.registered(),
				 reinterpret_cast<std::byte *>(attr.iova),
				 mr->rkey) == IBV_WC_SUCCESS);
		CHECK(std::memcmp(at, source.registered().addr, page_size()) == 0);
		CHECK(load(word.get()) == 0);
		REQUIRE(mmap(at, page_size(), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
		CHECK(load(word.get()) == IBV_MR_NOTIFY_INVALID);
	}
	ibv_free_buf(attr.buf);
}
#endif

TEST_CASE("attributes that are refused change nothing")
{
	const device on;
	const memory m = anonymous(length);
	const memory readonly = anonymous(page_size());
	const auto plain = on.register_memory(m.registered());
	const auto word = alloc_word(on);
	const auto other = alloc_word(on);
	const event waited;
	const std::unique_ptr<std::FILE, int (*)(std::FILE *)> file(std::fopen("/dev/null", "re"),
								    std::fclose);
	const std::size_t before = pinned_bytes();
	ibv_mr_notify_attr attr{};
	const auto fails = [&](int error) {
		CHECK(ibv_reg_mr_notify_ex(plain.get(), &attr) == error);
		errno = 0;
		CHECK(!reg(on, m.registered(), attr));
		CHECK(errno == error);
		CHECK(pinned_bytes() == before);
		CHECK(load(word.get()) == 0);
	};

	REQUIRE(mprotect(readonly.registered().addr, page_size(), PROT_READ) == 0);
	attr.word = word.get();
	SECTION("no attributes")
	{
		CHECK(ibv_reg_mr_notify_ex(plain.get(), nullptr) == EINVAL);
		errno = 0;
		CHECK(!ibv_reg_notified_mr(on.pd(), m.registered().addr, length, 0, 0, nullptr));
		CHECK(errno == EINVAL);
	}
	SECTION("an unknown bit")
	{
		attr.comp_mask = 1 << 4;
		fails(EINVAL);
		attr.comp_mask = uint64_t{1} << 63;
		fails(EINVAL);
	}
	SECTION("the word")
	{
		attr.word = nullptr;
		fails(EINVAL);
		attr.word =
			reinterpret_cast<uint64_t *>(reinterpret_cast<std::byte *>(word.get()) + 4);
		fails(EINVAL);
		attr.word = reinterpret_cast<uint64_t *>(readonly.registered().addr);
		fails(EFAULT);
	}
	SECTION("the bits of users")
	{
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE;
		fails(EINVAL);
		attr.in_use = 0x101;
		fails(EINVAL);
	}
	SECTION("the counter")
	{
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
		fails(EINVAL);
		attr.changes = word.get();
		fails(EINVAL);
		attr.changes = reinterpret_cast<uint64_t *>(
			reinterpret_cast<std::byte *>(other.get()) + 4);
		fails(EINVAL);
		attr.changes = reinterpret_cast<uint64_t *>(readonly.registered().addr);
		fails(EFAULT);
	}
	SECTION("an idle time without users")
	{
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_IDLE_MS;
		attr.idle_ms = 100;
		fails(EINVAL);
	}
	SECTION("the eventfd")
	{
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD;
		attr.event_fd = -1;
		fails(EBADF);
		attr.event_fd = 1000;
		fails(EBADF);
		attr.event_fd = fileno(file.get());
		fails(EINVAL);
	}
	SECTION("fields that are not valid are not looked at")
	{
		attr.in_use = 1;
		attr.changes = word.get();
		attr.event_fd = -1;
		attr.idle_ms = 1;
	}
	attr = {};
	attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES | IBV_MR_NOTIFY_ATTR_EVENT_FD;
	attr.word = word.get();
	attr.changes = other.get();
	attr.event_fd = waited.fd();
	CHECK(ibv_reg_mr_notify_ex(plain.get(), &attr) == 0);
	CHECK(load(other.get()) == 0);
}

TEST_CASE("memory that can't be registered or notified")
{
	const device on;
	const auto word = alloc_word(on);
	ibv_mr_notify_attr attr{};
	memory gone = anonymous(length);
	const range where = gone.registered();

	attr.word = word.get();
	unmap_all(gone);
	errno = 0;
	CHECK(!reg(on, where, attr));
	CHECK(errno == EFAULT);

	const memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	errno = 0;
	CHECK(!reg(on, m.registered(), attr, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE));
	CHECK(errno == EOPNOTSUPP);
	CHECK(pinned_bytes() == before);
	CHECK(load(word.get()) == 0);
}

TEST_CASE("a counter counts each INVALID word once, before the call that took the memory returns")
{
	const device on;
	const auto changes = alloc_word(on);
	counted_mr first(on, changes.get());
	counted_mr second(on, changes.get(), 0x100);

	CHECK(load(changes.get()) == 0);
	unmap_all(first.m);
	CHECK(load(first.word.get()) == invalid);
	CHECK(load(changes.get()) == 1);
	CHECK(ibv_settle_mr_notify(first.mr.get()) == 0);
	unmap_all(second.m);
	CHECK(load(second.word.get()) == (0x100 | invalid));
	CHECK(load(changes.get()) == 2);
	first.mr.reset();
	second.mr.reset();
	CHECK(load(changes.get()) == 2);
}

TEST_CASE("only changes that make a word INVALID are counted")
{
	const device on;
	const auto changes = alloc_word(on);

	SECTION("SUSPECT that is settled")
	{
		memory m = shared_file(length);
		const auto mr = on.register_memory(m.registered());
		const auto word = alloc_word(on);
		ibv_mr_notify_attr attr{};

		attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
		attr.word = word.get();
		attr.changes = changes.get();
		REQUIRE(ibv_reg_mr_notify_ex(mr.get(), &attr) == 0);
		drop_all(m); /* shared memory keeps its pages */
		REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
		CHECK(load(word.get()) == 0);
		CHECK(load(changes.get()) == 0);
	}
	SECTION("SUSPECT that settles to INVALID")
	{
		counted_mr one(on, changes.get());

		drop_all(one.m);
		REQUIRE(ibv_settle_mr_notify(one.mr.get()) == 0);
		CHECK(load(one.word.get()) == invalid);
		CHECK(load(changes.get()) == 1);
	}
	SECTION("an MR that is deregistered")
	{
		counted_mr one(on, changes.get());

		one.mr.reset();
		unmap_all(one.m);
		CHECK(load(changes.get()) == 0);
	}
	SECTION("an MR that is disarmed")
	{
		counted_mr one(on, changes.get());

		REQUIRE(ibv_unreg_mr_notify(one.mr.get()) == 0);
		unmap_all(one.m);
		CHECK(load(changes.get()) == 0);
	}
	SECTION("a suspension")
	{
		SKIP_IF(!can_reclaim(on), "the device can't restore");
		idle_mr one(on, 0, changes.get());

		REQUIRE(ibv_suspend_mr_notify(one.mr.get()) == 0);
		CHECK(load(changes.get()) == 0);
		unmap_all(one.m);
		CHECK(load(one.word.get()) == invalid);
		CHECK(load(changes.get()) == 1);
	}
}

TEST_CASE("an MR that is stale when it is armed is counted")
{
	const device on;
	const auto changes = alloc_word(on);
	const auto word = alloc_word(on);
	const event told;
	memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	ibv_mr_notify_attr attr{};

	unmap_all(m);
	attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES | IBV_MR_NOTIFY_ATTR_EVENT_FD;
	attr.word = word.get();
	attr.changes = changes.get();
	attr.event_fd = told.fd();
	REQUIRE(ibv_reg_mr_notify_ex(mr.get(), &attr) == 0);
	CHECK(load(word.get()) == invalid);
	CHECK(load(changes.get()) == 1);
	CHECK(told.counted(1) == 1);
}

TEST_CASE("a counter's page can't hold words, and a word can't be a counter")
{
	const device on;
	const auto changes = alloc_word(on);
	const auto word = alloc_word(on);
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	ibv_mr_notify_attr attr{};

	{
		const counted_mr first(on, changes.get());
		counted_mr second(on, changes.get());

		CHECK(ibv_reg_mr_notify(mr.get(), changes.get()) == EBUSY);
		attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
		attr.word = word.get();
		attr.changes = first.word.get();
		CHECK(ibv_reg_mr_notify_ex(mr.get(), &attr) == EBUSY);
		second.mr.reset();
		CHECK(ibv_reg_mr_notify(mr.get(), changes.get()) == EBUSY);
	}
	CHECK(ibv_reg_mr_notify(mr.get(), changes.get()) == 0);
	REQUIRE(ibv_unreg_mr_notify(mr.get()) == 0);
	attr.changes = changes.get();
	CHECK(ibv_reg_mr_notify_ex(mr.get(), &attr) == 0);
}

TEST_CASE("a counter in memory that changes")
{
	const device on;
	const memory counters = anonymous(page_size());
	auto *const changes = reinterpret_cast<uint64_t *>(counters.registered().addr);
	const std::size_t before = pinned_bytes();

	SECTION("unmapped, and another page there")
	{
		counted_mr first(on, changes);

		REQUIRE(mmap(changes, page_size(), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == changes);
		unmap_all(first.m);
		CHECK(load(first.word.get()) == invalid);
		CHECK(load(changes) == 0);
		counted_mr second(on, changes);
		unmap_all(second.m);
		CHECK(load(changes) == 1);
	}
	SECTION("with a memory error")
	{
		counted_mr first(on, changes);

		/* the child ends by a SIGBUS */
		const auto before_it = std::signal(SIGBUS, [](int) {});
		const bool poisoned =
			madvise(changes, page_size(), MADV_HWPOISON) == 0 || errno == EBUSY;
		std::signal(SIGBUS, before_it);
		SKIP_IF(!poisoned, "no memory errors");
		unmap_all(first.m);
		CHECK(load(first.word.get()) == invalid);
		/* the destructor of @counters unmaps the page, so no thread may use it any more */
	}
	CHECK(pinned_bytes() <= before + page_size());
}

TEST_CASE("a counter that a child shares counts what happens in both processes")
{
	const device on;
	const shared_counters counters;
	uint64_t *const changes = counters.at(0);
	counted_mr ours(on, changes);

	in_child([&] {
		const child_mr theirs(changes);

		child_check(munmap(theirs.m.registered().addr, length) == 0);
		child_check(load(changes) == 1);
		_exit(0);
	});
	CHECK(load(changes) == 1);
	unmap_all(ours.m);
	CHECK(load(changes) == 2);
}

TEST_CASE("a process that ends is counted where its counter is shared")
{
	const shared_counters counters;
	uint64_t *const changes = counters.at(0);

	in_child([&] {
		const child_mr theirs(changes);

		_exit(0);
	});
	CHECK(load(changes) == 1);
}

/*
 * When a system call makes a word INVALID, the kernel increments the counter before the call
 * returns. So a thread never reads a count below the number of words that it has made INVALID.
 */
TEST_CASE("race: a counter is exact for threads and processes that unmap at the same time")
{
	constexpr int threads = 4;
	const shared_counters counters;
	uint64_t *const changes = counters.at(0);
	uint64_t *const done = counters.at(1);
	const run_limit limit = run_limit::environment();
	const auto work = [&](bool (*check)(bool)) {
		const device on;
		uint64_t made = 0;

		while (limit.goes_on(load(done))) {
			uint64_t *const word = ibv_alloc_notify_word(on.context());
			void *const at = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			ibv_mr_notify_attr attr{};

			attr.comp_mask = IBV_MR_NOTIFY_ATTR_CHANGES;
			attr.word = word;
			attr.changes = changes;
			ibv_mr *const mr =
				ibv_reg_notified_mr(on.pd(), at, page_size(), 0, 0, &attr);
			if (!check(word && at != MAP_FAILED && mr) ||
			    !check(munmap(at, page_size()) == 0))
				return;
			made++;
			const uint64_t seen = load(changes);
			std::atomic_ref<uint64_t>(*done).fetch_add(1);
			check(load(word) == invalid && seen >= made);
			check(ibv_dereg_mr(mr) == 0);
			ibv_free_notify_word(word);
		}
	};
	const auto in_threads = [&](bool (*check)(bool)) {
		std::vector<std::thread> all;

		for (int i = 0; i < threads; i++)
			all.emplace_back(work, check);
		for (auto &one : all)
			one.join();
	};
	static std::atomic<int> wrong;
	const auto count = [](bool right) {
		wrong += !right;
		return right;
	};

	wrong = 0;
	const pid_t child = fork();
	if (child == 0) {
		in_threads(count);
		_exit(wrong ? 1 : 0);
	}
	REQUIRE(child > 0);
	in_threads(count);
	int status = 1;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(wrong == 0);
	CHECK(load(done) > 0);
	CHECK(load(changes) == load(done));
}

/*
 * Only one word is INVALID at a time, and only while the thread sleeps, so each wake-up is for that
 * word.
 */
TEST_CASE("a thread that sleeps in poll() is woken for each INVALID word")
{
	const device on;
	const event told;
	const auto word = alloc_word(on);
	const run_limit limit = run_limit::environment();
	constexpr int ended = -1;
	std::atomic<pid_t> thread = 0;
	std::atomic<int> woken = 0;
	int rounds = 0;
	ibv_mr_notify_attr attr{};
	std::thread sleeper([&] {
		pollfd wanted{told.fd(), POLLIN, 0};
		eventfd_t value = 0;

		thread = gettid();
		while (poll(&wanted, 1, std::chrono::milliseconds(time_limit).count()) == 1 &&
		       eventfd_read(told.fd(), &value) == 0 && value == 1 &&
		       load(word.get()) == invalid) {
			woken++;
			woken.notify_one();
		}
		woken = ended;
		woken.notify_one();
	});

	attr.comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD;
	attr.word = word.get();
	attr.event_fd = told.fd();
	for (; limit.goes_on(rounds) && woken == rounds; rounds++) {
		memory m = anonymous(page_size());

		std::atomic_ref<uint64_t>(*word).store(0);
		const auto mr = reg(on, m.registered(), attr);
		if (!mr) {
			FAIL_CHECK("not registered");
			break;
		}
		while (woken == rounds && !sleeps(thread))
			std::this_thread::yield();
		unmap_all(m);
		woken.wait(rounds);
	}
	CHECK(woken == rounds);
	std::atomic_ref<uint64_t>(*word).store(0);
	eventfd_write(told.fd(), 1); /* wakes the thread, which ends because the word is 0 */
	sleeper.join();
}

TEST_CASE("an eventfd counts many at a time, and loses none")
{
	const device on;
	const event told;
	constexpr int many = 256;
	const memory m = anonymous(many * page_size());
	const auto changes = alloc_word(on);
	std::vector<library_word> words;
	std::vector<owned<ibv_mr>> mrs;
	ibv_mr_notify_attr attr{};

	attr.comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD | IBV_MR_NOTIFY_ATTR_CHANGES;
	attr.event_fd = told.fd();
	attr.changes = changes.get();
	for (int i = 0; i < many; i++) {
		words.push_back(alloc_word(on));
		attr.word = words.back().get();
		mrs.push_back(reg(on, {m.registered().addr + i * page_size(), page_size()}, attr));
		REQUIRE(mrs.back());
	}
	REQUIRE(mmap(m.registered().addr, many * page_size(), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	CHECK(load(changes.get()) == many);
	mrs.clear(); /* may deregister an MR before the worker signals the eventfd */
	CHECK(told.counted(many) == many);
}

TEST_CASE("an eventfd that is full, closed, or another process's")
{
	const device on;
	memory m = anonymous(length);
	const auto word = alloc_word(on);
	ibv_mr_notify_attr attr{};

	attr.comp_mask = IBV_MR_NOTIFY_ATTR_EVENT_FD;
	attr.word = word.get();
	SECTION("full")
	{
		const event told;
		attr.event_fd = told.fd();
		const auto mr = reg(on, m.registered(), attr);
		REQUIRE(mr);
		REQUIRE(eventfd_write(told.fd(), UINT64_MAX - 1) == 0);
		unmap_all(m);
		CHECK(happens([&] {
			pollfd state{told.fd(), POLLIN, 0};
			return poll(&state, 1, 0) == 1 && state.revents & POLLERR;
		}));
	}
	SECTION("closed before")
	{
		owned<ibv_mr> mr;
		{
			const event told;
			attr.event_fd = told.fd();
			mr = reg(on, m.registered(), attr);
			REQUIRE(mr);
		}
		unmap_all(m);
		CHECK(load(word.get()) == invalid);
	}
	SECTION("a child's as well")
	{
		const event told;
		attr.event_fd = told.fd();
		const auto mr = reg(on, m.registered(), attr);
		REQUIRE(mr);
		const pid_t child = fork();
		if (child == 0)
			_exit(told.counted(1) == 1 ? 0 : 1);
		REQUIRE(child > 0);
		unmap_all(m);
		int status = 1;
		REQUIRE(waitpid(child, &status, 0) == child);
		CHECK(status == 0);
	}
}

TEST_CASE("words share pages, are 0 in a child, and are used again")
{
	const device on;
	constexpr int many = 3000;
	std::vector<library_word> words;
	const memory m = anonymous(page_size());
	std::vector<owned<ibv_mr>> mrs;

	for (int i = 0; i < many; i++) {
		words.push_back(alloc_word(on));
		REQUIRE(*words.back() == 0);
		*words.back() = static_cast<uint64_t>(i) << 8;
	}
	std::vector<uintptr_t> pages;
	for (const auto &word : words)
		pages.push_back(reinterpret_cast<uintptr_t>(word.get()) / page_size());
	std::sort(pages.begin(), pages.end());
	pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
	CHECK(pages.size() <= many * sizeof(uint64_t) / page_size() + 2);

	const std::size_t before = pinned_bytes();
	for (int i = 0; i < 100; i++) {
		mrs.push_back(on.register_memory(m.registered()));
		REQUIRE(ibv_reg_mr_notify(mrs.back().get(), words[i].get()) == 0);
	}
	CHECK(pinned_bytes() <= before + (100 + 2) * page_size());

	in_child([&] {
		for (const auto &word : words)
			child_check(*word == 0);
		uint64_t *const own = ibv_alloc_notify_word(on.context());
		child_check(own && *own == 0);
		for (const auto &word : words)
			child_check(word.get() != own);
		_exit(0);
	});
	for (int i = 100; i < many; i++)
		REQUIRE(*words[i] == static_cast<uint64_t>(i) << 8);

	uint64_t *const last = words.back().get();
	words.pop_back();
	const auto again = alloc_word(on);
	CHECK(again.get() == last);
	CHECK(*again == 0);

	errno = 0;
	CHECK(!ibv_alloc_notify_word(nullptr));
	CHECK(errno == EINVAL);
	ibv_free_notify_word(nullptr);
}

TEST_CASE("race: each word is one thread's")
{
	const device on;
	const run_time time;
	std::atomic<int> wrong = 0;
	std::vector<std::thread> threads;

	for (uint64_t id = 1; id <= 4; id++)
		threads.emplace_back([&, id] {
			while (time.goes_on()) {
				uint64_t *mine[64];

				for (auto &word : mine) {
					word = ibv_alloc_notify_word(on.context());
					wrong += !word || load(word) != 0;
					std::atomic_ref<uint64_t>(*word).store(id);
				}
				for (auto &word : mine) {
					wrong += load(word) != id;
					ibv_free_notify_word(word);
				}
			}
		});
	for (auto &thread : threads)
		thread.join();
	CHECK(wrong == 0);
}

TEST_CASE("a registration that is not in use is suspended by a call", "[suspend]")
{
	const device on;
	const std::size_t before = pinned_bytes();
	idle_mr one(on);
	const memory source = anonymous(page_size());
	const auto from = on.register_memory(source.registered());
	const uint32_t rkey = one.mr->rkey;
	std::atomic_ref<uint64_t> word(*one.word);
	const auto arrives = [&] {
		loopback link(on);
		std::memset(one.m.registered().addr, 0, page_size());
		return link.write(from.get(), source.registered(), one.m.registered().addr, rkey) ==
			       IBV_WC_SUCCESS &&
		       one.m.registered().addr[0] == std::byte{0x5a};
	};

	std::memset(source.registered().addr, 0x5a, page_size());
	word += one_user;
	CHECK(ibv_suspend_mr_notify(one.mr.get()) == EBUSY);
	CHECK(word == one_user);
	CHECK(arrives());
	word -= one_user;
	CHECK(ibv_suspend_mr_notify(one.mr.get()) == 0);
	CHECK(word == suspended);
	CHECK(pinned_bytes() <= before + 2 * page_size());
	CHECK(ibv_suspend_mr_notify(one.mr.get()) == 0);
	CHECK(!arrives());
	REQUIRE(ibv_settle_mr_notify(one.mr.get()) == 0);
	CHECK(word == 0);
	CHECK(arrives());
	unmap_all(one.m);
	CHECK(word == invalid);
	CHECK(ibv_suspend_mr_notify(one.mr.get()) == 0);
	CHECK(word == invalid);
}

TEST_CASE("suspending is refused without users, a word, or by another process")
{
	const device on;
	const memory m = anonymous(length);
	const auto mr = on.register_memory(m.registered());
	const auto word = alloc_word(on);

	CHECK(ibv_suspend_mr_notify(mr.get()) == EINVAL);
	REQUIRE(ibv_reg_mr_notify(mr.get(), word.get()) == 0);
	CHECK(ibv_suspend_mr_notify(mr.get()) == EINVAL);

	SKIP_IF(!on.can_revoke(), "the device can't revoke");
	const idle_mr one(on);
	if (!can_reclaim(on))
		CHECK(ibv_suspend_mr_notify(one.mr.get()) == EOPNOTSUPP);
	std::atomic_ref<uint64_t>(*one.word) += one_user; /* prevents a suspension by the fork */
	in_child([&] {
		child_check(ibv_suspend_mr_notify(one.mr.get()) == EINVAL);
		_exit(0);
	});
	CHECK(load(one.word.get()) == one_user);
}

TEST_CASE("an idle time counts for one registration only", "[suspend]")
{
	const device on;
	const idle_mr short_time(on, 50);
	const idle_mr never(on, 0);
	const memory m = anonymous(length);
	const auto plain = on.register_memory(m.registered());
	const auto word = alloc_word(on);
	ibv_mr_notify_attr attr{};

	attr.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_IDLE_MS;
	attr.word = word.get();
	attr.in_use = users;
	attr.idle_ms = 50;
	REQUIRE(ibv_reg_mr_notify_ex(plain.get(), &attr) == 0);
	CHECK(happens([&] { return load(short_time.word.get()) == suspended; }));
	CHECK(happens([&] { return load(word.get()) == suspended; }));
	let_pass(2500ms); /* more than twice the kernel's default idle time */
	CHECK(load(never.word.get()) == 0);
}
