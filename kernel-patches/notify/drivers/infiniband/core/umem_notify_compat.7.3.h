/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The other files are written for Linux 6.12. This file has the differences of 7.3.
 */
#ifndef UMEM_NOTIFY_COMPAT_H
#define UMEM_NOTIFY_COMPAT_H

#include <linux/list_lru.h>

/*
 * The arguments of a callback of list_lru_walk_one(). A callback that stops or restarts the walk
 * would have to release the lock, in 7.3 only. So the callbacks do neither.
 */
#define UMEM_NOTIFY_LRU_ARGS struct list_head *item, struct list_lru_one *list, void *arg

/* The pages of a scatterlist entry are adjacent in the memory map. */
#define nth_page(page, n) ((page) + (n))
#define ib_umem_get(device, addr, size, access) ib_umem_get_va(device, addr, size, access)

#endif /* UMEM_NOTIFY_COMPAT_H */
