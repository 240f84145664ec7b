// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The verbs of MR notification, of any MR that a program may name. The commands to the
 * kernel are in mr_notify_cmd.c.
 */
#include <config.h>

#include <errno.h>

#include <infiniband/driver.h>
#include <infiniband/mr_notify.h>

#include "ibverbs.h"
#include "mr_notify_cmd.h"

/*
 * The word of a cached registration is the cache's, so its users have none.
 *
 * Only a plain registration has pages of this process to watch. The kernel
 * would refuse most others, but it takes an imported handle for the original. A device that
 * the process drives itself (VFIO) has no kernel to ask.
 */
static bool may_notify(struct ibv_mr *mr)
{
	return verbs_get_mr(mr)->mr_type == IBV_MR_TYPE_MR &&
	       mr->context->cmd_fd >= 0;
}

static int reg_mr_notify(struct ibv_mr *mr, uint64_t *word, uint64_t in_use,
			 unsigned int flags)
{
	int ret;

	if (!word || (uintptr_t)word % sizeof(*word))
		return EINVAL;
	if (cached_mr_owns(mr)) {
		ret = cached_mr_make_plain(mr);
		if (ret)
			return ret;
	}
	if (!may_notify(mr))
		return EOPNOTSUPP;
	return mr_notify_arm(mr, word, in_use, flags);
}

int ibv_reg_mr_notify(struct ibv_mr *mr, uint64_t *word)
{
	return reg_mr_notify(mr, word, 0, 0);
}

int ibv_reg_mr_notify_reclaim(struct ibv_mr *mr, uint64_t *word, uint64_t in_use)
{
	if (!in_use || in_use & IBV_MR_NOTIFY_KERNEL_MASK)
		return EINVAL;
	return reg_mr_notify(mr, word, in_use, MR_NOTIFY_RECLAIM);
}

int ibv_unreg_mr_notify(struct ibv_mr *mr)
{
	if (cached_mr_owns(mr))
		return EINVAL;
	if (!may_notify(mr))
		return EOPNOTSUPP;
	return mr_notify_disarm(mr);
}

int ibv_settle_mr_notify(struct ibv_mr *mr)
{
	if (cached_mr_owns(mr))
		return EINVAL;
	if (!may_notify(mr))
		return EOPNOTSUPP;
	return mr_notify_settle(mr);
}
