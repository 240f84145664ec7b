// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * RDMAV_MR_CACHE_STATS=1: a line of statistics on standard error for each context when it is closed,
 * or when the process ends and has it open.
 *
 * A context has a place from when it was found to cache until one of these two takes it out, and that
 * one reports. Names are copied, so the end of the process needs nothing of a context that another
 * thread closes just then. It does not wait for the cache's lock, or allocate: exit() may be a signal
 * handler's, in the middle of malloc(), of which dprintf() makes use in glibc before 2.37.
 */
#define _GNU_SOURCE
#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "mr_cache_private.h"

/* More contexts than anybody opens; those beyond say nothing. */
#define PLACES 64

static struct {
	uint32_t taken;
	struct ibv_context *context;	/* NULL: not yet, or not any more */
	char name[IBV_SYSFS_NAME_MAX];
} places[PLACES];

void mr_cache_report_open(struct ibv_context *context)
{
	static struct mr_cache_variable wanted = {
		.name = "RDMAV_MR_CACHE_STATS",
		.values = "0 or 1",
	};
	int i;

	if (!mr_cache_switch(&wanted, false))
		return;
	for (i = 0; i < PLACES; i++) {
		if (__atomic_exchange_n(&places[i].taken, 1, __ATOMIC_ACQUIRE))
			continue;
		snprintf(places[i].name, sizeof(places[i].name), "%s",
			 context->device->name);
		__atomic_store_n(&places[i].context, context, __ATOMIC_RELEASE);
		return;
	}
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512];
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (length >= (int)sizeof(line))
		length = sizeof(line) - 1;
	if (length > 0 && write(STDERR_FILENO, line, length) < 0)
		return; /* no place is left to tell of it */
}

/* Silent if nothing was registered, as in most forked children: their cache starts empty. */
static void report(int i, const struct ibv_mr_cache_stats *seen)
{
	if (!(seen->hits | seen->misses))
		return;
	say("libibverbs: process %d, %s: %llu hits, %llu misses, %llu suspects, %llu invalidations, %llu evictions, %llu suspensions, %llu restorations, %llu entries, %llu bytes\n",
	    getpid(), places[i].name, (unsigned long long)seen->hits,
	    (unsigned long long)seen->misses,
	    (unsigned long long)seen->suspects,
	    (unsigned long long)seen->invalidations,
	    (unsigned long long)seen->evictions,
	    (unsigned long long)seen->suspensions,
	    (unsigned long long)seen->restorations,
	    (unsigned long long)seen->entries,
	    (unsigned long long)seen->bytes);
}

void mr_cache_report_close(struct ibv_context *context)
{
	struct ibv_mr_cache_stats seen;
	int i;

	for (i = 0; i < PLACES; i++) {
		struct ibv_context *expected = context;

		if (!__atomic_compare_exchange_n(&places[i].context, &expected,
						 NULL, false, __ATOMIC_ACQUIRE,
						 __ATOMIC_RELAXED))
			continue;
		if (!mr_cache_query(context, &seen, false))
			report(i, &seen);
		__atomic_store_n(&places[i].taken, 0, __ATOMIC_RELEASE);
		return;
	}
}

__attribute__((destructor)) static void report_at_exit(void)
{
	struct ibv_mr_cache_stats seen;
	int ret;
	int i;

	for (i = 0; i < PLACES; i++) {
		struct ibv_context *context = __atomic_exchange_n(
			&places[i].context, NULL, __ATOMIC_ACQUIRE);

		if (!context)
			continue;
		ret = mr_cache_query(context, &seen, true);
		if (!ret)
			report(i, &seen);
		else if (ret == EBUSY)
			say("libibverbs: process %d, %s: ended while the cache was busy\n",
			    getpid(), places[i].name);
	}
}
