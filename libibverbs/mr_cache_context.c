// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* A context begins to cache, and ends; so does a process. */
#include <config.h>

#include <errno.h>
#include <pthread.h>

#include "mr_cache_private.h"

/* RDMAV_MR_CACHE_RECLAIM=0: the kernel is not to take back idle pages. */
static bool may_reclaim(void)
{
	static struct mr_cache_variable wanted = {
		.name = "RDMAV_MR_CACHE_RECLAIM",
		.values = "0 or 1",
	};

	return mr_cache_switch(&wanted, true);
}

static uint32_t state_of(struct ibv_context *context)
{
	uint32_t state = CONTEXT_ASKED;
	struct ibv_device_attr_ex attr;

	if (mr_cache_policy() == POLICY_NONE || !mr_cache_may_gain() ||
	    ibv_query_device_ex(context, NULL, &attr) ||
	    !(attr.orig_attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY))
		return state;
	mr_cache_read_limits();
	if (mr_cache_init())
		return state;
	state |= CONTEXT_CACHES;
	state |= mr_cache_device_entries(attr.orig_attr.max_mr)
		 << CONTEXT_ENTRIES_SHIFT;
	state |= mr_cache_max_merge_bits(attr.orig_attr.max_mr_size)
		 << CONTEXT_MERGE_SHIFT;
	if (may_reclaim() && attr.device_cap_flags_ex & IBV_DEVICE_MR_REVOKE)
		state |= CONTEXT_RECLAIMS;
	if (state & CONTEXT_RECLAIMS &&
	    attr.device_cap_flags_ex & IBV_DEVICE_MR_RECLAIM)
		state |= CONTEXT_RESTORES;
	return state;
}

/* Or by several threads at once: the first one's answer counts. */
bool mr_cache_ask_context(struct ibv_context *context)
{
	const int old_errno = errno;
	const uint32_t state = state_of(context);
	uint32_t not_asked = 0;

	if (__atomic_compare_exchange_n(&get_priv(context)->mr_cache, &not_asked,
					state, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE) &&
	    state & CONTEXT_CACHES)
		mr_cache_report_open(context);
	errno = old_errno;
	return context_is(context, CONTEXT_CACHES);
}

void mr_cache_flush_pd(struct ibv_pd *pd)
{
	if (context_is(pd->context, CONTEXT_CACHES))
		mr_cache_drain_pd(pd);
}

void mr_cache_flush_context(struct ibv_context *context)
{
	if (!context_is(context, CONTEXT_CACHES))
		return;
	mr_cache_report_close(context);
	mr_cache_drain_owner(context);
}

/* Since this library was loaded. */
static uint32_t forks;

static void note_child(void)
{
	forks++;
}

uint32_t mr_cache_forks(void)
{
	return forks;
}

static bool is_of_ancestor(void *context, const void *unused)
{
	return get_priv(context)->mr_cache_forks != forks;
}

__attribute__((constructor)) static void notice_forks(void)
{
	pthread_atfork(NULL, NULL, note_child);
}

/*
 * A child's idle registrations by its parent's context would keep the PD as long as the parent
 * lives. Of all other contexts the kernel ends what is left, which is faster. After the reports,
 * which tell of them.
 */
__attribute__((destructor(101))) static void leave(void)
{
	if (!forks)
		return;
	mr_cache_registrar_ends(true);
	mr_cache_evict(is_of_ancestor, NULL, true);
	mr_cache_registrar_ends(false);
}
