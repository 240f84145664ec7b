/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The test matrix: every way to change, or seem to change, the memory behind a
 * registration, and whether the registration must survive it. ibv_mr_notify
 * prints the matrix as a table, the tests check each row of it.
 */
#ifndef MR_NOTIFY_OPERATIONS_H
#define MR_NOTIFY_OPERATIONS_H

#include <functional>
#include <string>
#include <vector>

#include "memory.h"

namespace mr_notify {

class device;
struct observation;

enum class effect {
	invalidates, /* the word must be non-zero right after, INVALID in the end */
	harmless,    /* it may be SUSPECT for a moment, and never INVALID */
};

/* Whom an operation may disturb. */
enum class reach {
	process,      /* no other process */
	process_once, /* the same, and takes long: done once, not timed */
	system,	      /* the whole machine: caches dropped, a page poisoned, swap switched on */
};

struct operation {
	std::string name;
	effect expected;
	/* Makes the memory, touched. Throws unsupported. */
	std::function<memory(std::size_t length)> map;
	/* Does it to the memory; ends with the system call in question. */
	std::function<void(memory &)> apply;
	reach disturbs = reach::process;
	/* Instead of those two: the registration is another process's, and we look on. */
	std::function<observation(const device &, std::size_t length)> watch = nullptr;

	/*
	 * May it leave the registered pages where they are, though it reaches the witness?
	 * Balancing and compaction move those that they like; a hole is another range's.
	 */
	bool may_leave_alone() const;
};

/* All of them, in the order of the table. */
std::vector<operation> operations();

} // namespace mr_notify

#endif
