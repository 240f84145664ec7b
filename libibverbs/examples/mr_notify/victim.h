/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Another process with an armed registration, which comes to its end. Its word
 * lies in memory that this process has mapped, too.
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
	 * Its registration is armed when this returns. Then it does "then", which
	 * the returned function of begin() starts, and waits for its end.
	 */
	victim(const device &on, std::size_t length, const std::function<void()> &then = nullptr);
	victim(const victim &) = delete;
	victim &operator=(const victim &) = delete;
	~victim();

	pid_t process() const { return process_; }
	uint64_t word() const;
	/* Of that process (VmPin); 0 when it has no memory any more. */
	std::size_t pinned_bytes() const;

	/* It may go on. */
	void begin();
	/* From here on it will stop when it is about to exit, all its memory still there. */
	void stop_at_exit();
	void wait_for_stop();
	/* It has ended. */
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
