// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "slow_memory.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace odp {

using namespace mr_notify;

std::unique_ptr<slow_memory> slow_memory::make(std::size_t length)
{
	const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
	memory whole = anonymous(length);
	uffdio_api api{};
	uffdio_register reg{};

	api.api = UFFD_API;
	reg.range = {reinterpret_cast<uintptr_t>(whole.registered().addr),
		     whole.registered().length};
	reg.mode = UFFDIO_REGISTER_MODE_MISSING;
	if (fd < 0)
		return nullptr;
	if (madvise(whole.registered().addr, length, MADV_DONTNEED) ||
	    ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg)) {
		close(fd);
		return nullptr;
	}
	return std::unique_ptr<slow_memory>(new slow_memory(std::move(whole), fd));
}

slow_memory::~slow_memory()
{
	close(fd_);
}

bool slow_memory::faulted(std::chrono::milliseconds patience) const
{
	pollfd ready{fd_, POLLIN, 0};

	return poll(&ready, 1, static_cast<int>(patience.count())) == 1;
}

void slow_memory::fill(std::byte with, std::size_t length) const
{
	const std::vector<std::byte> page(page_size(), with);
	const range all = bytes();

	for (std::size_t at = 0; at < length; at += page_size()) {
		uffdio_copy copy{};

		copy.dst = reinterpret_cast<uintptr_t>(all.addr + at);
		copy.src = reinterpret_cast<uintptr_t>(page.data());
		copy.len = page_size();
		copy.mode = UFFDIO_COPY_MODE_DONTWAKE;
		ioctl(fd_, UFFDIO_COPY, &copy); // a page that is there stays as it is
	}
}

void slow_memory::answer(std::byte with, std::size_t length) const
{
	fill(with, length);
	wake();
}

void slow_memory::wake() const
{
	const range all = bytes();
	uffdio_range woken{reinterpret_cast<uintptr_t>(all.addr), all.length};

	ioctl(fd_, UFFDIO_WAKE, &woken);
}

namespace {

/* Those that serve faults, of all processes, of which @counts(their folder in /proc) is true. */
template <class F> int count_threads(F counts)
{
	int count = 0;
	std::error_code gone;

	for (const auto &process : std::filesystem::directory_iterator("/proc")) {
		if (!isdigit(process.path().filename().native().front()))
			continue;
		for (std::filesystem::directory_iterator task(process.path() / "task", gone), end;
		     !gone && task != end; task.increment(gone)) {
			std::ifstream comm(task->path() / "comm");
			std::string name;

			if (comm >> name && name == "rxe_odp" && counts(task->path()))
				count++;
		}
	}
	return count;
}

} // namespace

int fault_threads()
{
	return count_threads([](const auto &) { return true; });
}

int waiting_threads()
{
	return count_threads([](const auto &task) {
		std::ifstream file(task / "wchan");
		std::string where;

		return !(file >> where) || where != "vhost_task_fn";
	});
}

bool no_thread_waits()
{
	return happens([] { return waiting_threads() == 0; });
}

} // namespace odp
