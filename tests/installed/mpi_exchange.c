/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Two processes send each other messages of growing size and compare every byte. The program prints
 * "exchanged N messages". It is built with the compiler of each MPI.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const int largest = 1 << 20;
	int rank, messages = 0;
	unsigned char *in = malloc(largest), *out = malloc(largest);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int size = 1; size <= largest; size *= 4, messages++) {
		memset(out, messages * 2 + rank + 1, size);
		memset(in, 0, size);
		MPI_Sendrecv(out, size, MPI_BYTE, !rank, size, in, size, MPI_BYTE, !rank, size,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < size; i++) {
			if (in[i] != messages * 2 + !rank + 1) {
				printf("byte %d of %d is wrong\n", i, size);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
		}
	}
	if (rank == 0)
		printf("exchanged %d messages\n", messages);
	MPI_Finalize();
	free(in);
	free(out);
	return 0;
}
