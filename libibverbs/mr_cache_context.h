/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The state of a context for the registration cache: asked of the device and the kernel once,
 * at its first registration.
 */
#ifndef IB_VERBS_MR_CACHE_CONTEXT_H
#define IB_VERBS_MR_CACHE_CONTEXT_H

#include "ibverbs.h"

/* verbs_ex_private.mr_cache: the answers; 0 is not yet asked */
enum context_state {
	CONTEXT_ASKED = 1 << 0,
	CONTEXT_CACHES = 1 << 1,
	CONTEXT_RECLAIMS = 1 << 2,	/* the kernel may take back idle pages */
	CONTEXT_RESTORES = 1 << 3,	/* and give it back */
};
/* Above them: log2 of the largest union, 6 bits; the default limit of entries. */
#define CONTEXT_UNITED_SHIFT 4
#define CONTEXT_ENTRIES_SHIFT 10

static inline bool context_is(struct ibv_context *context,
			      enum context_state what)
{
	return __atomic_load_n(&get_priv(context)->mr_cache,
			       __ATOMIC_ACQUIRE) & what;
}

/* Asks; does it cache? */
bool mr_cache_ask_context(struct ibv_context *context);

static inline bool context_caches(struct ibv_context *context)
{
	if (likely(context_is(context, CONTEXT_CACHES)))
		return true;
	return !context_is(context, CONTEXT_ASKED) && mr_cache_ask_context(context);
}

#endif /* IB_VERBS_MR_CACHE_CONTEXT_H */
