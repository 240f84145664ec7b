/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A row may change settings below /proc and /sys, the swap space, or its control group.
 * undo.h undoes these changes. This file also waits for events.
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

/* Throws unsupported if the file does not exist or refuses the text. */
void write_system_file(const std::string &path, const std::string &text);
std::string read_system_file(const std::string &path);

/* Replaces a setting until the object is destroyed. */
class setting {
public:
	setting(const std::string &path, const std::string &value);
	setting(const setting &) = delete;
	setting &operator=(const setting &) = delete;

private:
	std::optional<undo> back_;
};

/* If there is no swap space, makes swap space of this size until the program ends. */
void need_swap(std::size_t size = std::size_t{64} << 20);

/*
 * Moves this process into a memory control group of its own until the process ends. Its
 * later allocations are charged to this group. Returns the path of the group.
 */
const std::string &need_control_group();

/* A new control group below the root. The group must be empty when the object is
 * destroyed. */
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

/* The number of a NUMA node other than 0. */
unsigned int another_node();

/*
 * The time limit for an event that must happen. Only a hang takes this long, even on a slow
 * machine.
 */
constexpr std::chrono::seconds time_limit(180);

/* Waits until the condition is true. Returns whether it became true. */
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
 * Returns the kernel's time, which advances with ticks like jiffies. If ticks are late, this
 * time stands still and then jumps.
 */
std::chrono::nanoseconds kernel_time();
/* Sleeps until the kernel's time has advanced by @time. */
void let_pass(std::chrono::milliseconds time);

/* Scans of the shrinker within 20 ms count as one scan. 10 ms leave room for ticks at both ends. */
constexpr std::chrono::milliseconds one_look(10);

} // namespace mr_notify

#endif
