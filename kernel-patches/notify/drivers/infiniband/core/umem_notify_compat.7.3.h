/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The other files are written for Linux 6.12. This file has the differences of 7.3.
 */
#ifndef UMEM_NOTIFY_COMPAT_H
#define UMEM_NOTIFY_COMPAT_H

#include <linux/list_lru.h>

/*
 * Makes @isolate a callback of list_lru_walk*(). @isolate gets the list's lock and returns with
 * the lock held.
 *
 * The lock is a part of the list. A callback that stops or restarts the walk must release
 * the lock, because list_lru_walk*() does not release it. Otherwise the next walk would
 * wait forever.
 */
#define UMEM_NOTIFY_WALK(isolate)							\
static enum lru_status umem_notify_walk_##isolate(struct list_head *item,		\
						  struct list_lru_one *list, void *arg)	\
{											\
	enum lru_status status = isolate(item, list, &list->lock, arg);		\
											\
	if (status == LRU_STOP || status == LRU_RETRY)					\
		spin_unlock(&list->lock);						\
	return status;									\
}

/* The pages of a scatterlist entry are adjacent in the memory map. */
#define nth_page(page, n) ((page) + (n))
#define ib_umem_get(device, addr, size, access) ib_umem_get_va(device, addr, size, access)

#endif /* UMEM_NOTIFY_COMPAT_H */
