/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Read by a load, not a call. For libraries that are loaded late only glibc has such memory left.
 */
#ifndef MR_CACHE_STATIC_TLS_H
#define MR_CACHE_STATIC_TLS_H

#include <stdint.h> /* which tells whether it is glibc */

#if defined(__GLIBC__) && !defined(NOT_GLIBC)
#define STATIC_TLS __attribute__((tls_model("initial-exec")))
#else
#define STATIC_TLS
#endif

#endif /* MR_CACHE_STATIC_TLS_H */
