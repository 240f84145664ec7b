// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The limits that a context's cache starts with: RDMAV_MR_CACHE_MAX_BYTES and
 * RDMAV_MR_CACHE_MAX_ENTRIES, or those that the machine allows.
 *
 * Registrations that the kernel does not take back may fill a quarter of the memory. Where it reclaims
 * idle ones the limit is all of it: no more can be pinned at one time. RLIMIT_MEMLOCK is no shortage
 * of memory, and reclaims nothing: at most half of it is the cache's in either case, and below 1 MiB
 * there is no cache. Of the device's MRs, which other processes want too, it is a sixteenth.
 */
#define _GNU_SOURCE
#include <config.h>

#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_mr_notify.h>

#include "mr_cache_private.h"

#define DEFAULT_ENTRIES 65536
#define NOT_GIVEN (UINT64_MAX - 1)
#define LEAST_LOCKABLE (1 << 20)

static struct mr_cache_variable max_bytes = {
	.name = "RDMAV_MR_CACHE_MAX_BYTES",
	.values = "a number, with K, M, G or T behind it",
};
static struct mr_cache_variable max_entries = {
	.name = "RDMAV_MR_CACHE_MAX_ENTRIES",
	.values = "a number, with K, M, G or T behind it",
};

static struct mr_cache_variable idle_time = {
	.name = "RDMAV_MR_CACHE_IDLE_MS",
	.values = "a number of milliseconds; 0: never",
};

/* Of a registration that is reclaimed, and of one that is not. */
static uint64_t bytes[2];
static uint64_t entries;
static uint32_t idle_ms;

/* The kernel asks for the capability in this one: a container's root has it in another. */
static bool is_in_first_user_namespace(void)
{
	const ino_t first = 0xeffffffd;	/* PROC_USER_INIT_INO */
	struct stat status;

	return !stat("/proc/self/ns/user", &status) && status.st_ino == first;
}

/* RLIMIT_MEMLOCK does not bind a process that has this capability. */
static bool may_lock_everything(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};

	return !syscall(SYS_capget, &header, data) &&
	       data[0].effective & 1U << CAP_IPC_LOCK &&
	       is_in_first_user_namespace();
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

void mr_cache_read_limits(void)
{
	const uint64_t memory = memory_bytes();
	const uint64_t lockable = lockable_bytes();
	int reclaimed;

	for (reclaimed = 0; reclaimed < 2; reclaimed++)
		__atomic_store_n(&bytes[reclaimed],
				 mr_cache_number(&max_bytes,
						 least(reclaimed ? memory : memory / 4,
						       lockable / 2)),
				 __ATOMIC_RELAXED);
	__atomic_store_n(&entries, mr_cache_number(&max_entries, NOT_GIVEN),
			 __ATOMIC_RELAXED);
	__atomic_store_n(&idle_ms,
			 least(mr_cache_number(&idle_time,
					       IB_UVERBS_MR_NOTIFY_IDLE_MS),
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

struct ibv_mr_cache_limits mr_cache_default_limits(bool reclaimed,
						   uint32_t device_entries)
{
	const uint64_t given = __atomic_load_n(&entries, __ATOMIC_RELAXED);

	return (struct ibv_mr_cache_limits){
		.max_bytes = __atomic_load_n(&bytes[reclaimed], __ATOMIC_RELAXED),
		.max_entries = given == NOT_GIVEN ? device_entries : given,
	};
}
