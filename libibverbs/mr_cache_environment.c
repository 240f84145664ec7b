// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* The registration cache's environment variables. */
#define _GNU_SOURCE
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mr_cache_private.h"

const char *mr_cache_value(const struct mr_cache_variable *of)
{
	const char *const text = secure_getenv(of->name);

	return text && *text ? text : NULL;
}

void mr_cache_not_understood(struct mr_cache_variable *of, const char *value)
{
	if (!__atomic_exchange_n(&of->told, 1, __ATOMIC_RELAXED))
		dprintf(STDERR_FILENO,
			"libibverbs: %s=%s is not understood and ignored: it may be %s\n",
			of->name, value, of->values);
}

bool mr_cache_switch(struct mr_cache_variable *of, bool fallback)
{
	const char *const text = mr_cache_value(of);

	if (!text)
		return fallback;
	if (!strcmp(text, "0") || !strcmp(text, "1"))
		return *text == '1';
	mr_cache_not_understood(of, text);
	return fallback;
}

/* How often the value is to be shifted by 10 bits; -1: that is no unit. */
static int power_of(const char *unit)
{
	static const char units[] = "KMGT", small[] = "kmgt";

	if (!*unit)
		return 0;
	for (int i = 0; units[i]; i++)
		if ((*unit == units[i] || *unit == small[i]) && !unit[1])
			return i + 1;
	return -1;
}

static bool parse(const char *text, uint64_t *value)
{
	/* A leading 0 alone makes no octal number. */
	const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	char *end;
	int shift;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtoull(text, &end, is_hex ? 16 : 10);
	shift = power_of(end) * 10;
	if (errno || shift < 0 || *value > UINT64_MAX >> shift)
		return false;
	*value <<= shift;
	return true;
}

uint64_t mr_cache_number(struct mr_cache_variable *of, uint64_t fallback)
{
	const char *const text = mr_cache_value(of);
	uint64_t value;

	if (!text)
		return fallback;
	if (parse(text, &value))
		return value;
	mr_cache_not_understood(of, text);
	return fallback;
}
