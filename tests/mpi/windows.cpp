// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An MPI program of two processes, for features that stale_messages.cpp lacks: windows, persistent
 * requests, derived types, collective operations, parts of a buffer with holes. The memory of each
 * part is freed, unmapped, dropped or moved between epochs. Each process compares all bytes that it
 * receives. Prints one line of JSON: {part: number of failed comparisons in both processes}. If the
 * features could not be tried, the exit status is not 0.
 */
#include <mpi.h>
#include <nlohmann/json.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

namespace {

using bytes = std::span<std::byte>;

constexpr std::size_t length = 1 << 20; /* too long to be copied into a buffer of the library */
constexpr int rounds = 6;
int rank, peer;

void need(bool good, const char *what)
{
	if (!good)
		throw std::runtime_error(what);
}

std::byte pattern(std::size_t place, int seed)
{
	return static_cast<std::byte>((place * 2654435761U >> 13) ^ place ^ (37U * seed));
}

void fill(bytes memory, int seed)
{
	for (std::size_t i = 0; i < memory.size(); i++)
		memory[i] = pattern(i, seed);
}

/* Returns 1 if the bytes differ from the bytes of fill(), starting at `place`. */
int wrong(bytes memory, int seed, std::size_t place = 0)
{
	for (std::size_t i = 0; i < memory.size(); i++)
		if (memory[i] != pattern(place + i, seed))
			return 1;
	return 0;
}

/* The seed of the bytes that a process sends in a round; the other process expects it. */
int seed_of(int who, int round)
{
	return 2 * round + who;
}

/* Maps by a raw system call, as Go or a custom allocator does, so libraries do not see the call. */
bytes map(std::size_t size, std::byte *at = nullptr)
{
	const long addr =
		syscall(SYS_mmap, at, size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	need(addr != -1 && (!at || addr == reinterpret_cast<long>(at)), "mmap"); // NOLINT
	return {reinterpret_cast<std::byte *>(addr), size}; // NOLINT: a system call's result
}

void unmap(bytes memory)
{
	need(!syscall(SYS_munmap, memory.data(), memory.size()), "munmap");
}

/* A kind of memory, and how it is renewed; the address may change. */
struct kind {
	const char *name;
	bytes (*get)(std::size_t size);
	bytes (*renew)(bytes memory);
	void (*end)(bytes memory);
};

bytes allocate(std::size_t size)
{
	return {static_cast<std::byte *>(std::malloc(size)),
		size}; // NOLINT: its cache is the point
}

void release(bytes memory)
{
	std::free(memory.data()); // NOLINT
}

bytes map_new(std::size_t size)
{
	return map(size);
}

constexpr kind allocated{"malloc", allocate,
			 [](bytes memory) {
				 release(memory);
				 return allocate(memory.size());
			 },
			 release};
constexpr kind mapped{"mmap", map_new,
		      [](bytes memory) {
			      unmap(memory);
			      return map(memory.size(), memory.data());
		      },
		      unmap};
constexpr kind dropped{
	"MADV_DONTNEED", map_new,
	[](bytes memory) {
		need(!syscall(SYS_madvise, memory.data(), memory.size(), MADV_DONTNEED), "madvise");
		return memory;
	},
	unmap};
constexpr kind moved{"mremap", map_new,
		     [](bytes memory) {
			     const bytes to = map(memory.size());
			     const long at = syscall(SYS_mremap, memory.data(), memory.size(),
						     memory.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
						     to.data());

			     need(at == reinterpret_cast<long>(to.data()), "mremap"); // NOLINT
			     unmap(to);
			     return map(memory.size(), memory.data());
		     },
		     unmap};

class buffer {
public:
	buffer(const kind &of, std::size_t size) : kind_(of), memory_(of.get(size)) {}
	buffer(const buffer &) = delete;
	buffer &operator=(const buffer &) = delete;
	~buffer() { kind_.end(memory_); }

	void renew() { memory_ = kind_.renew(memory_); }

	bytes operator*() const { return memory_; }

	std::byte *data() const { return memory_.data(); }

private:
	const kind &kind_;
	bytes memory_;
};

int count_of(bytes memory)
{
	return static_cast<int>(memory.size());
}

void exchange(bytes from, bytes to)
{
	MPI_Sendrecv(from.data(), count_of(from), MPI_BYTE, peer, 1, to.data(), count_of(to),
		     MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Tests a window over one kind of memory: puts, gets into renewed memory, accumulates. */
int window_of(const kind &of)
{
	constexpr int numbers = 1000;
	buffer window(of, 2 * length), own(of, length);
	std::vector<uint64_t> added(numbers);
	int errors = 0;

	for (int round = 0; round < rounds; round++) {
		const bytes first = (*window).first(length), second = (*window).last(length);
		MPI_Win win;

		std::fill(first.begin(), first.end(), std::byte{0xee});
		fill(*own, seed_of(rank, round));
		MPI_Win_create(window.data(), 2 * length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
		MPI_Win_fence(0, win);
		MPI_Put(own.data(), length, MPI_BYTE, peer, 0, length, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		errors += wrong(first, seed_of(peer, round));

		fill(second, seed_of(rank, 100 + round));
		MPI_Barrier(MPI_COMM_WORLD);
		own.renew();
		MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
		MPI_Get(own.data(), length, MPI_BYTE, peer, length, length, MPI_BYTE, win);
		MPI_Win_unlock(peer, win);
		errors += wrong(*own, seed_of(peer, 100 + round));

		const std::span sums(reinterpret_cast<uint64_t *>(window.data()),
				     numbers); // NOLINT
		MPI_Win_fence(0, win);
		std::fill(sums.begin(), sums.end(), 1);
		MPI_Win_fence(0, win);
		std::iota(added.begin(), added.end(), round);
		MPI_Accumulate(added.data(), numbers, MPI_UINT64_T, peer, 0, numbers, MPI_UINT64_T,
			       MPI_SUM, win);
		MPI_Win_fence(0, win);
		for (int i = 0; i < numbers; i++)
			errors += sums[i] != uint64_t{1} + i + round;
		MPI_Win_free(&win);
		window.renew();
		own.renew();
	}
	return errors;
}

int window_of_library()
{
	constexpr int additions = 3; /* per process; each takes a second under MPICH in um */
	int errors = 0;

	for (int round = 0; round < rounds; round++) {
		const int64_t one = 1;
		int64_t before = 0;
		std::byte *base = nullptr, *own = nullptr;
		MPI_Win win;

		MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
		MPI_Alloc_mem(length, MPI_INFO_NULL, &own);
		fill({own, length}, seed_of(rank, round));
		MPI_Win_lock_all(0, win);
		MPI_Put(own, length, MPI_BYTE, peer, 0, length, MPI_BYTE, win);
		MPI_Win_flush(peer, win);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_sync(win);
		errors += wrong({base, length}, seed_of(peer, round));
		MPI_Barrier(MPI_COMM_WORLD);

		auto *counter = reinterpret_cast<int64_t *>(base); // NOLINT
		*counter = 0;
		MPI_Win_sync(win);
		MPI_Barrier(MPI_COMM_WORLD);
		for (int i = 0; i < additions; i++) {
			MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, win);
			MPI_Win_flush(0, win);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_sync(win);
		errors += *counter != (rank == 0 ? 2 * additions : 0);
		MPI_Win_unlock_all(win);
		MPI_Win_free(&win);
		MPI_Free_mem(own);
	}
	return errors;
}

int dynamic_window()
{
	buffer target(mapped, length), own(mapped, length);
	int errors = 0;
	MPI_Win win;

	MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	for (int round = 0; round < rounds; round++) {
		MPI_Aint mine = 0, other = 0;

		std::fill((*target).begin(), (*target).end(), std::byte{1});
		MPI_Win_attach(win, target.data(), length);
		MPI_Get_address(target.data(), &mine);
		MPI_Sendrecv(&mine, 1, MPI_AINT, peer, 1, &other, 1, MPI_AINT, peer, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		fill(*own, seed_of(rank, round));
		MPI_Win_fence(0, win);
		MPI_Put(own.data(), length, MPI_BYTE, peer, other, length, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		errors += wrong(*target, seed_of(peer, round));
		MPI_Win_detach(win, target.data());
		target.renew();
		own.renew();
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Win_free(&win);
	return errors;
}

/* A child writes to its copy of the memory, in one of the rounds. */
void let_child_write(bytes memory)
{
	const pid_t child = fork();
	int status = 0;

	if (!child) {
		std::fill(memory.begin(), memory.end(), std::byte{9});
		_exit(0);
	}
	need(child > 0 && waitpid(child, &status, 0) == child && !status, "fork");
}

int persistent_requests()
{
	buffer from(mapped, length), to(mapped, length);
	std::array<MPI_Request, 2> requests{};
	int errors = 0;

	MPI_Send_init(from.data(), length, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &requests[0]);
	MPI_Recv_init(to.data(), length, MPI_BYTE, peer, 2, MPI_COMM_WORLD, &requests[1]);
	for (int round = 0; round < 2 * rounds; round++) {
		fill(*from, seed_of(rank, round));
		MPI_Startall(2, requests.data());
		MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
		errors += wrong(*to, seed_of(peer, round));
		from.renew();
		to.renew();
		if (round == 5)
			let_child_write(*from);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
	return errors;
}

/*
 * Sends the blocks of a vector, and puts the blocks into a window. Then does the same with an array
 * of structures.
 */
int derived_types()
{
	constexpr int blocks = 512, block = 2048, stride = 4096;
	constexpr int repeats = 3, apart = 400000, begin = 200000, run = 70000;
	constexpr std::size_t size = 4 * length;
	const std::array lengths{3, 5, run};
	const std::array<MPI_Aint, 3> places{0, 100000, begin};
	const std::array types{MPI_INT, MPI_DOUBLE, MPI_BYTE};
	MPI_Datatype vector, structure, repeated;
	int errors = 0;

	MPI_Type_vector(blocks, block, stride, MPI_BYTE, &vector);
	MPI_Type_commit(&vector);
	MPI_Type_create_struct(3, lengths.data(), places.data(), types.data(), &structure);
	MPI_Type_create_hvector(repeats, 1, apart, structure, &repeated);
	MPI_Type_commit(&repeated);
	for (int round = 0; round < rounds; round++) {
		buffer from(mapped, size), to(mapped, size);
		const auto send = [&](MPI_Datatype type) {
			MPI_Sendrecv(from.data(), 1, type, peer, 3, to.data(), 1, type, peer, 3,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		};
		const auto check_blocks = [&] {
			for (std::size_t at = 0; at < std::size_t{blocks} * stride; at += stride)
				errors += wrong((*to).subspan(at, block), seed_of(peer, round), at);
		};
		MPI_Win win;

		fill(*from, seed_of(rank, round));
		send(vector);
		check_blocks();
		send(repeated);
		for (std::size_t at = begin; at < std::size_t{repeats} * apart; at += apart)
			errors += wrong((*to).subspan(at, run), seed_of(peer, round), at);
		std::fill((*to).begin(), (*to).end(), std::byte{});
		MPI_Win_create(to.data(), size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
		MPI_Win_fence(0, win);
		MPI_Put(from.data(), 1, vector, peer, 0, 1, vector, win);
		MPI_Win_fence(0, win);
		check_blocks();
		MPI_Win_free(&win);
	}
	MPI_Type_free(&vector);
	MPI_Type_free(&structure);
	MPI_Type_free(&repeated);
	return errors;
}

int collective()
{
	constexpr int numbers = 1 << 17;
	buffer from(allocated, 2 * length), to(allocated, 2 * length);
	int errors = 0;

	for (int round = 0; round < rounds; round++) {
		fill((*from).first(length), seed_of(rank, round));
		fill((*from).last(length), seed_of(rank, 50 + round));
		MPI_Alltoall(from.data(), length, MPI_BYTE, to.data(), length, MPI_BYTE,
			     MPI_COMM_WORLD);
		for (int who = 0; who < 2; who++)
			errors += wrong((*to).subspan(who * length, length),
					seed_of(who, (rank ? 50 : 0) + round));
		from.renew();
		const std::span parts(reinterpret_cast<double *>(from.data()), numbers); // NOLINT
		const std::span sums(reinterpret_cast<double *>(to.data()), numbers);	 // NOLINT
		for (int i = 0; i < numbers; i++)
			parts[i] = 0.5 * i + rank;
		MPI_Allreduce(parts.data(), sums.data(), numbers, MPI_DOUBLE, MPI_SUM,
			      MPI_COMM_WORLD);
		for (int i = 0; i < numbers; i++)
			errors += sums[i] != i + 1.0;
		from.renew();
		to.renew();
	}
	return errors;
}

int parts_with_holes()
{
	constexpr std::size_t part = length / 8;
	const buffer from(mapped, 8 * length), to(mapped, 8 * length);
	int errors = 0;

	for (int round = 0; round < 5 * rounds; round++) {
		const std::size_t at = std::size_t{round * 7919U % 96} * 65536 + round;

		fill((*from).subspan(at, part), seed_of(rank, round));
		exchange((*from).subspan(at, part), (*to).subspan(at, part));
		errors += wrong((*to).subspan(at, part), seed_of(peer, round));
		if (round % 10 == 9) {
			mapped.renew((*from).subspan(3 * length, length));
			dropped.renew((*to).subspan(5 * length, length));
		}
	}
	return errors;
}

int large_messages()
{
	constexpr std::size_t size = 48 << 20;
	const buffer from(allocated, size), to(allocated, size);

	fill(*from, seed_of(rank, 0));
	exchange(*from, *to);
	return wrong(*to, seed_of(peer, 0));
}

struct part {
	const char *name;
	int (*run)();
};

constexpr std::array parts{
	part{"persistent requests", persistent_requests},
	part{"derived types, sent and put", derived_types},
	part{"48 MiB", large_messages},
	part{"alltoall, allreduce", collective},
	part{"parts with holes", parts_with_holes},
	part{"MPI_Win_create, malloc", [] { return window_of(allocated); }},
	part{"MPI_Win_create, mmap", [] { return window_of(mapped); }},
	part{"MPI_Win_create, MADV_DONTNEED", [] { return window_of(dropped); }},
	part{"MPI_Win_create, mremap", [] { return window_of(moved); }},
	part{"MPI_Win_allocate", window_of_library},
	part{"MPI_Win_create_dynamic", dynamic_window},
};

} // namespace

int main(int argc, char **argv)
{
	try {
		nlohmann::ordered_json seen;

		MPI_Init(&argc, &argv);
		MPI_Comm_rank(MPI_COMM_WORLD, &rank);
		peer = 1 - rank;
		for (const part &each : parts) {
			const int errors = each.run();
			int both = 0;

			MPI_Allreduce(&errors, &both, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
			seen[each.name] = both;
		}
		if (rank == 0)
			std::printf("%s\n", seen.dump().c_str());
		MPI_Finalize();
		return 0;
	} catch (const std::exception &e) {
		std::fprintf(stderr, "windows: %s\n", e.what());
		return 2; /* the launcher ends the other process */
	}
}
