// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A process does not wait for invalidations of another process that shares a file with it. The
 * kernel and the removal of a device don't wait for a process whose memory is being invalidated all
 * the time.
 */
#include "catch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "rows.h"
#include "skip.h"
#include "system.h"
#include "trial.h"

using namespace mr_notify;
using namespace std::chrono_literals;

namespace {

/* Sends up to 253 files with one byte, and closes them. */
bool send_files(int socket, const std::vector<int> &fds)
{
	char byte = 0;
	iovec data{&byte, 1};
	alignas(cmsghdr) std::byte control[CMSG_SPACE(253 * sizeof(int))] = {};
	msghdr message{};

	message.msg_iov = &data;
	message.msg_iovlen = 1;
	message.msg_control = control;
	message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
	cmsghdr *const header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
	std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
	const bool done = sendmsg(socket, &message, 0) == 1;
	for (const int fd : fds)
		close(fd);
	return done;
}

/*
 * Lets a kernel thread close files. Their last references are in a message to a socket that is
 * itself in flight. The garbage collector of such sockets drops the references.
 */
bool close_in_flight(std::vector<int> fds)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
		return false;
	fds.push_back(ends[0]); /* this file closes last, which makes the message garbage */
	const bool done = send_files(ends[1], fds);
	close(ends[1]);
	return done;
}

/* Waits for data or the end of the file. Returns false at the time limit. */
bool heard(int fd)
{
	pollfd one{fd, POLLIN, 0};

	return poll(&one, 1, std::chrono::milliseconds(time_limit).count()) == 1;
}

/*
 * Returns whether a kernel thread closes a file whose last reference is in a message to a socket in
 * flight.
 */
bool kernel_closes_files()
{
	int ends[2];

	if (pipe(ends) || !close_in_flight({ends[1]}))
		return false;
	const bool closed = heard(ends[0]);
	close(ends[0]);
	return closed;
}

constexpr std::size_t huge = std::size_t{2} << 20;

/*
 * Maps memory with one page in each 2 MiB, so that a call spends its time walking the page tables.
 */
memory sparse(std::size_t length, int fd = -1)
{
	const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
	void *const p = mmap(nullptr, length, PROT_READ | PROT_WRITE, kind, fd, 0);

	check(p != MAP_FAILED, "mmap");
	memory m({static_cast<std::byte *>(p), length}, fd);
	const range r = m.registered();

	madvise(r.addr, length, MADV_NOHUGEPAGE);
	for (std::size_t at = page_size(); at < length; at += huge)
		r.addr[at] = std::byte{1};
	return m;
}

/* With less memory there would be moments without an invalidation. */
constexpr std::size_t large = std::size_t{8} << 30;

range first_page(const memory &of)
{
	return {of.registered().addr, page_size()};
}

/* Threads invalidate the range without a pause, as long as the process lives. */
void invalidate_always(range r, int threads = 6)
{
	static std::atomic<int> begun = 0;
	for (int i = 0; i < threads; i++)
		std::thread([r] {
			for (bool first = true;; first = false) {
				madvise(r.addr, r.length, MADV_DONTNEED);
				begun += first;
			}
		}).detach();
	while (begun < threads)
		usleep(1000);
}

/*
 * Runs in a separate process, which sends the file of its device to another process. At the same
 * time its threads invalidate the memory of an armed registration without a pause.
 */
enum class closing : uint8_t { fine, late, failed };
closing close_beside_events()
{
	const memory m = sparse(large);
	const range r = m.registered();
	const device on;
	word w;
	owned<ibv_mr> mr = on.register_memory(first_page(m));

	if (ibv_reg_mr_notify(mr.release(), w.address()) || !kernel_closes_files())
		return closing::failed;
	invalidate_always(r);
	if (!close_in_flight({on.context()->cmd_fd}))
		_exit(static_cast<int>(closing::failed));
	std::this_thread::sleep_for(1s);
	_exit(static_cast<int>(kernel_closes_files() ? closing::fine : closing::late));
}

/*
 * A process of another user, whose memory is invalidated without a pause. It has sent the files of
 * `count` registrations of this memory to other processes.
 */
class other_user {
public:
	/* @give: called in this process; returns false if it failed */
	template <class F> other_user(int count, F give)
	{
		int said[2];

		check(pipe(said) == 0, "pipe");
		child_ = fork();
		if (child_ == 0) {
			try {
				_exit(be(count, give, said[1]));
			} catch (const std::exception &reason) { /* otherwise Catch2 would run */
				std::fprintf(stderr, "another user: %s\n", reason.what());
				_exit(1);
			}
		}
		close(said[1]);
		char done = 0;
		ready_ = read(said[0], &done, 1) == 1;
		close(said[0]);
	}
	other_user(const other_user &) = delete;
	other_user &operator=(const other_user &) = delete;
	~other_user()
	{
		kill(child_, SIGKILL);
		waitpid(child_, nullptr, 0);
	}

	bool ready() const { return ready_; }

private:
	template <class F> static int be(int count, F give, int said)
	{
		constexpr uid_t nobody = 65534;

		if (setresuid(nobody, nobody, nobody))
			return 1;
		const memory m = sparse(large);
		const memory words = anonymous(page_size());
		const range r = m.registered();
		auto *const word = reinterpret_cast<uint64_t *>(words.registered().addr);
		std::vector<int> files;

		for (int i = 0; i < count; i++) {
			auto *const on = new device; /* only its file stays open */
			const range part{r.addr + i * page_size(), page_size()};

			if (ibv_reg_mr_notify(on->register_memory(part).release(), word + i))
				return 1;
			files.push_back(on->context()->cmd_fd);
		}
		invalidate_always(r);
		if (!give(files) || write(said, "x", 1) != 1)
			return 1;
		return pause();
	}

	pid_t child_;
	bool ready_;
};

/* A process that runs until the destructor kills it. */
class child_process {
public:
	explicit child_process(const std::function<int()> &run) : pid_(fork())
	{
		check(pid_ >= 0, "fork");
		if (pid_ == 0) {
			try {
				_exit(run());
			} catch (const std::exception &reason) {
				std::fprintf(stderr, "a child: %s\n", reason.what());
				_exit(1);
			}
		}
	}
	child_process(const child_process &) = delete;
	child_process &operator=(const child_process &) = delete;
	~child_process()
	{
		if (!ended_)
			ends_when_killed();
	}

	/* Returns whether the process ends within the time limit. */
	bool ends_when_killed()
	{
		kill(pid_, SIGKILL);
		ended_ = happens([this] { return waitpid(pid_, nullptr, WNOHANG) != 0; });
		return ended_;
	}

private:
	pid_t pid_;
	bool ended_ = false;
};

/*
 * Arms in a separate process, then invalidates the memory there without a pause, and sends the
 * files so that the kernel closes them.
 */
int invalidate_without_files(const std::string &name, int threads, int said)
{
	const memory m = sparse(large);
	const memory words = anonymous(page_size());
	auto *const on = new device(name);
	auto *const word = reinterpret_cast<uint64_t *>(words.registered().addr);

	if (ibv_reg_mr_notify(on->register_memory(first_page(m)).release(), word))
		return 1;
	invalidate_always(m.registered(), threads);
	if (!close_in_flight({on->context()->cmd_fd, on->context()->async_fd}) ||
	    write(said, "x", 1) != 1)
		return 1;
	return pause();
}

/* Returns whether the process ends with success within the time limit. */
bool ends_well(pid_t process)
{
	int status = 1;

	return happens([&] { return waitpid(process, &status, WNOHANG) == process; }) &&
	       status == 0;
}

const std::filesystem::path modules = "/sys/module";

/* Unloads a module after the modules that use it. Prepends the name of each module to `names`. */
bool unload(const std::string &module, std::string &names)
{
	std::vector<std::string> users;

	for (const auto &user : std::filesystem::directory_iterator(modules / module / "holders"))
		users.push_back(user.path().filename());
	for (const std::string &user : users)
		if (std::filesystem::exists(modules / user) && !unload(user, names))
			return false;
	names = module + " " + names;
	return happens([&] { return syscall(SYS_delete_module, module.c_str(), O_NONBLOCK) == 0; });
}

} // namespace

/* The receiver need not accept the file: reading the byte of the message closes the file. */
TEST_CASE("a process that was sent another user's file does not wait for that user")
{
	int ends[2];
	int answers[2];
	int status = 1;
	pid_t daemon = -1;
	bool answered = false;

	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	REQUIRE(pipe(answers) == 0);
	{
		const other_user user(1, [&](const auto &fds) { return send_files(ends[1], fds); });

		REQUIRE(user.ready());
		daemon = fork();
		if (daemon == 0) {
			char byte = 0;
			_exit(read(ends[0], &byte, 1) == 1 && write(answers[1], "x", 1) == 1 ? 0
											     : 1);
		}
		for (const int end : {ends[0], ends[1], answers[1]})
			close(end);
		answered = heard(answers[0]);
	}
	CHECK(answered);
	REQUIRE(waitpid(daemon, &status, 0) == daemon);
	CHECK(status == 0);
	close(answers[0]);
}

/* A workqueue runs fewer than 260 work items at the same time. */
TEST_CASE("files of one user that can't be closed let another user's files close")
{
	const other_user user(260, [](const auto &fds) {
		const auto half = fds.begin() + fds.size() / 2;

		return close_in_flight({fds.begin(), half}) && close_in_flight({half, fds.end()});
	});
	const memory m = anonymous(page_size());
	device *const gone = new device; /* the other user must not inherit its files */
	word w;

	REQUIRE(user.ready());
	REQUIRE(ibv_reg_mr_notify(gone->register_memory(m.registered()).release(), w.address()) ==
		0);
	std::this_thread::sleep_for(1s); /* the kernel's work items start */
	REQUIRE(close_in_flight({gone->context()->cmd_fd, gone->context()->async_fd}));
	CHECK(happens([&] { return w.value() == IBV_MR_NOTIFY_INVALID; }));
}

TEST_CASE("a process whose memory is always being invalidated does not keep others' files open")
{
	const pid_t child = fork();

	REQUIRE(child >= 0);
	if (child == 0)
		_exit(static_cast<int>(close_beside_events()));
	int status = -1;
	REQUIRE(waitpid(child, &status, 0) == child);
	REQUIRE(WIFEXITED(status));
	CHECK(static_cast<closing>(WEXITSTATUS(status)) == closing::fine);
	CHECK(kernel_closes_files());
}

/* The two processes share only the files. */
TEST_CASE("a process whose shared files others punch continues, and can be killed", "[two cpus]")
{
	constexpr std::size_t length = large;
	constexpr int files = 3;
	std::array<int, files> shared; /* only the other user has mapped the files */
	int rounds[2];

	REQUIRE(pipe(rounds) == 0);
	for (int &fd : shared) {
		fd = memfd_create("shared", MFD_CLOEXEC);
		REQUIRE((fd >= 0 && ftruncate(fd, static_cast<off_t>(length)) == 0));
	}

	child_process user([&] {
		const device on;
		const memory own = anonymous(page_size());
		/* A page with a single word, so that each arming pins the page again. */
		const memory page = anonymous(page_size());
		auto *const own_word = reinterpret_cast<uint64_t *>(page.registered().addr);
		std::vector<memory> maps;
		word words[files];

		for (int i = 0; i < files; i++) {
			maps.push_back(sparse(length, shared[i]));
			owned<ibv_mr> mr = on.register_memory(first_page(maps.back()));
			if (ibv_reg_mr_notify(mr.release(), words[i].address()))
				return 1;
		}
		*own_word = 0;
		for (;;) {
			const auto mr = on.register_memory(own.registered());

			/* No event hits that memory, so its word stays 0. */
			if (ibv_reg_mr_notify(mr.get(), own_word) ||
			    std::atomic_ref(*own_word).load() != 0 || write(rounds[1], "x", 1) != 1)
				return 1;
		}
	});
	close(rounds[1]);
	char round = 0;
	REQUIRE(heard(rounds[0]));
	REQUIRE(read(rounds[0], &round, 1) == 1);

	int begun[2];
	REQUIRE(pipe(begun) == 0);
	child_process other([&] {
		for (int i = 0; i < 2 * files; i++)
			std::thread([fd = shared[i % files], begun = begun[1]] {
				for (bool first = true;; first = false)
					if (fallocate(fd,
						      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
						      huge, length - huge) ||
					    (first && write(begun, "x", 1) != 1))
						_exit(1);
			}).detach();
		return pause();
	});
	for (int i = 0; i < 2 * files; i++)
		REQUIRE((heard(begun[0]) && read(begun[0], &round, 1) == 1));
	while (poll(nullptr, 0, 0) == 0 && fcntl(rounds[0], F_SETFL, O_NONBLOCK) == 0 &&
	       read(rounds[0], &round, 1) == 1)
		;
	REQUIRE(fcntl(rounds[0], F_SETFL, 0) == 0);
	int seen = 0;
	while (seen < 20 && heard(rounds[0]) && read(rounds[0], &round, 1) == 1)
		seen++;
	CHECK(seen == 20);
	CHECK(user.ends_when_killed());
	for (const int fd : {rounds[0], begun[0], begun[1], shared[0], shared[1], shared[2]})
		close(fd);
}

/* The removal of a software device waits until the last file of the device is closed. */
TEST_CASE("a device can be removed while its last user's memory is always being invalidated")
{
	const bool iwarp = device().is_iwarp();
	const std::string make = "ip link add mrn-dummy type dummy && ip link set mrn-dummy up && "
				 "rdma link add mrn0 type " +
				 std::string(iwarp ? "siw" : "rxe") + " netdev mrn-dummy";
	SKIP_IF(std::system(make.c_str()), "can't make a device");
	int said[2];

	REQUIRE(pipe(said) == 0);
	child_process user([&] { return invalidate_without_files("mrn0", 6, said[1]); });
	close(said[1]);
	char done = 0;
	REQUIRE(heard(said[0]));
	REQUIRE(read(said[0], &done, 1) == 1);
	close(said[0]);

	const pid_t removal = fork();
	REQUIRE(removal >= 0);
	if (removal == 0) {
		execlp("rdma", "rdma", "link", "del", "mrn0", nullptr);
		_exit(1);
	}
	CHECK(ends_well(removal));
	user.ends_when_killed();
	CHECK(std::system("ip link del mrn-dummy") == 0);
}

/* The process continues without the notifier. */
TEST_CASE("ib_uverbs can be unloaded while a former user's memory is always being invalidated")
{
	SKIP_IF(!std::filesystem::exists(modules / "ib_uverbs/refcnt"), "it is no module");
	const bool iwarp = std::filesystem::exists("/sys/class/infiniband/siw0");
	const memory shared = shared_file(page_size());
	auto *const names = reinterpret_cast<char *>(shared.registered().addr);
	int said[2];

	REQUIRE(pipe(said) == 0);
	child_process user([&] { return invalidate_without_files("rxe0", 2, said[1]); });
	close(said[1]);
	char done = 0;
	REQUIRE(heard(said[0]));
	REQUIRE(read(said[0], &done, 1) == 1);
	close(said[0]);

	const pid_t unloading = fork();
	REQUIRE(unloading >= 0);
	if (unloading == 0) {
		std::string all;
		const bool gone = std::system("rdma link del rxe0") == 0 &&
				  (!iwarp || std::system("rdma link del siw0") == 0) &&
				  unload("ib_uverbs", all);
		names[all.copy(names, page_size() - 1)] = 0;
		_exit(gone ? 0 : 1);
	}
	CHECK(ends_well(unloading));
	/* If a call into the module were pending, the kernel would make it now. */
	std::this_thread::sleep_for(1s);
	CHECK(user.ends_when_killed());

	/* The next tests need the modules, even if this test has failed. */
	CHECK(std::system((std::string("modprobe -a ") + names).c_str()) == 0);
	CHECK(std::system("rdma link add rxe0 type rxe netdev dummy0") == 0);
	if (iwarp)
		CHECK(std::system("rdma link add siw0 type siw netdev dummy1") == 0);
	CHECK(device("rxe0").can_notify());
}
