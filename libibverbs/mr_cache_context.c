// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* Ends the cache of a context or of the process, and prints a line of statistics on request. */
#define _GNU_SOURCE
#include <config.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "mr_cache_private.h"

/* A signal handler may call exit(), so don't allocate. dprintf() allocates before glibc 2.37. */
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
		return; /* there is no other place for the message */
}

/* Skips a context that registered nothing. Most forked children have only such contexts. */
static bool report(void *context, const struct ibv_mr_cache_stats *seen,
		   const void *unused)
{
	if (seen->hits | seen->misses)
		say("libibverbs: process %d, %s: %llu hits, %llu misses, %llu suspects, %llu invalidations, %llu evictions, %llu suspensions, %llu restorations, %llu entries, %llu bytes\n",
		    getpid(), ((struct ibv_context *)context)->device->name,
		    (unsigned long long)seen->hits,
		    (unsigned long long)seen->misses,
		    (unsigned long long)seen->suspects,
		    (unsigned long long)seen->invalidations,
		    (unsigned long long)seen->evictions,
		    (unsigned long long)seen->suspensions,
		    (unsigned long long)seen->restorations,
		    (unsigned long long)seen->entries,
		    (unsigned long long)seen->bytes);
	return false;
}

void mr_cache_flush_pd(struct ibv_pd *pd)
{
	if (context_is(pd->context, CONTEXT_CACHES))
		mr_cache_drain(NULL, pd);
}

void mr_cache_flush_context(struct ibv_context *context)
{
	struct ibv_mr_cache_stats seen;

	if (!context_is(context, CONTEXT_CACHES))
		return;
	if (__atomic_load_n(&mr_cache_reports, __ATOMIC_RELAXED) &&
	    !mr_cache_query(context, &seen))
		report(context, &seen, NULL);
	mr_cache_drain(context, NULL);
}

/* The number of forks since this library was loaded. */
static uint32_t forks;

static void note_child(void)
{
	forks++;
}

uint32_t mr_cache_forks(void)
{
	return forks;
}

static bool is_of_ancestor(void *context, const struct ibv_mr_cache_stats *seen,
			   const void *unused)
{
	return get_priv(context)->mr_cache.forks != forks;
}

__attribute__((constructor)) static void notice_forks(void)
{
	pthread_atfork(NULL, NULL, note_child);
}

/* In a child, ends idle registrations of the parent's context. These registrations would keep
 * the PD until the parent ends. The kernel ends all other registrations. This function does not
 * wait, because a signal handler may call exit(). */
__attribute__((destructor)) static void leave(void)
{
	if (!mr_cache_is_on())
		return;
	if (__atomic_exchange_n(&mr_cache_reports, false, __ATOMIC_RELAXED) &&
	    mr_cache_visit(report, NULL, true) < 0)
		say("libibverbs: process %d: ended while the cache was busy\n",
		    getpid());
	if (!forks)
		return;
	__atomic_store_n(&mr_cache_is_ending, true, __ATOMIC_RELAXED);
	mr_cache_visit(is_of_ancestor, NULL, true);
	__atomic_store_n(&mr_cache_is_ending, false, __ATOMIC_RELAXED);
}
