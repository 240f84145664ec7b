/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A probe on a function of the kernel. Each call of the function is a trace event. */
#ifndef GUEST_PROBE_H
#define GUEST_PROBE_H

#include "catch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

class probe {
public:
	enum class at { call, end };

	explicit probe(const std::string &function, at where = at::call,
		       const std::string &name = "calls")
	    : name_(name)
	{
		append(file,
		       (where == at::call ? "p:observe/" : "r:observe/") + name + ' ' + function);
	}

	~probe()
	{
		if (slow_)
			append(event("trigger"), "!stacktrace");
		if (counted_)
			append(event("enable"), "0");
		append(file, "-:observe/" + name_);
	}

	probe(const probe &) = delete;
	probe &operator=(const probe &) = delete;

	/* Slows the function down: with each call the kernel records a stack trace. */
	void slow_down()
	{
		append(event("trigger"), "stacktrace");
		slow_ = true;
	}

	/* From now on hits() returns how often the function was called. */
	void count()
	{
		append(event("enable"), "1");
		counted_ = true;
	}

	uint64_t hits() const
	{
		std::ifstream profile("/sys/kernel/tracing/kprobe_profile");
		std::string name;
		uint64_t hit = 0;
		uint64_t missed = 0;

		while (profile >> name >> hit >> missed)
			if (name == name_)
				return hit + missed;
		return 0;
	}

	static constexpr const char *file = "/sys/kernel/tracing/kprobe_events";

private:
	std::string event(const std::string &what) const
	{
		return "/sys/kernel/tracing/events/observe/" + name_ + '/' + what;
	}

	/* Truncating the file would remove all probes. A write takes only one probe. */
	static void append(const std::string &to, const std::string &text)
	{
		const int fd = open(to.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
		const ssize_t written = write(fd, text.data(), text.size());

		close(fd);
		CHECK(written == static_cast<ssize_t>(text.size()));
	}

	std::string name_;
	bool slow_ = false;
	bool counted_ = false;
};

#endif
