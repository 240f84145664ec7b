// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

namespace mr_notify {

void fail(const std::string &what)
{
	throw std::system_error(errno, std::generic_category(), what);
}

memory::memory(range whole, int fd) : mappings_{whole}, registered_(whole), fd_(fd) {}

memory::memory(memory &&other) noexcept
    : mappings_(std::move(other.mappings_)), kept_(std::move(other.kept_)),
      registered_(other.registered_), witness_(other.witness_), read_only_(other.read_only_),
      fd_(std::exchange(other.fd_, -1))
{
	other.mappings_.clear();
}

memory &memory::operator=(memory &&other) noexcept
{
	if (this != &other) {
		release();
		mappings_ = std::move(other.mappings_);
		other.mappings_.clear();
		kept_ = std::move(other.kept_);
		registered_ = other.registered_;
		witness_ = other.witness_;
		read_only_ = other.read_only_;
		fd_ = std::exchange(other.fd_, -1);
	}
	return *this;
}

memory::~memory()
{
	release();
}

void memory::release() noexcept
{
	for (const range &mapping : mappings_)
		munmap(mapping.addr, mapping.length);
	mappings_.clear();
	kept_.clear();
	if (fd_ >= 0)
		close(fd_);
	fd_ = -1;
}

void memory::forget(range gone)
{
	std::vector<range> left;

	for (const range &mapping : mappings_) {
		if (gone.end() <= mapping.addr || mapping.end() <= gone.addr) {
			left.push_back(mapping);
			continue;
		}
		if (mapping.addr < gone.addr)
			left.push_back(
				{mapping.addr, static_cast<std::size_t>(gone.addr - mapping.addr)});
		if (gone.end() < mapping.end())
			left.push_back(
				{gone.end(), static_cast<std::size_t>(mapping.end() - gone.end())});
	}
	mappings_ = std::move(left);
}

std::size_t page_size()
{
	static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

	return size;
}

std::size_t huge_page_size()
{
	return std::size_t{2} << 20;
}

namespace {

range map(std::size_t length, int flags, int fd)
{
	void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (addr == MAP_FAILED)
		fail("mmap");
	return {static_cast<std::byte *>(addr), length};
}

void touch(range r)
{
	std::memset(r.addr, 0x5a, r.length);
}

memory file(std::size_t length, int flags)
{
	const int fd = memfd_create("mr_notify", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, static_cast<off_t>(length)))
		fail("memfd");
	memory m(map(length, flags, fd), fd);
	touch(m.registered());
	return m;
}

} // namespace

std::size_t proc_number(const char *path, const char *key)
{
	std::array<char, 16384> text{};
	const int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	const ssize_t length = read(fd, text.data(), text.size() - 1);
	close(fd);
	const char *at = length > 0 ? std::strstr(text.data(), key) : nullptr;
	if (!at)
		return 0;
	at += std::strlen(key);
	at += std::strspn(at, ": \t");
	std::size_t value = 0;
	std::from_chars(at, text.data() + length, value);
	return value;
}

memory anonymous(std::size_t length)
{
	memory m(map(length, MAP_PRIVATE | MAP_ANONYMOUS, -1));

	touch(m.registered());
	return m;
}

memory transparent_huge(std::size_t length)
{
	const std::size_t huge = huge_page_size();

	length = std::max((length + huge - 1) / huge * huge, huge);
	const range window = map(length + huge, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memory m(window);
	const auto misaligned = reinterpret_cast<std::uintptr_t>(window.addr) % huge;
	const range aligned{window.addr + (misaligned ? huge - misaligned : 0), length};

	const std::size_t before = proc_number("/proc/self/smaps_rollup", "AnonHugePages");
	if (madvise(aligned.addr, aligned.length, MADV_HUGEPAGE))
		throw unsupported("no transparent huge pages in this kernel");
	touch(aligned);
	if (proc_number("/proc/self/smaps_rollup", "AnonHugePages") < before + length / 1024)
		throw unsupported("no transparent huge page is available now");
	m.set_registered(aligned);
	return m;
}

memory shared_file(std::size_t length)
{
	return file(length, MAP_SHARED);
}

memory private_file(std::size_t length)
{
	return file(length, MAP_PRIVATE);
}

memory hugetlb(std::size_t length, bool shared)
{
	const std::size_t huge = huge_page_size();
	const unsigned int flags = MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB;

	length = (length + huge - 1) / huge * huge;
	const int fd = memfd_create("mr_notify", flags);
	if (fd < 0)
		throw unsupported("no hugetlbfs in this kernel");
	memory m;
	if (ftruncate(fd, static_cast<off_t>(length))) {
		close(fd);
		fail("ftruncate of huge pages");
	}
	void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
			  shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
	if (addr == MAP_FAILED) {
		close(fd);
		throw unsupported("too few free huge pages (vm.nr_hugepages)");
	}
	m = memory({static_cast<std::byte *>(addr), length}, fd);
	touch(m.registered());
	return m;
}

memory sysv(std::size_t length)
{
	const int id = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);

	if (id < 0)
		throw unsupported("no System V shared memory");
	void *addr = shmat(id, nullptr, 0);
	const int error = errno;
	shmctl(id, IPC_RMID, nullptr);
	if (addr == reinterpret_cast<void *>(-1)) {
		errno = error;
		fail("shmat");
	}
	memory m({static_cast<std::byte *>(addr), length});
	touch(m.registered());
	return m;
}

memory mapped_file(std::size_t length)
{
	/* The end of this program's file has symbols and sections, and no process maps it. */
	const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		throw unsupported("no /proc/self/exe");
	const auto size =
		static_cast<std::size_t>(lseek(fd, 0, SEEK_END)) / page_size() * page_size();
	const std::size_t whole = std::min(2 * length, size / 2 / page_size() * page_size());
	void *addr =
		mmap(nullptr, whole, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(size - whole));
	close(fd);
	if (addr == MAP_FAILED)
		fail("mmap of this program");
	memory m({static_cast<std::byte *>(addr), whole});
	m.set_registered({m.registered().addr, whole / 2 / page_size() * page_size()});
	m.set_witness({m.registered().end(), whole - m.registered().length});
	m.set_read_only();
	for (std::byte *at = m.registered().addr; at < m.witness().end(); at += page_size())
		static_cast<void>(*static_cast<volatile std::byte *>(at));
	return m;
}

namespace {

memory split(memory m, std::size_t length)
{
	const range whole = m.registered();

	m.set_registered({whole.addr, length});
	m.set_witness({whole.addr + length, whole.length - length});
	return m;
}

} // namespace

memory anonymous_with_witness(std::size_t length)
{
	memory m(map(2 * length, MAP_PRIVATE | MAP_ANONYMOUS, -1));

	/* A huge page could contain both registered memory and the witness. */
	madvise(m.registered().addr, m.registered().length, MADV_NOHUGEPAGE);
	touch(m.registered());
	return split(std::move(m), length);
}

memory shared_file_with_witness(std::size_t length)
{
	return split(shared_file(2 * length), length);
}

std::size_t pinned_bytes()
{
	return proc_number("/proc/self/status", "VmPin") * 1024;
}

} // namespace mr_notify
