// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "victim.h"

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "system.h"

namespace mr_notify {

victim::victim(const device &on, std::size_t length, const std::function<void()> &then)
{
	*shared_ = {};
	const std::string name = on.name();
	process_ = fork();
	if (process_ == 0)
		live(name, length, then);
	if (process_ < 0)
		fail("fork");
	if (!happens([&] { return read(&shared::ready) == 1; })) {
		kill(process_, SIGKILL);
		waitpid(process_, nullptr, 0);
		throw std::runtime_error("the other process can't arm a registration");
	}
}

victim::~victim()
{
	if (process_ > 0) {
		kill(process_, SIGKILL);
		waitpid(process_, nullptr, __WALL);
	}
}

void victim::live(const std::string &name, std::size_t length,
		  const std::function<void()> &then) const
{
	try {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		const device own(name);
		const memory m = anonymous(length);
		const auto mr = own.register_memory(m.registered());
		check_verb(ibv_reg_mr_notify(mr.get(), &shared_->word), "ibv_reg_mr_notify");
		std::atomic_ref(shared_->ready).store(1);
		while (!std::atomic_ref(shared_->go).load())
			usleep(1000);
		if (then)
			then();
		for (;;)
			pause();
	} catch (const std::exception &) {
		_exit(1);
	}
}

uint64_t victim::read(uint64_t shared::*what) const
{
	return std::atomic_ref(shared_->*what).load(std::memory_order_acquire);
}

uint64_t victim::word() const
{
	return read(&shared::word);
}

std::size_t victim::pinned_bytes() const
{
	return proc_number(("/proc/" + std::to_string(process_) + "/status").c_str(), "VmPin") *
	       1024;
}

void victim::begin()
{
	std::atomic_ref(shared_->go).store(1);
}

void victim::stop_at_exit()
{
	if (ptrace(PTRACE_SEIZE, process_, nullptr, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL))
		throw unsupported("ptrace is not allowed");
}

void victim::wait_for_stop()
{
	int status = 0;

	while (waitpid(process_, &status, __WALL) < 0 && errno == EINTR)
		;
	if (!WIFSTOPPED(status) || status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8))
		throw std::runtime_error("ptrace did not stop the other process at its exit");
}

void victim::wait_for_end()
{
	ptrace(PTRACE_CONT, process_, nullptr, nullptr);
	while (waitpid(process_, nullptr, __WALL) < 0 && errno == EINTR)
		;
	process_ = -1;
}

} // namespace mr_notify
