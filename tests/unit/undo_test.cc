// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tests undo.h alone, which undoes a change of a file at the end or by a signal. Each case has its
 * own process, because the first object of a process installs the signal handlers.
 */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "catch.h"

#include "undo.h"

namespace {

using mr_notify::undo;

class changed {
public:
	changed()
	{
		REQUIRE(mkdtemp(folder_.data()));
		write("before");
	}
	~changed() { std::filesystem::remove_all(folder_); }
	changed(const changed &) = delete;
	changed &operator=(const changed &) = delete;

	std::string file() const { return folder_ + "/file"; }
	std::string folder() const { return folder_ + "/folder"; }
	void write(const char *text) const { std::ofstream(file()) << text; }
	std::string now() const
	{
		std::string text;
		std::ifstream(file()) >> text;
		return text + (std::filesystem::exists(folder()) ? " folder" : "");
	}
	void change() const
	{
		write("after!");
		mkdir(folder().c_str(), 0700);
	}

private:
	std::string folder_ = std::filesystem::temp_directory_path() / "undo.XXXXXX";
};

/* Runs in a child with both files changed; returns the status of waitpid(). */
template <class F> int in_child(const changed &here, F &&end)
{
	const pid_t child = fork();
	int status = 0;

	if (child == 0) {
		for (const int of_catch : {SIGINT, SIGTERM})
			std::signal(of_catch, SIG_DFL);
		{
			const undo text(undo::kind::write_text, here.file(), "before");
			const undo folder(undo::kind::remove_folder, here.folder());
			here.change();
			end();
		}
		_exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	return status;
}

} // namespace

TEST_CASE("undo: at the end of the object")
{
	const changed here;

	CHECK(in_child(here, [] {}) == 0);
	CHECK(here.now() == "before");
}

TEST_CASE("undo: by a signal, which then ends the program")
{
	const int number = GENERATE(SIGHUP, SIGINT, SIGTERM);
	const changed here;

	std::signal(SIGHUP, SIG_DFL); /* nohup ignores SIGHUP */
	const int status = in_child(here, [&] { raise(number); });
	CHECK(WTERMSIG(status) == number);
	CHECK(here.now() == "before");
}

TEST_CASE("undo: not by a signal that is ignored, as by nohup")
{
	const changed here;

	std::signal(SIGHUP, SIG_IGN);
	const int status = in_child(here, [] {
		raise(SIGHUP);
		_exit(42);
	});
	std::signal(SIGHUP, SIG_DFL);
	CHECK(WEXITSTATUS(status) == 42);
	CHECK(here.now() == "after! folder");
}

TEST_CASE("undo: not by a signal that ends a child")
{
	const changed here;

	in_child(here, [] {
		const pid_t child = fork();
		if (child == 0)
			raise(SIGTERM);
		waitpid(child, nullptr, 0);
		_exit(0);
	});
	CHECK(here.now() == "after! folder");
}
