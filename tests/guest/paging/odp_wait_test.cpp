// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * On-demand paging with a page that takes long. Only the queue pair that needs the page waits, and
 * all objects can be destroyed during the wait. This program answers the page faults by
 * userfaultfd.
 */
#include "catch.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "loopback.h"
#include "odp.h"
#include "slow_memory.h"
#include "port_counter.h"
#include "rows.h"
#include "skip.h"
#include "system.h"

using namespace mr_notify;
using namespace odp;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t length = 5 * 4096;
constexpr auto answer = std::byte{0x5a};
constexpr auto data = std::byte{0x33};

/* The pages of the far end stay absent until the test supplies them. */
struct slow_far_end : paged_loopback {
	memory plain = anonymous(length);
	std::unique_ptr<slow_memory> slow = slow_memory::make(length);

	slow_far_end() { std::memset(plain.registered().addr, static_cast<int>(data), length); }
	piece near() const { return {plain.registered(), all->lkey}; }
	piece far() const { return {slow->bytes(), all->lkey}; }
};

bool full_of(range r, std::byte value)
{
	for (std::size_t i = 0; i < r.length; i++)
		if (r.addr[i] != value)
			return false;
	return true;
}

/* A timeout of 67 ms, and unlimited retries, because a slow machine may often exceed 67 ms. */
constexpr loopback::patience asks_again{14, 7};

/* A peer gets an RNR NAK each time that it repeats its request. */
void told_to_come_later(const device &on)
{
	const auto told = [&] { return port_counter(on, "rcvd_rnr_err").value(); };
	const auto before = told();

	REQUIRE(happens([&] { return told() >= before + 5; }));
}

/* Other connections transfer many times. */
void others_go_on(const device &on, const ibv_mr *all)
{
	loopback link(on);
	memory a = anonymous(length);
	memory b = anonymous(length);

	for (int i = 0; i < 50; i++) {
		std::memset(a.registered().addr, i, length);
		REQUIRE(link.write(all, a.registered(), b.registered().addr, all->rkey) ==
			IBV_WC_SUCCESS);
		REQUIRE(std::memcmp(a.registered().addr, b.registered().addr, length) == 0);
	}
}

using links = std::vector<std::unique_ptr<loopback>>;

/*
 * Posts @count requests, half of them from each end of the connections. Each waits for a page of
 * its own.
 */
links that_wait(const slow_far_end &s, const slow_memory &slow, std::size_t count)
{
	links made;

	for (std::size_t i = 0; i < count; i++) {
		if (i % 2 == 0)
			made.push_back(std::make_unique<loopback>(s.on));
		post(i % 2 ? made.back()->far_end() : made.back()->near_end(),
		     {IBV_WR_RDMA_WRITE,
		      {{{slow.bytes().addr + i * page_size(), 8}, s.all->lkey}},
		      number(s.near().where.addr),
		      s.all->rkey});
	}
	return made;
}

void becomes_another_program(int)
{
	execl("/bin/sleep", "sleep", "1000", nullptr);
}

/*
 * A process that has mapped memory and registered two absent pages, whose faults get no answer. On
 * SIGUSR1 it executes another program.
 */
class owner {
public:
	static constexpr std::size_t mapped = 64 << 20;

	explicit owner(const device &on)
	{
		int ends[2];
		check(pipe(ends) == 0, "pipe");
		child_ = child_that([&] {
			const auto slow = slow_memory::make(2 * page_size());
			void *const much = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
						MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
			child_check(much != MAP_FAILED);
			const range r = slow->bytes();
			const auto mr = on.register_memory(r, IBV_ACCESS_LOCAL_WRITE |
								      IBV_ACCESS_ON_DEMAND);
			const told all{{{r.addr, 8}, mr->lkey}, slow->descriptor()};
			const rlimit core{RLIM_INFINITY, RLIM_INFINITY};
			setrlimit(RLIMIT_CORE, &core);
			std::ofstream("/proc/self/coredump_filter") << 0;
			signal(SIGUSR1, becomes_another_program);
			signal(SIGQUIT, SIG_DFL); /* a shell ignores the signal for COMMAND & */
			child_check(write(ends[1], &all, sizeof(all)) == sizeof(all));
			return pause();
		});
		check(child_ > 0, "fork");
		close(ends[1]);
		told all{};
		const bool heard = read(ends[0], &all, sizeof(all)) == sizeof(all);
		close(ends[0]);
		check(heard, "the child");
		page_ = all.page;
		/*
		 * This process keeps the child's userfaultfd open, too, and may still answer. So
		 * the wait continues after the child has ended.
		 */
		const auto process = static_cast<int>(syscall(SYS_pidfd_open, child_, 0));
		kept_ = static_cast<int>(syscall(SYS_pidfd_getfd, process, all.descriptor, 0));
		close(process);
		check(kept_ >= 0, "pidfd_getfd");
	}
	owner(const owner &) = delete;
	owner &operator=(const owner &) = delete;
	~owner()
	{
		end();
		close(kept_);
	}

	piece page(std::size_t i = 0) const
	{
		return {{page_.where.addr + i * page_size(), 8}, page_.lkey};
	}
	bool faulted() const
	{
		pollfd ready{kept_, POLLIN, 0};

		return poll(&ready, 1, std::chrono::milliseconds(time_limit).count()) == 1;
	}
	pid_t id() const { return child_; }
	/* Sends the signal. Returns the status from waitpid(), or 0 if the process has not ended */
	int end(int signal = SIGKILL)
	{
		int status = 0;

		if (child_ <= 0)
			return 0;
		kill(child_, signal);
		if (!happens([&] { return waitpid(child_, &status, WNOHANG) == child_; }))
			return 0;
		child_ = 0;
		return status;
	}

private:
	struct told {
		piece page;
		int descriptor;
	};

	pid_t child_ = 0;
	int kept_ = -1;
	piece page_{};
};

} // namespace

TEST_CASE("each operation waits for its page, and others continue", "[odp][userfaultfd]")
{
	slow_far_end s;
	const std::string what = GENERATE("send from", "send into", "write from", "write into",
					  "read from", "read into", "add to", "old value into");
	const uint64_t near = number(s.near().where.addr);
	const uint64_t far = number(s.far().where.addr);
	const uint32_t rkey = s.all->rkey;
	const piece near_word{{s.near().where.addr, 8}, s.all->lkey};
	const piece far_word{{s.far().where.addr, 8}, s.all->lkey};
	int completions = 1;

	CAPTURE(what);
	if (what == "send from" || what == "send into") {
		const bool from = what == "send from";
		post_receive(s.link.far_end(), {from ? s.near() : s.far()});
		post(s.link.near_end(), {IBV_WR_SEND, {from ? s.far() : s.near()}});
		completions = 2;
	} else if (what == "write from") {
		post(s.link.near_end(), {IBV_WR_RDMA_WRITE, {s.far()}, near, rkey});
	} else if (what == "write into") {
		post(s.link.near_end(), {IBV_WR_RDMA_WRITE, {s.near()}, far, rkey});
	} else if (what == "read from") {
		post(s.link.near_end(), {IBV_WR_RDMA_READ, {s.near()}, far, rkey});
	} else if (what == "read into") {
		post(s.link.near_end(), {IBV_WR_RDMA_READ, {s.far()}, near, rkey});
	} else if (what == "add to") {
		post(s.link.near_end(),
		     {IBV_WR_ATOMIC_FETCH_AND_ADD, {near_word}, far, rkey, 1, 0});
	} else {
		post(s.link.near_end(),
		     {IBV_WR_ATOMIC_FETCH_AND_ADD, {far_word}, near, rkey, 1, 0});
	}
	REQUIRE(s.slow->faulted());
	const auto until = std::chrono::steady_clock::now() + 300ms;
	do {
		others_go_on(s.on, s.all.get());
		CHECK_FALSE(s.link.poll());
	} while (std::chrono::steady_clock::now() < until);

	s.slow->answer(answer);
	for (int i = 0; i < completions; i++)
		CHECK(s.link.wait().status == IBV_WC_SUCCESS);

	const range here = s.near().where;
	const range there = s.far().where;
	uint64_t word = 0;
	if (what == "add to") {
		std::memcpy(&word, there.addr, 8);
		CHECK(word == 0x5a5a5a5a5a5a5a5bULL);
		std::memcpy(&word, here.addr, 8);
		CHECK(word == 0x5a5a5a5a5a5a5a5aULL);
	} else if (what == "old value into") {
		std::memcpy(&word, there.addr, 8);
		CHECK(word == 0x3333333333333333ULL);
		std::memcpy(&word, here.addr, 8);
		CHECK(word == 0x3333333333333334ULL);
	} else if (what == "send from" || what == "write from" || what == "read from") {
		CHECK(full_of(here, answer));
	} else {
		CHECK(full_of(there, data));
	}
	CHECK(no_thread_waits());
	/* the connection still works */
	CHECK(s.link.write(s.all.get(), here, there.addr, rkey) == IBV_WC_SUCCESS);
}

TEST_CASE("many receives of a shared queue wait, and each takes one", "[odp][userfaultfd]")
{
	slow_far_end s;
	const owned<ibv_srq> srq = shared_queue(s.on, 16);
	loopback link(s.on, srq.get());

	for (std::size_t i = 0; i < 5; i++)
		post_receive(srq.get(), {{{s.slow->bytes().addr + i * 4096, 4096}, s.all->lkey}},
			     i);
	for (std::size_t i = 0; i < 5; i++)
		post(link.near_end(), {IBV_WR_SEND, {{{s.near().where.addr, 4096}, s.all->lkey}}});
	REQUIRE(s.slow->faulted());
	std::this_thread::sleep_for(200ms);
	s.slow->answer(answer);
	uint64_t next = 0;
	for (int i = 0; i < 10; i++) {
		const ibv_wc wc = link.wait();
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV)
			CHECK(wc.wr_id == next++);
	}
	CHECK(next == 5);
	CHECK(full_of(s.slow->bytes(), data));
}

TEST_CASE("a peer that repeats its request gets an RNR NAK", "[odp][userfaultfd]")
{
	slow_far_end s;
	loopback link(s.on, nullptr, IBV_MTU_1024, asks_again);
	const std::string what = GENERATE("send into", "write into", "read from", "add to");
	const uint64_t far = number(s.far().where.addr);
	const uint32_t rkey = s.all->rkey;
	int completions = 1;

	CAPTURE(what);
	if (what == "send into") {
		post_receive(link.far_end(), {s.far()});
		post(link.near_end(), {IBV_WR_SEND, {s.near()}});
		completions = 2;
	} else if (what == "write into") {
		post(link.near_end(), {IBV_WR_RDMA_WRITE, {s.near()}, far, rkey});
	} else if (what == "read from") {
		post(link.near_end(), {IBV_WR_RDMA_READ, {s.near()}, far, rkey});
	} else {
		post(link.near_end(), {IBV_WR_ATOMIC_FETCH_AND_ADD,
				       {{{s.near().where.addr, 8}, s.all->lkey}},
				       far,
				       rkey,
				       1,
				       0});
	}
	REQUIRE(s.slow->faulted());
	told_to_come_later(s.on);
	CHECK_FALSE(link.poll());
	s.slow->answer(answer);
	for (int i = 0; i < completions; i++)
		CHECK(link.wait().status == IBV_WC_SUCCESS);
	uint64_t word = 0;
	std::memcpy(&word, s.far().where.addr, 8);
	if (what == "add to")
		CHECK(word == 0x5a5a5a5a5a5a5a5bULL);
	else
		CHECK(full_of(s.near().where, what == "read from" ? answer : data));
	if (what == "send into" || what == "write into")
		CHECK(full_of(s.far().where, data));
}

/* The first retry would end the connection. Even a slow machine takes less than half a second. */
TEST_CASE("a slow page consumes no retry", "[odp][userfaultfd]")
{
	slow_far_end s;
	constexpr loopback::patience once{17, 0};
	loopback link(s.on, nullptr, IBV_MTU_1024, once);
	const std::string what = GENERATE("write from", "write into", "read from", "read into");
	const bool into = what == "write into" || what == "read into";
	const bool by_near = what == "write from" || what == "read into";
	const piece slow = s.far();
	const piece plain = s.near();

	CAPTURE(what);
	s.slow->fill(answer, page_size()); /* a packet is on its way */
	post(link.near_end(), {what.starts_with("write") ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
			       {by_near ? slow : plain},
			       number((by_near ? plain : slow).where.addr),
			       s.all->rkey});
	REQUIRE(s.slow->faulted());
	std::this_thread::sleep_for(2s);
	REQUIRE_FALSE(link.poll());
	s.slow->answer(answer);
	CHECK(link.wait().status == IBV_WC_SUCCESS);
	CHECK(full_of(slow.where, into ? data : answer));
	CHECK(full_of(plain.where, into ? data : answer));
}

TEST_CASE("a partly answered read continues from there", "[odp][userfaultfd]")
{
	slow_far_end s;
	const bool impatient = GENERATE(false, true);
	loopback link(s.on, nullptr, IBV_MTU_1024, impatient ? asks_again : loopback::patience());
	const range far = s.far().where;
	const std::size_t first = 2 * page_size();

	CAPTURE(impatient);
	s.slow->answer(answer, first);
	post(link.near_end(), {IBV_WR_RDMA_READ, {s.near()}, number(far.addr), s.all->rkey});
	REQUIRE(s.slow->faulted());
	if (impatient)
		told_to_come_later(s.on);
	else
		std::this_thread::sleep_for(100ms);
	CHECK_FALSE(link.poll());
	s.slow->answer(std::byte{0x77});
	CHECK(link.wait().status == IBV_WC_SUCCESS);
	CHECK(full_of({s.near().where.addr, first}, answer));
	CHECK(full_of({s.near().where.addr + first, far.length - first}, std::byte{0x77}));
	/* the next request is executed */
	CHECK(run(link, {IBV_WR_RDMA_WRITE, {s.near()}, number(far.addr), s.all->rkey}) ==
	      IBV_WC_SUCCESS);
	CHECK(std::memcmp(s.near().where.addr, far.addr, far.length) == 0);
}

TEST_CASE("two pieces of one packet, the second of which is absent", "[odp][userfaultfd]")
{
	slow_far_end s;
	const std::string what = GENERATE("write from", "read into", "send from", "send into");
	constexpr std::size_t cut = 100;
	const memory whole = anonymous(2 * cut);
	const range near = s.near().where;
	const range far = s.far().where;
	const std::vector<piece> pieces{{{near.addr, cut}, s.all->lkey},
					{{far.addr, cut}, s.all->lkey}};
	const piece other{whole.registered(), s.all->lkey};
	const bool into = what == "read into" || what == "send into";
	int completions = 1;

	CAPTURE(what);
	for (std::size_t i = 0; i < 2 * cut; i++)
		whole.registered().addr[i] = static_cast<std::byte>(i);
	if (what == "send from" || what == "send into") {
		post_receive(s.link.far_end(), into ? pieces : std::vector{other});
		post(s.link.near_end(), {IBV_WR_SEND, into ? std::vector{other} : pieces});
		completions = 2;
	} else {
		post(s.link.near_end(), {into ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, pieces,
					 number(other.where.addr), s.all->rkey});
	}
	REQUIRE(s.slow->faulted());
	s.slow->answer(answer);
	for (int i = 0; i < completions; i++)
		CHECK(s.link.wait().status == IBV_WC_SUCCESS);
	if (into) {
		CHECK(std::memcmp(near.addr, whole.registered().addr, cut) == 0);
		CHECK(std::memcmp(far.addr, whole.registered().addr + cut, cut) == 0);
		CHECK(full_of({far.addr + cut, cut}, answer));
	} else {
		CHECK(full_of({whole.registered().addr, cut}, data));
		CHECK(full_of({whole.registered().addr + cut, cut}, answer));
	}
}

TEST_CASE("a page that turns out not to be there is an error", "[odp][userfaultfd]")
{
	slow_far_end s;
	/* pages after the end of a file are mapped, but an access gets SIGBUS */
	const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	REQUIRE(fd >= 0);
	const auto end = static_cast<std::size_t>(lseek(fd, 0, SEEK_END));
	const std::size_t whole = end + 4 * page_size();
	void *const at = mmap(nullptr, whole, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	REQUIRE(at != MAP_FAILED);
	const memory file({static_cast<std::byte *>(at), whole});
	const range behind{static_cast<std::byte *>(at) + end + 2 * page_size(), 8};
	const range here{s.near().where.addr, 8};

	CHECK(run(s.link,
		  {IBV_WR_RDMA_READ, {{here, s.all->lkey}}, number(behind.addr), s.all->rkey}) ==
	      IBV_WC_REM_ACCESS_ERR);
	loopback local(s.on);
	CHECK(run(local,
		  {IBV_WR_RDMA_WRITE, {{behind, s.all->lkey}}, number(here.addr), s.all->rkey}) ==
	      IBV_WC_LOC_PROT_ERR);
}

TEST_CASE("objects can be destroyed while a fault is unanswered", "[odp][userfaultfd]")
{
	slow_far_end s;
	const std::string side = GENERATE("requester", "responder", "completer");
	auto link = std::make_unique<loopback>(s.on);
	const uint64_t near = number(s.near().where.addr);
	const uint64_t far = number(s.far().where.addr);

	if (side == "requester")
		post(link->near_end(), {IBV_WR_RDMA_WRITE, {s.far()}, near, s.all->rkey});
	else if (side == "responder")
		post(link->near_end(), {IBV_WR_RDMA_WRITE, {s.near()}, far, s.all->rkey});
	else
		post(link->near_end(), {IBV_WR_RDMA_READ, {s.far()}, near, s.all->rkey});
	REQUIRE(s.slow->faulted());
	std::this_thread::sleep_for(50ms);

	/* The kernel waits up to 50 seconds for the last reference, and then warns. */
	CAPTURE(side);
	SECTION("the queue pair is destroyed")
	{
		link.reset();
		s.all.reset();
	}
	SECTION("the registration goes first")
	{
		s.all.reset();
		link.reset();
	}
	SECTION("the queue pair is reset, and used for something else")
	{
		ibv_qp_attr attr{};
		attr.qp_state = IBV_QPS_RESET;
		CHECK(ibv_modify_qp(link->near_end(), &attr, IBV_QP_STATE) == 0);
		CHECK(ibv_modify_qp(link->far_end(), &attr, IBV_QP_STATE) == 0);
		CHECK(no_thread_waits());
		link.reset();
	}
	CHECK(no_thread_waits());
}

TEST_CASE("a process that is killed while it waits ends", "[odp][userfaultfd]")
{
	int ready[2];
	REQUIRE(pipe(ready) == 0);
	const pid_t child = child_that([&] {
		slow_far_end s;
		post(s.link.near_end(),
		     {IBV_WR_RDMA_WRITE, {s.near()}, number(s.far().where.addr), s.all->rkey});
		loopback second(s.on);
		post(second.near_end(),
		     {IBV_WR_RDMA_READ, {s.far()}, number(s.near().where.addr), s.all->rkey});
		child_check(s.slow->faulted() && write(ready[1], "r", 1) == 1);
		return pause();
	});
	REQUIRE(child >= 0);
	char c = 0;
	REQUIRE(read(ready[0], &c, 1) == 1);
	REQUIRE(kill(child, SIGKILL) == 0);
	int status = 0;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
	CHECK(no_thread_waits());
	close(ready[0]);
	close(ready[1]);
}

TEST_CASE("pages of a file: read when they are needed, and copied for a write",
	  "[odp][userfaultfd]")
{
	slow_far_end s;
	const memory file = mapped_file(length);
	const range r = file.registered();
	const std::vector<std::byte> whole(r.addr, r.addr + r.length);
	const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	REQUIRE(fd >= 0);

	REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
	const range copy{s.near().where.addr, r.length};
	CHECK(run(s.link,
		  {IBV_WR_RDMA_WRITE, {{r, s.all->lkey}}, number(copy.addr), s.all->rkey}) ==
	      IBV_WC_SUCCESS);
	CHECK(std::memcmp(copy.addr, whole.data(), r.length) == 0);

	/*
	 * The first page of the same file, mapped privately: the written data belongs to this
	 * process
	 */
	void *const own = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	REQUIRE(own != MAP_FAILED);
	const memory mine({static_cast<std::byte *>(own), page_size()});
	const range part{s.near().where.addr, 100};
	std::memset(part.addr, static_cast<int>(data), part.length);
	CHECK(run(s.link,
		  {IBV_WR_RDMA_WRITE, {{part, s.all->lkey}}, number(own) + 1000, s.all->rkey}) ==
	      IBV_WC_SUCCESS);
	CHECK(full_of({static_cast<std::byte *>(own) + 1000, 100}, data));
	CHECK(std::memcmp(own, "\177ELF", 4) == 0);
	char magic[4] = {};
	CHECK(pread(fd, magic, 4, 0) == 4);
	CHECK(std::memcmp(magic, "\177ELF", 4) == 0);
	std::byte there[100];
	CHECK(pread(fd, there, sizeof(there), 1000) == sizeof(there));
	CHECK_FALSE(full_of({there, sizeof(there)}, data));
	close(fd);
}

/*
 * A sender requests an acknowledgment in some packets, and stops after 129 packets without an
 * acknowledgment.
 */
TEST_CASE("a packet that waited asks for its acknowledgment", "[odp][userfaultfd]")
{
	constexpr std::size_t mtu = 1024, sent = 200, asks = 65;
	const device on;
	const auto slow = slow_memory::make(51 * 4096);
	/* never repeats a packet by itself */
	loopback link(on, nullptr, IBV_MTU_1024, loopback::patience{0, 7});
	const owned<ibv_mr> all = register_all(on, all_rights);
	const memory far = anonymous(sent * mtu);
	const range from{slow->bytes().addr + 3 * mtu, sent * mtu};
	std::optional<ibv_wc> done;

	slow->answer(data);
	REQUIRE(madvise(from.addr + asks * mtu, 4096, MADV_DONTNEED) == 0);
	link.start(IBV_WR_RDMA_WRITE, all.get(), from, far.registered().addr, all->rkey);
	REQUIRE(slow->faulted());
	slow->answer(answer);
	REQUIRE(happens([&] { return (done = link.poll()).has_value(); }));
	CHECK(done->status == IBV_WC_SUCCESS);
	CHECK(std::memcmp(far.registered().addr, from.addr, from.length) == 0);
}

/*
 * The kernel gives mmap_lock to waiting threads first. While threads wait, a trylock never
 * succeeds.
 */
TEST_CASE("threads that map and unmap, or fork, do not delay transfers", "[odp]")
{
	const bool forking = GENERATE(false, true);
	CAPTURE(forking);
	const device on;
	constexpr std::size_t long_one = 16 * 4096;
	loopback link(on);
	const owned<ibv_mr> all = register_all(on, all_rights);
	const memory near = anonymous(long_one);
	const memory far = anonymous(long_one);
	const memory count = anonymous(4096);
	const memory untouched = anonymous(long_one);
	std::memset(count.registered().addr, 0, 8);
	/* The device must get mmap_lock, with a trylock or by waiting. */
	const bool with_key = GENERATE(false, true);
	const int key = with_key ? pkey_alloc(0, 0) : -1;
	SKIP_IF(with_key && key < 0, "no protection keys");
	for (const memory *m : {&near, &far, &count})
		if (with_key)
			check(pkey_mprotect(m->registered().addr, m->registered().length,
					    PROT_READ | PROT_WRITE, key) == 0,
			      "pkey_mprotect");
	CAPTURE(with_key);
	std::atomic<bool> stop = false;
	std::vector<std::thread> threads;
	ibv_wc_status written{}, read{}, added{}, zeros{};
	bool ended = true;

	std::memset(near.registered().addr, static_cast<int>(data), long_one);
	for (int i = 0; i < 8; i++)
		threads.emplace_back([&] {
			while (!stop)
				forking ? in_child([] {}) : static_cast<void>(anonymous(64 * 4096));
		});
	try {
		written =
			link.write(all.get(), near.registered(), far.registered().addr, all->rkey);
		read = run(link, {IBV_WR_RDMA_READ,
				  {{near.registered(), all->lkey}},
				  number(far.registered().addr),
				  all->rkey});
		added = run(link, {IBV_WR_ATOMIC_FETCH_AND_ADD,
				   {{{near.registered().addr, 8}, all->lkey}},
				   number(count.registered().addr),
				   all->rkey,
				   1,
				   0});
		/* a read maps the zero page there */
		check(madvise(untouched.registered().addr, long_one, MADV_DONTNEED) == 0,
		      "madvise");
		zeros = run(link, {IBV_WR_RDMA_READ,
				   {{near.registered(), all->lkey}},
				   number(untouched.registered().addr),
				   all->rkey});
	} catch (const std::exception &) {
		ended = false;
	}
	stop = true;
	for (std::thread &one : threads)
		one.join();
	CHECK(ended);
	CHECK(written == IBV_WC_SUCCESS);
	CHECK(read == IBV_WC_SUCCESS);
	CHECK(added == IBV_WC_SUCCESS);
	CHECK(count.registered().addr[0] == std::byte{1});
	CHECK(full_of(far.registered(), data));
	CHECK(zeros == IBV_WC_SUCCESS);
	CHECK(full_of(near.registered(), std::byte{0}));
}

/* Only threads of the process itself handle its faults. Their number is limited. */
TEST_CASE("a process has at most 16 waiting threads, and each request gets its turn",
	  "[odp][userfaultfd]")
{
	constexpr std::size_t most = 16, more = 20;
	slow_far_end s;
	const auto slow = slow_memory::make((most + more) * page_size());
	links all = that_wait(s, *slow, most + more);

	const auto until = std::chrono::steady_clock::now() + 300ms;
	do {
		CHECK(happens([] { return waiting_threads() == static_cast<int>(most); }));
		CHECK(fault_threads() <= static_cast<int>(most));
	} while (std::chrono::steady_clock::now() < until);
	/* Another process of this user still gets its threads. */
	in_child([] {
		slow_far_end other;
		for (std::size_t i = 0; i < 2; i++)
			post(i ? other.link.far_end() : other.link.near_end(),
			     {IBV_WR_RDMA_WRITE,
			      {{{other.slow->bytes().addr + i * page_size(), 8}, other.all->lkey}},
			      number(other.near().where.addr),
			      other.all->rkey});
		child_check(other.slow->faulted());
		other.slow->answer(answer);
		for (int i = 0; i < 2; i++)
			child_check(other.link.wait().status == IBV_WC_SUCCESS);
	});
	/* The fault threads of a process serve no other process, and end with their process. */
	CHECK(happens([] { return fault_threads() == static_cast<int>(most); }));
	/* Requests whose faults get no answer must not block other requests. */
	post(s.link.near_end(), {IBV_WR_RDMA_WRITE,
				 {{{s.slow->bytes().addr, 8}, s.all->lkey}},
				 number(s.near().where.addr),
				 s.all->rkey});
	REQUIRE(s.slow->faulted());
	s.slow->answer(answer);
	CHECK(s.link.wait().status == IBV_WC_SUCCESS);
	all.pop_back();		/* a request without a thread */
	all.erase(all.begin()); /* a request with a thread, which then serves another request */
	slow->answer(answer);
	for (std::size_t i = 0; i < 2 * all.size(); i++)
		CHECK(all[i / 2]->wait().status == IBV_WC_SUCCESS);
	CHECK(no_thread_waits());
	/* Idle threads have ended. */
	CHECK(happens([] { return fault_threads() <= 4; }));
}

TEST_CASE("threads that wait for pages count in the limits of their process", "[odp][userfaultfd]")
{
	constexpr std::size_t pages = 40;
	constexpr rlim_t limit = 4; /* the process itself, and three threads */
	int ready[2], go[2];
	REQUIRE(pipe(ready) == 0);
	REQUIRE(pipe(go) == 0);
	const pid_t child = child_that([&] {
		rlimit processes{limit, 100};
		char c = 0;
		/* The limit is for each user. A file belongs to the user that opened it. */
		std::ofstream("/proc/sys/vm/unprivileged_userfaultfd") << 1;
		child_check(!setrlimit(RLIMIT_NPROC, &processes) &&
			    !setresuid(65534, 65534, 65534));
		close(ready[0]);
		close(go[1]);
		slow_far_end s;
		const auto slow = slow_memory::make(pages * page_size());
		const links all = that_wait(s, *slow, pages);
		child_check(slow->faulted() && write(ready[1], "r", 1) == 1 &&
			    read(go[0], &c, 1) == 1);
		processes.rlim_cur = processes.rlim_max;
		child_check(!setrlimit(RLIMIT_NPROC, &processes) && read(go[0], &c, 1) == 1);
		slow->answer(answer);
		for (std::size_t i = 0; i < pages; i++)
			child_check(all[i / 2]->wait().status == IBV_WC_SUCCESS);
		return 0;
	});
	REQUIRE(child > 0);
	close(ready[1]);
	close(go[0]);
	char c = 0;
	REQUIRE(read(ready[0], &c, 1) == 1);
	const auto until = std::chrono::steady_clock::now() + 300ms;
	do {
		CHECK(happens([&] { return waiting_threads() == static_cast<int>(limit) - 1; }));
		CHECK(fault_threads() <= static_cast<int>(limit) - 1);
	} while (std::chrono::steady_clock::now() < until);
	in_child([] {}); /* processes of other users are not limited */
	/* With a higher limit the process gets more threads, although no page has come. */
	REQUIRE(write(go[1], "g", 1) == 1);
	CHECK(happens([] { return fault_threads() == 16; }));
	REQUIRE(write(go[1], "g", 1) == 1);
	int status = 0;
	REQUIRE(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	CHECK(happens([] { return fault_threads() == 0; }));
	close(ready[0]);
	close(go[1]);
}

TEST_CASE("the fault threads end with the last on-demand registration", "[odp][userfaultfd]")
{
	slow_far_end s;
	owned<ibv_mr> second = register_all(s.on, all_rights);
	const piece there{{s.slow->bytes().addr, 8}, second->lkey};

	post(s.link.near_end(),
	     {IBV_WR_RDMA_WRITE, {there}, number(s.near().where.addr), s.all->rkey});
	REQUIRE(s.slow->faulted());
	CHECK(waiting_threads() == 1);
	s.all.reset();
	CHECK(waiting_threads() == 1);
	second.reset();
	CHECK(happens([] { return fault_threads() == 0; }));
	/* the next registration starts a thread again */
	const owned<ibv_mr> third = register_all(s.on, all_rights);
	CHECK(fault_threads() == 1);
}

TEST_CASE("calls that need a single thread fail while a process has fault threads",
	  "[odp][userfaultfd]")
{
	SKIP_IF(access("/proc/self/ns/user", F_OK), "no user namespaces");
	in_child([] {
		slow_far_end s;
		child_check(unshare(CLONE_NEWUSER) == -1 && errno == EINVAL);
		s.all.reset();
		child_check(happens([] { return unshare(CLONE_NEWUSER) == 0; }));
	});
}

/* Bytes of shared memory in the system. */
unsigned long shared()
{
	std::ifstream file("/proc/meminfo");

	for (std::string word; file >> word;)
		if (word == "Shmem:" && file >> word)
			return std::stoul(word) << 10;
	return 0;
}

/* Two threads of another process that wait for absent pages. Their faults get no answer. */
struct two_waits {
	const unsigned long before = shared();
	owner process;
	links theirs;

	explicit two_waits(const slow_far_end &s) : process(s.on)
	{
		for (std::size_t i = 0; i < 2; i++) {
			theirs.push_back(std::make_unique<loopback>(s.on));
			post(theirs.back()->near_end(), {IBV_WR_RDMA_WRITE,
							 {process.page(i)},
							 number(s.near().where.addr),
							 s.all->rkey});
		}
		check(happens([] { return waiting_threads() == 2; }), "two threads");
		check(has_its_memory(), "memory");
	}

	bool has_its_memory() const { return shared() > before + owner::mapped / 2; }
	/* Their packets fail, and their memory is freed. */
	void have_ended() const
	{
		CHECK(happens([&] { return !has_its_memory(); }));
		for (const auto &one : theirs)
			CHECK(one->wait().status == IBV_WC_LOC_PROT_ERR);
	}
};

TEST_CASE("threads that wait for pages stop and continue with their process", "[odp][userfaultfd]")
{
	slow_far_end s;
	two_waits two(s);
	const pid_t process = two.process.id();
	int status = 0;

	/* The process has stopped when all its threads have stopped */
	REQUIRE(kill(process, SIGSTOP) == 0);
	REQUIRE(happens([&] { return waitpid(process, &status, WNOHANG | WUNTRACED) == process; }));
	CHECK(WIFSTOPPED(status));
	CHECK(waiting_threads() == 0);
	REQUIRE(kill(process, SIGCONT) == 0);
	CHECK(happens([] { return waiting_threads() == 2; }));

	/*
	 * A debugger attaches and detaches. A fault that the debugger interrupts continues in
	 * another thread, perhaps a new thread. So the debugger attaches until no thread is new.
	 */
	std::set<pid_t> tasks;
	for (bool again = true; again;) {
		again = false;
		for (const auto &task : std::filesystem::directory_iterator(
			     "/proc/" + std::to_string(process) + "/task")) {
			const pid_t one = std::stoi(task.path().filename());

			if (!tasks.insert(one).second)
				continue;
			again = true;
			CHECK(ptrace(PTRACE_ATTACH, one, 0, 0) == 0);
			CHECK(happens(
				[&] { return waitpid(one, &status, WNOHANG | __WALL) == one; }));
			CHECK(WIFSTOPPED(status));
		}
	}
	CHECK(tasks.size() >= 3);
	CHECK(waiting_threads() == 0);
	for (const pid_t one : tasks)
		CHECK(ptrace(PTRACE_DETACH, one, 0, 0) == 0);
	CHECK(happens([] { return waiting_threads() == 2; }));

	/* The process is killed while it is stopped. */
	REQUIRE(kill(process, SIGSTOP) == 0);
	REQUIRE(happens([&] { return waitpid(process, &status, WNOHANG | WUNTRACED) == process; }));
	two.process.end();
	two.have_ended();
}

/*
 * A memory cgroup may delay a fault. Then threads of this process wait, and workers that serve
 * other processes don't.
 */
TEST_CASE("an absent page is brought by its process alone", "[odp][userfaultfd]")
{
	slow_far_end s;
	const bool shared = GENERATE(false, true);
	int ends[2];
	REQUIRE(pipe(ends) == 0);
	const pid_t process = child_that([&] {
		const memory m = shared ? shared_file(length) : anonymous(length);
		const auto mr =
			s.on.register_memory(m.registered(), all_rights | IBV_ACCESS_ON_DEMAND);
		const piece all{m.registered(), mr->rkey};

		drop_all(m);
		if (m.fd() >= 0)
			child_check(ftruncate(m.fd(), 0) == 0 && ftruncate(m.fd(), length) == 0);
		child_check(write(ends[1], &all, sizeof(all)) == sizeof(all));
		return pause();
	});
	piece theirs{};
	close(ends[1]);
	REQUIRE(read(ends[0], &theirs, sizeof(theirs)) == sizeof(theirs));
	close(ends[0]);
	int status = 0;

	REQUIRE(kill(process, SIGSTOP) == 0);
	REQUIRE(happens([&] { return waitpid(process, &status, WNOHANG | WUNTRACED) == process; }));
	post(s.link.near_end(),
	     {IBV_WR_RDMA_WRITE, {s.near()}, number(theirs.where.addr), theirs.lkey});
	others_go_on(s.on, s.all.get());
	REQUIRE_FALSE(s.link.poll());
	REQUIRE(kill(process, SIGCONT) == 0);
	CHECK(s.link.wait().status == IBV_WC_SUCCESS);
	kill(process, SIGKILL);
	CHECK(waitpid(process, &status, 0) == process);
}

/*
 * Another process keeps the userfaultfd open, so requests still wait for pages of the process that
 * has ended.
 */
TEST_CASE("a process that ends while a request waits for its pages frees its memory",
	  "[odp][userfaultfd]")
{
	slow_far_end s;
	const std::string how = GENERATE("killed", "core", "executes");
	two_waits two(s);

	CAPTURE(how);
	if (how == "executes") {
		kill(two.process.id(), SIGUSR1);
	} else {
		const int status = two.process.end(how == "core" ? SIGQUIT : SIGKILL);
		REQUIRE(WIFSIGNALED(status));
		CHECK((WCOREDUMP(status) != 0) == (how == "core"));
	}
	two.have_ended();
	CHECK(no_thread_waits());
	CHECK(fault_threads() == 1); /* the thread of this process */
}
