// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A library's transfers in small: rank 0 writes to rank 1's memory from a buffer
 * that the application unmaps and maps again between them, then from one that
 * stays; rank 1 counts what arrives with old bytes. Run it with mpirun -np 2, on
 * any kernel and device. Exit status 0: no stale message.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "rc_link.h"
#include "reg_cache.h"

#define MESSAGES 20
#define LENGTH (64 * 1024)

static unsigned char *map(void)
{
	void *memory =
		mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	rc_check(memory != MAP_FAILED, "mmap");
	return memory;
}

/* What an allocator does that returns memory and gets it back. */
static void map_again(unsigned char *memory)
{
	munmap(memory, LENGTH);
	rc_check(mmap(memory, LENGTH, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory,
		 "mmap");
}

static void send_all(struct rc_link *link, struct reg_cache *cache)
{
	unsigned char *buffer = map();
	struct reg reg;
	uint64_t inbox[2]; /* address, rkey */

	MPI_Recv(inbox, 2, MPI_UINT64_T, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int i = 1; i <= 2 * MESSAGES; i++) {
		memset(buffer, i, LENGTH);
		errno = reg_cache_get(cache, buffer, LENGTH, &reg);
		rc_check(!errno, "registering");
		rc_write(link, buffer, LENGTH, reg.mr, inbox[0], inbox[1]);
		reg_cache_put(&reg);
		MPI_Send(&i, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(NULL, 0, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (i < MESSAGES)
			map_again(buffer);
	}
	munmap(buffer, LENGTH);
}

static int receive_all(struct reg_cache *cache)
{
	unsigned char *buffer = map();
	uint64_t inbox[2];
	struct reg reg;
	int stale = 0;
	int value = 0;

	errno = reg_cache_get(cache, buffer, LENGTH, &reg);
	rc_check(!errno, "registering");
	inbox[0] = (uintptr_t)buffer;
	inbox[1] = reg.mr->rkey;
	MPI_Send(inbox, 2, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD);
	while (value < 2 * MESSAGES) {
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
	struct reg_cache *cache;
	struct rc_link link;
	int stale = 0;
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	rc_connect(&link, rank);
	cache = reg_cache_create(link.pd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	rc_check(cache != NULL, "reg_cache_create");
	if (rank == 0)
		send_all(&link, cache);
	else
		stale = receive_all(cache);
	MPI_Bcast(&stale, 1, MPI_INT, 1, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s: %d messages, %d stale, %lu registrations\n",
		       reg_cache_keeps(cache) ? "kept" : "not kept", 2 * MESSAGES, stale,
		       reg_cache_count(cache));
	reg_cache_destroy(cache);
	rc_disconnect(&link);
	MPI_Finalize();
	return stale != 0;
}
