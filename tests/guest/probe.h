/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* A function of the kernel as trace events. */
#ifndef GUEST_PROBE_H
#define GUEST_PROBE_H

#include "catch.h"

#include <fcntl.h>
#include <unistd.h>

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
			append(trigger(), "!stacktrace");
		append(file, "-:observe/" + name_);
	}

	probe(const probe &) = delete;
	probe &operator=(const probe &) = delete;

	/* Make it take long: each time the kernel walks its stack. */
	void slow_down()
	{
		append(trigger(), "stacktrace");
		slow_ = true;
	}

	static constexpr const char *file = "/sys/kernel/tracing/kprobe_events";

private:
	std::string trigger() const
	{
		return "/sys/kernel/tracing/events/observe/" + name_ + "/trigger";
	}

	/* Truncating the file would remove all probes; and it takes one system call each. */
	static void append(const std::string &to, const std::string &text)
	{
		const int fd = open(to.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
		const ssize_t written = write(fd, text.data(), text.size());

		close(fd);
		CHECK(written == static_cast<ssize_t>(text.size()));
	}

	std::string name_;
	bool slow_ = false;
};

#endif
