// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Some verbs do not support a cached MR. If a program that does not know of the cache calls such a
 * verb, this file turns the MR into a plain MR with the same keys.
 */
#include <config.h>

#include <errno.h>
#include <time.h>

#include "mr_cache_private.h"
#include "mr_notify_cmd.h"

/*
 * Threads that share a reference may call this at the same time, and mr_cache_claim() succeeds for
 * all of them. So only the thread that changes the type continues. All other threads get EBUSY, as
 * with a plain MR. If a second thread continued, it would disarm the word of the first thread, and
 * wait for an entry that is already free.
 */
int mr_cache_make_plain(struct ibv_mr *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	uint32_t *const type = (uint32_t *)&vmr->mr_type;
	const uint32_t cached = __atomic_load_n(type, __ATOMIC_ACQUIRE);
	const uint32_t generation = cached & CACHED_MR_GENERATION;
	const uint32_t index = vmr->access;
	/* Unlike sched_yield(), sleeping lets threads of any priority run. */
	const struct timespec shortest = { .tv_nsec = 1 };
	uint32_t seen = cached;
	int ret;

	if (!mr_cache_is_unasked() || cached & CACHED_MR_VIEW)
		return EOPNOTSUPP;
	if (!generation)
		return EBUSY;
	ret = mr_cache_claim(index, generation);
	if (!ret && !__atomic_compare_exchange_n(type, &seen, CACHED_MR_TAKEN,
						 false, __ATOMIC_ACQ_REL,
						 __ATOMIC_RELAXED))
		ret = EBUSY;
	if (ret == EAGAIN ||
	    (ret == EINVAL && __atomic_load_n(type, __ATOMIC_ACQUIRE) != cached))
		ret = EBUSY;
	if (ret)
		return ret;
	ret = mr_notify_disarm(mr);
	if (ret) {
		__atomic_store_n(type, cached, __ATOMIC_RELEASE);
		return ret;
	}
	mr_cache_release(index, generation);
	/* A reader may have the last reference, and will drop it soon. */
	while (__atomic_load_n(type, __ATOMIC_ACQUIRE) != IBV_MR_TYPE_MR)
		nanosleep(&shortest, NULL);
	return 0;
}

/* If the range was rounded to pages, more rights would give access to the rest of the pages. */
static bool would_open_pages(struct ibv_mr *mr, int flags, int access)
{
	return is_rounded(mr) && flags & IBV_REREG_MR_CHANGE_ACCESS &&
	       !(flags & IBV_REREG_MR_CHANGE_TRANSLATION) &&
	       access & (REMOTE_ACCESS | IBV_ACCESS_MW_BIND);
}

/* A preloaded library may wrap ibv_rereg_mr(), so a call by that name would enter the wrapper. */
#if (defined(HAVE_FULL_SYMBOL_VERSIONS) ||                                     \
     defined(HAVE_LIMITED_SYMBOL_VERSIONS)) &&                                 \
	!defined(_STATIC_LIBRARY_BUILD_)
#define own_rereg_mr __ibv_rereg_mr_1_1
int own_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access);
#else
#define own_rereg_mr ibv_rereg_mr
#endif

bool mr_cache_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
		       void *addr, size_t length, int access, int *ret)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	struct verbs_mr plain;

	if (mr_cache_owns(mr) && !mr_cache_is_unasked())
		goto invalid;
	/* If the provider lacks the op, the call fails, and the entry stays cached. */
	if (get_ops(mr->context)->rereg_mr == verbs_dummy_ops.rereg_mr) {
		if (!mr_cache_owns(mr))
			return false;
		plain = *vmr;
		plain.mr_type = IBV_MR_TYPE_MR;
		plain.access = 0;
		*ret = own_rereg_mr(&plain.ibv_mr, flags, pd, addr, length,
				    access);
		return true;
	}
	if (would_open_pages(mr, flags, access) ||
	    (mr_cache_owns(mr) && mr_cache_make_plain(mr)))
		goto invalid;
	if (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION) || !vmr->access)
		return false;
	/* The new registration has exactly the requested range. */
	vmr->access = 0;
	*ret = own_rereg_mr(mr, flags, pd, addr, length, access);
	if (*ret)
		vmr->access = CACHED_MR_ROUNDED;
	return true;
invalid:
	errno = EINVAL;
	*ret = IBV_REREG_MR_ERR_INPUT;
	return true;
}
