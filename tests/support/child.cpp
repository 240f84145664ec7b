// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "child.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace {

constexpr int told = 9; /* the descriptor that tell() writes to */

[[noreturn]] void become(const std::string &hidden_test,
			 const std::vector<std::string> &environment, int pipe_end)
{
	for (const std::string &one : environment) {
		const std::size_t equals = one.find('=');

		if (equals == std::string::npos)
			unsetenv(one.c_str());
		else
			setenv(one.substr(0, equals).c_str(), one.c_str() + equals + 1, 1);
	}
	if (dup2(pipe_end, told) == told)
		execl("/proc/self/exe", "child", hidden_test.c_str(), "-r", "compact", nullptr);
	_exit(127);
}

} // namespace

child_result run_child(const std::string &hidden_test, const std::vector<std::string> &environment)
{
	child_result result;
	std::array<int, 2> ends{};

	std::fflush(nullptr);
	if (pipe(ends.data()))
		throw std::runtime_error("pipe");
	const pid_t child = fork();
	if (child < 0)
		throw std::runtime_error("fork");
	if (child == 0)
		become(hidden_test, environment, ends[1]);
	close(ends[1]);

	std::string line;
	std::array<char, 4096> some{};
	for (ssize_t n; (n = read(ends[0], some.data(), some.size())) > 0;)
		for (ssize_t i = 0; i < n; i++)
			if (some[static_cast<std::size_t>(i)] == '\n')
				result.lines.push_back(std::exchange(line, {}));
			else
				line += some[static_cast<std::size_t>(i)];
	close(ends[0]);
	waitpid(child, &result.status, 0);
	return result;
}

void tell(const std::string &line)
{
	const std::string whole = line + '\n';

	if (write(told, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size()))
		throw std::runtime_error("nobody listens: this test is another one's child");
}
