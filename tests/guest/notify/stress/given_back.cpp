// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "given_back.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <unordered_set>

#include "system.h"
#include "trial.h"

namespace stress {

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t length = 64 * 4096;
constexpr std::size_t plenty = 64 << 20;
constexpr std::byte theirs{0x11};

/* Writes to all parts of the registered range until it is told to stop. */
class writer {
public:
	writer(const device &on, range where, uint32_t rkey)
	    : thread_([this, &on, where, rkey] { work(on, where, rkey); })
	{
	}
	~writer()
	{
		stop_ = true;
		thread_.join();
	}

	uint64_t done() const { return done_; }
	uint64_t refused() const { return refused_; }

	/* Waits for some more writes, whether they succeed or fail. */
	void go_on(uint64_t more) const
	{
		const uint64_t until = done_ + refused_ + more;

		while (done_ + refused_ < until)
			std::this_thread::sleep_for(100us);
	}

private:
	void work(const device &on, range where, uint32_t rkey)
	{
		peer from(on);

		for (std::size_t at = 0; !stop_; at = (at + peer::most) % where.length) {
			switch (from.write({where.addr + at, peer::most}, rkey)) {
			case peer::answer::done:
				done_++;
				break;
			case peer::answer::refused:
				refused_++;
				break;
			case peer::answer::none:
				break;
			}
		}
	}

	std::atomic<bool> stop_ = false;
	std::atomic<uint64_t> done_ = 0;
	std::atomic<uint64_t> refused_ = 0;
	std::thread thread_;
};

uint64_t foreign_bytes(range r)
{
	return static_cast<uint64_t>(
		std::count_if(r.addr, r.end(), [](std::byte b) { return b != theirs; }));
}

/* The page frames that a range maps; 0 for an absent page. */
std::vector<uint64_t> frames(range r)
{
	std::vector<uint64_t> found(r.length / page_size());
	const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	const auto first = reinterpret_cast<std::uintptr_t>(r.addr) / page_size();
	const auto bytes = found.size() * sizeof(uint64_t);

	if (pread(fd, found.data(), bytes, static_cast<off_t>(first * sizeof(uint64_t))) !=
	    static_cast<ssize_t>(bytes))
		fail("pagemap");
	close(fd);
	for (uint64_t &frame : found)
		frame &= (uint64_t{1} << 55) - 1;
	return found;
}

range map_or_exit(std::size_t size, int flags, int fd)
{
	void *addr = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (addr == MAP_FAILED)
		_exit(1);
	return {static_cast<std::byte *>(addr), size};
}

/*
 * Each CPU keeps freed pages on its own list, and each node has its own pages. So the function
 * allocates memory on each CPU and node.
 */
range take_from_everywhere()
{
	constexpr int interleave = 3; /* MPOL_INTERLEAVE */
	const unsigned long nodes = 3;
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	const range r = map_or_exit(plenty, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	const std::size_t share = plenty / static_cast<std::size_t>(cpus);

	syscall(SYS_set_mempolicy, interleave, &nodes, 8 * sizeof(nodes));
	madvise(r.addr, r.length, MADV_NOHUGEPAGE); /* small pages, like the registration */
	for (long cpu = 0; cpu < cpus; cpu++) {
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		std::memset(r.addr + static_cast<std::size_t>(cpu) * share,
			    static_cast<int>(theirs), share);
	}
	return r;
}

/*
 * A process that allocates the freed memory on command, and at the end reports whether the bytes
 * have changed. It is forked before the first registration.
 */
template <class Take> class other_process {
public:
	explicit other_process(Take how)
	{
		if (pipe2(tell_, O_CLOEXEC) || pipe2(told_, O_CLOEXEC))
			fail("pipe");
		child_ = fork();
		if (child_ < 0)
			fail("fork");
		if (child_ == 0) {
			char word = 0;
			if (read(tell_[0], &word, 1) != 1)
				_exit(1);
			const range mine = how();
			std::memset(mine.addr, static_cast<int>(theirs), mine.length);
			say(&word, 1);
			if (read(tell_[0], &word, 1) != 1)
				_exit(1);
			const uint64_t bytes = foreign_bytes(mine);
			say(&bytes, sizeof(bytes));
			const auto all = frames(mine);
			const uint64_t count = all.size();
			say(&count, sizeof(count));
			say(all.data(), count * sizeof(uint64_t));
			_exit(0);
		}
		close(tell_[0]);
		close(told_[1]);
	}
	other_process(const other_process &) = delete;
	other_process &operator=(const other_process &) = delete;
	~other_process()
	{
		close(tell_[1]);
		close(told_[0]);
		waitpid(child_, nullptr, 0);
	}

	void take()
	{
		char word = 1;

		if (::write(tell_[1], &word, 1) != 1)
			fail("telling the other process");
		hear(&word, 1);
	}

	/* Returns how many bytes have changed, and the page frames. */
	uint64_t look(std::vector<uint64_t> &frames_of_it)
	{
		const char word = 1;
		uint64_t bytes = 0;
		uint64_t count = 0;

		if (::write(tell_[1], &word, 1) != 1)
			fail("telling the other process");
		hear(&bytes, sizeof(bytes));
		hear(&count, sizeof(count));
		frames_of_it.resize(count);
		hear(frames_of_it.data(), count * sizeof(uint64_t));
		return bytes;
	}

private:
	void say(const void *from, std::size_t size)
	{
		const char *at = static_cast<const char *>(from);

		while (size) {
			const ssize_t written = ::write(told_[1], at, size);
			if (written <= 0)
				_exit(1);
			at += written;
			size -= static_cast<std::size_t>(written);
		}
	}

	void hear(void *into, std::size_t size)
	{
		char *at = static_cast<char *>(into);

		while (size) {
			const ssize_t heard = ::read(told_[0], at, size);
			if (heard <= 0)
				throw std::runtime_error("the other process is silent");
			at += heard;
			size -= static_cast<std::size_t>(heard);
		}
	}

	int tell_[2];
	int told_[2];
	pid_t child_ = -1;
};

void arm(ibv_mr *mr, word &w, loss how)
{
	if (how == loss::unmapped)
		check_verb(ibv_reg_mr_notify(mr, w.address()), "ibv_reg_mr_notify");
	else if (how == loss::suspended)
		check_verb(ibv_reg_mr_notify_reclaim(mr, w.address(), 0xff00),
			   "ibv_reg_mr_notify_reclaim");
}

void unmap(memory &m)
{
	const range r = m.registered();

	m.forget(r);
	if (munmap(r.addr, r.length))
		fail("munmap");
}

/* Does not settle, so the kernel unpins the pages when it can. */
void suspend(word &w)
{
	const std::size_t pinned = pinned_bytes();

	write_system_file("/proc/sys/vm/drop_caches", "2");
	if (w.value() != IBV_MR_NOTIFY_SUSPENDED)
		throw std::runtime_error("it was not suspended");
	wait_for_pinned(pinned - length);
}

} // namespace

uint64_t writes_into_a_file_of_another(const device &on, loss how)
{
	memory m = shared_file(length);
	const int fd = m.fd();
	const range r = m.registered();
	other_process other([fd] { return map_or_exit(length, MAP_SHARED, fd); });
	const auto mr = on.register_memory(r);
	std::vector<uint64_t> its;
	word w;

	arm(mr.get(), w, how);
	const writer peer(on, r, mr->rkey);
	peer.go_on(20);
	if (how == loss::suspended)
		suspend(w);
	else
		unmap(m);
	if (how == loss::unmapped)
		check_verb(ibv_settle_mr_notify(mr.get()), "ibv_settle_mr_notify");
	other.take();
	peer.go_on(how == loss::none ? length / peer::most * 2 : 8);
	return other.look(its);
}

given_back writes_into_memory_of_another(const device &on, loss how)
{
	other_process other(take_from_everywhere);
	memory m = anonymous(length);
	const range r = m.registered();
	const auto mr = on.register_memory(r);
	const auto mine = frames(r);
	given_back seen;
	std::vector<uint64_t> its;
	word w;

	arm(mr.get(), w, how);
	const writer peer(on, r, mr->rkey);
	peer.go_on(20);
	if (how == loss::suspended) {
		suspend(w);
		if (madvise(r.addr, r.length, MADV_DONTNEED))
			fail("MADV_DONTNEED");
	} else {
		const std::size_t pinned = pinned_bytes();
		unmap(m);
		wait_for_pinned(pinned - length - page_size()); /* including the page of the word */
	}
	other.take();
	peer.go_on(5);
	seen.bytes = other.look(its);
	const std::unordered_set<uint64_t> before(mine.begin(), mine.end());
	seen.pages =
		static_cast<uint64_t>(std::count_if(its.begin(), its.end(), [&](uint64_t frame) {
			return frame && before.contains(frame);
		}));
	return seen;
}

} // namespace stress
