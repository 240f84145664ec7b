/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A peer writes to a registration without a pause: before, while and after its memory moves to
 * another process, which watches its bytes.
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
 * The memory is a file, which is unmapped here and mapped by the other process. Returns how many
 * of its bytes were written.
 */
uint64_t writes_into_a_file_of_another(const mr_notify::device &on, loss how);

struct given_back {
	uint64_t bytes = 0; /* written bytes in the memory of the other process */
	uint64_t pages = 0; /* pages of this memory that were registered before */
};

/*
 * The memory is anonymous, and is unmapped, or suspended and dropped; the other process allocates
 * much memory.
 */
given_back writes_into_memory_of_another(const mr_notify::device &on, loss how);

} // namespace stress

#endif
