/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The environment's variables of the registration cache. A value that is not understood is as
 * good as none, and said to be so on standard error, once for each variable. A program that
 * runs with more rights than its user has none of them.
 */
#ifndef IB_VERBS_MR_CACHE_ENVIRONMENT_H
#define IB_VERBS_MR_CACHE_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

struct mr_cache_variable {
	const char *name;
	const char *values;	/* told to a user that wrote another one */
	uint32_t told;
};

/* Its value, or NULL; an empty one is none. */
const char *mr_cache_value(const struct mr_cache_variable *of);
/* That is not one of its values. */
void mr_cache_not_understood(struct mr_cache_variable *of, const char *value);
/* 0 or 1; if it has neither, the other value. */
bool mr_cache_switch(struct mr_cache_variable *of, bool otherwise);
/*
 * A number: decimal, or with 0x hexadecimal; K, M, G or T behind it is for 1024 and its powers.
 * If there is none, the other value.
 */
uint64_t mr_cache_number(struct mr_cache_variable *of, uint64_t otherwise);

#endif /* IB_VERBS_MR_CACHE_ENVIRONMENT_H */
