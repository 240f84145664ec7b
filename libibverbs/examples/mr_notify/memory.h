/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The memory that an operation of the test matrix works on: how it was mapped,
 * which part of it is registered, and what has to be unmapped in the end.
 */
#ifndef MR_NOTIFY_MEMORY_H
#define MR_NOTIFY_MEMORY_H

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace mr_notify {

/* This kernel or machine can't do it; says why. Not a failure. */
struct unsupported : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* A system call failed that must not: errno as an exception. */
[[noreturn]] void fail(const std::string &what);

struct range {
	std::byte *addr = nullptr;
	std::size_t length = 0;

	std::byte *end() const { return addr + length; }
};

/*
 * Owns mappings, and a file behind them if there is one. Movable. An operation
 * that takes something away says so with forget(), or the destructor would
 * unmap what somebody else has mapped there since.
 */
class memory {
public:
	memory() = default;
	explicit memory(range whole, int fd = -1);
	memory(memory &&other) noexcept;
	memory &operator=(memory &&other) noexcept;
	~memory();

	/* What is registered: everything, unless set otherwise. */
	range registered() const { return registered_; }
	void set_registered(range part) { registered_ = part; }
	int fd() const { return fd_; }

	void own(range mapping) { mappings_.push_back(mapping); }
	void forget(range gone);

private:
	void release() noexcept;

	std::vector<range> mappings_;
	range registered_;
	int fd_ = -1;
};

std::size_t page_size();
std::size_t huge_page_size();

memory anonymous(std::size_t length);
/* Private huge pages of the transparent kind; unsupported if none is given. */
memory transparent_huge(std::size_t length);
memory shared_file(std::size_t length);
memory private_file(std::size_t length);
memory hugetlb(std::size_t length, bool shared);
memory sysv(std::size_t length);

/* Pages pinned by this process (VmPin), in bytes. Allocates nothing. */
std::size_t pinned_bytes();

} // namespace mr_notify

#endif
