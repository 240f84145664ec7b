/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Regions with words, for the memory monitor "verbs_notify". When a system call changes
 * the memory of a region, the kernel marks its word before the call returns. The verbs
 * are looked up at run time. So a provider that was built with the verbs also runs with
 * a libibverbs that lacks them.
 */

#include "verbs_ofi.h"

#if VERBS_HAVE_MR_NOTIFY

#include <dlfcn.h>
#include <pthread.h>
#include <ofi_mr_notify_hit.h>

static struct {
	struct ibv_mr *(*reg)(struct ibv_pd *pd, void *addr, size_t length,
			      uint64_t iova, unsigned int access,
			      const struct ibv_mr_notify_attr *attr);
	int (*settle)(struct ibv_mr *mr);
	uint64_t *(*alloc_word)(struct ibv_context *context);
	void (*free_word)(uint64_t *word);
} vrb_notify;

static struct fi_ops_mr vrb_notify_mr_ops;

/* A search by address is enough, because each entry of the cache has all access
 * rights. */
static inline int
vrb_notify_cache_reg(struct fid *fid, const void *buf, size_t len, struct fid_mr **mr)
{
	struct ofi_mr_cache *cache =
		&container_of(fid, struct vrb_domain,
			      util_domain.domain_fid.fid)->cache;
	struct ofi_mr_entry *entry = ofi_mr_notify_hit(cache, buf, len);
	int ret;

	if (OFI_UNLIKELY(!entry)) {
		struct ofi_mr_info info = {
			.iov.iov_base = (void *) buf,
			.iov.iov_len = len,
			.iface = FI_HMEM_SYSTEM,
		};

		ret = ofi_mr_cache_search(cache, &info, &entry);
		if (ret)
			return ret;
	}

	*mr = &((struct vrb_mem_desc *) entry->data)->mr_fid;
	return FI_SUCCESS;
}

static int
vrb_notify_mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access,
		  uint64_t offset, uint64_t requested_key, uint64_t flags,
		  struct fid_mr **mr, void *context)
{
	if (flags & (OFI_MR_NOCACHE | FI_MR_DMABUF))
		return vrb_mr_ops.reg(fid, buf, len, access, offset,
				      requested_key, flags, mr, context);

	return vrb_notify_cache_reg(fid, buf, len, mr);
}

static int vrb_notify_mr_regattr(struct fid *fid, const struct fi_mr_attr *attr,
				 uint64_t flags, struct fid_mr **mr)
{
	struct vrb_domain *domain = container_of(fid, struct vrb_domain,
						 util_domain.domain_fid.fid);

	/* A program without FI_HMEM does not set iface. */
	if ((flags & (OFI_MR_NOCACHE | FI_MR_DMABUF)) || attr->iov_count != 1 ||
	    ((domain->util_domain.info_domain_caps & FI_HMEM) &&
	     attr->iface != FI_HMEM_SYSTEM))
		return vrb_mr_ops.regattr(fid, attr, flags, mr);

	return vrb_notify_cache_reg(fid, attr->mr_iov->iov_base,
				    attr->mr_iov->iov_len, mr);
}

void vrb_notify_use_hits(struct vrb_domain *domain)
{
	if (domain->cache.notify.changes)
		domain->util_domain.domain_fid.mr = &vrb_notify_mr_ops;
}

static void vrb_notify_init(void)
{
	vrb_notify_mr_ops = vrb_mr_ops;
	vrb_notify_mr_ops.reg = vrb_notify_mr_reg;
	vrb_notify_mr_ops.regattr = vrb_notify_mr_regattr;
	*(void **) &vrb_notify.reg = dlsym(RTLD_DEFAULT, "ibv_reg_notified_mr");
	*(void **) &vrb_notify.settle =
		dlsym(RTLD_DEFAULT, "ibv_settle_mr_notify");
	*(void **) &vrb_notify.alloc_word =
		dlsym(RTLD_DEFAULT, "ibv_alloc_notify_word");
	*(void **) &vrb_notify.free_word =
		dlsym(RTLD_DEFAULT, "ibv_free_notify_word");
}

uint64_t *vrb_notify_open(struct vrb_domain *domain)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ibv_device_attr attr;

	(void) pthread_once(&once, vrb_notify_init);

	/* With on-demand paging the device follows changes of the memory without a
	 * word. */
	if (!vrb_notify.reg || !vrb_notify.settle || !vrb_notify.alloc_word ||
	    !vrb_notify.free_word || (domain->ext_flags & VRB_USE_ODP) ||
	    ibv_query_device(domain->verbs, &attr) ||
	    !(attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY))
		return NULL;

	return vrb_notify.alloc_word(domain->verbs);
}

void vrb_notify_free(uint64_t *word)
{
	if (word)
		vrb_notify.free_word(word);
}

struct ibv_mr_notify_attr vrb_notify_attr(struct vrb_domain *domain)
{
	struct ibv_mr_notify_attr attr = {
		.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE |
			     IBV_MR_NOTIFY_ATTR_CHANGES,
		.word = vrb_notify.alloc_word(domain->verbs),
		.in_use = OFI_MR_NOTIFY_HELD,
		.changes = domain->changes,
	};

	if (attr.word)
		__atomic_store_n(attr.word, OFI_MR_NOTIFY_HELD, __ATOMIC_RELAXED);
	return attr;
}

struct ibv_mr *vrb_notify_reg(struct vrb_mem_desc *md, void *buf, size_t len,
			      int access)
{
	struct ibv_mr_notify_attr attr = vrb_notify_attr(md->domain);
	struct ibv_mr *mr;

	if (!attr.word)
		return NULL;

	mr = vrb_notify.reg(md->domain->pd, buf, len, (uintptr_t) buf, access,
			    &attr);
	if (!mr && errno == EOPNOTSUPP) {
		/* A device that can't revoke keeps the pages in any case. */
		attr.comp_mask &= ~IBV_MR_NOTIFY_ATTR_IN_USE;
		mr = vrb_notify.reg(md->domain->pd, buf, len, (uintptr_t) buf,
				    access, &attr);
	}
	if (mr) {
		md->word = attr.word;
	} else {
		VRB_INFO(FI_LOG_MR, "no notification of %p: %s\n", buf,
			 strerror(errno));
		vrb_notify_free(attr.word);
	}
	return mr;
}

int vrb_notify_settle(struct vrb_mem_desc *md)
{
	return -vrb_notify.settle(md->mr);
}

int vrb_mr_cache_settle_region(struct ofi_mr_cache *cache,
			       struct ofi_mr_entry *entry)
{
	return vrb_notify_settle((struct vrb_mem_desc *) entry->data);
}

#endif
