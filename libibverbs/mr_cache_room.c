// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * A command that failed for lack of something that idle registrations may hold: pinned memory,
 * objects of a control group, keys. They go, and it is tried again. All commands come here.
 */
#define _GNU_SOURCE
#include <config.h>

#include <errno.h>
#include <sys/ioctl.h>

#include <infiniband/cmd_ioctl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include "mr_cache_private.h"

static const struct ib_uverbs_attr *
find_attr(const struct ibv_command_buffer *cmd, uint16_t id)
{
	for (uint16_t i = 0; i < cmd->hdr.num_attrs; i++)
		if (cmd->hdr.attrs[i].attr_id == id)
			return &cmd->hdr.attrs[i];
	return NULL;
}

/* Which of the commands that are older than methods; those have none. */
static uint64_t write_command(const struct ibv_command_buffer *cmd)
{
	const struct ib_uverbs_attr *attr = NULL;

	if (cmd->hdr.object_id == UVERBS_OBJECT_DEVICE &&
	    cmd->hdr.method_id == UVERBS_METHOD_INVOKE_WRITE)
		attr = find_attr(cmd, UVERBS_ATTR_WRITE_CMD);
	return attr ? attr->data & ~(uint64_t)IB_USER_VERBS_CMD_FLAG_EXTENDED :
		      UINT64_MAX;
}

/*
 * Does it make an object? Then EAGAIN may be the control group's. Elsewhere it is an answer: an XRCD
 * that is not there yet, a file's lock (SETTLE).
 */
#define METHOD(object, method)                                                 \
	(UVERBS_OBJECT_##object << 16 | UVERBS_METHOD_##method)
static bool makes_object(const struct ibv_command_buffer *cmd)
{
	switch (cmd->hdr.object_id << 16 | cmd->hdr.method_id) {
	case METHOD(ASYNC_EVENT, ASYNC_EVENT_ALLOC):
	case METHOD(COUNTERS, COUNTERS_CREATE):
	case METHOD(CQ, CQ_CREATE):
	case METHOD(DM, DM_ALLOC):
	case METHOD(FLOW_ACTION, FLOW_ACTION_ESP_CREATE):
	case METHOD(MR, DM_MR_REG):
	case METHOD(MR, REG_DMABUF_MR):
	case METHOD(QP, QP_CREATE):
	case METHOD(SRQ, SRQ_CREATE):
	case METHOD(WQ, WQ_CREATE):
		return true;
	}
	switch (write_command(cmd)) {
	case IB_USER_VERBS_CMD_ALLOC_MW:
	case IB_USER_VERBS_CMD_ALLOC_PD:
	case IB_USER_VERBS_CMD_CREATE_AH:
	case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
	case IB_USER_VERBS_CMD_CREATE_CQ:
	case IB_USER_VERBS_CMD_CREATE_QP:
	case IB_USER_VERBS_CMD_CREATE_SRQ:
	case IB_USER_VERBS_CMD_CREATE_XSRQ:
	case IB_USER_VERBS_CMD_OPEN_QP:
	case IB_USER_VERBS_CMD_REG_MR:
	case IB_USER_VERBS_EX_CMD_CREATE_FLOW:
	case IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL:
	case IB_USER_VERBS_EX_CMD_CREATE_WQ:
		return true;
	}
	return false;
}

/* What was posted before the request that fails stays posted. */
static bool may_be_half_done(const struct ibv_command_buffer *cmd)
{
	switch (write_command(cmd)) {
	case IB_USER_VERBS_CMD_POST_SEND:
	case IB_USER_VERBS_CMD_POST_RECV:
	case IB_USER_VERBS_CMD_POST_SRQ_RECV:
	case IB_USER_VERBS_CMD_POLL_CQ:
		return true;
	default:
		return false;
	}
}

/* Elsewhere ENOSPC says that a buffer is too short. */
static bool lacks_keys(const struct ibv_command_buffer *cmd)
{
	switch (write_command(cmd)) {
	case IB_USER_VERBS_CMD_REG_MR:
	case IB_USER_VERBS_CMD_ALLOC_MW:
		return true;
	default:
		return cmd->hdr.object_id == UVERBS_OBJECT_MR;
	}
}

/* Is it a registration of more than may be pinned when nothing is idle? */
static bool is_hopeless(const struct ibv_command_buffer *cmd)
{
	const struct ib_uverbs_attr *attr = NULL;
	const struct ib_uverbs_reg_mr *reg;

	if (write_command(cmd) == IB_USER_VERBS_CMD_REG_MR)
		attr = find_attr(cmd, UVERBS_ATTR_CORE_IN);
	if (!attr || attr->len < sizeof(*reg))
		return false;
	reg = (const void *)(uintptr_t)attr->data;
	return !mr_cache_may_pin(reg->length);
}

/* Then a PD may have two names here, and idle registrations by the one keep the other. */
static bool has_imports;

void mr_cache_note_import(void)
{
	__atomic_store_n(&has_imports, true, __ATOMIC_RELAXED);
}

static bool lacks_room(const struct ibv_command_buffer *cmd, int error)
{
	switch (error) {
	case ENOMEM:
		return !may_be_half_done(cmd) && !is_hopeless(cmd);
	case EAGAIN:
		return makes_object(cmd);
	case ENOSPC:
		return lacks_keys(cmd);
	case EBUSY:
		return cmd->hdr.object_id == UVERBS_OBJECT_PD &&
		       __atomic_load_n(&has_imports, __ATOMIC_RELAXED);
	default:
		return false;
	}
}

static bool is_of_device(void *context, const struct ibv_mr_cache_stats *unused,
			 const void *device)
{
	return ((struct ibv_context *)context)->device == device;
}

#define RETRIES 32

/*
 * It is tried once more in any case, and then as long as something is given back, which others may
 * take. Of all contexts, as limits are the process's.
 */
bool mr_cache_retry_cmd(struct ibv_context *context,
			struct ibv_command_buffer *cmd)
{
	const struct mr_notify_request *const request =
		mr_notify_request_of(cmd);
	int error = errno;
	int64_t ended;

	if (!mr_cache_is_on() || (request && request->once))
		return false;
	for (uint32_t stage = 0; stage < RETRIES && lacks_room(cmd, error);
	     stage++) {
		ended = error == EBUSY ? mr_cache_visit(is_of_device,
							context->device, false) :
					 (int64_t)mr_cache_shrink(stage, request);
		if (stage && ended <= 0)
			break;
		if (!ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &cmd->hdr))
			return true;
		error = errno;
	}
	errno = error;
	return false;
}
