// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * MR notification as an administrator sees it: trace events, and the counters of
 * the device.
 */
#define CATCH_CONFIG_ENABLE_PAIR_STRINGMAKER /* otherwise a map is printed as question marks */
#include "catch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "device.h"
#include "port_counter.h"
#include "probe.h"
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

constexpr std::size_t length = 16 * 4096;

void write_file(const std::string &path, const std::string &text)
{
	std::ofstream file(path);

	file << text << std::flush;
	if (!file)
		throw std::runtime_error("cannot write " + path);
}

std::string read_file(const std::string &path)
{
	std::ifstream file(path);
	std::ostringstream text;

	if (!file)
		throw std::runtime_error("cannot read " + path);
	text << file.rdbuf();
	return text.str();
}

std::string output_of(const std::string &command)
{
	const std::unique_ptr<FILE, int (*)(FILE *)> pipe(popen(command.c_str(), "r"), pclose);
	std::string text;
	char piece[4096];

	if (!pipe)
		fail(command);
	while (const std::size_t got = fread(piece, 1, sizeof(piece), pipe.get()))
		text.append(piece, got);
	return text;
}

/* A separate trace buffer, with some events of the kernel. */
class trace {
public:
	explicit trace(const std::string &events = "ib_mr_notify")
	{
		if (mkdir(place_.c_str(), 0700))
			fail("mkdir " + place_);
		write_file(place_ + "/trace_clock", "mono"); /* um's clock counts jiffies */
		write_file(place_ + "/events/" + events + "/enable", "1");
	}
	~trace() { rmdir(place_.c_str()); }
	trace(const trace &) = delete;
	trace &operator=(const trace &) = delete;

	/* From now on the buffer has no events of other threads. */
	void leave_others_out() const
	{
		write_file(place_ + "/set_event_pid", std::to_string(gettid()));
	}

	/* Returns the lines that this thread caused, and clears the buffer. */
	std::vector<std::string> take_mine() const
	{
		return take('-' + std::to_string(gettid()) + ' ');
	}

	/*
	 * Returns all lines that contain this text, for example the name of an event, and clears
	 * the buffer.
	 */
	std::vector<std::string> take(const std::string &event) const
	{
		std::istringstream lines(read_file(place_ + "/trace"));
		std::vector<std::string> found;
		std::string line;

		while (std::getline(lines, line))
			if (line[0] != '#' && line.find(event) != line.npos)
				found.push_back(line);
		write_file(place_ + "/trace", "");
		return found;
	}

	/* Returns "name: fields" of each event whose range is the MR's, oldest first. */
	std::vector<std::string> look(const ibv_mr &mr) const
	{
		std::ostringstream range;
		std::vector<std::string> found;
		std::istringstream lines(read_file(place_ + "/trace"));
		std::string line;

		range << " range=0x" << std::hex << reinterpret_cast<uintptr_t>(mr.addr) << "-0x"
		      << reinterpret_cast<uintptr_t>(mr.addr) + mr.length << ' ';
		while (std::getline(lines, line)) {
			const auto name = line.find(" mr_notify_");
			if (line[0] != '#' && name != line.npos &&
			    line.find(range.str()) != line.npos)
				found.push_back(line.substr(name + 1));
		}
		return found;
	}

	/* Does the same as look(), and clears the buffer. */
	std::vector<std::string> take(const ibv_mr &mr) const
	{
		auto found = look(mr);
		write_file(place_ + "/trace", "");
		return found;
	}

private:
	std::string place_ = "/sys/kernel/tracing/instances/observe";
};

bool has(const std::string &text, const std::vector<std::string> &fields)
{
	const std::string words = ' ' + text + ' ';

	for (const auto &field : fields)
		if (words.find(' ' + field + ' ') == words.npos)
			return false;
	return true;
}

/* A counter of the port, by its name without "mr_notify_". */
uint64_t counter(const device &on, const std::string &name)
{
	return port_counter(on, "mr_notify_" + name).value();
}

/* The counters that the tests compare, by name. */
std::map<std::string, uint64_t> counters(const device &on)
{
	std::map<std::string, uint64_t> all;

	let_pass(50ms); /* the kernel caches the values for 10 ms */
	for (const char *name : {"armed", "arms", "suspect", "intact", "invalid", "settles",
				 "revokes", "pages_returned"})
		all[name] = counter(on, name);
	return all;
}

/* The line of the MR in "rdma -d resource show mr". */
std::string resource(const ibv_mr &mr)
{
	const std::string text = output_of("rdma -d resource show mr");
	std::ostringstream key;

	key << " lkey 0x" << std::hex << mr.lkey << ' ';
	const auto at = text.find(key.str());
	REQUIRE(at != text.npos);
	const auto begin = text.rfind("dev ", at);
	std::string line = text.substr(begin, text.find("\ndev ", at) - begin);
	std::replace_if(
		line.begin(), line.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
	return line;
}

/* Returns the MR's number (mrn) in that line. Trace events show the same number. */
std::string number(const ibv_mr &mr)
{
	const std::string line = resource(mr);
	const auto at = line.find(" mrn ") + 5;

	return line.substr(at, line.find(' ', at) - at);
}

/* Unmaps, faults and forks; each makes an MMU event if there is a notifier. */
void change_other_memory()
{
	{
		memory m = anonymous(length);
		drop_all(m);
		*m.registered().addr = std::byte{1};
		unmap_all(m);
	}
	const pid_t child = fork();
	if (child == 0)
		_exit(0);
	REQUIRE(waitpid(child, nullptr, 0) == child);
}

} // namespace

TEST_CASE("each step is a trace event")
{
	const device on;
	const trace events;
	memory m = shared_file(length);
	const auto mr = on.register_memory(m.registered());
	const std::string dev = "dev=" + on.name();
	const std::string id = "mr=" + number(*mr);
	word w;

	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	auto seen = events.take(*mr);
	/* arming compared the pages, because the kernel tracked no changes before */
	REQUIRE(seen.size() == 2);
	CHECK(has(seen[0], {"mr_notify_settle:", dev, "state=VALID", "by=call", "ret=0"}));
	CHECK(has(seen[1], {"mr_notify_arm:", dev, id, "state=VALID"}));

	drop_all(m);
	REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
	seen = events.take(*mr);
	/* in a slow guest the worker may also have compared the pages, before or during the call */
	REQUIRE(seen.size() >= 2);
	CHECK(has(seen.front(),
		  {"mr_notify_mark:", dev, id, "state=SUSPECT", "armed=1", "event=CLEAR"}));
	CHECK(has(seen.back(), {"mr_notify_settle:", dev, id, "state=VALID", "ret=0"}));

	const range r = m.registered();
	std::ostringstream changes;
	changes << "changes=0x" << std::hex << reinterpret_cast<uintptr_t>(r.addr) << "-0x"
		<< reinterpret_cast<uintptr_t>(r.end());
	unmap_all(m);
	REQUIRE(ibv_settle_mr_notify(mr.get()) == 0);
	seen = events.take(*mr);
	REQUIRE(seen.size() == (on.can_revoke() ? 2 : 1));
	CHECK(has(seen[0], {"mr_notify_mark:", dev, id, "state=INVALID", "armed=1", "event=UNMAP",
			    changes.str()}));
	if (on.can_revoke())
		CHECK(has(seen[1], {"mr_notify_revoke:", dev, id, "pages=16", "ret=0"}));

	REQUIRE(ibv_unreg_mr_notify(mr.get()) == 0);
	seen = events.take(*mr);
	REQUIRE(seen.size() == 1);
	CHECK(has(seen[0], {"mr_notify_disarm:", dev, id, "state=INVALID"}));
}

TEST_CASE("the worker's comparison is traced as the worker's")
{
	const device on;
	const trace events;
	watched it(on, shared_file(length));

	events.take(*it.mr);
	drop_all(it.m);
	CHECK(happens([&] { return events.look(*it.mr).size() >= 2; }));
	const auto seen = events.take(*it.mr);
	REQUIRE(seen.size() == 2);
	CHECK(has(seen[1], {"mr_notify_settle:", "state=VALID", "by=worker", "ret=0"}));
}

/* While mmap_lock is held, other threads can't map memory. */
TEST_CASE("mmap_lock is kept for some of the pages of a large registration at a time")
{
	constexpr std::size_t pages = 16 * 512;
	const device on;
	const memory m = anonymous(pages * page_size());
	const range r = m.registered();
	madvise(r.addr, r.length, MADV_NOHUGEPAGE);
	const auto mr = on.register_memory(r);
	const trace events("mmap_lock/mmap_lock_released");
	word w;

	events.take_mine();
	REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
	CHECK(events.take_mine().size() >= 16);
}

/*
 * If each event restarted the comparison, the comparison would never end. The kernel compares again
 * only pages that changed during the comparison, and takes mmap_lock again only for these pages.
 */
TEST_CASE("settling and arming end while events continue", "[two cpus]")
{
	constexpr std::size_t locks = 64, most = 3 * locks;
	constexpr std::size_t size = locks * 512 * 4096;
	const device on;
	const memory m = anonymous(size);
	const range r = m.registered();
	madvise(r.addr, size, MADV_NOHUGEPAGE);
	const trace events("mmap_lock/mmap_lock_released");
	events.leave_others_out();
	const auto arms = [&](const owned<ibv_mr> &mr, word &w) {
		events.take_mine();
		CHECK(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		return events.take_mine().size();
	};
	{
		const auto mr = on.register_memory(r);
		word w;

		CHECK(arms(mr, w) >= locks); /* the expected number without another thread */
	}
	std::atomic<bool> stop = false;
	std::thread harmless([&] {
		while (!stop) {
			madvise(r.addr, page_size(), MADV_FREE);
			*r.addr = std::byte{1};
		}
	});

	for (int i = 0; i < 10; i++) {
		const auto mr = on.register_memory(r);
		word w;

		CHECK(arms(mr, w) <= most); /* no comparison during an event */
		CHECK(madvise(r.addr, size, MADV_FREE) == 0);
		events.take_mine();
		CHECK(ibv_settle_mr_notify(mr.get()) == 0);
		CHECK(events.take_mine().size() <= most);
	}
	stop = true;
	harmless.join();
}

/*
 * If a worker held the last reference to an address space, the words would be set after wait() has
 * returned. Here a process ends after a worker has compared the first of many registrations. The
 * device stays open, because closing it would set the words.
 */
TEST_CASE("no worker ends the address space that it compares")
{
	constexpr std::size_t many = 64;
	constexpr std::size_t size = std::size_t{4096} << 12;
	const memory shared = shared_file(page_size());
	auto *const words = reinterpret_cast<uint64_t *>(shared.registered().addr);
	const trace events("ib_mr_notify/mr_notify_mark");
	const auto all_say = [&](uint64_t what) {
		return std::all_of(words, words + many, [what](uint64_t &word) {
			return std::atomic_ref<uint64_t>(word).load() == what;
		});
	};

	for (int i = 0; i < 10; i++) {
		const device on;
		int status = 0;
		std::fill_n(words, many, 0);
		const pid_t child = fork();
		if (child == 0) {
			const memory m = anonymous(size);
			const range r = m.registered();
			madvise(r.addr, size, MADV_NOHUGEPAGE);
			for (std::size_t nth = 0; nth < many; nth++) {
				ibv_mr *mr = ibv_reg_mr(on.pd(), r.addr, size, 0);
				if (!mr || ibv_reg_mr_notify(mr, &words[nth]))
					_exit(1);
			}
			const bool looks = !madvise(r.addr, size, MADV_FREE) &&
					   happens([&] { return !all_say(IBV_MR_NOTIFY_SUSPECT); });
			_exit(looks ? 0 : 1);
		}
		REQUIRE(child > 0);
		REQUIRE(waitpid(child, &status, 0) == child);
		CHECK(all_say(IBV_MR_NOTIFY_INVALID));
		REQUIRE(status == 0);
		REQUIRE(happens([&] { return all_say(IBV_MR_NOTIFY_INVALID); }));
		const auto told = events.take("event=RELEASE");
		CHECK(told.size() > 0);
		CHECK(std::none_of(told.begin(), told.end(), [](const std::string &line) {
			return line.find("kworker/") != line.npos;
		}));
	}
}

/* The worker must not wait for the inode's lock, because deregistration would then wait, too. */
TEST_CASE("a worker that finds the file busy compares again later")
{
	const device on;
	const trace events;
	watched it(on, shared_file(length));
	bool met = false;

	for (const run_time time; !met && time.goes_on(false);) {
		std::atomic<bool> runs = false, stop = false;
		/* holds the inode's lock most of the time */
		std::thread writer([&] {
			for (; !stop; runs = true)
				if (fallocate(it.m.fd(), 0, length, 32 << 20) ||
				    fallocate(it.m.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
					      length, 32 << 20))
					std::abort();
		});
		CHECK(happens([&] { return runs.load(); }));
		drop_all(it.m);
		usleep(100000);
		stop = true;
		writer.join();
		CHECK(happens([&] { return it.w.value() == 0; }));
		for (const auto &event : events.take(*it.mr))
			met |= has(event, {"mr_notify_settle:", "by=worker", "ret=-11"});
	}
	CHECK(met);
}

TEST_CASE("a registration that ends is traced")
{
	const trace events;
	memory m = anonymous(length);
	word w;
	ibv_mr copy{};
	const auto armed = [&](const device &on) {
		auto mr = on.register_memory(m.registered());
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		events.take(*mr);
		copy = *mr;
		return mr;
	};

	SECTION("deregistered")
	{
		const device on;
		auto mr = armed(on);
		mr.reset();
		const auto seen = events.take(copy);
		REQUIRE(seen.size() == 1);
		CHECK(has(seen[0], {"mr_notify_disarm:", "state=VALID"}));
	}
	SECTION("closed with its device")
	{
		{
			const device on;
			auto mr = armed(on);
			free(mr.release()); /* the kernel's MR stays */
		}
		const auto seen = events.take(copy);
		REQUIRE(seen.size() == 2);
		CHECK(has(seen[0], {"mr_notify_gone:", "state=INVALID"}));
		CHECK(has(seen[1], {"mr_notify_disarm:", "state=INVALID"}));
	}
}

TEST_CASE("each event is counted")
{
	const device on;
	memory shared = shared_file(length);
	memory m = anonymous(length);
	const auto first = on.register_memory(shared.registered());
	const auto second = on.register_memory(m.registered());
	word one;
	word two;

	auto wanted = counters(on);
	REQUIRE(ibv_reg_mr_notify(first.get(), one.address()) == 0);
	REQUIRE(ibv_reg_mr_notify(second.get(), two.address()) == 0);
	wanted["armed"] += 2;
	wanted["arms"] += 2;
	wanted["intact"] += 2; /* the kernel did not track these MRs before */
	CHECK(counters(on) == wanted);

	drop_all(shared);
	REQUIRE(ibv_settle_mr_notify(first.get()) == 0);
	REQUIRE(ibv_settle_mr_notify(first.get()) == 0);
	wanted["suspect"] += 1;
	wanted["settles"] += 2;
	wanted["intact"] += 1;
	CHECK(counters(on) == wanted);

	drop_all(m);
	REQUIRE(ibv_settle_mr_notify(second.get()) == 0);
	wanted["suspect"] += 1;
	wanted["settles"] += 1;
	wanted["invalid"] += 1;
	if (on.can_revoke()) {
		wanted["revokes"] += 1;
		wanted["pages_returned"] += 16;
	}
	CHECK(counters(on) == wanted);

	REQUIRE(ibv_unreg_mr_notify(first.get()) == 0);
	wanted["armed"] -= 1;
	CHECK(counters(on) == wanted);
}

namespace {

bool calls_worker(const std::vector<std::string> &lines)
{
	return std::any_of(lines.begin(), lines.end(), [](const std::string &line) {
		return has(line, {"function=umem_notify_"});
	});
}

/* The seconds since the guest's start, from "TASK-PID [CPU] FLAGS SECONDS: EVENT: ..." */
double time_of(const std::string &line, const std::string &event)
{
	const auto end = line.find(": " + event);
	const auto begin = line.rfind(' ', end - 1) + 1;

	return std::stod(line.substr(begin, end - begin));
}

} // namespace

/*
 * The calling task must unpin the pages itself, because other processes could delay another thread.
 */
TEST_CASE("an unmap itself unpins an unused registration", "[revoke]")
{
	const device on;
	const trace events("workqueue/workqueue_queue_work");
	constexpr uint64_t user = 0x100;
	word w;
	memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	const auto mr = on.register_memory(m.registered());

	events.leave_others_out();
	SECTION("no user")
	{
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00) == 0);
		events.take_mine();
		unmap_all(m);
		CHECK(pinned_bytes() == before);
		CHECK(!calls_worker(events.take_mine()));
	}
	SECTION("users are not counted")
	{
		REQUIRE(ibv_reg_mr_notify(mr.get(), w.address()) == 0);
		events.take_mine();
		unmap_all(m);
		CHECK(pinned_bytes() == before);
		CHECK(!calls_worker(events.take_mine()));
	}
	SECTION("suspended")
	{
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00) == 0);
		write_file("/proc/sys/vm/drop_caches", "2");
		REQUIRE(happens([&] { return pinned_bytes() == before + page_size(); }));
		events.take_mine();
		unmap_all(m);
		CHECK(pinned_bytes() == before);
		CHECK(!calls_worker(events.take_mine()));
	}
	SECTION("in use, it keeps them")
	{
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00) == 0);
		*w.address() = user;
		unmap_all(m);
		CHECK(pinned_bytes() > before);
		std::atomic_ref(*w.address()).fetch_and(~user);
		CHECK(wait_for_pinned(before) == before);
	}
	CHECK(w.value() == IBV_MR_NOTIFY_INVALID);
}

TEST_CASE("a fork itself unpins an idle registration", "[revoke]")
{
	const device on;
	const trace events("workqueue/workqueue_queue_work");
	const memory m = anonymous(length);
	const std::size_t before = pinned_bytes();
	const auto mr = on.register_memory(m.registered());
	word w;

	REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), 0xff00) == 0);
	events.leave_others_out();
	events.take_mine();
	in_child([] {});
	CHECK(w.value() == IBV_MR_NOTIFY_SUSPENDED);
	CHECK(pinned_bytes() == before + page_size());
	CHECK(!calls_worker(events.take_mine()));
}

/*
 * The worker's CPU time is not charged to the process or its cgroup. So the kernel limits the share
 * of the time for which the worker runs. The test checks this limit.
 */
TEST_CASE("a process that changes its memory all the time hardly keeps the worker busy")
{
	constexpr std::size_t large = std::size_t{64} << 20;
	const device on;
	const watched it(on, shared_file(large));
	const range r = it.m.registered();
	const trace events("workqueue");
	std::vector<std::string> lines;

	const auto begin = kernel_time();
	while (kernel_time() - begin < 4s) {
		REQUIRE(madvise(r.addr, r.length, MADV_DONTNEED) == 0);
		let_pass(20ms);
		for (auto &line : events.take("umem_notify_queue_work"))
			lines.push_back(std::move(line));
	}
	const std::chrono::duration<double> all = kernel_time() - begin;
	double busy = 0, began = 0;
	for (const auto &line : lines)
		if (has(line, {"workqueue_execute_start"}))
			began = time_of(line, "workqueue_execute_start");
		else if (began && has(line, {"workqueue_execute_end"}))
			busy += time_of(line, "workqueue_execute_end") - began;
	CHECK(!lines.empty()); /* the worker does run */
	CHECK(busy < 0.1 * all.count());
}

/* If the users of an MR are counted, the worker runs after 20 ms. */
TEST_CASE("an invalid MR is counted before the worker has run", "[revoke]")
{
	const device on;

	for (int i = 0; i < 20; i++) {
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		word w;
		REQUIRE(ibv_reg_mr_notify_reclaim(mr.get(), w.address(), uint64_t{1} << 8) == 0);
		const uint64_t before = counters(on)["invalid"];
		let_pass(50ms); /* as above */
		unmap_all(m);
		CHECK(counter(on, "invalid") == before + 1);
	}
}

TEST_CASE("rdma statistic prints the counters")
{
	const device on;

	CHECK(output_of("rdma statistic show link " + on.name() + "/1").find(" mr_notify_armed ") !=
	      std::string::npos);
}

TEST_CASE("a deregistered MR is no longer counted as armed")
{
	const device on;
	const uint64_t before = counters(on)["armed"];

	{
		const watched it(on, anonymous(length));
		CHECK(counters(on)["armed"] == before + 1);
	}
	CHECK(counters(on)["armed"] == before);
}

/*
 * A page fault may migrate or reclaim a page that this process shares with its parent. Then the
 * kernel calls the parent's notifiers in this thread.
 */
TEST_CASE("without notification no MMU notifier is called", "[kprobes]")
{
	const probe calls("__mmu_notifier_invalidate_range_start mm=+0($arg1):x64 "
			  "start=+8($arg1):x64");
	const trace events("observe");
	int failed = 0;

	/* Runs in a child, because an earlier test may have armed an MR in this process. */
	const pid_t child = fork();
	if (child == 0) {
		const device on;
		memory m = anonymous(length);
		const auto mr = on.register_memory(m.registered());
		word w;

		change_other_memory();
		drop_all(m);
		const auto before = events.take_mine();
		/* with a notifier, the probe sees a call */
		if (ibv_reg_mr_notify(mr.get(), w.address()))
			_exit(2);
		drop_all(m);

		std::ostringstream here;
		here << " start=0x" << std::hex << reinterpret_cast<uintptr_t>(m.registered().addr);
		std::string ours;
		for (const auto &line : events.take_mine())
			if (has(line, {here.str().substr(1)}))
				ours = line.substr(line.find(" mm="),
						   line.find(" start=") - line.find(" mm="));
		if (ours.empty())
			_exit(3);
		for (const auto &line : before)
			if (line.find(ours + ' ') != line.npos)
				_exit(1);
		_exit(0);
	}
	REQUIRE(child > 0);
	REQUIRE(waitpid(child, &failed, 0) == child);
	CHECK(WEXITSTATUS(failed) == 0);
}
