// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Each thread keeps some views (mr_view.h). When the thread ends, this file frees these views. If
 * the thread frees another view afterwards, the view goes to free(). A thread that ends after the
 * library was unloaded leaks its views.
 */
#include <config.h>

#include <pthread.h>
#include <stdbool.h>

#include "mr_view.h"

/* The kept views take 2 KiB of memory in each thread. */
#define MOST_KEPT 32

__thread struct mr_views mr_views STATIC_TLS;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_end;
static bool has_key;

static void end_thread(void *unused)
{
	struct mr_view *view = mr_views.kept;

	mr_views.kept = NULL;
	mr_views.room = 0;
	while (view) {
		struct mr_view *behind = view->behind;

		free(view);
		view = behind;
	}
}

static void make_key(void)
{
	has_key = !pthread_key_create(&at_end, end_thread);
}

/* After dlclose() another library may get the key, so has_key must be false. */
static __attribute__((destructor)) void unload(void)
{
	if (!has_key)
		return;
	has_key = false;
	pthread_key_delete(at_end);
}

/* Sets `asked` first, so that an allocator's hook inside pthread_once() does not call ask(). */
static void ask(void)
{
	mr_views.asked = true;
	pthread_once(&once, make_key);
	if (has_key && !pthread_setspecific(at_end, &mr_views))
		mr_views.room = MOST_KEPT;
}

void mr_view_free_slowly(void *view)
{
	if (!mr_views.asked)
		ask();
	if (mr_views.room)
		mr_view_free(view);
	else
		free(view);
}
