// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The commands of MR notification are methods of UVERBS_OBJECT_MR in the kernel. The methods are
 * in the kernel's core and do not depend on the driver, so there is no provider op.
 */
#include <config.h>

#include <errno.h>
#include <pthread.h>

#include <infiniband/cmd_ioctl.h>
#include <infiniband/driver.h>
#include <infiniband/mr_notify.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>

#include "mr_notify_cmd.h"

/* The public bits and the kernel's bits have the same values. */
static_assert((int)IBV_MR_NOTIFY_INVALID == (int)IB_UVERBS_MR_NOTIFY_INVALID,
	      "INVALID differs from the kernel's");
static_assert((int)IBV_MR_NOTIFY_SUSPECT == (int)IB_UVERBS_MR_NOTIFY_SUSPECT,
	      "SUSPECT differs from the kernel's");
static_assert((int)IBV_MR_NOTIFY_SUSPENDED ==
	      (int)IB_UVERBS_MR_NOTIFY_SUSPENDED,
	      "SUSPENDED differs from the kernel's");
static_assert((int)IBV_MR_NOTIFY_KERNEL_MASK ==
	      (int)IB_UVERBS_MR_NOTIFY_KERNEL_MASK,
	      "KERNEL_MASK differs from the kernel's");
static_assert(IBV_DEVICE_MR_NOTIFY == IB_UVERBS_DEVICE_MR_NOTIFY,
	      "the capability differs from the kernel's");
static_assert(IBV_DEVICE_MR_REVOKE == IB_UVERBS_DEVICE_MR_REVOKE,
	      "the capability differs from the kernel's");
static_assert(IBV_DEVICE_MR_RECLAIM == IB_UVERBS_DEVICE_MR_RECLAIM,
	      "the capability differs from the kernel's");

int mr_notify_errno(int err)
{
	switch (err) {
	case EPROTONOSUPPORT:
	case ENOTTY:
	case ENOSYS:
		return EOPNOTSUPP;
	default:
		return err;
	}
}

static int cmd_mr_notify_arm(struct ibv_mr *mr,
			     const struct ibv_mr_notify_attr *attr,
			     bool reclaims)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       UVERBS_METHOD_MR_NOTIFY_ARM, 7);

	fill_attr_in_obj(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE, mr->handle);
	fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_WORD,
			    ioctl_ptr_to_u64(attr->word));
	if (attr->comp_mask & IBV_MR_NOTIFY_ATTR_IN_USE)
		fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE,
				    attr->in_use);
	if (reclaims)
		fill_attr_in_uint32(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS,
				    IB_UVERBS_MR_NOTIFY_ARM_RECLAIM);
	if (attr->comp_mask & IBV_MR_NOTIFY_ATTR_IDLE_MS)
		fill_attr_in_uint32(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_IDLE_MS,
				    attr->idle_ms);
	if (attr->comp_mask & IBV_MR_NOTIFY_ATTR_CHANGES)
		fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_CHANGES,
				    ioctl_ptr_to_u64(attr->changes));
	if (attr->comp_mask & IBV_MR_NOTIFY_ATTR_EVENT_FD)
		fill_attr_in_fd(cmd, UVERBS_ATTR_MR_NOTIFY_ARM_EVENT_FD,
				attr->event_fd);
	return execute_ioctl(mr->context, cmd);
}

static int cmd_mr_notify_disarm(struct ibv_mr *mr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       UVERBS_METHOD_MR_NOTIFY_DISARM, 1);

	fill_attr_in_obj(cmd, UVERBS_ATTR_MR_NOTIFY_DISARM_HANDLE, mr->handle);
	return execute_ioctl(mr->context, cmd);
}

static int cmd_mr_notify_settle(struct ibv_mr *mr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       UVERBS_METHOD_MR_NOTIFY_SETTLE, 1);

	fill_attr_in_obj(cmd, UVERBS_ATTR_MR_NOTIFY_SETTLE_HANDLE, mr->handle);
	return execute_ioctl(mr->context, cmd);
}

static int cmd_mr_notify_suspend(struct ibv_mr *mr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       UVERBS_METHOD_MR_NOTIFY_SUSPEND, 1);

	fill_attr_in_obj(cmd, UVERBS_ATTR_MR_NOTIFY_SUSPEND_HANDLE,
			 mr->handle);
	return execute_ioctl(mr->context, cmd);
}

/*
 * Blocks all signals except the signals of a thread's own faults. If fault signals were blocked, a
 * fault in a provider or in an allocator's hook would end the program.
 */
static bool block_signals(sigset_t *before)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGFPE,
				   SIGILL, SIGTRAP, SIGSYS };
	sigset_t others;

	sigfillset(&others);
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		sigdelset(&others, own[i]);
	return !pthread_sigmask(SIG_BLOCK, &others, before);
}

bool mr_notify_retries_blocked(struct mr_notify_retry *retry, int error)
{
	if (error == EINTR && !retry->blocked) {
		retry->blocked = block_signals(&retry->before);
	} else if (error != EINTR) {
		const int old_errno = errno;

		/* pending signals are handled here */
		pthread_sigmask(SIG_SETMASK, &retry->before, NULL);
		errno = old_errno;
	}
	return error == EINTR;
}

int mr_notify_arm(struct ibv_mr *mr, const struct ibv_mr_notify_attr *attr,
		  bool reclaims)
{
	struct mr_notify_retry retry;
	int ret;

	retry.blocked = false;
	do {
		ret = cmd_mr_notify_arm(mr, attr, reclaims);
	} while (mr_notify_retries(&retry, ret));
	return mr_notify_errno(ret);
}

int mr_notify_disarm(struct ibv_mr *mr)
{
	int ret;

	do {
		ret = cmd_mr_notify_disarm(mr);
	} while (ret == EINTR);
	return mr_notify_errno(ret);
}

int mr_notify_settle(struct ibv_mr *mr)
{
	int ret;

	do {
		ret = cmd_mr_notify_settle(mr);
	} while (ret == EINTR);
	return mr_notify_errno(ret);
}

int mr_notify_suspend(struct ibv_mr *mr)
{
	int ret;

	do {
		ret = cmd_mr_notify_suspend(mr);
	} while (ret == EINTR);
	return mr_notify_errno(ret);
}
