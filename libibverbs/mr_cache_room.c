// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* When a command lacks resources, deregisters idle registrations and repeats the command. */
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

#define METHOD(object, method)                                                 \
	(UVERBS_OBJECT_##object << 16 | UVERBS_METHOD_##method)
/* The commands of the write() interface. */
#define WRITE(command)                                                         \
	(IB_USER_VERBS_CMD_FLAG_EXTENDED | IB_USER_VERBS_##command)

static uint32_t command_of(const struct ibv_command_buffer *cmd)
{
	const uint32_t method = cmd->hdr.object_id << 16 | cmd->hdr.method_id;
	const struct ib_uverbs_attr *attr = NULL;

	if (method == METHOD(DEVICE, INVOKE_WRITE))
		attr = find_attr(cmd, UVERBS_ATTR_WRITE_CMD);
	return attr ? (uint32_t)attr->data | IB_USER_VERBS_CMD_FLAG_EXTENDED :
		      method;
}

/*
 * A command may lack memory (ENOMEM), an object of the control group (EAGAIN) or a key (ENOSPC). If
 * a command needs no object or key, EAGAIN and ENOSPC have other reasons, such as a locked file.
 */
enum { MEMORY = 1, OBJECT = 2, KEY = 4 };

static unsigned int may_lack(const struct ibv_command_buffer *cmd)
{
	switch (command_of(cmd)) {
	case WRITE(CMD_REG_MR):
	case WRITE(CMD_ALLOC_MW):
	case METHOD(MR, DM_MR_REG):
	case METHOD(MR, REG_DMABUF_MR):
		return MEMORY | OBJECT | KEY;
	case METHOD(ASYNC_EVENT, ASYNC_EVENT_ALLOC):
	case METHOD(COUNTERS, COUNTERS_CREATE):
	case METHOD(CQ, CQ_CREATE):
	case METHOD(DM, DM_ALLOC):
	case METHOD(FLOW_ACTION, FLOW_ACTION_ESP_CREATE):
	case METHOD(QP, QP_CREATE):
	case METHOD(SRQ, SRQ_CREATE):
	case METHOD(WQ, WQ_CREATE):
	case WRITE(CMD_ALLOC_PD):
	case WRITE(CMD_CREATE_AH):
	case WRITE(CMD_CREATE_COMP_CHANNEL):
	case WRITE(CMD_CREATE_CQ):
	case WRITE(CMD_CREATE_QP):
	case WRITE(CMD_CREATE_SRQ):
	case WRITE(CMD_CREATE_XSRQ):
	case WRITE(CMD_OPEN_QP):
	case WRITE(EX_CMD_CREATE_FLOW):
	case WRITE(EX_CMD_CREATE_RWQ_IND_TBL):
	case WRITE(EX_CMD_CREATE_WQ):
		return MEMORY | OBJECT;
	/* Don't repeat these commands, because requests before the failed request stay posted. */
	case WRITE(CMD_POST_SEND):
	case WRITE(CMD_POST_RECV):
	case WRITE(CMD_POST_SRQ_RECV):
	case WRITE(CMD_POLL_CQ):
		return 0;
	}
	return cmd->hdr.object_id == UVERBS_OBJECT_MR ? MEMORY | KEY : MEMORY;
}

/* Would the command exceed the limits even if no idle registration were pinned? */
static bool is_hopeless(const struct ibv_command_buffer *cmd)
{
	const struct ib_uverbs_attr *attr = NULL;
	const struct ib_uverbs_reg_mr *reg;

	if (command_of(cmd) == WRITE(CMD_REG_MR))
		attr = find_attr(cmd, UVERBS_ATTR_CORE_IN);
	if (!attr || attr->len < sizeof(*reg))
		return false;
	reg = (const void *)(uintptr_t)attr->data;
	return !mr_cache_may_pin(reg->length);
}

/* After an import a PD may have two struct ibv_pd. Idle registrations of one keep the PD busy. */
static bool has_imports;

void mr_cache_note_import(void)
{
	__atomic_store_n(&has_imports, true, __ATOMIC_RELAXED);
}

static bool lacks_room(const struct ibv_command_buffer *cmd, int error)
{
	switch (error) {
	case ENOMEM:
		return may_lack(cmd) & MEMORY && !is_hopeless(cmd);
	case EAGAIN:
		return may_lack(cmd) & OBJECT;
	case ENOSPC:
		return may_lack(cmd) & KEY;
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

/* Repeats the command at least once, and as long as registrations end. Others may take the room. */
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
