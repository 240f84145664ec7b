// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The uverbs methods of MR notification (arm, disarm, settle, suspend), and the attributes
 * that arm an MR when it is registered.
 *
 * The methods look the MR up for reading. So during a method, deregistration and
 * re-registration fail with -EBUSY, but other methods can run. The tracker serializes
 * methods of the same MR.
 */

#include <rdma/uverbs_std_types.h>

#include "rdma_core.h"
#include "umem_notify.h"
#include "uverbs.h"

/* The limits of the idle time. A shorter time would keep the worker busy. */
#define LEAST_IDLE_MS 20U
#define MOST_IDLE_MS (1000U * MSEC_PER_SEC)

/* The ids of the arming attributes of one method */
struct arming_ids {
	u16 word, flags, in_use, idle_ms, changes, event_fd;
};

#define ARMING_IDS(method)                                                                         \
	{                                                                                          \
		.word = UVERBS_ATTR_MR_NOTIFY_##method##_WORD,                                     \
		.flags = UVERBS_ATTR_MR_NOTIFY_##method##_FLAGS,                                   \
		.in_use = UVERBS_ATTR_MR_NOTIFY_##method##_IN_USE,                                 \
		.idle_ms = UVERBS_ATTR_MR_NOTIFY_##method##_IDLE_MS,                               \
		.changes = UVERBS_ATTR_MR_NOTIFY_##method##_CHANGES,                               \
		.event_fd = UVERBS_ATTR_MR_NOTIFY_##method##_EVENT_FD,                             \
	}

static const struct arming_ids arm_ids = ARMING_IDS(ARM);
static const struct arming_ids reg_ids = ARMING_IDS(REG);

static int read_optional(void *to, size_t size, const struct uverbs_attr_bundle *attrs, u16 id)
{
	return uverbs_attr_is_valid(attrs, id) ? _uverbs_copy_from(to, attrs, id, size) : 0;
}

/* @idle_ms is the idle time if the application sets no idle time. */
static int read_arming(struct umem_notify_arming *how, const struct uverbs_attr_bundle *attrs,
		       const struct arming_ids *ids, u32 idle_ms)
{
	bool has_event = uverbs_attr_is_valid(attrs, ids->event_fd);
	u32 flags;
	int ret;

	*how = (struct umem_notify_arming){ .idle_ms = idle_ms, .event_fd = -1 };
	ret = uverbs_copy_from(&how->word, attrs, ids->word) ?:
	      read_optional(&how->changes, sizeof(how->changes), attrs, ids->changes) ?:
	      read_optional(&how->in_use, sizeof(how->in_use), attrs, ids->in_use) ?:
	      read_optional(&how->idle_ms, sizeof(how->idle_ms), attrs, ids->idle_ms) ?:
	      uverbs_get_flags32(&flags, attrs, ids->flags,
				 IB_UVERBS_MR_NOTIFY_ARM_SUPPORTED_FLAGS);
	if (!ret && has_event)
		ret = uverbs_get_raw_fd(&how->event_fd, attrs, ids->event_fd);
	if (ret)
		return ret;

	how->reclaim = flags & IB_UVERBS_MR_NOTIFY_ARM_RECLAIM;
	if (!IS_ALIGNED(how->word | how->changes, sizeof(u64)) || how->word == how->changes ||
	    (!how->changes && uverbs_attr_is_valid(attrs, ids->changes)) ||
	    how->in_use & IB_UVERBS_MR_NOTIFY_KERNEL_MASK ||
	    (!how->in_use && (how->reclaim || uverbs_attr_is_valid(attrs, ids->in_use))))
		return -EINVAL;
	if (!how->reclaim) {
		if (how->idle_ms && uverbs_attr_is_valid(attrs, ids->idle_ms))
			return -EINVAL;
		how->idle_ms = 0;
	}
	if (how->idle_ms)
		how->idle_ms = clamp(how->idle_ms, LEAST_IDLE_MS, MOST_IDLE_MS);
	return has_event && how->event_fd < 0 ? -EBADF : 0;
}

static int arm(struct ib_mr *mr, const struct uverbs_attr_bundle *attrs,
	       const struct arming_ids *ids, u32 idle_ms)
{
	struct umem_notify_arming how;

	return read_arming(&how, attrs, ids, idle_ms) ?: umem_notify_arm(mr, &how);
}

static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_ARM)(struct uverbs_attr_bundle *attrs)
{
	return arm(uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE), attrs, &arm_ids,
		   0);
}

/* Declares a method or a list of attributes. The arming attributes come last. */
#define DECLARE_ARMING(declare, method, word_is, ...)                                              \
	declare(__VA_ARGS__,                                                                       \
		UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_##method##_WORD, UVERBS_ATTR_TYPE(u64),   \
				   word_is),                                                       \
		UVERBS_ATTR_FLAGS_IN(UVERBS_ATTR_MR_NOTIFY_##method##_FLAGS, u32, UA_OPTIONAL),    \
		UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_##method##_IN_USE, UVERBS_ATTR_TYPE(u64), \
				   UA_OPTIONAL),                                                   \
		UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_##method##_IDLE_MS,                       \
				   UVERBS_ATTR_TYPE(u32), UA_OPTIONAL),                            \
		UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_##method##_CHANGES,                       \
				   UVERBS_ATTR_TYPE(u64), UA_OPTIONAL),                            \
		UVERBS_ATTR_RAW_FD(UVERBS_ATTR_MR_NOTIFY_##method##_EVENT_FD, UA_OPTIONAL))

#define MR_HANDLE(method)                                                                          \
	UVERBS_ATTR_IDR(UVERBS_ATTR_MR_NOTIFY_##method##_HANDLE, UVERBS_OBJECT_MR,                 \
			UVERBS_ACCESS_READ, UA_MANDATORY)

DECLARE_ARMING(DECLARE_UVERBS_NAMED_METHOD, ARM, UA_MANDATORY, UVERBS_METHOD_MR_NOTIFY_ARM,
	       MR_HANDLE(ARM));
DECLARE_ARMING(ADD_UVERBS_ATTRIBUTES_SIMPLE, REG, UA_OPTIONAL, mr_notify_reg,
	       UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);

/* Declares a method whose only attribute is the MR. */
#define DECLARE_SIMPLE(method, function)                                                           \
	static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_##method)(                               \
		struct uverbs_attr_bundle *attrs)                                                  \
	{                                                                                          \
		return function(                                                                   \
			uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_##method##_HANDLE));      \
	}                                                                                          \
	DECLARE_UVERBS_NAMED_METHOD(UVERBS_METHOD_MR_NOTIFY_##method, MR_HANDLE(method))

DECLARE_SIMPLE(DISARM, umem_notify_disarm);
DECLARE_SIMPLE(SETTLE, umem_notify_settle);
DECLARE_SIMPLE(SUSPEND, umem_notify_suspend_now);

ADD_UVERBS_METHODS(mr_notify,
		   UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_ARM),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_DISARM),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_SETTLE),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_SUSPEND));

const struct uapi_definition uverbs_def_obj_mr_notify[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &mr_notify_reg),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &mr_notify, UAPI_DEF_OBJ_NEEDS_FN(dereg_mr)),
	{}
};

/**
 * ib_mr_notify_command - May a command have its arming attributes?
 * @command: The command of UVERBS_METHOD_INVOKE_WRITE
 * @attrs: Its attributes
 *
 * Refuses all combinations that have no meaning, so that a later version can define them.
 *
 * Return: 0 or -EINVAL.
 */
int ib_mr_notify_command(u32 command, const struct uverbs_attr_bundle *attrs)
{
	bool more = false;
	u16 id;

	if (uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_WORD))
		return command == IB_USER_VERBS_CMD_REG_MR ? 0 : -EINVAL;
	for (id = UVERBS_ATTR_MR_NOTIFY_REG_WORD; id <= UVERBS_ATTR_MR_NOTIFY_REG_EVENT_FD; id++)
		more |= uverbs_attr_is_valid(attrs, id);
	return more ? -EINVAL : 0;
}

/**
 * ib_mr_notify_reg - Arm a new MR if its registration names a word
 * @mr: The MR; no other thread can find its uobject yet
 * @attrs: The attributes of its registration
 *
 * Return: 0, or an error of the arm method. The registration fails with the same
 * error.
 */
int ib_mr_notify_reg(struct ib_mr *mr, struct uverbs_attr_bundle *attrs)
{
	if (!uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_WORD))
		return 0;
	return arm(mr, attrs, &reg_ids, IB_UVERBS_MR_NOTIFY_IDLE_MS);
}
