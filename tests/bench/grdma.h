/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Lets a C++ program register with Open MPI's cache grdma, as btl/ofi does. */
#ifndef BENCH_GRDMA_H
#define BENCH_GRDMA_H

#include <stddef.h>

struct fid_domain;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a cache that registers in `domain`. If btl_ofi_mr_notify is not 0, the cache asks the
 * domain `asked` whether a registration is stale. `asked` and `domain` may be the same.
 */
void grdma_open(struct fid_domain *domain, struct fid_domain *asked);
/* Does the work of btl_register_mem() and btl_deregister_mem(). */
void grdma_use(void *base, size_t size);

#ifdef __cplusplus
}
#endif

#endif
