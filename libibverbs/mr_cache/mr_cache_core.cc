// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The process's registration cache: the one instance, and the only extern "C" file
 * of the core. Adds the registrar of the verbs and the default limits to linux_env.
 */
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "cache.h"
#include "linux_env.h"

namespace {

struct verbs_env : mr_cache::linux_env {
	mr_cache_registrar registrar;
	mr_cache_bounds defaults;

	int reg(const mr_cache_request &request, uint64_t *word, void **mr)
	{
		return registrar.reg(&request, word, mr);
	}
	int settle(void *mr) { return registrar.settle(mr); }
	int dereg(void *mr) { return registrar.dereg(mr); }
	const mr_cache_bounds &default_limits() const { return defaults; }
};

constexpr uint64_t DEFAULT_ENTRIES = 65536;

/* RLIMIT_MEMLOCK does not bind whoever has this capability. */
bool may_lock_everything()
{
	__user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};

	return !syscall(SYS_capget, &header, data) && data[0].effective & 1U << CAP_IPC_LOCK;
}

/* A quarter of the memory, and at most half of what may be locked. */
uint64_t default_bytes()
{
	uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) / 4 *
			 static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
	struct rlimit locked;

	if (!getrlimit(RLIMIT_MEMLOCK, &locked) && locked.rlim_cur != RLIM_INFINITY &&
	    locked.rlim_cur / 2 < bytes && !may_lock_everything())
		bytes = locked.rlim_cur / 2;
	return bytes;
}

constinit mr_cache::cache<verbs_env> cache;
pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
bool started;

void before_fork()
{
	cache.prepare_fork();
}

void after_fork_in_parent()
{
	cache.after_fork(false);
}

void after_fork_in_child()
{
	cache.after_fork(true);
}

} // namespace

extern "C" {

int mr_cache_init(const mr_cache_registrar *registrar, const mr_cache_bounds *limits)
{
	int error = 0;

	pthread_mutex_lock(&starting);
	if (started) {
		const mr_cache_registrar &now = cache.env.registrar;

		if (now.reg != registrar->reg || now.settle != registrar->settle ||
		    now.dereg != registrar->dereg)
			error = EBUSY;
	} else {
		cache.env.registrar = *registrar;
		cache.env.defaults = {
			limits->bytes == UINT64_MAX ? default_bytes() : limits->bytes,
			limits->entries == UINT64_MAX ? DEFAULT_ENTRIES : limits->entries,
		};
		error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
		if (!error)
			error = cache.start();
		started = !error;
	}
	pthread_mutex_unlock(&starting);
	return error;
}

int mr_cache_acquire(void *pd, void *owner, uint64_t addr, uint64_t length, uint32_t access,
		     mr_cache_ref *ref)
{
	return cache.acquire(pd, owner, addr, length, access, ref);
}

int mr_cache_release(uint32_t index, uint32_t generation)
{
	return cache.release(index, generation);
}

int mr_cache_take(uint32_t index, uint32_t generation)
{
	return cache.take(index, generation);
}

int mr_cache_covers(void *pd, uint64_t addr, uint64_t length, uint32_t access)
{
	return cache.covers(pd, addr, length, access);
}

int mr_cache_limits(void *owner, const mr_cache_bounds *to, mr_cache_bounds *from)
{
	return cache.limits(owner, to, from);
}

int mr_cache_clean(void *owner, uint64_t keep)
{
	return cache.clean(owner, keep);
}

int mr_cache_query(void *owner, mr_cache_statistics *statistics)
{
	return cache.query(owner, statistics);
}

int mr_cache_flush_pd(void *pd)
{
	return cache.flush_pd(pd);
}

int mr_cache_flush_owner(void *owner)
{
	return cache.flush_owner(owner);
}

unsigned int mr_cache_reclaim(void *owner)
{
	return cache.reclaim(owner);
}

} // extern "C"
