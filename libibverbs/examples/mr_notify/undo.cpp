// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "undo.h"

#include <fcntl.h>
#include <sys/swap.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <stdexcept>

namespace mr_notify {
namespace {

/* A row needs only a few steps. take_all() undoes the steps of an object as its destructor does. */
std::array<std::atomic<const undo *>, 16> steps;
pid_t owner; /* if a signal ends a child, the child must not undo its parent's changes */

} // namespace

undo::undo(kind what, std::string path, std::string text)
    : what_(what), path_(std::move(path)), text_(std::move(text))
{
	static const bool watched = watch_signals();

	for (auto &place : steps) {
		const undo *none = nullptr;
		if (watched && place.compare_exchange_strong(none, this)) {
			place_ = &place;
			return;
		}
	}
	throw std::logic_error("too many settings of the machine are changed at the same time");
}

undo::~undo()
{
	take();
	place_->store(nullptr); /* only the thread that handles signals may do this (undo.h) */
}

void undo::take() const noexcept
{
	constexpr timespec pause{0, 1000000};
	int tries = 1000; /* a control group may still count a process that has just ended */

	switch (what_) {
	case kind::write_text: {
		const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			return;
		static_cast<void>(!write(fd, text_.data(), text_.size()));
		close(fd);
		return;
	}
	case kind::end_swap:
		swapoff(path_.c_str());
		return;
	case kind::remove_folder:
		while (rmdir(path_.c_str()) && errno == EBUSY && --tries)
			nanosleep(&pause, nullptr);
	}
}

void undo::take_all(int signal)
{
	struct sigaction normal = {};

	if (getpid() == owner)
		for (auto place = steps.rbegin(); place != steps.rend(); ++place)
			if (const undo *step = place->load())
				step->take();
	normal.sa_handler = SIG_DFL;
	sigaction(signal, &normal, nullptr);
	raise(signal);
}

bool undo::watch_signals()
{
	struct sigaction ours = {};

	owner = getpid();
	ours.sa_handler = take_all;
	for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
		struct sigaction before = {};
		sigaction(signal, nullptr, &before);
		if (before.sa_handler == SIG_DFL) /* under nohup, SIGHUP is ignored */
			sigaction(signal, &ours, nullptr);
	}
	return true;
}

} // namespace mr_notify
