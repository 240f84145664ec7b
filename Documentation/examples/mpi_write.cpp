// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * mpi_write.c in C++20: a library's transfers in small. Rank 0 writes to rank 1's memory from a
 * buffer that the application unmaps and maps again between them, then from one that stays, then
 * from a part of a larger one whose other half is unmapped meanwhile; rank 1 counts messages with
 * old bytes. Exit status 0: no stale message.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "rc_link.h"
#include "reg_cache.hpp"

namespace {

constexpr int messages = 20;
constexpr int all = 2 * messages + 1;
constexpr std::size_t length = 64 * 1024;

class mapping {
public:
	explicit mapping(std::size_t size = length) { map(nullptr, size, 0); }
	mapping(const mapping &) = delete;
	mapping &operator=(const mapping &) = delete;
	~mapping() { munmap(memory_.data(), memory_.size()); }

	std::span<std::byte> memory() const { return memory_; }

	/* As an allocator that returns memory and gets it back. */
	void map_again()
	{
		munmap(memory_.data(), memory_.size());
		map(memory_.data(), memory_.size(), MAP_FIXED);
	}

	void unmap_from(std::size_t offset)
	{
		munmap(memory_.data() + offset, memory_.size() - offset);
		memory_ = memory_.first(offset);
	}

private:
	void map(void *at, std::size_t size, int flags)
	{
		void *memory = mmap(at, size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
		if (memory == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(), "mmap");
		memory_ = {static_cast<std::byte *>(memory), size};
	}

	std::span<std::byte> memory_;
};

/* Where rank 1 takes messages. */
struct inbox {
	uint64_t addr;
	uint64_t rkey;
};

void send_one(rc_link &link, std::span<std::byte> memory, int i, ibv_mr *mr, const inbox &to)
{
	std::ranges::fill(memory, static_cast<std::byte>(i));
	rc_write(&link, memory.data(), length, mr, to.addr, static_cast<uint32_t>(to.rkey));
	MPI_Send(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(nullptr, 0, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The transfer uses the first half of memory that an earlier one has registered. */
void send_part(rc_link &link, reg_cache &cache, const inbox &to)
{
	mapping buffer(2 * length);

	cache.get(buffer.memory());
	const auto lease = cache.get(buffer.memory().first(length));
	buffer.unmap_from(length);
	usleep(200000); /* the kernel has all the time to give the pages back */
	send_one(link, buffer.memory(), all, lease.mr(), to);
}

/* Ends its copy of the cache, as exit() does of a static one, and nothing of ours. */
void make_child(reg_cache &cache)
{
	const pid_t child = fork();

	if (child == 0) {
		std::destroy_at(&cache);
		_exit(0);
	}
	rc_check(child > 0 && waitpid(child, nullptr, 0) == child, "fork");
}

void send_all(rc_link &link, reg_cache &cache)
{
	mapping buffer;
	inbox to;

	MPI_Recv(&to, sizeof(to), MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 1; i <= 2 * messages; i++) {
		send_one(link, buffer.memory(), i, cache.get(buffer.memory()).mr(), to);
		if (i < messages)
			buffer.map_again();
		else if (i == messages)
			make_child(cache);
	}
	send_part(link, cache, to);
}

int receive_all(reg_cache &cache)
{
	mapping buffer;
	const auto lease = cache.get(buffer.memory());
	const inbox here{reinterpret_cast<uintptr_t>(buffer.memory().data()), lease.mr()->rkey};
	int stale = 0;
	int value = 0;

	MPI_Send(&here, sizeof(here), MPI_BYTE, 0, 0, MPI_COMM_WORLD);
	while (value < all) {
		MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		stale += !std::ranges::all_of(buffer.memory(), [=](std::byte b) {
			return b == static_cast<std::byte>(value);
		});
		MPI_Send(nullptr, 0, MPI_INT, 0, 0, MPI_COMM_WORLD);
	}
	return stale;
}

int run(int rank)
{
	rc_link link;
	int stale = 0;

	rc_connect(&link, rank);
	{
		reg_cache cache(link.pd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		if (rank == 0)
			send_all(link, cache);
		else
			stale = receive_all(cache);
		MPI_Bcast(&stale, 1, MPI_INT, 1, MPI_COMM_WORLD);
		if (rank == 0)
			std::printf("%s: %d messages, %d stale, %lu registrations\n",
				    cache.keeps() ? "kept" : "not kept", all, stale, cache.count());
	}
	rc_disconnect(&link);
	return stale;
}

} // namespace

int main(int argc, char **argv)
{
	int stale = 0;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	try {
		stale = run(rank);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "%s\n", e.what());
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Finalize();
	return stale != 0;
}
