// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* Registers, settles and deregisters MRs for the core of the cache. */
#include <config.h>

#include <errno.h>

#include "mr_cache_private.h"
#include "mr_notify_cmd.h"

static_assert(sizeof(enum ibv_mr_type) == sizeof(uint32_t),
	      "the marks do not fit into mr_type");

/* ibv_fork_init() makes the library count registrations per page. The counts ignore munmap(), so
 * nothing is cached. ibv_fork_init() fails after a registration, so the answer is final. */
static bool keeps_ranges_from_children(void)
{
	static uint32_t known;
	uint32_t value = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!value) {
		value = ibv_is_fork_initialized() == IBV_FORK_ENABLED ? 1 : 2;
		__atomic_store_n(&known, value, __ATOMIC_RELAXED);
	}
	return value == 1;
}

/* Sets the range and the marks of the MR before any user can see the MR. */
int mr_cache_reg_entry(const struct mr_cache_request *request, uint64_t *word,
		       void **out)
{
	struct mr_notify_request asked = {
		.start = request->start,
		.length = request->size,
		.iova = request->start,
		.word = word,
		.in_use = MR_CACHE_IN_USE,
		.access = request->access,
		.reclaims = context_is(request->owner, CONTEXT_RECLAIMS),
		.once = request->merged,
		.idle_ms = __atomic_load_n(
			&get_priv(request->owner)->mr_cache.idle_ms,
			__ATOMIC_RELAXED),
	};
	struct ibv_mr *mr;

	if (keeps_ranges_from_children())
		return EOPNOTSUPP;
	mr = mr_notify_reg_mr(request->pd, &asked);
	/* An older kernel can revoke, but does not know the attribute for reclaim. */
	if (!mr && asked.reclaims &&
	    (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT)) {
		asked.reclaims = false;
		mr = mr_notify_reg_mr(request->pd, &asked);
	}
	if (!mr)
		return errno ? errno : ENOMEM;
	mr->addr = (void *)(uintptr_t)request->addr;
	mr->length = request->length;
	verbs_get_mr(mr)->access = request->index;
	verbs_get_mr(mr)->mr_type = type_of(request->generation);
	if (has_thread_sanitizer())
		__tsan_release(mr);
	*out = mr;
	return 0;
}

int mr_cache_settle_entry(void *mr)
{
	return mr_notify_settle(mr);
}

bool mr_cache_is_ending;

/* The provider must not see the marks. If the deregistration fails, the MR gets its marks back. */
int mr_cache_dereg_entry(void *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	const enum ibv_mr_type type = vmr->mr_type;
	const int access = vmr->access;
	int ret;

	vmr->access = type == CACHED_MR_TAKEN && is_rounded(mr) ?
			      (int)CACHED_MR_ROUNDED :
			      0;
	__atomic_store_n((uint32_t *)&vmr->mr_type, IBV_MR_TYPE_MR,
			 __ATOMIC_RELEASE);
	if (has_thread_sanitizer())
		__tsan_acquire(mr);
	if (type == CACHED_MR_TAKEN)
		return 0;
	ret = __atomic_load_n(&mr_cache_is_ending, __ATOMIC_RELAXED) ?
		      ibv_cmd_dereg_mr(vmr) :
		      mr_notify_dereg_mr(mr);
	if (ret) {
		vmr->mr_type = type;
		vmr->access = access;
	}
	return ret;
}
