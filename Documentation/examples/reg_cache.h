/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * A registration cache for a communication library, without memory hooks: the kernel
 * tells when a registration has become stale (ibv_reg_mr_notify(3)). If the headers,
 * the library, the kernel or the device do not support this, the cache keeps nothing:
 * each transfer registers and deregisters.
 *
 * All functions are thread safe. A forked child may only destroy its parent's cache,
 * which is empty there, because the registrations are the parent's. The child creates
 * its own cache.
 */
#ifndef REG_CACHE_H
#define REG_CACHE_H

#include <infiniband/verbs.h>

struct reg_cache;
struct reg_entry;

/* The registration that a transfer uses. */
struct reg {
	struct ibv_mr *mr;	 /* may cover more than was asked for */
	struct reg_entry *entry; /* NULL: for this transfer only */
};

/*
 * All registrations get the rights of access. On failure, this function returns NULL
 * and sets errno. Destroy the cache before the PD, when no transfer uses a registration.
 */
struct reg_cache *reg_cache_create(struct ibv_pd *pd, int access);
void reg_cache_destroy(struct reg_cache *cache);

/* Returns 1 if the kernel notifies, so that the cache keeps registrations. */
int reg_cache_keeps(const struct reg_cache *cache);

/* Returns how often memory was registered so far. */
unsigned long reg_cache_count(const struct reg_cache *cache);

/*
 * Gets a registration of the memory that is mapped at this address now. Returns 0, or an
 * errno value of ibv_reg_mr(3). Give the registration back when the device is done with
 * the memory.
 */
int reg_cache_get(struct reg_cache *cache, void *addr, size_t length, struct reg *reg);
void reg_cache_put(struct reg *reg);

#endif
