// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "libraries.h"

#include <fmt/core.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

namespace mr_cache {

namespace {

using namespace std::chrono;
constexpr auto limit = seconds(10);

/* The complete answer of a child. If the child crashes, there is no answer. */
struct answer {
	enum { absent, no_version, known } is = absent;
	library found;
};

using question = bool (*)(void *handle, library &out);

[[noreturn]] void fail(const char *what)
{
	throw std::system_error(errno, std::generic_category(), what);
}

template <class T> T function(void *handle, const char *name)
{
	return reinterpret_cast<T>(dlsym(handle, name));
}

/* Our patch adds ucs_rcache_changes() to libucs, which libucp loads. */
bool ask_ucx(void *handle, library &out)
{
	const auto ask = function<void (*)(unsigned int *, unsigned int *, unsigned int *)>(
		handle, "ucp_get_version");
	unsigned int release;

	if (ask)
		ask(&out.is.major, &out.is.minor, &release);
	out.asks_kernel = dlsym(handle, "ucs_rcache_changes");
	return ask;
}

/* Does the file of a library contain this text? */
bool has_text(void *handle, std::string_view text)
{
	link_map *map = nullptr;

	if (dlinfo(handle, RTLD_DI_LINKMAP, &map))
		return false;
	std::ifstream file(map->l_name, std::ios::binary);
	const std::string all{std::istreambuf_iterator<char>(file), {}};
	return all.find(text) != std::string::npos;
}

/* Our patch exports no name from libfabric, so search the file for the monitor's name. */
bool ask_libfabric(void *handle, library &out)
{
	const auto ask = function<uint32_t (*)()>(handle, "fi_version");

	if (ask) {
		out.is.major = ask() >> 16;
		out.is.minor = ask() & 0xffff;
	}
	out.asks_kernel = has_text(handle, "verbs_notify");
	return ask;
}

/* MPI allows this call before MPI_Init. MPI_MAX_LIBRARY_VERSION_STRING is 256 or 8192. */
bool ask_mpi(void *handle, const char *format, library &out)
{
	const auto ask = function<int (*)(char *, int *)>(handle, "MPI_Get_library_version");
	std::array<char, 65536> said{};
	int length = 0;

	return ask && !ask(said.data(), &length) &&
	       sscanf(said.data(), format, &out.is.major, &out.is.minor) == 2;
}

bool ask_open_mpi(void *handle, library &out)
{
	return ask_mpi(handle, "Open MPI v%u.%u", out);
}

bool ask_mpich(void *handle, library &out)
{
	return ask_mpi(handle, "MPICH Version: %u.%u", out);
}

/* Constructors of a library may change the process, so a child process loads the library. */
[[noreturn]] void child(int to, const char *file, question ask)
{
	const rlimit no_core{0, 0};
	const int nowhere = open("/dev/null", O_RDWR);
	answer said;

	setpgid(0, 0);
	setrlimit(RLIMIT_CORE, &no_core);
	if (nowhere < 0)
		_exit(1);
	for (int fd = 0; fd <= 2; fd++)
		dup2(nowhere, fd);
	if (void *handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL))
		said.is = ask(handle, said.found) ? answer::known : answer::no_version;
	_exit(write(to, &said, sizeof(said)) != sizeof(said));
}

/* Returns whether the answer is complete. Does not wait for the end of file, because a process of
 * the library may keep the pipe open. */
bool read_answer(int from, answer &said)
{
	const auto end = steady_clock::now() + limit;
	pollfd wait{from, POLLIN, 0};

	for (;;) {
		const auto left = duration_cast<milliseconds>(end - steady_clock::now()).count();
		const int ready = poll(&wait, 1, left > 0 ? static_cast<int>(left) : 0);

		if (ready < 0 && errno == EINTR)
			continue;
		return ready > 0 && read(from, &said, sizeof(said)) == sizeof(said);
	}
}

std::optional<library> look(const char *file, question ask, std::vector<std::string> &failed)
{
	std::array<int, 2> ends;
	answer said;

	if (pipe2(ends.data(), O_CLOEXEC))
		fail("pipe");
	const pid_t pid = fork();
	if (pid < 0)
		fail("fork");
	if (!pid)
		child(ends[1], file, ask);
	setpgid(pid, pid); /* parent and child both call setpgid(), because either may run first */
	close(ends[1]);
	const bool came = read_answer(ends[0], said);
	close(ends[0]);
	kill(-pid, SIGKILL);
	while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR)
		;
	if (!came)
		failed.push_back(fmt::format("{} crashes or hangs when it is loaded", file));
	else if (said.is == answer::no_version)
		failed.push_back(
			fmt::format("{} does not tell a version that this program knows", file));
	return came && said.is == answer::known ? std::optional(said.found) : std::nullopt;
}

} // namespace

libraries find_libraries()
{
	libraries out;

	out.ucx = look("libucp.so.0", ask_ucx, out.failed);
	out.libfabric = look("libfabric.so.1", ask_libfabric, out.failed);
	out.open_mpi = look("libmpi.so.40", ask_open_mpi, out.failed);
	/* Debian's MPICH has the first name. MPICH and MPIs with its ABI have the second name. */
	out.mpich = look("libmpich.so.12", ask_mpich, out.failed);
	if (!out.mpich)
		out.mpich = look("libmpi.so.12", ask_mpich, out.failed);
	return out;
}

} // namespace mr_cache
