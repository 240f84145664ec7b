/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The TLS model of thread-local variables on a fast path. In a library each access to such a
 * variable is usually a call. With the model initial-exec the access is a load, but the variable
 * needs static TLS. glibc has some spare static TLS for libraries that are loaded late. musl has
 * none, so dlopen() of a library with such a variable always fails.
 */
#ifndef IB_VERBS_STATIC_TLS_H
#define IB_VERBS_STATIC_TLS_H

#include <stdint.h> /* glibc's header defines __GLIBC__ */

#if defined(__GLIBC__) && !defined(NOT_GLIBC)
#define STATIC_TLS __attribute__((tls_model("initial-exec")))
#else
#define STATIC_TLS
#endif

#endif /* IB_VERBS_STATIC_TLS_H */
