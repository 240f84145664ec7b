/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The memory that an operation of the test matrix changes. A part of the memory is
 * registered. The destructor unmaps the memory.
 */
#ifndef MR_NOTIFY_MEMORY_H
#define MR_NOTIFY_MEMORY_H

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mr_notify {

/* Thrown if this kernel or machine can't do the operation. The text says why. The row then
 * counts as skipped. */
struct unsupported : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* Thrown if the kernel did an operation that it must refuse for pinned pages. */
struct not_refused : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* Throws an error with errno. Call this if a system call fails that must succeed. */
[[noreturn]] void fail(const std::string &what);

struct range {
	std::byte *addr = nullptr;
	std::size_t length = 0;

	std::byte *end() const { return addr + length; }
};

/*
 * Owns mappings, and the file of the mappings if they have one. The object can be moved. An
 * operation that unmaps memory calls forget() first. Otherwise the destructor would unmap
 * memory that another owner has mapped at the same place. An operation that maps memory
 * calls own() after the system call has succeeded.
 */
class memory {
public:
	memory() = default;
	explicit memory(range whole, int fd = -1);
	memory(memory &&other) noexcept;
	memory &operator=(memory &&other) noexcept;
	~memory();

	/* The registered part. By default this is all of the memory. */
	range registered() const { return registered_; }
	void set_registered(range part) { registered_ = part; }
	/* The witness is used like the registered part, but not registered. A witness may
	 * be empty. */
	range witness() const { return witness_; }
	void set_witness(range part) { witness_ = part; }
	/* The registered part and the witness, which follows it. */
	range with_witness() const
	{
		return {registered_.addr, registered_.length + witness_.length};
	}
	int fd() const { return fd_; }
	/* Is the memory registered for reading only? */
	bool read_only() const { return read_only_; }
	void set_read_only() { read_only_ = true; }

	void own(range mapping) { mappings_.push_back(mapping); }
	void forget(range gone);
	/* Keeps an object alive as long as the memory. */
	void keep(std::shared_ptr<void> thing) { kept_.push_back(std::move(thing)); }

private:
	void release() noexcept;

	std::vector<range> mappings_;
	std::vector<std::shared_ptr<void>> kept_;
	range registered_;
	range witness_;
	bool read_only_ = false;
	int fd_ = -1;
};

std::size_t page_size();
std::size_t huge_page_size();

memory anonymous(std::size_t length);
/* Private transparent huge pages. Throws unsupported if the kernel gives none. */
memory transparent_huge(std::size_t length);
memory shared_file(std::size_t length);
memory private_file(std::size_t length);
memory hugetlb(std::size_t length, bool shared);
memory sysv(std::size_t length);
/* A shared mapping of a file on a disk or a server. Its pages can be pinned only for
 * reading. */
memory mapped_file(std::size_t length);

/* A witness of the same size and kind follows the memory. */
memory anonymous_with_witness(std::size_t length);
memory shared_file_with_witness(std::size_t length);

/* Returns the number after a key in a file of /proc, or 0. Allocates no memory. */
std::size_t proc_number(const char *path, const char *key);

/* The number of bytes that this process has pinned (VmPin). Allocates no memory. */
std::size_t pinned_bytes();

} // namespace mr_notify

#endif
