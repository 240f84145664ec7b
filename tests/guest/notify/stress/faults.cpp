// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "faults.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace stress {
namespace {

const std::string debugfs = "/sys/kernel/debug/";
constexpr std::array kinds{"failslab", "fail_page_alloc", "fail_usercopy"};

/* Some kinds of faults lack some of these files. */
void set_all(const char *attribute, const char *value)
{
	for (const char *kind : kinds)
		std::ofstream(debugfs + kind + "/" + attribute, std::ios::in) << value;
}

class thread_file {
public:
	explicit thread_file(const char *name)
	    : fd_(open((std::string("/proc/thread-self/") + name).c_str(), O_RDWR | O_CLOEXEC))
	{
	}
	~thread_file() { close(fd_); }
	thread_file(const thread_file &) = delete;
	thread_file &operator=(const thread_file &) = delete;

	bool write(const char *value) const
	{
		return pwrite(fd_, value, std::strlen(value), 0) > 0;
	}

	/* Returns -1 if reading fails. */
	int read() const
	{
		std::array<char, 16> text{};
		int value = -1;

		if (pread(fd_, text.data(), text.size() - 1, 0) > 0)
			std::from_chars(text.data(), text.data() + text.size(), value);
		return value;
	}

private:
	int fd_;
};

} // namespace

faults::faults()
    : possible_(access((debugfs + kinds[0]).c_str(), F_OK) == 0 &&
		access("/proc/thread-self/fail-nth", W_OK) == 0)
{
	if (!possible_)
		return;
	set_all("verbose", "0");
	set_all("ignore-gfp-wait", "N");
	set_all("ignore-gfp-highmem", "N");
	set_all("min-order", "0");
	set_all("task-filter", "Y");
	set_all("times", "-1");
}

faults::~faults()
{
	if (!possible_)
		return;
	set_all("probability", "0");
	set_all("ignore-gfp-wait", "Y");
	set_all("ignore-gfp-highmem", "Y");
	set_all("min-order", "1");
}

bool faults::inject(unsigned int n, const std::function<void()> &in) const
{
	const thread_file nth("fail-nth");
	const std::string text = std::to_string(n);

	nth.write(text.c_str());
	in();
	/* The read of this file also counts, and fails if it is the n-th call. */
	const int left = nth.read();
	nth.write("0");
	nth.write("0"); /* the first write may have been the n-th */
	return left == 0;
}

void faults::sometimes(const std::function<void()> &in) const
{
	const thread_file victim("make-it-fail");

	set_all("probability", "10");
	victim.write("1");
	in();
	set_all("probability", "0");
	while (!victim.write("0"))
		;
}

bool faults::in_threads(const std::string &name, unsigned int later,
			const std::function<void()> &in) const
{
	for (const auto &one : std::filesystem::directory_iterator("/proc/self/task")) {
		std::ifstream file(one.path() / "comm");
		std::string comm;

		std::getline(file, comm);
		if (comm == name)
			std::ofstream(one.path() / "make-it-fail") << 1;
	}
	set_all("space", std::to_string(later).c_str());
	set_all("times", "1");
	set_all("probability", "100");
	in();
	set_all("probability", "0");
	const bool failed = std::any_of(kinds.begin(), kinds.end(), [](const char *kind) {
		int left = -1;

		std::ifstream(debugfs + kind + "/times") >> left;
		return left == 0;
	});
	set_all("times", "-1");
	set_all("space", "0");
	return failed;
}

} // namespace stress
