// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The settings of the cache, from the environment, the device and the machine.
 *
 * If the kernel reclaims idle registrations, the cache may use all memory, otherwise a quarter. At
 * RLIMIT_MEMLOCK the kernel reclaims nothing, so the cache uses at most half of this limit. If the
 * limit is below 1 MiB, the cache is off. The cache uses at most a sixteenth of the device's MRs.
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
#define LARGEST_MERGE (1ULL << 32)

enum variable { POLICY, STATS, RECLAIM, MAX_BYTES, MAX_ENTRIES, IDLE_MS };

static const char *const words[] = { "0", "1", "remote" };

static struct {
	const char *name;
	const char *values;	/* the valid values, printed if the value is invalid */
	uint32_t words;		/* how many of `words` are valid, or 0 for a number */
	uint32_t told;
} variables[] = {
	[POLICY] = { "RDMAV_MR_CACHE", "0, 1 or remote", 3 },
	[STATS] = { "RDMAV_MR_CACHE_STATS", "0 or 1", 2 },
	[RECLAIM] = { "RDMAV_MR_CACHE_RECLAIM", "0 or 1", 2 },
	[MAX_BYTES] = { "RDMAV_MR_CACHE_MAX_BYTES",
			"a number, with K, M, G or T behind it" },
	[MAX_ENTRIES] = { "RDMAV_MR_CACHE_MAX_ENTRIES",
			  "a number, with K, M, G or T behind it" },
	[IDLE_MS] = { "RDMAV_MR_CACHE_IDLE_MS",
		      "a number of milliseconds; 0: never" },
};

static bool parse(const char *text, uint64_t *value)
{
	static const char units[] = "KMGTkmgt";
	/* There are no octal numbers, so 010 is ten. */
	const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	const char *unit;
	int shift = 0;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*value = strtoull(text, &end, is_hex ? 16 : 10);
	if (*end) {
		unit = strchr(units, *end);
		if (!unit || end[1])
			return false;
		shift = ((unit - units) % 4 + 1) * 10;
	}
	if (errno || *value > UINT64_MAX >> shift)
		return false;
	*value <<= shift;
	return true;
}

static uint64_t setting(enum variable which, uint64_t fallback)
{
	/* secure_getenv() returns NULL if the program has more rights than its user. */
	const char *const text = secure_getenv(variables[which].name);
	uint64_t value;

	if (!text || !*text)
		return fallback;
	for (value = 0; value < variables[which].words; value++)
		if (!strcmp(text, words[value]))
			return value;
	if (!variables[which].words && parse(text, &value))
		return value;
	if (!__atomic_exchange_n(&variables[which].told, 1, __ATOMIC_RELAXED))
		dprintf(STDERR_FILENO,
			"libibverbs: %s=%s is not understood and ignored: it may be %s\n",
			variables[which].name, text, variables[which].values);
	return fallback;
}

unsigned int mr_cache_default = IBV_ACCESS_CACHED | NOT_ASKED;
unsigned int mr_cache_exact_rights = REMOTE_ACCESS;

/* If several threads read the variable at the same time, all store the same value. */
enum policy mr_cache_policy(void)
{
	static uint32_t known = POLICY_NOT_ASKED;
	uint32_t value = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (likely(value != POLICY_NOT_ASKED))
		return value;
	value = setting(POLICY, POLICY_FLAG);
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

/* RLIMIT_MEMLOCK does not limit a process with CAP_IPC_LOCK in the initial user namespace. */
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

/* If several threads ask a context at the same time, all store the same value. */
static void store(uint64_t *to, uint64_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELAXED);
}

static uint64_t load(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t memory_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

/* The kernel compares this number with RLIMIT_MEMLOCK. */
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
	/* Read `idle` first. Otherwise memory that other threads unpin would count as used. */
	idle = mr_cache_idle_bytes();
	pinned = pinned_bytes();
	return idle > pinned || pinned - idle <= lockable - length;
}

/* Returns CONTEXT_RECLAIMS, or 0. */
static uint32_t set_limits(struct mr_cache_context *to,
			   const struct ibv_device_attr_ex *attr)
{
	const int max_mr = attr->orig_attr.max_mr;
	uint64_t bytes = setting(MAX_BYTES, NOT_GIVEN);
	uint64_t entries = DEFAULT_ENTRIES;
	bool reclaims, restores;

	/* If max_mr is 0, the device does not report its limit. */
	if (max_mr > 0)
		entries = max_mr < 16 ? 1 : least(entries, max_mr / 16);
	store(&to->limits.max_entries, setting(MAX_ENTRIES, entries));
	/* A merged registration is larger than a request, so the device's limit applies to it. */
	store(&to->max_merge, least(attr->orig_attr.max_mr_size ?: LARGEST_MERGE,
				    LARGEST_MERGE));
	store(&to->idle_ms,
	      least(setting(IDLE_MS, IB_UVERBS_MR_NOTIFY_IDLE_MS),
		    UINT32_MAX));
	reclaims = setting(RECLAIM, true) &&
		   attr->device_cap_flags_ex & IBV_DEVICE_MR_REVOKE;
	restores = reclaims &&
		   attr->device_cap_flags_ex & IBV_DEVICE_MR_RECLAIM;
	if (bytes == NOT_GIVEN)
		bytes = least(memory_bytes() / (restores ? 1 : 4),
			      lockable_bytes() / 2);
	store(&to->limits.max_bytes, bytes);
	return reclaims ? CONTEXT_RECLAIMS : 0;
}

static uint32_t state_of(struct ibv_context *context)
{
	struct ibv_device_attr_ex attr;

	if (mr_cache_policy() == POLICY_NONE ||
	    lockable_bytes() < LEAST_LOCKABLE ||
	    ibv_query_device_ex(context, NULL, &attr) ||
	    !(attr.orig_attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY) ||
	    mr_cache_init())
		return CONTEXT_ASKED;
	__atomic_store_n(&mr_cache_reports, setting(STATS, false),
			 __ATOMIC_RELAXED);
	return CONTEXT_ASKED | CONTEXT_CACHES |
	       set_limits(&get_priv(context)->mr_cache, &attr);
}

bool mr_cache_reports;

/* If several threads ask, the first answer counts. */
bool mr_cache_ask_context(struct ibv_context *context)
{
	const int old_errno = errno;
	const uint32_t state = state_of(context);
	uint32_t not_asked = 0;

	__atomic_compare_exchange_n(&get_priv(context)->mr_cache.state,
				    &not_asked, state, false, __ATOMIC_ACQ_REL,
				    __ATOMIC_ACQUIRE);
	errno = old_errno;
	return context_is(context, CONTEXT_CACHES);
}

struct ibv_mr_cache_limits mr_cache_first_limits(void *owner)
{
	const struct mr_cache_context *const of = &get_priv(owner)->mr_cache;

	return (struct ibv_mr_cache_limits){
		.max_bytes = load(&of->limits.max_bytes),
		.max_entries = load(&of->limits.max_entries),
	};
}

uint64_t mr_cache_max_merge(void *owner)
{
	return load(&get_priv(owner)->mr_cache.max_merge);
}
