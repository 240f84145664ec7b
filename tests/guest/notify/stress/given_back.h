/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A peer writes to a registration without a pause, before, while and after the memory moves to
 * another process. The other process watches the bytes.
 */
#ifndef STRESS_GIVEN_BACK_H
#define STRESS_GIVEN_BACK_H

#include "peer.h"

namespace stress {

/* How the device loses the memory. */
enum class loss {
	none,	   /* it is unmapped, and the MR has no word */
	unmapped,  /* it is unmapped, and the MR has a word */
	suspended, /* the idle MR is suspended */
};

/*
 * This process registers and unmaps a file that the other process maps. Returns how many bytes of
 * the file were written.
 */
uint64_t writes_into_a_file_of_another(const mr_notify::device &on, loss how);

struct given_back {
	uint64_t bytes = 0; /* written bytes in the memory of the other process */
	uint64_t pages = 0; /* pages of the other process that this process had registered */
};

/*
 * This process registers anonymous memory, and unmaps it, or drops it after the suspension. Then
 * the other process allocates much memory.
 */
given_back writes_into_memory_of_another(const mr_notify::device &on, loss how);

} // namespace stress

#endif
