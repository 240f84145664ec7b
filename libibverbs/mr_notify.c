// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The verbs of MR notification, for MRs of any provider. The commands to the kernel are in
 * mr_notify_cmd.c.
 */
#include <config.h>

#include <errno.h>

#include <infiniband/driver.h>
#include <infiniband/mr_notify.h>

#include "ibverbs.h"
#include "mr_notify_cmd.h"

/*
 * Returns 0 if a verb may call the kernel, otherwise the errno value of the verb.
 *
 * Only a plain registration has pages of this process that the kernel can watch. The kernel would
 * refuse most other kinds of MRs. But it can't distinguish an imported handle from the original
 * handle. A device that the process drives itself (VFIO) has no kernel driver.
 */
static int check_mr(struct ibv_mr *mr)
{
	/* A cached registration already has the cache's word, so its users can't arm it. */
	if (mr_cache_owns(mr))
		return EINVAL;
	if (verbs_get_mr(mr)->mr_type != IBV_MR_TYPE_MR ||
	    mr->context->cmd_fd < 0)
		return EOPNOTSUPP;
	return 0;
}

static bool is_word(const uint64_t *word)
{
	return word && (uintptr_t)word % sizeof(*word) == 0;
}

static bool has(const struct ibv_mr_notify_attr *attr,
		enum ibv_mr_notify_attr_mask field)
{
	return attr->comp_mask & field;
}

static int check_attr(const struct ibv_mr_notify_attr *attr)
{
	const uint64_t known =
		IBV_MR_NOTIFY_ATTR_IN_USE | IBV_MR_NOTIFY_ATTR_CHANGES |
		IBV_MR_NOTIFY_ATTR_EVENT_FD | IBV_MR_NOTIFY_ATTR_IDLE_MS;

	if (!attr || attr->comp_mask & ~known || !is_word(attr->word))
		return EINVAL;
	if (has(attr, IBV_MR_NOTIFY_ATTR_IN_USE) &&
	    (!attr->in_use || attr->in_use & IBV_MR_NOTIFY_KERNEL_MASK))
		return EINVAL;
	if (has(attr, IBV_MR_NOTIFY_ATTR_CHANGES) &&
	    (!is_word(attr->changes) || attr->changes == attr->word))
		return EINVAL;
	if (has(attr, IBV_MR_NOTIFY_ATTR_IDLE_MS) && attr->idle_ms &&
	    !has(attr, IBV_MR_NOTIFY_ATTR_IN_USE))
		return EINVAL;
	return has(attr, IBV_MR_NOTIFY_ATTR_EVENT_FD) && attr->event_fd < 0 ?
		       EBADF :
		       0;
}

int ibv_reg_mr_notify_ex(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr)
{
	int ret = check_attr(attr);

	if (!ret && mr_cache_owns(mr))
		ret = mr_cache_make_plain(mr);
	if (!ret)
		ret = check_mr(mr);
	return ret ?: mr_notify_arm(mr, attr, has(attr, IBV_MR_NOTIFY_ATTR_IN_USE));
}

int ibv_reg_mr_notify(struct ibv_mr *mr, uint64_t *word)
{
	const struct ibv_mr_notify_attr attr = { .word = word };

	return ibv_reg_mr_notify_ex(mr, &attr);
}

int ibv_reg_mr_notify_reclaim(struct ibv_mr *mr, uint64_t *word, uint64_t in_use)
{
	const struct ibv_mr_notify_attr attr = {
		.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE,
		.word = word,
		.in_use = in_use,
	};

	return ibv_reg_mr_notify_ex(mr, &attr);
}

static int check_device(const struct ibv_context *context)
{
	return context->cmd_fd < 0 ? EOPNOTSUPP : 0;
}

struct ibv_mr *ibv_reg_notified_mr(struct ibv_pd *pd, void *addr, size_t length,
				   uint64_t iova, unsigned int access,
				   const struct ibv_mr_notify_attr *attr)
{
	struct mr_notify_request request;
	struct ibv_mr *mr;
	int ret;

	ret = check_attr(attr) ?: check_device(pd->context);
	if (ret) {
		errno = ret;
		return NULL;
	}
	request = (struct mr_notify_request){
		.start = (uintptr_t)addr,
		.length = length,
		.iova = iova,
		.attr = attr,
		.word = attr->word,
		.access = access & ~IBV_ACCESS_CACHED,
		.reclaims = has(attr, IBV_MR_NOTIFY_ATTR_IN_USE),
	};
	if (has(attr, IBV_MR_NOTIFY_ATTR_IN_USE))
		request.in_use = attr->in_use;
	if (has(attr, IBV_MR_NOTIFY_ATTR_IDLE_MS))
		request.idle_ms = attr->idle_ms;
	mr = mr_notify_reg_mr(pd, &request);
	if (!mr)
		errno = errno ? mr_notify_errno(errno) : ENOMEM;
	return mr;
}

int ibv_unreg_mr_notify(struct ibv_mr *mr)
{
	return check_mr(mr) ?: mr_notify_disarm(mr);
}

int ibv_settle_mr_notify(struct ibv_mr *mr)
{
	return check_mr(mr) ?: mr_notify_settle(mr);
}

int ibv_suspend_mr_notify(struct ibv_mr *mr)
{
	return check_mr(mr) ?: mr_notify_suspend(mr);
}
