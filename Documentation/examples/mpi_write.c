// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * This program makes the transfers of a small library. Rank 0 writes to rank 1's memory:
 *
 * - from a buffer that the application unmaps and maps again after each transfer,
 * - from a buffer that stays,
 * - from half of a larger buffer after the other half was unmapped.
 *
 * Rank 1 counts messages with old bytes. Run the program with mpirun -np 2, on any
 * kernel and any InfiniBand or RoCE device. (rc_link.h can't connect over iWARP.) The
 * exit status is 0 if no message had old bytes.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mpi.h>

#include "rc_link.h"
#include "reg_cache.h"

#define MESSAGES 20
#define ALL (2 * MESSAGES + 1)
#define LENGTH (64 * 1024)

static unsigned char *map(size_t length)
{
	void *memory =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rc_check(memory != MAP_FAILED, "mmap");
	return memory;
}

/* Acts like an allocator that returns memory to the kernel and gets it back. */
static void map_again(unsigned char *memory)
{
	munmap(memory, LENGTH);
	rc_check(mmap(memory, LENGTH, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory,
		 "mmap");
}

static void send_one(struct rc_link *link, unsigned char *buffer, int i, struct ibv_mr *mr,
		     const uint64_t *inbox)
{
	memset(buffer, i, LENGTH);
	rc_write(link, buffer, LENGTH, mr, inbox[0], inbox[1]);
	MPI_Send(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(NULL, 0, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void get(struct reg_cache *cache, void *addr, size_t length, struct reg *reg)
{
	errno = reg_cache_get(cache, addr, length, reg);
	rc_check(!errno, "registering");
}

/* The transfer uses the first half of memory that an earlier transfer registered. */
static void send_part(struct rc_link *link, struct reg_cache *cache, const uint64_t *inbox)
{
	unsigned char *buffer = map(2 * LENGTH);
	struct reg reg;

	get(cache, buffer, 2 * LENGTH, &reg);
	reg_cache_put(&reg);
	get(cache, buffer, LENGTH, &reg);
	munmap(buffer + LENGTH, LENGTH);
	usleep(200000); /* long enough for the kernel to unpin the pages */
	send_one(link, buffer, ALL, reg.mr, inbox);
	reg_cache_put(&reg);
	munmap(buffer, LENGTH);
}

/* The child ends its own copy of the cache; the parent's registrations stay. */
static void make_child(struct reg_cache *cache)
{
	const pid_t child = fork();

	if (child == 0) {
		reg_cache_destroy(cache);
		_exit(0);
	}
	rc_check(child > 0 && waitpid(child, NULL, 0) == child, "fork");
}

static void send_all(struct rc_link *link, struct reg_cache *cache)
{
	unsigned char *buffer = map(LENGTH);
	struct reg reg;
	uint64_t inbox[2]; /* address, rkey */

	MPI_Recv(inbox, 2, MPI_UINT64_T, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 1; i <= 2 * MESSAGES; i++) {
		get(cache, buffer, LENGTH, &reg);
		send_one(link, buffer, i, reg.mr, inbox);
		reg_cache_put(&reg);
		if (i < MESSAGES)
			map_again(buffer);
		else if (i == MESSAGES)
			make_child(cache);
	}
	munmap(buffer, LENGTH);
	send_part(link, cache, inbox);
}

static int receive_all(struct reg_cache *cache)
{
	unsigned char *buffer = map(LENGTH);
	uint64_t inbox[2];
	struct reg reg;
	int stale = 0;
	int value = 0;

	get(cache, buffer, LENGTH, &reg);
	inbox[0] = (uintptr_t)buffer;
	inbox[1] = reg.mr->rkey;
	MPI_Send(inbox, 2, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD);
	while (value < ALL) {
		MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < LENGTH; i++)
			if (buffer[i] != value) {
				stale++;
				break;
			}
		MPI_Send(NULL, 0, MPI_INT, 0, 0, MPI_COMM_WORLD);
	}
	reg_cache_put(&reg);
	munmap(buffer, LENGTH);
	return stale;
}

int main(int argc, char **argv)
{
	struct rc_address own, peer;
	struct reg_cache *cache;
	struct rc_link link;
	int stale = 0;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	own = rc_open(&link, NULL);
	MPI_Sendrecv(&own, sizeof(own), MPI_BYTE, 1 - rank, 0, &peer, sizeof(peer), MPI_BYTE,
		     1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	rc_connect(&link, &peer);
	cache = reg_cache_create(link.pd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rc_check(cache != NULL, "reg_cache_create");
	if (rank == 0)
		send_all(&link, cache);
	else
		stale = receive_all(cache);
	MPI_Bcast(&stale, 1, MPI_INT, 1, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s: %d messages, %d stale, %lu registrations\n",
		       reg_cache_keeps(cache) ? "kept" : "not kept", ALL, stale,
		       reg_cache_count(cache));
	reg_cache_destroy(cache);
	rc_close(&link);
	MPI_Finalize();
	return stale != 0;
}
