// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * This file has ibv_reg_mr() and ibv_dereg_mr() for cached registrations. The core of the cache, in
 * mr_cache/, does not call verbs. The other files are:
 *
 *	mr_cache_settings.c	decides which registrations are cached, and sets the limits
 *	mr_cache_context.c	ends the cache of a context or of the process
 *	mr_cache_registrar.c	registers and deregisters the MR of an entry
 *	mr_cache_plain.c	turns cached MRs into plain MRs
 *	mr_cache_room.c		deregisters idle registrations and repeats a failed command
 *	mr_cache_verbs.c	has the verbs of the cache itself
 *
 * Users that request the registered range share the provider's MR. A hit does not write to this MR.
 * A user that requests another range gets a view, a struct verbs_mr with the same handle and keys.
 */
#include <config.h>

#include <errno.h>

#include "mr_cache_private.h"
#include "mr_view.h"

static_assert(sizeof(struct verbs_mr) <= MR_VIEW_SIZE,
	      "a view has less memory than an MR");

static inline struct ibv_mr *fill_view(struct verbs_mr *view,
				       struct mr_cache_ref of, void *addr,
				       size_t length)
{
	view->ibv_mr = *(const struct ibv_mr *)of.mr;
	view->ibv_mr.addr = addr;
	view->ibv_mr.length = length;
	view->mr_type = type_of(of.generation) | CACHED_MR_VIEW;
	view->access = of.index;
	return &view->ibv_mr;
}

/* Returns the MR if it has this range, otherwise a view. If memory is short, releases the reference
 * and returns NULL. */
static struct ibv_mr *show(struct mr_cache_ref ref, void *addr, size_t length)
{
	struct ibv_mr *const mr = ref.mr;
	struct verbs_mr *view;

	if (mr->addr == addr && mr->length == length)
		return mr;
	view = mr_view_alloc();
	if (view)
		return fill_view(view, ref, addr, length);
	mr_cache_release(ref.index, ref.generation);
	return NULL;
}

/* If ref.mr is NULL, the range was not found. Otherwise this thread has no free view. */
static __attribute__((noinline)) void *
reg_miss(struct ibv_pd *pd, uint64_t addr, uint64_t length, uint32_t access,
	 struct mr_cache_ref ref)
{
	const unsigned int rights = access & ~MR_CACHE_EXACT;
	void *const start = (void *)(uintptr_t)addr;
	const int old_errno = errno;
	struct ibv_mr *mr = ref.mr ? show(ref, start, length) : NULL;

	if (!mr && context_caches(pd->context) &&
	    !mr_cache_acquire(pd, pd->context, addr, length, access, &ref))
		mr = show(ref, start, length);
	errno = old_errno;
	return mr ?: plain_reg_mr_iova2(pd, start, length, addr, rights);
}

/* Serves a part of an entry. If the thread keeps a view, the code need not save registers. */
void *mr_cache_on_miss(void *pd, uint64_t addr, uint64_t length,
		       uint32_t access, struct mr_cache_ref part)
{
	struct verbs_mr *view = part.mr ? mr_view_alloc_kept() : NULL;

	if (likely(view))
		return fill_view(view, part, (void *)(uintptr_t)addr, length);
	return reg_miss(pd, addr, length, access, part);
}

typedef struct ibv_mr *(*reg_function)(struct ibv_pd *pd, void *addr,
				       size_t length, uint64_t iova,
				       unsigned int access);

static struct ibv_mr *reg_plain(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	return plain_reg_mr_iova2(pd, addr, length, iova,
				  access & ~IBV_ACCESS_CACHED);
}

/*
 * All paths except the hit are tail calls, so the hit need not save registers. A hit does not check
 * the context and the range, because entries exist only for contexts and ranges that may be cached.
 */
static inline __attribute__((always_inline)) struct ibv_mr *
reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
    unsigned int access, unsigned int by_default, reg_function not_cached)
{
	const unsigned int asked = access | by_default;
	unsigned int rights = access & ~IBV_ACCESS_CACHED;

	if (likely(!(asked & IBV_ACCESS_CACHED)))
		return plain_reg_mr_iova2(pd, addr, length, iova, access);
	if (asked & ~(CACHED_ACCESS | IBV_ACCESS_CACHED) ||
	    iova != (uintptr_t)addr)
		return not_cached(pd, addr, length, iova, access);
	if (rights & mr_cache_exact_rights) {
		if (!(access & IBV_ACCESS_CACHED))
			return not_cached(pd, addr, length, iova, access);
		rights |= MR_CACHE_EXACT;
	} else if (!may_be_written(rights)) {
		return not_cached(pd, addr, length, iova, access);
	}
	return mr_cache_find(pd, iova, length, rights);
}

/* Serves requests that can't be cached. Before the policy is known, and with ThreadSanitizer, also
 * serves all other requests. */
static __attribute__((noinline)) struct ibv_mr *
reg_slowpath(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
	     unsigned int access)
{
	struct ibv_mr *mr;

	if (!(mr_cache_default & NOT_ASKED))
		return reg_plain(pd, addr, length, iova, access);
	mr_cache_policy();
	mr = reg(pd, addr, length, iova, access, mr_cache_default & ~NOT_ASKED,
		 reg_plain);
	if (has_thread_sanitizer() && mr && mr_cache_owns(mr))
		__tsan_acquire(mr);
	return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	return reg(pd, addr, length, iova, access, mr_cache_default,
		   reg_slowpath);
}

/* ibv_forget_mr() returns EBUSY only if the registration has other users. */
static int forget_error(int error)
{
	return error == EBUSY ? EAGAIN : error;
}

/* First marks the view as freed, to detect a second deregistration. A failure removes the mark. */
static __attribute__((noinline)) int release_view(struct verbs_mr *view)
{
	uint32_t *const marks = (uint32_t *)&view->mr_type;
	const uint32_t type = *marks;
	int ret;

	__atomic_store_n(marks, CACHED_MR_FREED, __ATOMIC_RELAXED);
	ret = mr_cache_release(view->access, type & CACHED_MR_GENERATION);
	if (likely(!ret))
		mr_view_free(view);
	else
		__atomic_store_n(marks, type, __ATOMIC_RELAXED);
	return ret;
}

static __attribute__((noinline)) int release_told(struct verbs_mr *vmr)
{
	const uint32_t generation = vmr->mr_type & CACHED_MR_GENERATION;

	__tsan_release(vmr);
	return mr_cache_release(vmr->access, generation);
}

int mr_cache_dereg_mr(struct ibv_mr *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	const uint32_t type = vmr->mr_type;

	if (type & (CACHED_MR_VIEW | CACHED_MR_TOLD))
		return type & CACHED_MR_VIEW ? release_view(vmr) :
					       release_told(vmr);
	return mr_cache_release(vmr->access, type & CACHED_MR_GENERATION);
}

bool mr_cache_unimport_mr(struct ibv_mr *mr)
{
	if (!mr_cache_owns(mr))
		return false;
	mr_cache_dereg_mr(mr);
	return true;
}

int ibv_forget_mr(struct ibv_mr *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	const uint32_t generation = vmr->mr_type & CACHED_MR_GENERATION;
	int taken, ret;

	if (!mr_cache_owns(mr))
		return forget_error(ibv_dereg_mr(mr));
	if (!generation)
		return EINVAL;
	taken = mr_cache_claim(vmr->access, generation);
	if (taken == EAGAIN)
		return taken;
	ret = mr_cache_dereg_mr(mr);
	return ret ? forget_error(ret) : taken == EBUSY ? EBUSY : 0;
}
