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
#include <map>
#include <numeric>
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
		throw unsupported("no userfaultfd");
	if (madvise(whole.registered().addr, length, MADV_DONTNEED) ||
	    ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg)) {
		close(fd);
		throw unsupported("no userfaultfd");
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
		ioctl(fd_, UFFDIO_COPY, &copy); // an existing page does not change
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

/* Calls the function with each entry of a folder of each process in /proc. */
template <class F> void each_of_all_processes(const char *folder, F use)
{
	std::error_code gone;

	for (const auto &process : std::filesystem::directory_iterator("/proc")) {
		if (!isdigit(process.path().filename().native().front()))
			continue;
		for (std::filesystem::directory_iterator one(process.path() / folder, gone), end;
		     !gone && one != end; one.increment(gone))
			use(one->path());
	}
}

} // namespace

int fault_threads()
{
	int count = 0;

	each_of_all_processes("task", [&](const std::filesystem::path &task) {
		std::ifstream comm(task / "comm");
		std::string name;

		if (comm >> name && name == "rxe_odp")
			count++;
	});
	return count;
}

int waiting_threads()
{
	std::map<std::string, int> waiters; /* for each userfaultfd, by its inode */

	each_of_all_processes("fd", [&](const std::filesystem::path &fd) {
		std::error_code gone;
		if (std::filesystem::read_symlink(fd, gone) != "anon_inode:[userfaultfd]")
			return;
		std::ifstream file(fd.parent_path().parent_path() / "fdinfo" / fd.filename());
		std::string word, inode;
		int total = 0;

		while (file >> word) {
			if (word == "ino:")
				file >> inode;
			else if (word == "total:")
				file >> total;
		}
		waiters[inode] = total;
	});
	return std::accumulate(waiters.begin(), waiters.end(), 0,
			       [](int sum, const auto &one) { return sum + one.second; });
}

bool no_thread_waits()
{
	return happens([] { return waiting_threads() == 0; });
}

} // namespace odp
