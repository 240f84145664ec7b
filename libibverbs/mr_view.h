/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The memory of views. A view is the MR that a user gets for a part of a cached
 * registration: a struct verbs_mr with the handle and keys of the provider's, and an addr
 * and length of its own.
 *
 * malloc() and free() cost more than all the rest of a hit, so each thread keeps a few of
 * the views that were freed there. They go with it.
 */
#ifndef IB_VERBS_MR_VIEW_H
#define IB_VERBS_MR_VIEW_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <util/compiler.h>

#include "mr_cache/static_tls.h"

/* Of a struct verbs_mr, or more. */
#define MR_VIEW_SIZE 56

/* Freed and kept: its first word is taken, the others are as the last user left them. */
struct mr_view {
	struct mr_view *behind;
};

struct mr_views {
	struct mr_view *kept;
	uint32_t room;	/* for so many more; 0 also when this thread has not asked yet */
	uint32_t asked;
};

extern __thread struct mr_views mr_views STATIC_TLS
	__attribute__((visibility("hidden")));

/* mr_view_free() when there is no room. */
void mr_view_free_slowly(void *view);

/* NULL: this thread keeps none. */
static inline void *mr_view_alloc_kept(void)
{
	struct mr_view *const view = mr_views.kept;

	if (likely(view)) {
		mr_views.kept = view->behind;
		mr_views.room++;
	}
	return view;
}

/*
 * MR_VIEW_SIZE bytes, not initialized. NULL: there is no memory. No cancellation point, though
 * the program's malloc() may be one: the reference that the view is for would stay for ever.
 */
static inline void *mr_view_alloc(void)
{
	void *view = mr_view_alloc_kept();
	int state;

	if (view)
		return view;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	view = malloc(MR_VIEW_SIZE);
	pthread_setcancelstate(state, NULL);
	return view;
}

/* By any thread. */
static inline void mr_view_free(void *view)
{
	struct mr_view *const freed = (struct mr_view *)view;

	if (unlikely(!mr_views.room)) {
		mr_view_free_slowly(view);
		return;
	}
	freed->behind = mr_views.kept;
	mr_views.kept = freed;
	mr_views.room--;
}

#endif /* IB_VERBS_MR_VIEW_H */
