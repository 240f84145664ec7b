/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A peer writes to a registration all the time, before, while and after the
 * memory goes from it to another process, which watches its bytes.
 */
#ifndef STRESS_GIVEN_BACK_H
#define STRESS_GIVEN_BACK_H

#include "peer.h"

namespace stress {

/* How the device loses the memory, if it does. */
enum class loss {
	none,	   /* it is unmapped, and not watched */
	unmapped,  /* … and is watched */
	suspended, /* it was idle */
};

/*
 * The memory is a file, taken away here, and mapped by the other process. Returns
 * how many bytes of it were written.
 */
uint64_t writes_into_a_file_of_another(const mr_notify::device &on, loss how);

struct given_back {
	uint64_t bytes = 0; /* that were written in the memory of the other process */
	uint64_t pages = 0; /* of it that had been the registered ones */
};

/*
 * The memory is anonymous, and unmapped, or suspended and dropped; the other
 * process asks for a lot of it.
 */
given_back writes_into_memory_of_another(const mr_notify::device &on, loss how);

} // namespace stress

#endif
