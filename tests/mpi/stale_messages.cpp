// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A usual MPI program of two processes, without code for registrations. First the program sends
 * from a buffer whose pages change between messages. Every second time it drops the pages; the
 * other times it unmaps the buffer and maps it again at the same address. The program makes these
 * system calls itself, as Go, Rust or a custom allocator does, so libraries do not see them. The
 * receiver counts messages that arrive with the bytes of an earlier message. Then the program sends
 * from a buffer that stays mapped, as most buffers do. Finally the program sends from a buffer that
 * the kernel may reclaim between messages, but does not reclaim. Prints one line of JSON. For each
 * part the line has: messages, stale, registrations (the kernel's count for both processes),
 * microseconds per message. The line also shows whether a library has patched libc, uses
 * userfaultfd, or has a thread in the first process.
 */
#include <mpi.h>
#include <nlohmann/json.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>

#include "interception.h"
#include "registration_count.h"

namespace {

constexpr int messages = 20;
constexpr int length = 256 * 1024; /* too long to be copied into a buffer of the library */

std::span<std::byte> map(void *at, int flags)
{
	const long addr = syscall(SYS_mmap, at, length, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (addr == -1)
		throw std::runtime_error("mmap");
	return {reinterpret_cast<std::byte *>(addr), length}; // NOLINT: a system call's result
}

/* Behaves like an allocator that returns memory and gets it again, in one of two ways. */
void map_again(std::span<std::byte> memory, int time)
{
	if (time % 2 ? syscall(SYS_madvise, memory.data(), memory.size(), MADV_DONTNEED) != 0
		     : syscall(SYS_munmap, memory.data(), memory.size()) != 0 ||
			       map(memory.data(), MAP_FIXED_NOREPLACE).data() != memory.data())
		throw std::runtime_error("mapping again");
}

/*
 * MADV_FREE keeps registered pages. Only a comparison with the page tables shows that the pages are
 * the same.
 */
void let_reclaim(std::span<std::byte> memory, int time)
{
	if (time > 1 && syscall(SYS_madvise, memory.data(), memory.size(), MADV_FREE))
		throw std::runtime_error("MADV_FREE");
}

void leave(std::span<std::byte>, int) {}

using action = void (*)(std::span<std::byte>, int);

/*
 * The work of rank 0. Returns its counters, and the number of stale messages that the receiver
 * counts. `before` runs immediately before a message, because the kernel clears SUSPECT by itself
 * after a while.
 */
nlohmann::ordered_json send(registration_count &count, action before, action after)
{
	const auto buffer = map(nullptr, 0);
	const uint64_t start_count = count.now();
	double seconds = 0;
	int stale = 0;

	for (int i = 1; i <= messages; i++) {
		std::memset(buffer.data(), i, buffer.size());
		before(buffer, i);
		const double start = MPI_Wtime();
		MPI_Send(buffer.data(), length, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(nullptr, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		seconds += MPI_Wtime() - start;
		after(buffer, i);
	}
	MPI_Recv(&stale, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return {{"messages", messages},
		{"stale", stale},
		{"registrations", count.now() - start_count},
		{"microseconds", seconds * 1e6 / messages}};
}

/* Rank 1. */
void receive()
{
	const auto buffer = map(nullptr, 0);
	int stale = 0;

	for (int i = 1; i <= messages; i++) {
		MPI_Recv(buffer.data(), length, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(nullptr, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
		stale += std::any_of(buffer.begin(), buffer.end(),
				     [=](std::byte b) { return b != static_cast<std::byte>(i); });
	}
	MPI_Send(&stale, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
}

} // namespace

int main(int argc, char **argv)
{
	try {
		registration_count count;
		int rank;

		MPI_Init(&argc, &argv);
		MPI_Comm_rank(MPI_COMM_WORLD, &rank);
		MPI_Barrier(MPI_COMM_WORLD); /* connects; some MPIs connect on first use */
		if (rank == 0) {
			const auto mapped_again = send(count, leave, map_again);
			const auto kept = send(count, leave, leave);
			const auto doubted = send(count, let_reclaim, leave);
			const nlohmann::ordered_json seen{
				{"mapped_again", mapped_again},
				{"kept", kept},
				{"doubted", doubted},
				{"patched_bytes", interception::patched_bytes()},
				{"userfaultfds", interception::userfaultfds()},
				{"threads", interception::threads()}};
			std::printf("%s\n", seen.dump().c_str());
		} else if (rank == 1) {
			receive();
			receive();
			receive();
		}
		MPI_Finalize();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "stale_messages: %s\n", e.what());
		return 2; /* the launcher ends the other process */
	}
}
