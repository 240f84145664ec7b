// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* RDMAV_MR_CACHE, and its meaning for a registration. */
#include <config.h>

#include <assert.h>
#include <string.h>

#include <util/compiler.h>

#include "mr_cache_private.h"

static_assert((int)MR_CACHE_LOCAL_WRITE == (int)IBV_ACCESS_LOCAL_WRITE &&
	      (int)MR_CACHE_REMOTE_WRITE == (int)IBV_ACCESS_REMOTE_WRITE &&
	      (int)MR_CACHE_REMOTE_READ == (int)IBV_ACCESS_REMOTE_READ &&
	      (int)MR_CACHE_REMOTE_ATOMIC == (int)IBV_ACCESS_REMOTE_ATOMIC &&
	      (int)MR_CACHE_RELAXED_ORDERING ==
		      (int)IBV_ACCESS_RELAXED_ORDERING,
	      "the core's access flags differ from the verbs'");

unsigned int mr_cache_default = IBV_ACCESS_CACHED | NOT_ASKED;
unsigned int mr_cache_exact_rights = REMOTE_ACCESS;

/* Two threads that read it at once store the same. */
enum policy mr_cache_policy(void)
{
	static uint32_t known = POLICY_NOT_ASKED;
	uint32_t value = __atomic_load_n(&known, __ATOMIC_RELAXED);
	static struct mr_cache_variable wanted = {
		.name = "RDMAV_MR_CACHE",
		.values = "0, 1 or remote",
	};
	const char *text;

	if (likely(value != POLICY_NOT_ASKED))
		return value;
	text = mr_cache_value(&wanted);
	value = POLICY_FLAG;
	if (!text)
		;
	else if (!strcmp(text, "1"))
		value = POLICY_LOCAL;
	else if (!strcmp(text, "remote"))
		value = POLICY_REMOTE;
	else if (!strcmp(text, "0"))
		value = POLICY_NONE;
	else
		mr_cache_not_understood(&wanted, text);
	if (value == POLICY_REMOTE)
		__atomic_store_n(&mr_cache_exact_rights, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&mr_cache_default,
			 (value == POLICY_LOCAL || value == POLICY_REMOTE ?
				  IBV_ACCESS_CACHED :
				  0) |
				 (has_thread_sanitizer() ? NOT_ASKED : 0),
			 __ATOMIC_RELEASE);
	__atomic_store_n(&known, value, __ATOMIC_RELAXED);
	return value;
}

bool mr_cache_is_unasked(void)
{
	return mr_cache_policy() == POLICY_LOCAL || mr_cache_policy() == POLICY_REMOTE;
}
