// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which a process uses userfaultfd to fill, move and protect its
 * pages. No thread answers faults here, so settling must not fault.
 */
#include "rows.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "witness.h"

/* Debian 12's headers lack UFFDIO_MOVE. */
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
	__u64 dst;
	__u64 src;
	__u64 len;
	__u64 mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

namespace mr_notify {
namespace {

uint64_t number(const std::byte *address)
{
	return reinterpret_cast<std::uintptr_t>(address);
}

/* Watches a range until the object is destroyed. */
class userfault {
public:
	userfault(uint64_t features, range r, uint64_t mode)
	    : fd_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)))
	{
		if (fd_ < 0)
			throw unsupported("no userfaultfd");
		uffdio_api api{};
		api.api = UFFD_API;
		api.features = features;
		uffdio_register reg{};
		reg.range = {number(r.addr), r.length};
		reg.mode = mode;
		if (ioctl(fd_, UFFDIO_API, &api) || ioctl(fd_, UFFDIO_REGISTER, &reg)) {
			close(fd_);
			throw unsupported("userfaultfd lacks a feature");
		}
	}
	userfault(const userfault &) = delete;
	userfault &operator=(const userfault &) = delete;
	~userfault() { close(fd_); }

	template <class T> bool does(unsigned long request, T &argument) const
	{
		return ioctl(fd_, request, &argument) == 0;
	}

private:
	int fd_;
};

void write_protect(memory &m)
{
	const range r = m.registered();
	const userfault by(UFFD_FEATURE_PAGEFAULT_FLAG_WP, r, UFFDIO_REGISTER_MODE_WP);
	uffdio_writeprotect protect{};

	protect.range = {number(r.addr), r.length};
	protect.mode = UFFDIO_WRITEPROTECT_MODE_WP;
	if (!by.does(UFFDIO_WRITEPROTECT, protect))
		throw unsupported("userfaultfd can't write-protect");
	/* Closing the userfaultfd also ends the protection. */
}

/* Registers the range with userfaultfd and drops the pages. Then each fault waits. */
std::shared_ptr<userfault> drop_watched(memory &m)
{
	auto by = std::make_shared<userfault>(0, m.registered(), UFFDIO_REGISTER_MODE_MISSING);

	m.keep(by);
	advise(m.registered(), MADV_DONTNEED, "MADV_DONTNEED");
	return by;
}

void drop_and_zero(memory &m)
{
	const auto by = drop_watched(m);
	uffdio_zeropage zero{};

	zero.range = {number(m.registered().addr), m.registered().length};
	if (!by->does(UFFDIO_ZEROPAGE, zero))
		fail("UFFDIO_ZEROPAGE");
}

void drop_and_copy(memory &m)
{
	const memory other = anonymous(m.registered().length);
	const auto by = drop_watched(m);
	uffdio_copy copy{};

	copy.dst = number(m.registered().addr);
	copy.src = number(other.registered().addr);
	copy.len = m.registered().length;
	if (!by->does(UFFDIO_COPY, copy))
		fail("UFFDIO_COPY");
}

/* The kernel refuses to move a pinned page, but moves the witness. */
void move_away(memory &m)
{
	const range r = m.registered();
	const range w = m.witness();
	void *place =
		mmap(nullptr, r.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(place != MAP_FAILED, "mmap");
	const range to{static_cast<std::byte *>(place), r.length};
	m.own(to);
	const userfault by(UFFD_FEATURE_MOVE, to, UFFDIO_REGISTER_MODE_MISSING);
	uffdio_move move{number(to.addr), number(r.addr), r.length, 0, 0};
	if (by.does(UFFDIO_MOVE, move))
		throw not_refused("pinned pages were moved");
	move = {number(to.addr), number(w.addr), page_size(), 0, 0};
	if (!by.does(UFFDIO_MOVE, move))
		throw unsupported("no UFFDIO_MOVE");
}

/* The file of shared memory keeps dropped pages, so UFFDIO_CONTINUE can map them again. */
void drop_and_continue(memory &m)
{
	const range r = m.registered();
	const userfault by(UFFD_FEATURE_MINOR_SHMEM, r, UFFDIO_REGISTER_MODE_MINOR);
	uffdio_continue again{};

	again.range = {number(r.addr), r.length};
	advise(r, MADV_DONTNEED, "MADV_DONTNEED");
	if (!by.does(UFFDIO_CONTINUE, again))
		fail("UFFDIO_CONTINUE");
}

} // namespace

void add_userfaultfd(rows &all)
{
	all.invalidates("MADV_DONTNEED under userfaultfd", anonymous,
			[](memory &m) { drop_watched(m); });
	all.invalidates("MADV_DONTNEED, then UFFDIO_ZEROPAGE", anonymous, drop_and_zero);
	all.invalidates("MADV_DONTNEED, then UFFDIO_COPY", anonymous, drop_and_copy);

	all.harmless("userfaultfd write-protection", anonymous, write_protect);
	all.harmless("UFFDIO_MOVE, refused", anonymous_with_witness, witnessed(move_away));
	all.harmless("UFFDIO_CONTINUE of shared memory", shared_file, drop_and_continue);
}

} // namespace mr_notify
