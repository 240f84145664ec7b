// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>

#include "memory.h"

namespace mr_notify {

void write_system_file(const std::string &path, const std::string &text)
{
	const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
	const bool ok = fd >= 0 && write(fd, text.data(), text.size()) >= 0;
	const int error = errno;

	if (fd >= 0)
		close(fd);
	if (!ok)
		throw unsupported(path + ": " + std::strerror(error));
}

std::string read_system_file(const std::string &path)
{
	std::array<char, 4096> text{};
	const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
	const ssize_t length = fd >= 0 ? read(fd, text.data(), text.size()) : -1;
	const int error = errno;

	if (fd >= 0)
		close(fd);
	if (length < 0)
		throw unsupported(path + ": " + std::strerror(error));
	std::string said(text.data(), static_cast<std::size_t>(length));
	while (!said.empty() && said.back() == '\n')
		said.pop_back();
	return said;
}

setting::setting(const std::string &path, const std::string &value)
{
	/* Some files show all values, for example "always [madvise] never". */
	std::string before = read_system_file(path);
	const auto from = before.find('[');
	const auto to = before.find(']');
	if (from != std::string::npos && to != std::string::npos)
		before = before.substr(from + 1, to - from - 1);
	back_.emplace(undo::kind::write_text, path, before);
	write_system_file(path, value);
}

namespace {

void load_module(const char *name)
{
	const pid_t child = fork();

	if (child == 0) {
		const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
		if (null >= 0)
			dup2(null, STDERR_FILENO);
		execlp("modprobe", "modprobe", "-q", name, nullptr);
		_exit(1);
	}
	while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR)
		;
}

/* A compressed disk in memory serves as swap space. The destructor removes the disk. */
class memory_swap {
public:
	explicit memory_swap(std::size_t size)
	{
		load_module("zram"); /* fails if zram is built in or missing */
		const std::string number = read_system_file("/sys/class/zram-control/hot_add");
		device_ = "/dev/zram" + number;
		removal_.emplace(undo::kind::write_text, "/sys/class/zram-control/hot_remove",
				 number);
		write_system_file("/sys/block/zram" + number + "/disksize", std::to_string(size));
		sign(size);
		end_.emplace(undo::kind::end_swap, device_);
		if (swapon(device_.c_str(), 0))
			throw unsupported(std::string("swapon: ") + std::strerror(errno));
	}

private:
	/* Writes a header with version 1, the last page, and the signature at the end, as mkswap
	 * does. */
	void sign(std::size_t size) const
	{
		constexpr char signature[] = "SWAPSPACE2";
		constexpr std::size_t header = 1024;
		std::string page(page_size(), '\0');
		const std::array<uint32_t, 2> info{1,
						   static_cast<uint32_t>(size / page_size() - 1)};

		std::memcpy(page.data() + header, info.data(), sizeof(info));
		page.replace(page.size() - std::strlen(signature), std::strlen(signature),
			     signature);
		write_system_file(device_, page);
	}

	std::string device_;
	std::optional<undo> removal_;
	std::optional<undo> end_; /* its destructor runs first */
};

bool has_swap()
{
	/* The first line is the heading. */
	const std::string said = read_system_file("/proc/swaps");

	return said.find('\n') != std::string::npos;
}

constexpr const char *cgroup_root = "/sys/fs/cgroup";

/* This process is in this control group until the process ends. */
class own_control_group {
public:
	own_control_group() : group_("ibv_mr_notify")
	{
		const std::string said = read_system_file("/proc/self/cgroup");
		const auto at = said.rfind("0::");
		if (at == std::string::npos)
			throw unsupported("no control groups (version 2)");
		leaving_.emplace(undo::kind::write_text,
				 cgroup_root + said.substr(at + 3) + "/cgroup.procs", "0");
		group_.enter();
	}
	const std::string &path() const { return group_.path(); }

private:
	control_group group_;
	std::optional<undo> leaving_;
};

} // namespace

void need_swap(std::size_t size)
{
	static std::optional<memory_swap> made;

	if (!has_swap())
		made.emplace(size);
}

control_group::control_group(const std::string &name)
    : path_(std::string(cgroup_root) + "/" + name + "." + std::to_string(getpid()))
{
	write_system_file(std::string(cgroup_root) + "/cgroup.subtree_control", "+memory");
	removal_.emplace(undo::kind::remove_folder, path_);
	if (mkdir(path_.c_str(), 0755))
		throw unsupported(path_ + ": " + std::strerror(errno));
}

control_group::~control_group()
{
	/* The group may still count a process that has just ended. */
	happens([&] { return rmdir(path_.c_str()) == 0 || errno != EBUSY; });
}

void control_group::enter() const
{
	write_system_file(path_ + "/cgroup.procs", "0");
}

const std::string &need_control_group()
{
	static const own_control_group group;

	return group.path();
}

unsigned int another_node()
{
	constexpr unsigned int most = 64;

	for (unsigned int node = 1; node < most; node++) {
		const std::string path =
			"/sys/devices/system/node/node" + std::to_string(node) + "/meminfo";
		if (access(path.c_str(), R_OK) == 0)
			return node;
	}
	throw unsupported("one NUMA node");
}

std::chrono::nanoseconds kernel_time()
{
	timespec now{};

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

void let_pass(std::chrono::milliseconds time)
{
	const auto end = kernel_time() + time;

	while (kernel_time() < end)
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

} // namespace mr_notify
