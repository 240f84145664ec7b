/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A victim is another process, which has an armed registration and ends before this
 * process. Both processes map the word.
 */
#ifndef MR_NOTIFY_VICTIM_H
#define MR_NOTIFY_VICTIM_H

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "device.h"

namespace mr_notify {

class victim {
public:
	/*
	 * When the constructor returns, the registration of the other process is armed.
	 * After begin() the other process calls @then, and waits for the destructor to
	 * kill it.
	 */
	victim(const device &on, std::size_t length, const std::function<void()> &then = nullptr);
	victim(const victim &) = delete;
	victim &operator=(const victim &) = delete;
	~victim();

	pid_t process() const { return process_; }
	uint64_t word() const;
	/* Returns VmPin of the other process, or 0 after its memory is gone. */
	std::size_t pinned_bytes() const;

	/* Lets the process go on. */
	void begin();
	/* Makes the process stop when it exits, while the process still has all its
	 * memory. */
	void stop_at_exit();
	void wait_for_stop();
	void wait_for_end();

private:
	struct shared {
		uint64_t word;
		uint64_t ready;
		uint64_t go;
	};

	[[noreturn]] void live(const std::string &name, std::size_t length,
			       const std::function<void()> &then) const;
	uint64_t read(uint64_t shared::*what) const;

	memory shared_memory_ = shared_file(page_size());
	shared *shared_ = reinterpret_cast<shared *>(shared_memory_.registered().addr);
	pid_t process_ = -1;
};

} // namespace mr_notify

#endif
