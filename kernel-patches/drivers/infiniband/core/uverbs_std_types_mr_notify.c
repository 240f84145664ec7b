// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The uverbs methods of MR notification (arm, disarm, settle, suspend), and its part
 * of the other methods of an MR (reg, dereg, rereg).
 *
 * These methods only look the MR up for reading, so they exclude
 * deregistration and re-registration (-EBUSY there) but not each other; those
 * of one MR at the same time are serialized by its tracker.
 */

#include <rdma/uverbs_std_types.h>
#include <rdma/ib_umem_notify.h>

#include "rdma_core.h"
#include "umem_notify.h"
#include "uverbs.h"

/* The umem of a user's MR that can be watched, or NULL: ODP, dmabuf. */
static struct ib_umem *pinned_umem(const struct ib_device *device, struct ib_mr *mr)
{
	struct ib_umem *umem = device->ops.mr_umem(mr);

	return umem && !umem->is_odp && !umem->is_dmabuf ? umem : NULL;
}

/* The same of any MR: of the kernel's, or device memory, there is none. */
struct ib_umem *umem_notify_umem(struct ib_mr *mr)
{
	if (mr->type != IB_MR_TYPE_USER || !mr->device->ops.mr_umem)
		return NULL;
	return pinned_umem(mr->device, mr);
}

static bool is_own(const struct ib_umem *umem)
{
	return umem->owning_mm == current->mm;
}

/* The attributes that arm, of one method */
struct arming_ids {
	u16 word;
	u16 flags;
	u16 in_use;
	u16 idle_ms;
	u16 changes;
	u16 event_fd;
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

static int read_u64(u64 *value, const struct uverbs_attr_bundle *attrs, u16 id)
{
	return uverbs_attr_is_valid(attrs, id) ? uverbs_copy_from(value, attrs, id) : 0;
}

static bool is_word(u64 addr)
{
	return IS_ALIGNED(addr, sizeof(u64)) && addr == (unsigned long)addr;
}

/* @idle_ms: unless the application gives another time */
static int read_arming(struct umem_notify_arming *how, const struct uverbs_attr_bundle *attrs,
		       const struct arming_ids *ids, u32 idle_ms)
{
	u64 word, changes = 0;
	u32 flags;
	int ret;

	*how = (struct umem_notify_arming){ .event_fd = -1 };
	ret = uverbs_copy_from(&word, attrs, ids->word) ?:
	      read_u64(&changes, attrs, ids->changes) ?:
	      read_u64(&how->in_use, attrs, ids->in_use) ?:
	      uverbs_get_flags32(&flags, attrs, ids->flags,
				 IB_UVERBS_MR_NOTIFY_ARM_SUPPORTED_FLAGS);
	if (ret)
		return ret;
	if (!is_word(word) || !is_word(changes) || word == changes ||
	    (!changes && uverbs_attr_is_valid(attrs, ids->changes)))
		return -EINVAL;
	how->word = word;
	how->changes = changes;

	how->reclaim = flags & IB_UVERBS_MR_NOTIFY_ARM_RECLAIM;
	if (how->in_use & IB_UVERBS_MR_NOTIFY_KERNEL_MASK ||
	    (!how->in_use && (how->reclaim || uverbs_attr_is_valid(attrs, ids->in_use))))
		return -EINVAL;
	if (uverbs_attr_is_valid(attrs, ids->idle_ms)) {
		ret = uverbs_copy_from(&idle_ms, attrs, ids->idle_ms);
		if (ret)
			return ret;
		if (idle_ms && !how->reclaim)
			return -EINVAL;
	}
	how->idle_ms = how->reclaim ? idle_ms : 0;

	if (!uverbs_attr_is_valid(attrs, ids->event_fd))
		return 0;
	ret = uverbs_get_raw_fd(&how->event_fd, attrs, ids->event_fd);
	return !ret && how->event_fd < 0 ? -EBADF : ret;
}

static int arm(struct ib_mr *mr, const struct uverbs_attr_bundle *attrs,
	       const struct arming_ids *ids, u32 idle_ms)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	struct umem_notify_arming how;
	int ret;

	if (!umem)
		return -EOPNOTSUPP;
	ret = read_arming(&how, attrs, ids, idle_ms);
	if (ret)
		return ret;
	if (!is_own(umem))
		return -EINVAL;
	if (how.reclaim && !mr->device->ops.revoke_user_mr)
		return -EOPNOTSUPP;
	return umem_notify_arm(umem, mr, &how);
}

static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_ARM)(struct uverbs_attr_bundle *attrs)
{
	return arm(uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE), attrs, &arm_ids,
		   0);
}

static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_DISARM)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr =
		uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_DISARM_HANDLE);
	struct ib_umem *umem = umem_notify_umem(mr);

	return umem ? umem_notify_disarm(umem) : -EOPNOTSUPP;
}

static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_SETTLE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr =
		uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_SETTLE_HANDLE);
	struct ib_umem *umem = umem_notify_umem(mr);

	return umem ? umem_notify_settle(umem) : -EOPNOTSUPP;
}

static int UVERBS_HANDLER(UVERBS_METHOD_MR_NOTIFY_SUSPEND)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr =
		uverbs_attr_get_obj(attrs, UVERBS_ATTR_MR_NOTIFY_SUSPEND_HANDLE);
	struct ib_umem *umem = umem_notify_umem(mr);

	return umem ? umem_notify_suspend_now(umem) : -EOPNOTSUPP;
}

DECLARE_UVERBS_NAMED_METHOD(UVERBS_METHOD_MR_NOTIFY_ARM,
			    UVERBS_ATTR_IDR(UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE,
					    UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ,
					    UA_MANDATORY),
			    UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_ARM_WORD,
					       UVERBS_ATTR_TYPE(u64),
					       UA_MANDATORY),
			    UVERBS_ATTR_FLAGS_IN(UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS,
						 u32,
						 UA_OPTIONAL),
			    UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE,
					       UVERBS_ATTR_TYPE(u64),
					       UA_OPTIONAL),
			    UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_ARM_IDLE_MS,
					       UVERBS_ATTR_TYPE(u32),
					       UA_OPTIONAL),
			    UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_ARM_CHANGES,
					       UVERBS_ATTR_TYPE(u64),
					       UA_OPTIONAL),
			    UVERBS_ATTR_RAW_FD(UVERBS_ATTR_MR_NOTIFY_ARM_EVENT_FD,
					       UA_OPTIONAL));

DECLARE_UVERBS_NAMED_METHOD(UVERBS_METHOD_MR_NOTIFY_DISARM,
			    UVERBS_ATTR_IDR(UVERBS_ATTR_MR_NOTIFY_DISARM_HANDLE,
					    UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ,
					    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(UVERBS_METHOD_MR_NOTIFY_SETTLE,
			    UVERBS_ATTR_IDR(UVERBS_ATTR_MR_NOTIFY_SETTLE_HANDLE,
					    UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ,
					    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(UVERBS_METHOD_MR_NOTIFY_SUSPEND,
			    UVERBS_ATTR_IDR(UVERBS_ATTR_MR_NOTIFY_SUSPEND_HANDLE,
					    UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_READ,
					    UA_MANDATORY));

ADD_UVERBS_METHODS(mr_notify,
		   UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_ARM),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_DISARM),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_SETTLE),
		   &UVERBS_METHOD(UVERBS_METHOD_MR_NOTIFY_SUSPEND));

ADD_UVERBS_ATTRIBUTES_SIMPLE(mr_notify_reg,
			     UVERBS_OBJECT_DEVICE,
			     UVERBS_METHOD_INVOKE_WRITE,
			     UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_REG_WORD,
						UVERBS_ATTR_TYPE(u64),
						UA_OPTIONAL),
			     UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_REG_IN_USE,
						UVERBS_ATTR_TYPE(u64),
						UA_OPTIONAL),
			     UVERBS_ATTR_FLAGS_IN(UVERBS_ATTR_MR_NOTIFY_REG_FLAGS,
						  u32,
						  UA_OPTIONAL),
			     UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS,
						UVERBS_ATTR_TYPE(u32),
						UA_OPTIONAL),
			     UVERBS_ATTR_PTR_IN(UVERBS_ATTR_MR_NOTIFY_REG_CHANGES,
						UVERBS_ATTR_TYPE(u64),
						UA_OPTIONAL),
			     UVERBS_ATTR_RAW_FD(UVERBS_ATTR_MR_NOTIFY_REG_EVENT_FD,
						UA_OPTIONAL));

const struct uapi_definition uverbs_def_obj_mr_notify[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &mr_notify_reg),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &mr_notify,
				UAPI_DEF_OBJ_NEEDS_FN(dereg_mr)),
	{}
};

/**
 * ib_mr_notify_command - May a command have the attributes that arm?
 * @command: The command of UVERBS_METHOD_INVOKE_WRITE
 * @attrs: Its attributes
 *
 * All that means nothing today is refused, so that it can mean something later.
 *
 * Return: 0 or -EINVAL.
 */
int ib_mr_notify_command(u32 command, const struct uverbs_attr_bundle *attrs)
{
	bool word = uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_WORD);
	bool more = uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_IN_USE) ||
		    uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_FLAGS) ||
		    uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS) ||
		    uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_CHANGES) ||
		    uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_EVENT_FD);

	if (word)
		return command == IB_USER_VERBS_CMD_REG_MR ? 0 : -EINVAL;
	return more ? -EINVAL : 0;
}

/**
 * ib_mr_notify_track - Before a driver registers user memory
 * @context: The context that registers
 * @addr: Its address
 * @length: Its length
 * @access: The access flags; IB_UVERBS_ACCESS_TRACK, which is the core's own, is
 *	    taken out
 *
 * Return: The argument for ib_mr_notify_tracked(), even if the registration fails.
 */
struct ib_umem_notify *ib_mr_notify_track(struct ib_ucontext *context, u64 addr,
					  u64 length, u32 *access)
{
	bool track = *access & IB_UVERBS_ACCESS_TRACK && context->device->ops.mr_umem;

	*access &= ~IB_UVERBS_ACCESS_TRACK;
	return track ? umem_notify_track(context, addr, length) : NULL;
}

/**
 * ib_mr_notify_tracked - A driver has registered user memory, or failed to
 * @device: The device
 * @mr: The MR, of which no other thread knows yet, or ERR_PTR()
 * @tracker: Of ib_mr_notify_track()
 */
void ib_mr_notify_tracked(struct ib_device *device, struct ib_mr *mr,
			  struct ib_umem_notify *tracker)
{
	struct ib_umem *umem = NULL;

	if (!tracker)
		return;
	if (!IS_ERR(mr)) {
		mr->device = device; /* which rdma_mr_umem() asks; not all drivers set it */
		umem = pinned_umem(device, mr);
	}
	umem_notify_tracked(tracker, umem);
}

/**
 * ib_mr_notify_reg - Arm a new MR if its registration names a word
 * @mr: The MR, its uobject not visible to anybody yet
 * @attrs: The attributes that it is registered with
 *
 * Return: 0, or an error with which the registration fails: as for the method
 * that arms.
 */
int ib_mr_notify_reg(struct ib_mr *mr, struct uverbs_attr_bundle *attrs)
{
	if (!uverbs_attr_is_valid(attrs, UVERBS_ATTR_MR_NOTIFY_REG_WORD))
		return 0;
	return arm(mr, attrs, &reg_ids, IB_UVERBS_MR_NOTIFY_IDLE_MS);
}

/**
 * ib_mr_notify_dereg - Deregister an MR that may be armed
 * @why: The reason; unless it is a call of the process that registered it, the word
 *	 of an armed MR says INVALID
 * @mr: The MR, its uobject held exclusively
 * @udata: As for ib_dereg_mr_user()
 *
 * Another process may have the file: a forked child, or the receiver of a message. Its
 * owner goes on to look at the word.
 *
 * If the driver refuses (a memory window is bound to the MR), the MR stays
 * armed, unless its context or its device ends.
 *
 * Return: The result of ib_dereg_mr_user().
 */
int ib_mr_notify_dereg(enum rdma_remove_reason why, struct ib_mr *mr,
		       struct ib_udata *udata)
{
	struct ib_umem *umem = umem_notify_umem(mr);
	int ret;

	if (umem)
		umem_notify_hold(umem, why == RDMA_REMOVE_DESTROY && is_own(umem) ?
					       UMEM_NOTIFY_DEREG :
					       UMEM_NOTIFY_GONE);
	ret = ib_dereg_mr_user(mr, udata);
	if (!ret || !umem)
		return ret;
	/* A registration that can't be aborted is there as if nothing had failed. */
	if (why == RDMA_REMOVE_DESTROY || why == RDMA_REMOVE_ABORT)
		umem_notify_unhold(umem, mr);
	else
		umem_notify_abandon(umem);
	return ret;
}

/**
 * ib_mr_notify_hold - Before the driver re-registers an MR
 * @mr: The MR, its uobject held exclusively
 * @access: The new access flags; IB_UVERBS_ACCESS_TRACK is taken out
 */
void ib_mr_notify_hold(struct ib_mr *mr, u32 *access)
{
	struct ib_umem *umem = umem_notify_umem(mr);

	*access &= ~IB_UVERBS_ACCESS_TRACK;
	if (umem)
		umem_notify_hold(umem, is_own(umem) ? UMEM_NOTIFY_REREG :
						      UMEM_NOTIFY_GONE);
}

/**
 * ib_mr_notify_unhold - After the driver re-registered an MR, or failed to
 * @mr: The same MR, or the one that has taken its place and, as far as other
 *	access rights or another PD are concerned, its umem: that is still armed
 *	and revoked as ever. Another umem is not armed, and the word of the old
 *	one says INVALID.
 */
void ib_mr_notify_unhold(struct ib_mr *mr)
{
	struct ib_umem *umem = umem_notify_umem(mr);

	if (umem)
		umem_notify_unhold(umem, mr);
}
