// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * This file serves ibv_reg_mr_ex() and ibv_reg_buf_mr(). If ibv_reg_mr_iova2() could express a
 * request, the cache serves the request in the same way. ibv_reg_notified_mr() serves a request
 * with a word. All other requests go to the provider.
 */
#include <config.h>

#include <errno.h>

#include "mr_cache_private.h"
#include "mr_ex.h"

static uint64_t iova_of(const struct ibv_mr_init_attr *attr)
{
	return attr->comp_mask & IBV_REG_MR_MASK_IOVA ? attr->iova : (uintptr_t)attr->addr;
}

/* Does the request name the memory by an address, perhaps with an iova? */
static bool is_memory(const struct ibv_mr_init_attr *attr)
{
	return (attr->comp_mask & ~IBV_REG_MR_MASK_IOVA) == IBV_REG_MR_MASK_ADDR;
}

/* If a request is not for the cache, the provider's reg_mr_ex() serves it, as without a cache. */
static bool is_for_cache(const struct ibv_mr_init_attr *attr)
{
	return is_memory(attr) && iova_of(attr) == (uintptr_t)attr->addr &&
	       !(attr->access & ~(CACHED_ACCESS | IBV_ACCESS_CACHED)) &&
	       (attr->access & IBV_ACCESS_CACHED || mr_cache_is_unasked());
}

/* The word is an attribute of the command REG_MR, which can't register dmabufs or DMA handles. */
static struct ibv_mr *reg_notified(struct ibv_pd *pd, struct ibv_mr_init_attr *attr,
				   const struct ibv_mr_notify_attr *notify)
{
	attr->comp_mask &= ~(uint64_t)IBV_REG_MR_MASK_NOTIFY;
	if (is_memory(attr))
		return ibv_reg_notified_mr(pd, attr->addr, attr->length, iova_of(attr),
					   attr->access, notify);
	errno = attr->comp_mask & ~IBV_REG_MR_MASK_IOVA ? EOPNOTSUPP : EINVAL;
	return NULL;
}

bool mr_ex_reg(struct ibv_pd *pd, const struct ibv_mr_init_attr *asked,
	       struct ibv_mr_init_attr *attr, struct ibv_mr **mr)
{
	if (attr->comp_mask & IBV_REG_MR_MASK_NOTIFY) {
		*mr = reg_notified(pd, attr, asked->notify);
		return true;
	}
	if (is_for_cache(attr)) {
		*mr = ibv_reg_mr_iova2(pd, attr->addr, attr->length, (uintptr_t)attr->addr,
				       attr->access);
		return true;
	}
	attr->access &= ~IBV_ACCESS_CACHED;
	return false;
}
