/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A row's changes of the whole machine, and its waits for it: settings
 * below /proc and /sys, swap space, a control group. All is put back (undo.h).
 */
#ifndef MR_NOTIFY_SYSTEM_H
#define MR_NOTIFY_SYSTEM_H

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>

#include "undo.h"

namespace mr_notify {

/* Throws unsupported if there is no such file or it takes no such text. */
void write_system_file(const std::string &path, const std::string &text);
std::string read_system_file(const std::string &path);

/* A setting that another one takes the place of for a while. */
class setting {
public:
	setting(const std::string &path, const std::string &value);
	setting(const setting &) = delete;
	setting &operator=(const setting &) = delete;

private:
	std::optional<undo> back_;
};

/* There is swap from now on, so many bytes if there was none, until the program ends. */
void need_swap(std::size_t size = std::size_t{64} << 20);

/*
 * This process is in a memory control group of its own from now on, until it
 * ends; the path of the group. Its allocations are charged there.
 */
const std::string &need_control_group();

/* A control group below the root, made here. It must be empty at the end. */
class control_group {
public:
	explicit control_group(const std::string &name);
	control_group(const control_group &) = delete;
	control_group &operator=(const control_group &) = delete;
	~control_group();

	const std::string &path() const { return path_; }
	void enter() const;

private:
	std::string path_;
	std::optional<undo> removal_;
};

/* The number of a NUMA node that is not node 0. */
unsigned int another_node();

/*
 * How long a test waits for something that must happen. Only a hang takes as long, on a machine
 * of any speed.
 */
constexpr std::chrono::seconds time_limit(180);

/* Waits until it is so; whether it came to be. */
template <class F> bool happens(F &&condition)
{
	const auto deadline = std::chrono::steady_clock::now() + time_limit;

	while (!condition()) {
		if (std::chrono::steady_clock::now() > deadline)
			return false;
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	}
	return true;
}

/*
 * The kernel's notion of the time: it goes on with ticks, as jiffies do. One that is late comes
 * together with those behind it, so this may stand still for long and then leap.
 */
std::chrono::nanoseconds kernel_time();
/* Sleeps until it has gone on by so much. */
void let_pass(std::chrono::milliseconds time);

/* Looks of the shrinker within so much of it are one: 20 ms, less a tick at either end. */
constexpr std::chrono::milliseconds one_look(10);

} // namespace mr_notify

#endif
