/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A file of a FUSE server that delays its answer to the first read until the test calls answer().
 * Until then, a process that faults the page in through /proc/self/mem holds mmap_lock.
 */
#ifndef GUEST_FUSE_FILE_H
#define GUEST_FUSE_FILE_H

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "system.h"

class fuse_file {
public:
	/* Returns nullptr if there is no FUSE. */
	static std::unique_ptr<fuse_file> mount()
	{
		[[maybe_unused]] const int loaded = std::system("modprobe fuse 2>/dev/null");
		const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
		char folder[] = "/tmp/fuse-XXXXXX";

		if (fd < 0)
			return nullptr;
		const std::string options = "fd=" + std::to_string(fd) +
					    ",rootmode=40000,user_id=0,group_id=0,allow_other";
		if (!mkdtemp(folder) || ::mount("none", folder, "fuse", 0, options.c_str())) {
			close(fd);
			return nullptr;
		}
		return std::unique_ptr<fuse_file>(new fuse_file(fd, folder));
	}
	fuse_file(const fuse_file &) = delete;
	fuse_file &operator=(const fuse_file &) = delete;
	~fuse_file()
	{
		answer();
		umount2(folder_.c_str(), MNT_FORCE | MNT_DETACH);
		server_.join();
		close(fd_);
		rmdir(folder_.c_str());
	}

	/*
	 * Call this in another process. Until the answer comes, a page fault holds the mmap_lock of
	 * that process. A writer waits for the lock, so no other thread gets the lock.
	 */
	template <class F> void fault(F before) const
	{
		const int fd = open((folder_ + "/file").c_str(), O_RDONLY | O_CLOEXEC);
		void *page = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
		const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			_exit(errno);
		if (page == MAP_FAILED || memory < 0)
			_exit(200);
		/*
		 * This thread starts before the fault, because its stack can't be mapped while
		 * mmap_lock is held.
		 */
		std::thread writer([&] {
			usleep(300000);
			before();
			mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		});
		std::thread reader([&] {
			char byte = 0;
			[[maybe_unused]] const auto got =
				pread(memory, &byte, 1,
				      static_cast<off_t>(reinterpret_cast<uintptr_t>(page)));
		});
		reader.join();
		writer.join();
	}

	bool wait_for_fault() const
	{
		return mr_notify::happens([&] { return asked_.load(); });
	}

	void answer() { answer_ = true; }

private:
	fuse_file(int fd, const char *folder)
	    : fd_(fd), folder_(folder), server_([this] { serve(); })
	{
	}

	static fuse_attr attributes(bool root)
	{
		fuse_attr attr{};

		attr.ino = root ? 1 : 2;
		attr.mode = root ? S_IFDIR | 0755 : S_IFREG | 0644;
		attr.nlink = 1;
		attr.size = root ? 0 : 4096;
		attr.blksize = 4096;
		return attr;
	}

	void reply(uint64_t unique, int error, const void *what = nullptr,
		   std::size_t length = 0) const
	{
		std::vector<char> message(sizeof(fuse_out_header) + length);
		fuse_out_header header{};

		header.len = static_cast<uint32_t>(message.size());
		header.error = error;
		header.unique = unique;
		std::memcpy(message.data(), &header, sizeof(header));
		if (length)
			std::memcpy(message.data() + sizeof(header), what, length);
		[[maybe_unused]] const auto written = write(fd_, message.data(), message.size());
	}

	void serve()
	{
		std::vector<char> in(1 << 18);

		for (;;) {
			const ssize_t got = read(fd_, in.data(), in.size());
			if (got < 0 && (errno == EINTR || errno == ENOENT))
				continue;
			if (got < 0)
				return; /* unmounted */
			fuse_in_header header{};
			std::memcpy(&header, in.data(), sizeof(header));
			serve(header);
		}
	}

	void serve(const fuse_in_header &header)
	{
		switch (header.opcode) {
		case FUSE_INIT: {
			fuse_init_out out{};
			out.major = FUSE_KERNEL_VERSION;
			out.minor = 31;
			out.max_write = 4096;
			return reply(header.unique, 0, &out, sizeof(out));
		}
		case FUSE_LOOKUP: {
			fuse_entry_out out{};
			out.nodeid = 2;
			out.attr_valid = out.entry_valid = 1000;
			out.attr = attributes(false);
			return reply(header.unique, 0, &out, sizeof(out));
		}
		case FUSE_GETATTR: {
			fuse_attr_out out{};
			out.attr_valid = 1000;
			out.attr = attributes(header.nodeid == 1);
			return reply(header.unique, 0, &out, sizeof(out));
		}
		case FUSE_OPEN:
		case FUSE_OPENDIR: {
			fuse_open_out out{};
			return reply(header.unique, 0, &out, sizeof(out));
		}
		case FUSE_READ: {
			const std::vector<char> zeros(4096);
			asked_ = true;
			while (!answer_)
				usleep(1000);
			return reply(header.unique, 0, zeros.data(), zeros.size());
		}
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			return;
		default:
			return reply(header.unique, -ENOSYS);
		}
	}

	int fd_;
	std::string folder_;
	std::atomic<bool> asked_ = false;
	std::atomic<bool> answer_ = false;
	std::thread server_;
};

#endif
