/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Did it happen at all? A kernel that was told to swap, merge or move pages may
 * have had no reason to. So such a row has a witness: memory beside the
 * registered one, to which nothing prevents it.
 */
#ifndef MR_NOTIFY_WITNESS_H
#define MR_NOTIFY_WITNESS_H

#include <cstdint>
#include <functional>
#include <vector>

#include "memory.h"

namespace mr_notify {

/* The physical page behind each page of a range; 0 where none is mapped. Needs CAP_SYS_ADMIN. */
std::vector<uint64_t> frames(range r);

/* Does it, and throws unsupported if the witness has all its pages as before. */
std::function<void(memory &)> witnessed(std::function<void(memory &)> apply);

} // namespace mr_notify

#endif
