/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The memory of views. A user gets a view as the MR for a part of a cached registration. A
 * view is a struct verbs_mr with the provider's handle and keys, but with its own addr and
 * length.
 *
 * malloc() and free() cost more than the rest of a hit. So each thread keeps a few of the
 * views that it freed, until the thread ends.
 */
#ifndef IB_VERBS_MR_VIEW_H
#define IB_VERBS_MR_VIEW_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include <util/compiler.h>

#include "static_tls.h"

/* At least the size of a struct verbs_mr. */
#define MR_VIEW_SIZE 56

/* The first word of a free view links the list. The other words are unchanged. */
struct mr_view {
	struct mr_view *behind;
};

struct mr_views {
	struct mr_view *kept;
	uint32_t room;	/* how many more views fit; 0 before ask() */
	uint32_t asked;
};

extern __thread struct mr_views mr_views STATIC_TLS
	__attribute__((visibility("hidden")));

/* mr_view_free() calls this if the thread can't keep another view. */
void mr_view_free_slowly(void *view);

/* Returns NULL if this thread keeps no view. */
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
 * Returns MR_VIEW_SIZE uninitialized bytes, or NULL if memory is short. The program's
 * malloc() may be a cancellation point. This function disables cancellation, because a
 * cancellation here would leak the reference of the view.
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

/* Any thread may free the view. */
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
