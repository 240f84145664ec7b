/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The kernel may ignore a request to swap, merge or move pages. So a row with such a
 * request has a witness, which is memory next to the registered range. Pages of the witness
 * are not pinned. They show whether the operation happened.
 */
#ifndef MR_NOTIFY_WITNESS_H
#define MR_NOTIFY_WITNESS_H

#include <cstdint>
#include <functional>
#include <vector>

#include "memory.h"

namespace mr_notify {

/* Returns the frame number of each page, or 0 for an unmapped page. Needs CAP_SYS_ADMIN. */
std::vector<uint64_t> frames(range r);

/* Runs an operation. If the witness still has all its old pages, throws unsupported. */
std::function<void(memory &)> witnessed(std::function<void(memory &)> apply);

} // namespace mr_notify

#endif
