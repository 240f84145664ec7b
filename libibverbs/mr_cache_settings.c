// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The registration cache's environment variables, and the limits that the machine allows without
 * them.
 *
 * Registrations that the kernel does not take back may fill a quarter of the memory. Where it reclaims
 * idle ones the limit is all of it: no more can be pinned at one time. RLIMIT_MEMLOCK is no shortage
 * of memory, and reclaims nothing: at most half of it is the cache's in either case, and below 1 MiB
 * there is no cache. Of the device's MRs, which other processes want too, it is a sixteenth.
 */
#define _GNU_SOURCE
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_mr_notify.h>
#include <util/compiler.h>

#include "mr_cache_private.h"

static_assert((int)MR_CACHE_LOCAL_WRITE == (int)IBV_ACCESS_LOCAL_WRITE &&
	      (int)MR_CACHE_REMOTE_WRITE == (int)IBV_ACCESS_REMOTE_WRITE &&
	      (int)MR_CACHE_REMOTE_READ == (int)IBV_ACCESS_REMOTE_READ &&
	      (int)MR_CACHE_REMOTE_ATOMIC == (int)IBV_ACCESS_REMOTE_ATOMIC &&
	      (int)MR_CACHE_RELAXED_ORDERING ==
		      (int)IBV_ACCESS_RELAXED_ORDERING,
	      "the core's access flags differ from the verbs'");

#define DEFAULT_ENTRIES 65536
#define NOT_GIVEN (UINT64_MAX - 1)
#define LEAST_LOCKABLE (1 << 20)

enum variable { POLICY, STATS, RECLAIM, MAX_BYTES, MAX_ENTRIES, IDLE_MS };

static struct {
	const char *name;
	const char *values;	/* told once to a user that wrote another one */
	uint32_t told;
} variables[] = {
	[POLICY] = { "RDMAV_MR_CACHE", "0, 1 or remote" },
	[STATS] = { "RDMAV_MR_CACHE_STATS", "0 or 1" },
	[RECLAIM] = { "RDMAV_MR_CACHE_RECLAIM", "0 or 1" },
	[MAX_BYTES] = { "RDMAV_MR_CACHE_MAX_BYTES",
			"a number, with K, M, G or T behind it" },
	[MAX_ENTRIES] = { "RDMAV_MR_CACHE_MAX_ENTRIES",
			  "a number, with K, M, G or T behind it" },
	[IDLE_MS] = { "RDMAV_MR_CACHE_IDLE_MS",
		      "a number of milliseconds; 0: never" },
};

/* NULL: it has none, or an empty one; or the program runs with more rights than its user. */
static const char *value_of(enum variable which)
{
	const char *const text = secure_getenv(variables[which].name);

	return text && *text ? text : NULL;
}

static void not_understood(enum variable which, const char *value)
{
	if (!__atomic_exchange_n(&variables[which].told, 1, __ATOMIC_RELAXED))
		dprintf(STDERR_FILENO,
			"libibverbs: %s=%s is not understood and ignored: it may be %s\n",
			variables[which].name, value, variables[which].values);
}

static bool switched(enum variable which, bool fallback)
{
	const char *const text = value_of(which);

	if (!text)
		return fallback;
	if (!strcmp(text, "0") || !strcmp(text, "1"))
		return *text == '1';
	not_understood(which, text);
	return fallback;
}

bool mr_cache_tells_statistics(void)
{
	return switched(STATS, false);
}

bool mr_cache_may_reclaim(void)
{
	return switched(RECLAIM, true);
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

static uint64_t number(enum variable which, uint64_t fallback)
{
	const char *const text = value_of(which);
	uint64_t value;

	if (!text)
		return fallback;
	if (parse(text, &value))
		return value;
	not_understood(which, text);
	return fallback;
}

unsigned int mr_cache_default = IBV_ACCESS_CACHED | NOT_ASKED;
unsigned int mr_cache_exact_rights = REMOTE_ACCESS;

/* Two threads that read it at once store the same. */
enum policy mr_cache_policy(void)
{
	static uint32_t known = POLICY_NOT_ASKED;
	uint32_t value = __atomic_load_n(&known, __ATOMIC_RELAXED);
	const char *text;

	if (likely(value != POLICY_NOT_ASKED))
		return value;
	text = value_of(POLICY);
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
		not_understood(POLICY, text);
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

/* RLIMIT_MEMLOCK does not bind a process that has this capability: in the first user namespace,
 * where the kernel asks for it. */
static bool may_lock_everything(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
	const ino_t first = 0xeffffffd;	/* PROC_USER_INIT_INO */
	struct stat status;

	return !syscall(SYS_capget, &header, data) &&
	       data[0].effective & 1U << CAP_IPC_LOCK &&
	       !stat("/proc/self/ns/user", &status) && status.st_ino == first;
}

static uint64_t lockable_bytes(void)
{
	struct rlimit locked;

	if (getrlimit(RLIMIT_MEMLOCK, &locked) ||
	    locked.rlim_cur == RLIM_INFINITY || may_lock_everything())
		return UINT64_MAX;
	return locked.rlim_cur;
}

/*
 * The words of the entries are pinned, too, so the last page of the limit would not be there
 * for a registration; and a handful of small registrations gains nothing.
 */
bool mr_cache_may_gain(void)
{
	return lockable_bytes() >= LEAST_LOCKABLE;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t memory_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

/* What the kernel compares with RLIMIT_MEMLOCK. */
static uint64_t pinned_bytes(void)
{
	const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	unsigned long long kilobytes = 0;
	const char *line;
	char text[4096];
	ssize_t size;

	if (file < 0)
		return 0;
	size = read(file, text, sizeof(text) - 1);
	close(file);
	text[size > 0 ? size : 0] = '\0';
	line = strstr(text, "VmPin:");
	if (line)
		sscanf(line, "VmPin: %llu", &kilobytes);
	return kilobytes << 10;
}

bool mr_cache_may_pin(uint64_t length)
{
	const uint64_t lockable = lockable_bytes();
	uint64_t pinned, idle;

	if (length > least(lockable, memory_bytes()))
		return false;
	if (lockable == UINT64_MAX)
		return true;
	/* In this order: what others give back meanwhile is not taken for used. */
	idle = mr_cache_idle_bytes();
	pinned = pinned_bytes();
	return idle > pinned || pinned - idle <= lockable - length;
}

/* Of a registration that is reclaimed, and of one that is not. */
static uint64_t bytes[2];
static uint64_t entries;
static uint32_t idle_ms;

void mr_cache_read_limits(void)
{
	const uint64_t memory = memory_bytes(), lockable = lockable_bytes();
	int reclaimed;

	for (reclaimed = 0; reclaimed < 2; reclaimed++)
		__atomic_store_n(&bytes[reclaimed],
				 number(MAX_BYTES,
					least(reclaimed ? memory : memory / 4,
					      lockable / 2)),
				 __ATOMIC_RELAXED);
	__atomic_store_n(&entries, number(MAX_ENTRIES, NOT_GIVEN),
			 __ATOMIC_RELAXED);
	__atomic_store_n(&idle_ms,
			 least(number(IDLE_MS, IB_UVERBS_MR_NOTIFY_IDLE_MS),
			       UINT32_MAX),
			 __ATOMIC_RELAXED);
}

uint32_t mr_cache_idle_ms(void)
{
	return __atomic_load_n(&idle_ms, __ATOMIC_RELAXED);
}

uint32_t mr_cache_device_entries(int max_mr)
{
	if (max_mr <= 0)
		return DEFAULT_ENTRIES;
	return max_mr < 16 ? 1 : least(DEFAULT_ENTRIES, max_mr / 16);
}

/* Not beyond 4 GiB: a program that registers less has never tried its device with more. */
uint32_t mr_cache_max_merge_bits(uint64_t max_mr_size)
{
	if (!max_mr_size || max_mr_size >> 32)
		return 32;
	return 63 - __builtin_clzll(max_mr_size);
}

static uint32_t state_of(void *owner)
{
	return __atomic_load_n(&get_priv(owner)->mr_cache, __ATOMIC_ACQUIRE);
}

struct ibv_mr_cache_limits mr_cache_first_limits(void *owner)
{
	const uint64_t given = __atomic_load_n(&entries, __ATOMIC_RELAXED);
	const uint32_t state = state_of(owner);

	return (struct ibv_mr_cache_limits){
		.max_bytes = __atomic_load_n(&bytes[!!(state & CONTEXT_RESTORES)],
					     __ATOMIC_RELAXED),
		.max_entries = given == NOT_GIVEN ?
				       state >> CONTEXT_ENTRIES_SHIFT :
				       given,
	};
}

uint64_t mr_cache_max_merge(void *owner)
{
	return 1ULL << (state_of(owner) >> CONTEXT_MERGE_SHIFT & 0x3f);
}
