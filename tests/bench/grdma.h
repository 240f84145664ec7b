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
 * Registers in `domain`. Unless btl_ofi_mr_notify is 0, asks the operations of `asked` whether a
 * registration is stale. Both may be the same domain.
 */
void grdma_open(struct fid_domain *domain, struct fid_domain *asked);
/* As btl_register_mem() and btl_deregister_mem() */
void grdma_use(void *base, size_t size);

#ifdef __cplusplus
}
#endif

#endif
