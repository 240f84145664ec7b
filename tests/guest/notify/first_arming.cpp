// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * first_arming cached|plain none|timer|io_uring|debugger MICROSECONDS
 *
 * The first registration of a process with very many mappings is armed while something disturbs its
 * thread each MICROSECONDS. Prints how many microseconds the arming took. Exit status 0: the
 * registration is armed; 1: it is not armed; 2: making the mappings takes too long on this machine.
 */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <string>
#include <thread>

#include "device.h"
#include "memory.h"

using namespace mr_notify;
using namespace std::chrono_literals;
using std::chrono::microseconds;
using clock_type = std::chrono::steady_clock;

namespace {

void check(bool ok, const char *what)
{
	if (!ok)
		fail(what);
}

/* Causes task work of io_uring for this thread. A signal mask does not block task work. */
void complete_each(microseconds interval)
{
	io_uring_params params{};
	params.flags = IORING_SETUP_CQSIZE;
	params.cq_entries = 32768; /* no entry is taken out */
	const auto ring = static_cast<int>(syscall(SYS_io_uring_setup, 1, &params));
	const int event = eventfd(0, EFD_NONBLOCK);
	check(ring >= 0 && event >= 0, "io_uring_setup, eventfd");
	auto *const queue = static_cast<std::byte *>(
		mmap(nullptr, params.sq_off.array + sizeof(uint32_t), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING));
	auto *const request = static_cast<io_uring_sqe *>(
		mmap(nullptr, sizeof(io_uring_sqe), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES));

	check(queue != MAP_FAILED && request != MAP_FAILED, "mmap of the rings");
	request->opcode = IORING_OP_POLL_ADD;
	request->fd = event;
	request->len = IORING_POLL_ADD_MULTI;
	request->poll32_events = POLLIN;
	*reinterpret_cast<uint32_t *>(queue + params.sq_off.array) = 0;
	*reinterpret_cast<uint32_t *>(queue + params.sq_off.tail) = 1;
	check(syscall(SYS_io_uring_enter, ring, 1, 0, 0, nullptr, 0) == 1, "io_uring_enter");
	std::thread([event, interval] {
		for (;;) {
			eventfd_write(event, 1);
			std::this_thread::sleep_for(interval);
		}
	}).detach();
}

/* A debugger interrupts without a signal, as a freezer does. */
void interrupt_each(microseconds interval)
{
	const pid_t thread = gettid();
	int seized[2];
	char done = 0;

	check(pipe(seized) == 0, "pipe");
	if (const pid_t debugger = fork(); debugger == 0) {
		if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) || write(seized[1], "x", 1) != 1)
			_exit(1);
		for (int status = 0;;) {
			if (ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) ||
			    waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status) ||
			    ptrace(PTRACE_CONT, thread, nullptr, nullptr))
				_exit(0); /* the thread has ended */
			std::this_thread::sleep_for(interval);
		}
	}
	close(seized[1]);
	check(read(seized[0], &done, 1) == 1, "PTRACE_SEIZE");
	close(seized[0]);
}

void signal_each(microseconds interval)
{
	const timeval every{interval.count() / 1000000, interval.count() % 1000000};
	const itimerval timer{every, every};

	std::signal(SIGALRM, [](int) {});
	check(setitimer(ITIMER_REAL, &timer, nullptr) == 0, "setitimer");
}

void disturb(const std::string &by, microseconds interval)
{
	if (by == "timer")
		signal_each(interval);
	else if (by == "io_uring")
		complete_each(interval);
	else if (by == "debugger")
		interrupt_each(interval);
	else if (by != "none")
		throw std::invalid_argument(by);
}

/* Returns false if the mappings take more than a minute. */
bool map_very_many()
{
	constexpr std::size_t pages = 60000;
	const auto end = clock_type::now() + 60s;
	auto *const many =
		static_cast<std::byte *>(mmap(nullptr, pages * page_size(), PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

	check(many != MAP_FAILED, "mmap");
	/* Touches one page, because arming takes a lock only of mappings with pages. */
	*many = std::byte{1};
	for (std::size_t i = 0; i < pages; i += 2) {
		mprotect(many + i * page_size(), page_size(), PROT_NONE);
		if (clock_type::now() > end)
			return false;
	}
	return true;
}

bool arms(const device &on, range r, ibv_mr *plain)
{
	static word w;

	if (plain)
		return ibv_reg_mr_notify(plain, w.address()) == 0;
	return ibv_reg_mr(on.pd(), r.addr, r.length, IBV_ACCESS_CACHED) &&
	       ibv_is_reg(on.pd(), r.addr, r.length, IBV_ACCESS_CACHED);
}

} // namespace

int main(int argc, char **argv)
{
	if (argc != 4)
		return 1;
	const bool cached = argv[1] == std::string("cached");
	const device on;
	const memory m = anonymous(page_size());
	const range r = m.registered();

	if (!map_very_many())
		return 2;
	const auto mr = cached ? owned<ibv_mr>() : on.register_memory(r);
	const auto begin = clock_type::now();
	disturb(argv[2], microseconds(std::stoll(argv[3])));
	const bool armed = arms(on, r, mr.get());
	const auto took = clock_type::now() - begin;
	std::cout << std::chrono::duration_cast<microseconds>(took).count() << std::endl;
	_exit(!armed); /* the disturbance goes on until here */
}
