// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Registers and arms an MR in one system call. The provider builds the command that
 * registers. This file adds attributes to the command before the command goes to the kernel.
 * The kernel's core evaluates the attributes, so they work with every driver.
 *
 * During the provider's call, a hook of an allocator may register other memory, plainly or
 * through the cache. If a thread had only one pending word, registration A would not be
 * armed:
 *
 *   registration A                  the hook, in A's calloc()
 *   word = A's
 *                                   word = B's; registers B; word = none
 *   A's command: no word            [the library takes A for armed]
 *
 * So the pending requests are a stack. A command takes the word of the innermost request only if
 * command and request have the same range and access. A plain registration lacks the access flag
 * TRACK, so it never takes a word. If a kernel does not know the attributes, the command fails, and
 * a provider may register by another command. So an MR counts as armed only if the command with the
 * attributes returned its handle.
 */
#include <config.h>

#include <errno.h>

#include <infiniband/cmd_ioctl.h>
#include <infiniband/driver.h>
#include <infiniband/mr_notify.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_mr_notify.h>
#include <rdma/ib_user_verbs.h>
#include <util/compiler.h>

#include "ibverbs.h"
#include "mr_notify_cmd.h"
#include "static_tls.h"

#define NO_HANDLE UINT32_MAX

/* The innermost registration that this thread has to arm. */
static __thread struct mr_notify_request *pending_arm STATIC_TLS;

bool mr_notify_tells_word(unsigned int write_method, const void *core)
{
	const struct ib_uverbs_reg_mr *reg = core;
	struct mr_notify_request *r = pending_arm;

	if (likely(!r) || write_method != IB_USER_VERBS_CMD_REG_MR ||
	    reg->start != r->start || reg->length != r->length ||
	    reg->access_flags != r->access)
		return false;
	r->answer = reg->response;
	return true;
}

const struct mr_notify_request *
mr_notify_request_of(const struct ibv_command_buffer *cmd)
{
	return pending_arm && pending_arm->cmd == cmd ? pending_arm : NULL;
}

/* Adds the options of a verb to the command. */
static void fill_attr(struct ibv_command_buffer *cmd,
		      const struct mr_notify_request *r)
{
	if (r->reclaims || r->attr->comp_mask & IBV_MR_NOTIFY_ATTR_IDLE_MS)
		fill_attr_in_uint32(cmd, UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS,
				    r->idle_ms);
	if (r->attr->comp_mask & IBV_MR_NOTIFY_ATTR_CHANGES)
		fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_REG_CHANGES,
				    ioctl_ptr_to_u64(r->attr->changes));
	if (r->attr->comp_mask & IBV_MR_NOTIFY_ATTR_EVENT_FD)
		fill_attr_in_fd(cmd, UVERBS_ATTR_MR_NOTIFY_REG_EVENT_FD,
				r->attr->event_fd);
}

int mr_notify_execute(struct ibv_context *context,
		      struct ibv_command_buffer *link)
{
	const struct ib_uverbs_reg_mr_resp *answer;
	struct mr_notify_request *r = pending_arm;
	int ret;

	DECLARE_COMMAND_BUFFER_LINK(cmd, UVERBS_OBJECT_DEVICE,
				    UVERBS_METHOD_INVOKE_WRITE, 6, link);

	fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_REG_WORD,
			    ioctl_ptr_to_u64(r->word));
	if (r->in_use)
		fill_attr_in_uint64(cmd, UVERBS_ATTR_MR_NOTIFY_REG_IN_USE,
				    r->in_use);
	if (r->reclaims)
		fill_attr_in_uint32(cmd, UVERBS_ATTR_MR_NOTIFY_REG_FLAGS,
				    IB_UVERBS_MR_NOTIFY_ARM_RECLAIM);
	if (r->attr)
		fill_attr(cmd, r);
	else if (r->reclaims && r->idle_ms != IB_UVERBS_MR_NOTIFY_IDLE_MS)
		attr_optional(fill_attr_in_uint32(
			cmd, UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS, r->idle_ms));
	r->cmd = cmd;
	ret = execute_ioctl(context, cmd);
	if (!ret) {
		answer = (const void *)(uintptr_t)r->answer;
		r->armed = answer->mr_handle;
	}
	return ret;
}

/*
 * Does not call ibv_dereg_mr(), because a preloaded library may replace this verb. The
 * preloaded library never saw this MR, and may be inside a call itself. The cache does not
 * need ibv_dofork_range(), which the verb calls (see keeps_ranges_from_children()).
 */
int mr_notify_dereg_mr(struct ibv_mr *mr)
{
	return get_ops(mr->context)->dereg_mr(verbs_get_mr(mr));
}

static void clear_kernel_bits(uint64_t *word)
{
#if UINTPTR_MAX > UINT32_MAX
	__atomic_fetch_and(word, ~(uint64_t)IBV_MR_NOTIFY_KERNEL_MASK,
			   __ATOMIC_RELAXED);
#else
	/* Write only the kernel's byte, because some 32-bit CPUs have no 64-bit atomics. */
	uint8_t *const bytes = (uint8_t *)word;

	__atomic_store_n(&bytes[__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 7 : 0],
			 0, __ATOMIC_RELAXED);
#endif
}

struct ibv_mr *mr_notify_reg_mr(struct ibv_pd *pd,
				struct mr_notify_request *request)
{
	void *const addr = (void *)(uintptr_t)request->start;
	const struct ibv_mr_notify_attr of_cache = {
		.comp_mask = IBV_MR_NOTIFY_ATTR_IN_USE,
		.word = request->word,
		.in_use = request->in_use,
	};
	struct mr_notify_retry retry;
	struct ibv_mr *mr;
	int ret;

	request->access |= IB_UVERBS_ACCESS_TRACK;
	request->armed = NO_HANDLE;
	request->cmd = NULL;
	request->outer = pending_arm;
	retry.blocked = false;
	do {
		errno = 0; /* some failures do not set errno */
		pending_arm = request;
		mr = plain_reg_mr_iova2(pd, addr, request->length,
					request->iova, request->access);
		pending_arm = request->outer;
	} while (mr_notify_retries(&retry, mr ? 0 : errno));
	if (mr && request->armed != mr->handle) {
		ret = mr_notify_arm(mr, request->attr ?: &of_cache,
				    request->reclaims);
		if (ret) {
			mr_notify_dereg_mr(mr);
			ibv_dofork_range(addr, request->length);
			errno = ret;
			mr = NULL;
		}
	}
	/*
	 * If the command armed an MR that was then deregistered, clear the kernel's
	 * INVALID. If the command of a verb failed, don't write to the word, because the
	 * word may not be mapped.
	 */
	if (!mr && (!request->attr || request->armed != NO_HANDLE))
		clear_kernel_bits(request->word);
	return mr;
}
