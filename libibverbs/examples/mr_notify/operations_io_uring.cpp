// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Rows of the table in which a kernel thread changes the memory for the process
 * (io_uring). The thread never returns to user mode, so the word must be set when the
 * completion is visible.
 */
#include "rows.h"

#include <linux/falloc.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "system.h"

namespace mr_notify {
namespace {

/* A ring for one request. It replaces liburing, which only this row would use. */
class ring {
public:
	ring() : fd_(static_cast<int>(syscall(SYS_io_uring_setup, 1, &params_)))
	{
		if (fd_ < 0)
			throw unsupported("no io_uring");
		const std::size_t submissions = params_.sq_off.array + sizeof(uint32_t);
		const std::size_t completions =
			params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe);
		map(sq_, submissions, IORING_OFF_SQ_RING);
		map(cq_, completions, IORING_OFF_CQ_RING);
		map(sqes_, sizeof(io_uring_sqe), IORING_OFF_SQES);
	}
	ring(const ring &) = delete;
	ring &operator=(const ring &) = delete;
	~ring()
	{
		for (const range part : {sq_, cq_, sqes_})
			if (part.addr)
				munmap(part.addr, part.length);
		close(fd_);
	}

	/*
	 * Lets a worker run the request, and polls for the completion in memory. A system
	 * call that waits for the completion would return to user mode.
	 */
	void run(const io_uring_sqe &request)
	{
		*reinterpret_cast<io_uring_sqe *>(sqes_.addr) = request;
		at(sq_, params_.sq_off.array).store(0);
		at(sq_, params_.sq_off.tail).store(1, std::memory_order_release);
		if (syscall(SYS_io_uring_enter, fd_, 1, 0, 0, nullptr, 0) != 1)
			fail("io_uring_enter");
		if (!happens([&] {
			    return at(cq_, params_.cq_off.tail).load(std::memory_order_acquire) ==
				   1;
		    }))
			throw std::runtime_error("no completion of io_uring");
		const auto *done =
			reinterpret_cast<const io_uring_cqe *>(cq_.addr + params_.cq_off.cqes);
		errno = done->res < 0 ? -done->res : 0;
		check(errno == 0, "io_uring");
	}

private:
	void map(range &part, std::size_t length, off_t offset)
	{
		void *addr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_POPULATE, fd_, offset);
		if (addr == MAP_FAILED)
			fail("mmap of io_uring");
		part = {static_cast<std::byte *>(addr), length};
	}

	static std::atomic_ref<uint32_t> at(range part, uint32_t offset)
	{
		return std::atomic_ref(*reinterpret_cast<uint32_t *>(part.addr + offset));
	}

	io_uring_params params_{};
	int fd_;
	range sq_;
	range cq_;
	range sqes_;
};

void advise_by_worker(range r, int advice)
{
	io_uring_sqe request{};

	request.opcode = IORING_OP_MADVISE;
	request.flags = IOSQE_ASYNC;
	request.addr = reinterpret_cast<std::uintptr_t>(r.addr);
	request.len = static_cast<uint32_t>(r.length);
	request.fadvise_advice = static_cast<uint32_t>(advice);
	ring().run(request);
}

action advising_by_worker(int advice)
{
	return [=](memory &m) { advise_by_worker(m.registered(), advice); };
}

void punch_by_worker(memory &m)
{
	io_uring_sqe request{};

	request.opcode = IORING_OP_FALLOCATE;
	request.flags = IOSQE_ASYNC;
	request.fd = m.fd();
	request.off = 0;
	request.addr = page_size(); /* addr is the length, and len is the mode */
	request.len = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	ring().run(request);
}

} // namespace

void add_io_uring(rows &all)
{
	all.invalidates("MADV_DONTNEED by io_uring", anonymous, advising_by_worker(MADV_DONTNEED));
	all.invalidates("MADV_REMOVE by io_uring", shared_file, advising_by_worker(MADV_REMOVE));
	all.invalidates("hole punched by io_uring", shared_file, punch_by_worker);

	all.harmless("MADV_DONTNEED of shared memory by io_uring", shared_file,
		     advising_by_worker(MADV_DONTNEED));
	all.harmless("MADV_FREE by io_uring", anonymous, advising_by_worker(MADV_FREE));
}

} // namespace mr_notify
