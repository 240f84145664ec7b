/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* An operation on registered memory, and whether the registration must survive the operation. */
#ifndef MR_NOTIFY_OPERATION_H
#define MR_NOTIFY_OPERATION_H

#include <functional>
#include <string>

#include "memory.h"

namespace mr_notify {

class device;
struct observation;

enum class effect {
	invalidates, /* the word must be non-zero right afterwards, and INVALID after settling */
	harmless,    /* the word may be SUSPECT for a moment, but never INVALID */
};

/* Which processes an operation may disturb. */
enum class reach {
	process,      /* no other process */
	process_once, /* no other process; the operation is slow, so it runs once, untimed */
	system,	      /* the whole machine, for example its caches, a page, or its swap space */
};

struct operation {
	std::string name;
	effect expected;
	/* Maps the memory and touches it. May throw unsupported. */
	std::function<memory(std::size_t length)> map;
	/* Does the operation. The last system call of the operation is the call to test. */
	std::function<void(memory &)> apply;
	reach disturbs = reach::process;
	/* If another process owns the registration, watch() replaces map() and apply(). */
	std::function<observation(const device &, std::size_t length)> watch = nullptr;

	/*
	 * Returns true if the operation may leave the registered pages in place although it
	 * moves the witness. NUMA balancing and compaction choose pages themselves. The row
	 * "hole punched next to the range" changes only the witness.
	 */
	bool may_leave_alone() const
	{
		const auto tells = [&](const char *text) { return name.find(text) != name.npos; };

		return tells("NUMA balancing") || tells("memory compacted") ||
		       tells("hole punched");
	}
};

} // namespace mr_notify

#endif
