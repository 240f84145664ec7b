/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/* Registrations of Open MPI's btl/ofi in its cache grdma, for a program in C++. */
#ifndef BENCH_GRDMA_H
#define BENCH_GRDMA_H

#include <stddef.h>

struct fid_domain;

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a cache that registers in `domain`. Unless btl_ofi_mr_notify is 0, the operations of
 * `asked` tell whether a registration is stale. `asked` may be the same domain.
 */
void grdma_open(struct fid_domain *domain, struct fid_domain *asked);
/* Does the work of btl_register_mem() and btl_deregister_mem(). */
void grdma_use(void *base, size_t size);

#ifdef __cplusplus
}
#endif

#endif
