// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "remote.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "memory.h"

namespace nodes {

using mr_notify::fail;

namespace {

constexpr const char *other_node = "2";

[[noreturn]] void become(const std::vector<std::string> &command)
{
	std::vector<char *> arguments;

	for (const std::string &one : command)
		arguments.push_back(const_cast<char *>(one.c_str()));
	arguments.push_back(nullptr);
	execvp(arguments.front(), arguments.data());
	_exit(127);
}

} // namespace

void run(const std::vector<std::string> &command)
{
	int status = 0;
	const pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child == 0)
		become(command);
	waitpid(child, &status, 0);
	if (status)
		throw std::runtime_error(command.front() + " " + command.at(1) + " " +
					 command.at(2) + " failed");
}

bool has_another_node()
{
	char name[8] = "";

	return gethostname(name, sizeof(name)) == 0 && std::string(name) == "node1";
}

remote::remote(const std::string &hidden_test)
{
	std::array<int, 2> in{};
	std::array<int, 2> out{};

	std::signal(SIGPIPE, SIG_IGN);
	if (pipe2(in.data(), O_CLOEXEC) || pipe2(out.data(), O_CLOEXEC))
		fail("pipe");
	const std::string self = std::filesystem::read_symlink("/proc/self/exe");
	lab_on_ = fork();
	if (lab_on_ < 0)
		fail("fork");
	if (lab_on_ == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		become({"lab-on", other_node, self, hidden_test, "-r", "compact"});
	}
	close(in[0]);
	close(out[1]);
	tell_ = in[1];
	told_ = fdopen(out[0], "r");
	ask("pid") >> there_;
}

remote::~remote()
{
	end();
}

std::istringstream remote::answer_to(const std::string &line)
{
	const std::string whole = line + '\n';
	std::array<char, 4096> some{};

	if (write(tell_, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size()))
		throw std::runtime_error("the other node's process does not listen to: " + line);
	while (std::fgets(some.data(), some.size(), told_)) {
		const std::string said(some.data());

		if (said.starts_with("= "))
			return std::istringstream(said.substr(2));
		if (said.starts_with("! "))
			throw std::runtime_error("the other node, told to " + line + ": " +
						 said.substr(2));
		std::cerr << said;
	}
	throw std::runtime_error("the other node's process ended when told to " + line);
}

void remote::kill()
{
	run({"lab-on", other_node, "kill", "-KILL", std::to_string(there_)});
	end();
}

void remote::forget()
{
	::kill(lab_on_, SIGKILL);
	end();
}

/* lab-on ends only after the process on the other node has ended. */
void remote::end()
{
	if (tell_ < 0)
		return;
	close(tell_);
	tell_ = -1;
	waitpid(lab_on_, nullptr, 0);
	std::fclose(told_);
}

} // namespace nodes
