/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The differences of Linux 6.12 from 7.3.
 */
#ifndef UMEM_NOTIFY_COMPAT_H
#define UMEM_NOTIFY_COMPAT_H

#include <linux/list_lru.h>

/* The arguments of a callback of list_lru_walk_one() */
#define UMEM_NOTIFY_LRU_ARGS \
	struct list_head *item, struct list_lru_one *list, spinlock_t *lock, void *arg

#endif /* UMEM_NOTIFY_COMPAT_H */
