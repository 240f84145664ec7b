/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The model of thread-local variables on a fast path. In a library the usual access is a call;
 * initial-exec is a load. It takes of the static TLS that the C library has left for libraries that
 * are loaded late: glibc has some, and musl none, where dlopen() of a library with such a variable
 * always fails.
 */
#ifndef IB_VERBS_STATIC_TLS_H
#define IB_VERBS_STATIC_TLS_H

#include <stdint.h> /* which tells whether it is glibc */

#if defined(__GLIBC__) && !defined(NOT_GLIBC)
#define STATIC_TLS __attribute__((tls_model("initial-exec")))
#else
#define STATIC_TLS
#endif

#endif /* IB_VERBS_STATIC_TLS_H */
