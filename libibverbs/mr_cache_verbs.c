// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The verbs of the cache itself: ibv_is_reg(), limits, cleaning and statistics. */
#include <config.h>

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <util/symver.h>

/* Rename the inline functions of the header, because this file defines the same names. */
#define ibv_query_mr_cache inline_query_mr_cache
#define ibv_reg_mr_limits inline_reg_mr_limits
#include "ibverbs.h"
#undef ibv_query_mr_cache
#undef ibv_reg_mr_limits
#include "mr_cache_private.h"

int ibv_is_reg(struct ibv_pd *pd, const void *addr, size_t length,
	       unsigned int access)
{
	access &= ~IBV_ACCESS_CACHED;
	if (access & ~CACHED_ACCESS || !may_be_written(access) ||
	    !context_is(pd->context, CONTEXT_CACHES))
		return 0;
	if (access & mr_cache_exact_rights)
		access |= MR_CACHE_EXACT;
	return mr_cache_covers(pd, (uintptr_t)addr, length, access);
}

/* Copies the fields that caller and library know, and clears fields that only the caller knows. */
static void give(void *to, size_t size, const void *from, size_t known)
{
	memset(to, 0, size);
	memcpy(to, from, size < known ? size : known);
}

/* Are all unknown fields 0? */
static bool is_known(const void *from, size_t size, size_t known)
{
	const char *const byte = from;

	for (size_t i = known; i < size; i++)
		if (byte[i])
			return false;
	return true;
}

int _ibv_reg_mr_limits(struct ibv_context *context,
		       const struct ibv_mr_cache_limits *new_limits,
		       struct ibv_mr_cache_limits *old_limits, size_t size)
{
	struct ibv_mr_cache_limits old;
	int ret;

	if (size < sizeof(old) ||
	    (new_limits && !is_known(new_limits, size, sizeof(*new_limits))))
		return EINVAL;
	if (!context_caches(context))
		return EOPNOTSUPP;
	ret = mr_cache_limits(context, new_limits, &old);
	if (!ret && old_limits)
		give(old_limits, size, &old, sizeof(old));
	return ret;
}

int ibv_reg_mr_clean(struct ibv_context *context, size_t keep_bytes)
{
	if (!context_caches(context))
		return EOPNOTSUPP;
	return mr_cache_clean(context, keep_bytes);
}

int _ibv_query_mr_cache(struct ibv_context *context,
			struct ibv_mr_cache_stats *stats, size_t size)
{
	struct ibv_mr_cache_stats known;
	int ret;

	if (!stats)
		return EINVAL;
	if (!context_caches(context))
		return EOPNOTSUPP;
	ret = mr_cache_query(context, &known);
	if (!ret)
		give(stats, size, &known, sizeof(known));
	return ret;
}

/* Programs that look up these names at run time get the structs of version 1.5. */
LATEST_SYMVER_FUNC(ibv_query_mr_cache, 1_5, "MRNOTIFY_1.5",
		   int,
		   struct ibv_context *context,
		   struct ibv_mr_cache_stats *stats)
{
	return _ibv_query_mr_cache(context, stats, 9 * sizeof(uint64_t));
}

LATEST_SYMVER_FUNC(ibv_reg_mr_limits, 1_5, "MRNOTIFY_1.5",
		   int,
		   struct ibv_context *context,
		   struct ibv_mr_cache_limits *new_limits,
		   struct ibv_mr_cache_limits *old_limits)
{
	return _ibv_reg_mr_limits(context, new_limits, old_limits,
				  2 * sizeof(uint64_t));
}

/* Programs that were built with version 1.0 use these functions. */
COMPAT_SYMVER_FUNC(ibv_query_mr_cache, 1_0, "MRNOTIFY_1.0",
		   int,
		   struct ibv_context *context,
		   struct ibv_mr_cache_stats *stats)
{
	return _ibv_query_mr_cache(context, stats,
				   offsetof(struct ibv_mr_cache_stats,
					    suspensions));
}

COMPAT_SYMVER_FUNC(ibv_reg_mr_limits, 1_0, "MRNOTIFY_1.0",
		   int,
		   struct ibv_context *context,
		   struct ibv_mr_cache_limits *new_limits,
		   struct ibv_mr_cache_limits *old_limits)
{
	return _ibv_reg_mr_limits(context, new_limits, old_limits,
				  2 * sizeof(uint64_t));
}
