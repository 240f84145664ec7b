// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The verbs' side of the registration cache: who may use it, how an entry is
 * registered, and what is handed out for it. The cache itself is in mr_cache/
 * and knows nothing of verbs.
 *
 * What is handed out is the provider's MR when the user asked for exactly what
 * that one shows, else a view: a struct verbs_mr of our own with the same
 * handle and keys. Several users may have the same MR; it has our marks before anybody
 * gets it, and a hit writes nothing to it.
 */
#define _GNU_SOURCE
#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ibverbs.h"
#include "mr_cache/mr_cache_core.h"
#include "mr_cache_environment.h"
#include "mr_cache_limits.h"
#include "mr_cache_report.h"
#include "mr_notify_cmd.h"
#include "mr_view.h"

#define REMOTE_ACCESS                                                          \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define CACHED_ACCESS                                                          \
	(IBV_ACCESS_LOCAL_WRITE | REMOTE_ACCESS | IBV_ACCESS_RELAXED_ORDERING)

static_assert((int)MR_CACHE_LOCAL_WRITE == (int)IBV_ACCESS_LOCAL_WRITE &&
	      (int)MR_CACHE_REMOTE_WRITE == (int)IBV_ACCESS_REMOTE_WRITE &&
	      (int)MR_CACHE_REMOTE_READ == (int)IBV_ACCESS_REMOTE_READ &&
	      (int)MR_CACHE_REMOTE_ATOMIC == (int)IBV_ACCESS_REMOTE_ATOMIC &&
	      (int)MR_CACHE_RELAXED_ORDERING ==
		      (int)IBV_ACCESS_RELAXED_ORDERING,
	      "the core's access flags differ from the verbs'");
static_assert(sizeof(enum ibv_mr_type) == sizeof(uint32_t),
	      "the marks do not fit into mr_type");
static_assert(sizeof(struct verbs_mr) <= MR_VIEW_SIZE,
	      "a view has less memory than an MR");

/* mr_type without a generation: a view that was freed; an MR that its user keeps. */
#define CACHED_MR_FREED CACHED_MR
#define CACHED_MR_TAKEN CACHED_MR

/* verbs_ex_private.mr_cache: what asking has found; 0 is not yet asked */
enum context_state {
	CONTEXT_ASKED = 1 << 0,
	CONTEXT_CACHES = 1 << 1,
	CONTEXT_RECLAIMS = 1 << 2,	/* the kernel may take back what is idle */
	CONTEXT_RESTORES = 1 << 3,	/* and give it back */
};
#define CONTEXT_ENTRIES_SHIFT 8	/* above it: the default limit of entries */

/* RDMAV_MR_CACHE: which registrations are cached, and for whom. */
enum policy {
	POLICY_NOT_ASKED,
	POLICY_FLAG,	/* unset: what asks by IBV_ACCESS_CACHED */
	POLICY_LOCAL,	/* 1: also every one that no peer can notice */
	POLICY_REMOTE,	/* remote: every one, for peers that trust one another */
	POLICY_NONE,	/* 0: nothing at all */
};

/*
 * IBV_ACCESS_CACHED when all registrations are to be cached; and until it is known with a bit
 * that is no right.
 */
#define NOT_ASKED (1U << 31)
static unsigned int cached_mr_default = IBV_ACCESS_CACHED | NOT_ASKED;
/* Those rights with which a registration serves its own range only. */
static unsigned int exact_rights = REMOTE_ACCESS;

/* Read once; two threads that read it at once store the same. */
static enum policy policy(void)
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
		__atomic_store_n(&exact_rights, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&cached_mr_default,
			 value == POLICY_LOCAL || value == POLICY_REMOTE ?
				 IBV_ACCESS_CACHED :
				 0,
			 __ATOMIC_RELEASE);
	__atomic_store_n(&known, value, __ATOMIC_RELAXED);
	return value;
}

/* Does the program perhaps not know that its registrations are cached? */
static bool is_unasked(void)
{
	return policy() == POLICY_LOCAL || policy() == POLICY_REMOTE;
}

/*
 * A key must not open more than the program asked for. Nobody but the program itself can
 * use one without remote rights: that may be rounded, and shared with whoever asks for
 * less. One with remote rights is for its range and its rights alone, unless peers are
 * trusted.
 */
static unsigned int access_of_entry(unsigned int access)
{
	if (access & REMOTE_ACCESS && policy() != POLICY_REMOTE)
		access |= MR_CACHE_EXACT;
	return access;
}

/*
 * ibv_fork_init() keeps ranges from children by counts that do not know of an
 * munmap: they cannot be right for memory that comes and goes under the cache.
 * Asked before the first registration, after which ibv_fork_init() refuses;
 * a kernel that copies on fork answers once and for ever.
 */
static bool keeps_ranges_from_children(void)
{
	static uint32_t known;
	uint32_t value = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!value) {
		value = ibv_is_fork_initialized() == IBV_FORK_ENABLED ? 1 : 2;
		__atomic_store_n(&known, value, __ATOMIC_RELAXED);
	}
	return value == 1;
}

/* The marks of an MR with a reference of that generation. */
static inline uint32_t type_of(uint32_t generation)
{
	return CACHED_MR | (generation & CACHED_MR_GENERATION);
}

static inline bool context_is(struct ibv_context *context,
			      enum context_state what)
{
	return __atomic_load_n(&get_priv(context)->mr_cache,
			       __ATOMIC_ACQUIRE) & what;
}

/* What the user should see, and our marks, are set before anybody can see them. */
static int register_entry(const struct mr_cache_request *request,
			  uint64_t *word, void **out)
{
	unsigned int flags = 0;
	struct ibv_mr *mr;

	if (keeps_ranges_from_children())
		return EOPNOTSUPP;
	if (context_is(request->owner, CONTEXT_RECLAIMS))
		flags = MR_NOTIFY_RECLAIM;
	for (;;) {
		mr = mr_notify_reg_mr(request->pd,
				      (void *)(uintptr_t)request->start,
				      request->size, request->access, word,
				      MR_CACHE_IN_USE, flags);
		/* A kernel that can revoke and knows of no more: nor of the attribute. */
		if (mr || !flags ||
		    (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT))
			break;
		flags = 0;
	}
	if (!mr)
		return errno ? errno : ENOMEM;
	mr->addr = (void *)(uintptr_t)request->addr;
	mr->length = request->length;
	verbs_get_mr(mr)->access = request->index;
	verbs_get_mr(mr)->mr_type = type_of(request->generation);
	*out = mr;
	return 0;
}

static int settle_entry(void *mr)
{
	return mr_notify_settle(mr, MR_NOTIFY_BY_CACHE);
}

/*
 * The process ends, so only the kernel is told: a provider may have ended before, and exit()
 * have interrupted an allocator.
 */
static bool is_ending;

static int deregister(struct ibv_mr *mr)
{
	if (__atomic_load_n(&is_ending, __ATOMIC_RELAXED))
		return ibv_cmd_dereg_mr(verbs_get_mr(mr));
	return mr_notify_dereg_mr(mr);
}

static bool is_rounded(const struct ibv_mr *mr)
{
	const uint64_t page = sysconf(_SC_PAGESIZE);

	return ((uintptr_t)mr->addr | mr->length) % page;
}

/*
 * The last user is gone. Without its marks the MR is the provider's again,
 * and gets them back if it stays: its last user may then try once more.
 */
static int deregister_entry(void *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	const enum ibv_mr_type type = vmr->mr_type;
	const int access = vmr->access;
	int ret;

	vmr->access = type == CACHED_MR_TAKEN && is_rounded(mr) ?
			      (int)CACHED_MR_ROUNDED :
			      0;
	__atomic_store_n((uint32_t *)&vmr->mr_type, IBV_MR_TYPE_MR,
			 __ATOMIC_RELEASE);
	if (type == CACHED_MR_TAKEN)
		return 0;
	ret = deregister(mr);
	if (ret) {
		vmr->mr_type = type;
		vmr->access = access;
	}
	return ret;
}

static struct mr_cache_bounds first_limits(void *owner)
{
	const uint32_t state = __atomic_load_n(&get_priv(owner)->mr_cache,
					       __ATOMIC_ACQUIRE);

	return mr_cache_first_limits(state & CONTEXT_RESTORES,
				     state >> CONTEXT_ENTRIES_SHIFT);
}

static const struct mr_cache_registrar registrar = {
	.reg = register_entry,
	.settle = settle_entry,
	.dereg = deregister_entry,
	.limits = first_limits,
};

static bool start_cache(void)
{
	mr_cache_read_limits();
	return !mr_cache_init(&registrar);
}

/* RDMAV_MR_CACHE_RECLAIM=0: the kernel is not to take back what is idle. */
static bool may_reclaim(void)
{
	static struct mr_cache_variable wanted = {
		.name = "RDMAV_MR_CACHE_RECLAIM",
		.values = "0 or 1",
	};

	return mr_cache_switch(&wanted, true);
}

static uint32_t state_of(struct ibv_context *context)
{
	uint32_t state = CONTEXT_ASKED;
	struct ibv_device_attr_ex attr;

	if (policy() == POLICY_NONE || !mr_cache_may_gain() ||
	    ibv_query_device_ex(context, NULL, &attr) ||
	    !(attr.orig_attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY) ||
	    !start_cache())
		return state;
	state |= CONTEXT_CACHES;
	state |= mr_cache_device_entries(attr.orig_attr.max_mr)
		 << CONTEXT_ENTRIES_SHIFT;
	if (may_reclaim() && attr.device_cap_flags_ex & IBV_DEVICE_MR_REVOKE)
		state |= CONTEXT_RECLAIMS;
	if (state & CONTEXT_RECLAIMS &&
	    attr.device_cap_flags_ex & IBV_DEVICE_MR_RECLAIM)
		state |= CONTEXT_RESTORES;
	return state;
}

/* Once per context, or by several threads at once: the first one's answer counts. */
static bool ask_context(struct ibv_context *context)
{
	const int old_errno = errno;
	const uint32_t state = state_of(context);
	uint32_t not_asked = 0;

	if (__atomic_compare_exchange_n(&get_priv(context)->mr_cache, &not_asked,
					state, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE) &&
	    state & CONTEXT_CACHES)
		mr_cache_report_open(context);
	errno = old_errno;
	return context_is(context, CONTEXT_CACHES);
}

static inline bool context_caches(struct ibv_context *context)
{
	if (likely(context_is(context, CONTEXT_CACHES)))
		return true;
	return !context_is(context, CONTEXT_ASKED) && ask_context(context);
}

/* The kernel refuses to have written by peers what may not be written. */
static inline bool may_be_written(unsigned int access)
{
	const unsigned int writes = IBV_ACCESS_REMOTE_WRITE |
				    IBV_ACCESS_REMOTE_ATOMIC;

	return !(access & writes) || access & IBV_ACCESS_LOCAL_WRITE;
}

/* A range that can be rounded to pages, with access that the kernel would allow. */
static inline bool can_be_cached(uint64_t addr, uint64_t length,
				 unsigned int access)
{
	return !(access & ~CACHED_ACCESS) && may_be_written(access) && length &&
	       addr + length > addr;
}

/* With the reference to what it is a view of. */
static inline struct ibv_mr *fill_view(struct verbs_mr *view,
				       const struct ibv_mr *of, void *addr,
				       size_t length, uint32_t index,
				       uint32_t generation)
{
	view->ibv_mr = *of;
	view->ibv_mr.addr = addr;
	view->ibv_mr.length = length;
	view->mr_type = type_of(generation) | CACHED_MR_VIEW;
	view->access = index;
	return &view->ibv_mr;
}

/* NULL: gives the reference back. */
static struct ibv_mr *make_view(const struct ibv_mr *of, void *addr,
				size_t length, uint32_t index,
				uint32_t generation)
{
	struct verbs_mr *view = mr_view_alloc();

	if (view)
		return fill_view(view, of, addr, length, index, generation);
	mr_cache_release(index, generation);
	return NULL;
}

/*
 * What is not found, or a part of it when this thread keeps no view. When the cache cannot
 * acquire it, whatever the reason: a plain registration either can, or fails with the errno
 * that the user knows.
 */
static __attribute__((noinline)) void *
reg_anew(struct ibv_pd *pd, uint64_t addr, uint64_t length, uint32_t access,
	 struct mr_cache_part part)
{
	const unsigned int rights = access & ~MR_CACHE_EXACT;
	void *const start = (void *)(uintptr_t)addr;
	struct mr_cache_ref ref;
	struct ibv_mr *view;

	if (part.mr) {
		view = make_view(part.mr, start, length, part.index,
				 part.generation);
		if (view)
			return view;
	}
	if (!can_be_cached(addr, length, rights) ||
	    !context_caches(pd->context) ||
	    mr_cache_acquire(pd, pd->context, addr, length, access, &ref))
		goto plain;
	if (ref.addr == addr && ref.length == length)
		return ref.mr;
	view = make_view(ref.mr, start, length, ref.index, ref.generation);
	if (view)
		return view;
plain:
	return plain_reg_mr_iova2(pd, start, length, addr, rights);
}

/* What is no hit of the likeliest kind, and is to be cached: saves no register for a part. */
void *mr_cache_not_found(void *pd, uint64_t addr, uint64_t length,
			 uint32_t access, struct mr_cache_part part)
{
	struct verbs_mr *view = part.mr ? mr_view_alloc_kept() : NULL;

	if (likely(view))
		return fill_view(view, part.mr, (void *)(uintptr_t)addr, length,
				 part.index, part.generation);
	return reg_anew(pd, addr, length, access, part);
}

static __attribute__((noinline)) struct ibv_mr *
reg_slowly(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
	   unsigned int access);

/*
 * What was found before costs little more than the two atomics of its reference: all that
 * leads elsewhere is a jump, so no register is saved, and nothing is asked that the entry
 * answers. That there is one tells that its context caches and its range may be cached.
 */
static inline __attribute__((always_inline)) struct ibv_mr *
reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
    unsigned int access)
{
	const unsigned int asked = access | cached_mr_default;
	unsigned int rights = access & ~IBV_ACCESS_CACHED;

	if (likely(!(asked & IBV_ACCESS_CACHED)))
		return plain_reg_mr_iova2(pd, addr, length, iova, access);
	if (asked & ~(CACHED_ACCESS | IBV_ACCESS_CACHED) ||
	    iova != (uintptr_t)addr)
		return reg_slowly(pd, addr, length, iova, access);
	if (rights & exact_rights) {
		if (!(access & IBV_ACCESS_CACHED))
			return reg_slowly(pd, addr, length, iova, access);
		rights |= MR_CACHE_EXACT;
	} else if (!may_be_written(rights)) {
		return reg_slowly(pd, addr, length, iova, access);
	}
	return mr_cache_find(pd, iova, length, rights);
}

/* What is not for the cache; or the first registration, before anybody has asked what is. */
static struct ibv_mr *reg_slowly(struct ibv_pd *pd, void *addr, size_t length,
				 uint64_t iova, unsigned int access)
{
	if (!(cached_mr_default & NOT_ASKED))
		return plain_reg_mr_iova2(pd, addr, length, iova,
					  access & ~IBV_ACCESS_CACHED);
	policy();
	return reg(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	return reg(pd, addr, length, iova, access);
}

/* EBUSY says that others have it: what is busy otherwise must not look like that. */
static int forget_error(int error)
{
	return error == EBUSY ? EAGAIN : error;
}

/*
 * A view is freed: its type says so first, for whoever deregisters it again. (Two who do it
 * at once free it twice, as they would free a provider's; an atomic would cost as much as the
 * hit.)
 */
static inline void mark_freed(struct verbs_mr *view)
{
	__atomic_store_n((uint32_t *)&view->mr_type, CACHED_MR_FREED,
			 __ATOMIC_RELAXED);
}

/* Frees it, or it stays its user's. */
static inline void end_view(struct verbs_mr *view, uint32_t type, int error)
{
	if (likely(!error))
		mr_view_free(view);
	else
		__atomic_store_n((uint32_t *)&view->mr_type, type,
				 __ATOMIC_RELAXED);
}

static __attribute__((noinline)) int release_view(struct verbs_mr *view)
{
	const uint32_t type = view->mr_type;
	int ret;

	mark_freed(view);
	ret = mr_cache_release(view->access, type & CACHED_MR_GENERATION);
	end_view(view, type, ret);
	return ret;
}

int cached_mr_dereg(struct ibv_mr *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	const uint32_t type = vmr->mr_type;

	if (type & CACHED_MR_VIEW)
		return release_view(vmr);
	return mr_cache_release(vmr->access, type & CACHED_MR_GENERATION);
}

static int forget(struct verbs_mr *vmr)
{
	const uint32_t type = vmr->mr_type;
	int shared = 0;
	int ret;

	if (!(type & CACHED_MR_GENERATION))
		return EINVAL;
	if (type & CACHED_MR_VIEW)
		mark_freed(vmr);
	ret = mr_cache_forget(vmr->access, type & CACHED_MR_GENERATION,
			      &shared);
	if (type & CACHED_MR_VIEW)
		end_view(vmr, type, ret);
	return shared ? EBUSY : forget_error(ret);
}

int ibv_forget_mr(struct ibv_mr *mr)
{
	if (cached_mr_owns(mr))
		return forget(verbs_get_mr(mr));
	return forget_error(ibv_dereg_mr(mr));
}

/*
 * Only where a program does not know that its registrations are cached. A view
 * is of a larger registration, and stays what it is.
 *
 * Threads that have the same reference may do it at once, and mr_cache_take() lets them all.
 * Who loses, if none claimed the MR by its type:
 *
 *   thread A                        thread B
 *   takes the entry                 takes the entry
 *   disarms the cache's word
 *   releases: a plain MR
 *   arms its own word
 *                                   disarms A's
 *                                   releases: no reference any more
 *                                   waits for a plain MR, which it has marked TAKEN
 *
 * B gets EBUSY, as with an MR that was plain before. While it is claimed it has no reference
 * that anybody could give back.
 */
int cached_mr_make_plain(struct ibv_mr *mr)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	uint32_t *const type = (uint32_t *)&vmr->mr_type;
	const uint32_t cached = __atomic_load_n(type, __ATOMIC_ACQUIRE);
	const uint32_t generation = cached & CACHED_MR_GENERATION;
	const uint32_t index = vmr->access;
	uint32_t seen = cached;
	int ret;

	if (!is_unasked() || cached & CACHED_MR_VIEW)
		return EOPNOTSUPP;
	if (!generation)
		return EBUSY;
	ret = mr_cache_take(index, generation);
	if (!ret && !__atomic_compare_exchange_n(type, &seen, CACHED_MR_TAKEN,
						 false, __ATOMIC_ACQ_REL,
						 __ATOMIC_RELAXED))
		ret = EBUSY;
	if (ret == EINVAL && __atomic_load_n(type, __ATOMIC_ACQUIRE) != cached)
		ret = EBUSY;
	if (ret)
		return ret;
	ret = mr_notify_disarm(mr);
	if (ret) {
		__atomic_store_n(type, cached, __ATOMIC_RELEASE);
		return ret;
	}
	mr_cache_release(index, generation);
	/* A reader who looked at the entry in vain may be the last one, and let go of it. */
	while (__atomic_load_n(type, __ATOMIC_ACQUIRE) != IBV_MR_TYPE_MR)
		sched_yield();
	return 0;
}

/*
 * More rights would open the whole pages of a range that was rounded to them; the kernel
 * knows no smaller one.
 */
static bool would_open_pages(struct ibv_mr *mr, int flags, int access)
{
	return is_rounded(mr) && flags & IBV_REREG_MR_CHANGE_ACCESS &&
	       !(flags & IBV_REREG_MR_CHANGE_TRANSLATION) &&
	       access & (REMOTE_ACCESS | IBV_ACCESS_MW_BIND);
}

/*
 * ibv_rereg_mr() by the name that upstream's macro gives its body: what a preloaded library has
 * in its place is in the middle of this call already.
 */
#if (defined(HAVE_FULL_SYMBOL_VERSIONS) ||                                     \
     defined(HAVE_LIMITED_SYMBOL_VERSIONS)) &&                                 \
	!defined(_STATIC_LIBRARY_BUILD_)
#define own_rereg_mr __ibv_rereg_mr_1_1
int own_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access);
#else
#define own_rereg_mr ibv_rereg_mr
#endif

bool cached_mr_rereg(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
		     void *addr, size_t length, int access, int *ret)
{
	struct verbs_mr *vmr = verbs_get_mr(mr);
	struct verbs_mr plain;

	if (cached_mr_owns(mr) && !is_unasked())
		goto invalid;
	/* A provider without the op looks at nothing: the entry stays, and the errors are the same. */
	if (get_ops(mr->context)->rereg_mr == verbs_dummy_ops.rereg_mr) {
		if (!cached_mr_owns(mr))
			return false;
		plain = *vmr;
		plain.mr_type = IBV_MR_TYPE_MR;
		plain.access = 0;
		*ret = own_rereg_mr(&plain.ibv_mr, flags, pd, addr, length,
				    access);
		return true;
	}
	if (would_open_pages(mr, flags, access) ||
	    (cached_mr_owns(mr) && cached_mr_make_plain(mr)))
		goto invalid;
	if (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION) || !vmr->access)
		return false;
	/* What is registered then is what was asked for. */
	vmr->access = 0;
	*ret = own_rereg_mr(mr, flags, pd, addr, length, access);
	if (*ret)
		vmr->access = CACHED_MR_ROUNDED;
	return true;
invalid:
	errno = EINVAL;
	*ret = IBV_REREG_MR_ERR_INPUT;
	return true;
}

void cached_mr_flush_pd(struct ibv_pd *pd)
{
	if (context_is(pd->context, CONTEXT_CACHES))
		mr_cache_flush_pd(pd);
}

void cached_mr_flush_context(struct ibv_context *context)
{
	if (!context_is(context, CONTEXT_CACHES))
		return;
	mr_cache_report_close(context);
	mr_cache_flush_owner(context);
}

/* Forked after this library was loaded, so it may have contexts that are its parent's, too. */
static bool is_child;

static void note_child(void)
{
	is_child = true;
}

__attribute__((constructor)) static void notice_forks(void)
{
	pthread_atfork(NULL, NULL, note_child);
}

/*
 * What a child has registered by such a context does not end with the child: what is idle would
 * keep the PD as long as the parent lives. Of any other process the kernel ends all that is
 * left, which is faster. After the reports, which tell of it.
 */
__attribute__((destructor(101))) static void leave(void)
{
	if (!is_child)
		return;
	__atomic_store_n(&is_ending, true, __ATOMIC_RELAXED);
	mr_cache_leave();
	__atomic_store_n(&is_ending, false, __ATOMIC_RELAXED);
}

int ibv_is_reg(struct ibv_pd *pd, const void *addr, size_t length,
	       unsigned int access)
{
	access &= ~IBV_ACCESS_CACHED;
	return can_be_cached((uintptr_t)addr, length, access) &&
	       context_is(pd->context, CONTEXT_CACHES) &&
	       mr_cache_covers(pd, (uintptr_t)addr, length,
			       access_of_entry(access));
}

/*
 * A struct of the caller's, who may be older or newer than this library: what both know of it,
 * and 0 for what only the caller does.
 */
static void give(void *to, size_t size, const void *from, size_t known)
{
	memset(to, 0, size);
	memcpy(to, from, size < known ? size : known);
}

/* Only 0 where this library knows nothing. */
static bool is_known(const void *from, size_t size, size_t known)
{
	const char *const byte = from;

	for (size_t i = known; i < size; i++)
		if (byte[i])
			return false;
	return true;
}

int _ibv_reg_mr_limits(struct ibv_context *context,
		       const struct ibv_mr_cache_limits *new_limits,
		       struct ibv_mr_cache_limits *old_limits, size_t size)
{
	struct ibv_mr_cache_limits old;
	struct mr_cache_bounds from;
	struct mr_cache_bounds to;
	int ret;

	if (size < sizeof(old) ||
	    (new_limits && !is_known(new_limits, size, sizeof(*new_limits))))
		return EINVAL;
	if (!context_caches(context))
		return EOPNOTSUPP;
	if (new_limits)
		to = (struct mr_cache_bounds){
			.bytes = new_limits->max_bytes,
			.entries = new_limits->max_entries,
		};
	ret = mr_cache_limits(context, new_limits ? &to : NULL, &from);
	if (ret)
		return ret;
	old = (struct ibv_mr_cache_limits){
		.max_bytes = from.bytes,
		.max_entries = from.entries,
	};
	if (old_limits)
		give(old_limits, size, &old, sizeof(old));
	return 0;
}

int ibv_reg_mr_clean(struct ibv_context *context, size_t keep_bytes)
{
	if (!context_caches(context))
		return EOPNOTSUPP;
	return mr_cache_clean(context, keep_bytes);
}

int _ibv_query_mr_cache(struct ibv_context *context,
			struct ibv_mr_cache_stats *stats, size_t size)
{
	struct mr_cache_statistics seen;
	struct ibv_mr_cache_stats known;
	int ret;

	if (!stats)
		return EINVAL;
	if (!context_caches(context))
		return EOPNOTSUPP;
	ret = mr_cache_query(context, &seen);
	if (ret)
		return ret;
	known = (struct ibv_mr_cache_stats){
		.hits = seen.hits,
		.misses = seen.misses,
		.suspects = seen.suspects_settled,
		.invalidations = seen.invalidations,
		.evictions = seen.evictions,
		.bytes = seen.bytes,
		.entries = seen.entries,
		.suspensions = seen.suspensions,
		.restorations = seen.restorations,
	};
	give(stats, size, &known, sizeof(known));
	return 0;
}

/*
 * MRNOTIFY_1.0: of programs that were built when their structs were what they were then. The
 * header has functions of these names, which are not this.
 */
int query_mr_cache_1_0(struct ibv_context *context,
		       struct ibv_mr_cache_stats *stats)
	__asm__("ibv_query_mr_cache");
int query_mr_cache_1_0(struct ibv_context *context,
		       struct ibv_mr_cache_stats *stats)
{
	return _ibv_query_mr_cache(context, stats,
				   offsetof(struct ibv_mr_cache_stats,
					    suspensions));
}

int reg_mr_limits_1_0(struct ibv_context *context,
		      struct ibv_mr_cache_limits *new_limits,
		      struct ibv_mr_cache_limits *old_limits)
	__asm__("ibv_reg_mr_limits");
int reg_mr_limits_1_0(struct ibv_context *context,
		      struct ibv_mr_cache_limits *new_limits,
		      struct ibv_mr_cache_limits *old_limits)
{
	return _ibv_reg_mr_limits(context, new_limits, old_limits,
				  2 * sizeof(uint64_t));
}
