// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory.h"

#include <fcntl.h>
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
    : mappings_(std::move(other.mappings_)), registered_(other.registered_),
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
		registered_ = other.registered_;
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

/* A number behind a key in a file of /proc, in kB; 0 if there is none. */
std::size_t proc_kilobytes(const char *path, const char *key)
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

	const std::size_t before = proc_kilobytes("/proc/self/smaps_rollup", "AnonHugePages");
	if (madvise(aligned.addr, aligned.length, MADV_HUGEPAGE))
		throw unsupported("no transparent huge pages in this kernel");
	touch(aligned);
	if (proc_kilobytes("/proc/self/smaps_rollup", "AnonHugePages") < before + length / 1024)
		throw unsupported("no transparent huge page to be had now");
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
	const unsigned int flags = MFD_CLOEXEC | MFD_HUGETLB;

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
		throw unsupported("no huge pages reserved (vm.nr_hugepages)");
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

std::size_t pinned_bytes()
{
	return proc_kilobytes("/proc/self/status", "VmPin") * 1024;
}

} // namespace mr_notify
