/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Changes of libraries to this process, made to hear of changes of memory: a
 * library that has patched libc, watches by userfaultfd or has a thread for it
 * can be seen from inside.
 */
#ifndef TESTS_MPI_INTERCEPTION_H
#define TESTS_MPI_INTERCEPTION_H

#include <cstddef>

namespace interception {

/* Bytes of libc's code that are not those of its file. Throws if it can't be read. */
std::size_t patched_bytes();

/* Open file descriptors of userfaultfd(2). */
std::size_t userfaultfds();

/* Threads of the process, its own included. */
std::size_t threads();

} // namespace interception

#endif // TESTS_MPI_INTERCEPTION_H
