/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Absent memory whose page faults only the test answers, by userfaultfd. */
#ifndef GUEST_SLOW_MEMORY_H
#define GUEST_SLOW_MEMORY_H

#include <chrono>
#include <memory>

#include "memory.h"
#include "system.h"

namespace odp {

class slow_memory {
public:
	/* Throws `unsupported` if the kernel has no userfaultfd. */
	static std::unique_ptr<slow_memory> make(std::size_t length);
	slow_memory(const slow_memory &) = delete;
	slow_memory &operator=(const slow_memory &) = delete;
	~slow_memory();

	mr_notify::range bytes() const { return memory_.registered(); }
	/* Waits for a fault; returns false if there is none within this time. */
	bool faulted(std::chrono::milliseconds patience = mr_notify::time_limit) const;
	/*
	 * Answers all faults, or the faults in the first @length bytes, with pages full of @with.
	 */
	void answer(std::byte with) const { answer(with, bytes().length); }
	void answer(std::byte with, std::size_t length) const;
	/* Fills the first pages without waking the waiters. */
	void fill(std::byte with, std::size_t length) const;
	/* Wakes the waiters, which try again. */
	void wake() const;
	/* The descriptor that receives the faults. */
	int descriptor() const { return fd_; }

private:
	slow_memory(mr_notify::memory whole, int fd) : memory_(std::move(whole)), fd_(fd) {}

	mr_notify::memory memory_;
	int fd_;
};

/*
 * The number of rxe's fault threads in all processes. Each is a thread of the process that owns the
 * pages.
 */
int fault_threads();

/* How many threads wait for slow memory, in all processes. */
int waiting_threads();

/* Returns whether all waits for slow memory end within the time limit. */
bool no_thread_waits();

} // namespace odp

#endif
