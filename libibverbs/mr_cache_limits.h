/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The limits of a context's registration cache until ibv_reg_mr_limits() sets others, and
 * for how long idle registrations stay pinned.
 */
#ifndef IB_VERBS_MR_CACHE_LIMITS_H
#define IB_VERBS_MR_CACHE_LIMITS_H

#include <stdbool.h>

#include "mr_cache.h"

/* Is there as much memory to lock as a cache is of use for? */
bool mr_cache_may_gain(void);
/* Could so many bytes be pinned, if all that is idle were not? */
bool mr_cache_may_pin(uint64_t bytes);
/* Before the next one; several threads may. */
void mr_cache_read_limits(void);
/*
 * reclaimed: does the kernel take idle registrations back when memory is short?
 * device_entries: the entries that are the default.
 */
struct ibv_mr_cache_limits mr_cache_default_limits(bool reclaimed,
					      uint32_t device_entries);
/* For how long one may be idle until the kernel takes its pages back; 0: for ever. */
uint32_t mr_cache_idle_ms(void);
/* The device_entries above for a device with so many MRs; 0: it does not say. Below 2^22. */
uint32_t mr_cache_device_entries(int max_mr);
/* log2 of the bytes that are registered together on a device with MRs so large; the same. */
uint32_t mr_cache_most_united_bits(uint64_t max_mr_size);

#endif /* IB_VERBS_MR_CACHE_LIMITS_H */
