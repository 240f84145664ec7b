/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Shows whether an operation happened, because the kernel may ignore a request to swap,
 * merge or move pages. So such a row has a witness, which is memory next to the registered
 * range, with pages that are free to move.
 */
#ifndef MR_NOTIFY_WITNESS_H
#define MR_NOTIFY_WITNESS_H

#include <cstdint>
#include <functional>
#include <vector>

#include "memory.h"

namespace mr_notify {

/* The frame number of each page of a range, or 0 for an unmapped page. Needs CAP_SYS_ADMIN. */
std::vector<uint64_t> frames(range r);

/* Wraps an operation: throws unsupported if the witness still has all its old pages. */
std::function<void(memory &)> witnessed(std::function<void(memory &)> apply);

} // namespace mr_notify

#endif
