/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The differences of Linux 6.12 from 7.3.
 */
#ifndef UMEM_NOTIFY_COMPAT_H
#define UMEM_NOTIFY_COMPAT_H

#include <linux/list_lru.h>

/*
 * Makes @isolate a callback of list_lru_walk*(). @isolate gets the list's lock and returns with
 * the lock held.
 */
#define UMEM_NOTIFY_WALK(isolate)						\
static enum lru_status umem_notify_walk_##isolate(struct list_head *item,	\
						  struct list_lru_one *list,	\
						  spinlock_t *lock, void *arg)	\
{										\
	return isolate(item, list, lock, arg);					\
}

#endif /* UMEM_NOTIFY_COMPAT_H */
