/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The calls of the memory monitor "verbs_notify" for a provider whose regions are
 * those of libibverbs. The verbs are looked up at run time: a provider that was
 * built with them also runs with a libibverbs that has none.
 */
#ifndef OFI_MR_NOTIFY_VERBS_H
#define OFI_MR_NOTIFY_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/fi_errno.h>

#ifdef IBV_HAVE_MR_NOTIFY

#include <dlfcn.h>
#include <pthread.h>

static struct {
	int (*reg)(struct ibv_mr *mr, uint64_t *word);
	int (*reg_in_use)(struct ibv_mr *mr, uint64_t *word, uint64_t in_use);
	int (*settle)(struct ibv_mr *mr);
} ofi_verbs_notify;

static void ofi_verbs_notify_init(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);

	if (!lib)
		return;

	*(void **) &ofi_verbs_notify.reg = dlsym(lib, "ibv_reg_mr_notify");
	*(void **) &ofi_verbs_notify.reg_in_use =
		dlsym(lib, "ibv_reg_mr_notify_reclaim");
	*(void **) &ofi_verbs_notify.settle = dlsym(lib, "ibv_settle_mr_notify");
	dlclose(lib);	/* the provider is linked with it */
}

static inline bool ofi_verbs_can_notify(struct ibv_context *context)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ibv_device_attr attr;

	(void) pthread_once(&once, ofi_verbs_notify_init);
	return ofi_verbs_notify.reg && ofi_verbs_notify.settle &&
	       !ibv_query_device(context, &attr) &&
	       (attr.device_cap_flags & IBV_DEVICE_MR_NOTIFY);
}

/* A device that can't be revoked keeps the pages in any case. */
static inline int ofi_verbs_notify_arm(struct ibv_mr *mr, uint64_t *word,
				       uint64_t in_use)
{
	int ret = EOPNOTSUPP;

	if (!mr)	/* of no length */
		return -FI_EOPNOTSUPP;

	if (ofi_verbs_notify.reg_in_use)
		ret = ofi_verbs_notify.reg_in_use(mr, word, in_use);
	if (ret == EOPNOTSUPP)
		ret = ofi_verbs_notify.reg(mr, word);
	return -ret;
}

static inline int ofi_verbs_notify_settle(struct ibv_mr *mr)
{
	return -ofi_verbs_notify.settle(mr);
}

#else /* !IBV_HAVE_MR_NOTIFY */

static inline bool ofi_verbs_can_notify(struct ibv_context *context)
{
	return false;
}

static inline int ofi_verbs_notify_arm(struct ibv_mr *mr, uint64_t *word,
				       uint64_t in_use)
{
	return -FI_EOPNOTSUPP;
}

static inline int ofi_verbs_notify_settle(struct ibv_mr *mr)
{
	return -FI_EOPNOTSUPP;
}

#endif /* IBV_HAVE_MR_NOTIFY */

#endif /* OFI_MR_NOTIFY_VERBS_H */
