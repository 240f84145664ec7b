/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Some libraries change the process in order to notice changes of memory. A library may patch libc,
 * use userfaultfd, or start a thread. By these functions the process itself can check for such
 * changes.
 */
#ifndef TESTS_MPI_INTERCEPTION_H
#define TESTS_MPI_INTERCEPTION_H

#include <cstddef>

namespace interception {

/* Bytes of libc's code that differ from libc's file. Throws if the file can't be read. */
std::size_t patched_bytes();

/* The number of open file descriptors of userfaultfd(2). */
std::size_t userfaultfds();

/* Threads of the process, including the main thread. */
std::size_t threads();

} // namespace interception

#endif // TESTS_MPI_INTERCEPTION_H
