/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The interface of MR notification. The RDMA core calls these functions when it
 * registers, re-registers or destroys an MR, releases a umem, or reads the
 * capability bits. Drivers call these functions to show the counters of a device
 * and the state of an MR.
 * Without CONFIG_INFINIBAND_MR_NOTIFY the functions do nothing.
 */
#ifndef IB_UMEM_NOTIFY_H
#define IB_UMEM_NOTIFY_H

#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_user_mr_notify.h>
#include <rdma/uverbs_ioctl.h>

/*
 * The counters of a device. In the statistics of a port the quoted names have the
 * prefix "mr_notify_". ARMED is a gauge; the other counters only grow.
 */
enum ib_mr_notify_stat {
	IB_MR_NOTIFY_STAT_ARMED, /* "armed": MRs that are armed now */
	IB_MR_NOTIFY_STAT_ARMS, /* "arms": how often an MR was armed */
	IB_MR_NOTIFY_STAT_SUSPECT, /* "suspect": how often an event made an MR SUSPECT */
	IB_MR_NOTIFY_STAT_INTACT, /* "intact": comparisons that found all pages unchanged */
	IB_MR_NOTIFY_STAT_INVALID, /* "invalid": registrations that became INVALID */
	IB_MR_NOTIFY_STAT_SETTLES, /* "settles": calls of the settle method */
	IB_MR_NOTIFY_STAT_REVOKES, /* "revokes": how often an MR was revoked */
	IB_MR_NOTIFY_STAT_PAGES, /* "pages_returned": pages that revokes unpinned */
	IB_MR_NOTIFY_STAT_SUSPENSIONS, /* "suspensions": idle MRs whose pages the VM took */
	IB_MR_NOTIFY_STAT_RESTORES, /* "restores": suspended MRs that got pages again */
	IB_MR_NOTIFY_STATS,
};

/* Unpins the pages of a umem that stays allocated; defined in umem.c. */
void ib_umem_give_back(struct ib_umem *umem);

#ifdef CONFIG_INFINIBAND_MR_NOTIFY

bool ib_umem_untrack(struct ib_umem *umem);
bool ib_umem_is_revoked(struct ib_umem *umem);
void ib_umem_lost(struct ib_umem *umem);
int ib_umem_notify_init(void);
void ib_umem_notify_exit(void);

int ib_mr_notify_command(u32 command, const struct uverbs_attr_bundle *attrs);
void ib_mr_notify_close(struct ib_ucontext *context);
struct ib_umem_notify *ib_mr_notify_track(struct ib_ucontext *context, u64 addr,
					  u64 length, u32 *access);
void ib_mr_notify_tracked(struct ib_device *device, struct ib_mr *mr,
			  struct ib_umem_notify *tracker);
int ib_mr_notify_reg(struct ib_mr *mr, struct uverbs_attr_bundle *attrs);
int ib_mr_notify_dereg(enum rdma_remove_reason why, struct ib_mr *mr,
		       struct ib_udata *udata);
void ib_mr_notify_hold(struct ib_mr *mr, u32 *access);
void ib_mr_notify_unhold(struct ib_mr *mr);

extern const struct uapi_definition uverbs_def_obj_mr_notify[];

void ib_mr_notify_read_stats(struct ib_device *device, u64 *values);

/**
 * ib_mr_notify_caps - The capability bits of a device
 * @device: The device
 *
 * Return: These bits:
 * * IB_UVERBS_DEVICE_MR_NOTIFY if user MRs of the device can be armed
 * * IB_UVERBS_DEVICE_MR_REVOKE if the MRs can also be revoked
 * * IB_UVERBS_DEVICE_MR_RECLAIM if revoked MRs can also be restored
 */
static inline u64 ib_mr_notify_caps(const struct ib_device *device)
{
	const struct ib_device_ops *ops = &device->ops;

	if (!ops->mr_umem)
		return 0;
	if (!ops->revoke_user_mr)
		return IB_UVERBS_DEVICE_MR_NOTIFY;
	return IB_UVERBS_DEVICE_MR_NOTIFY | IB_UVERBS_DEVICE_MR_REVOKE |
	       (ops->restore_user_mr ? IB_UVERBS_DEVICE_MR_RECLAIM : 0);
}

#else

static const struct uapi_definition uverbs_def_obj_mr_notify[] = { {} };

static inline bool ib_umem_untrack(struct ib_umem *umem)
{
	return false;
}

static inline bool ib_umem_is_revoked(struct ib_umem *umem)
{
	return false;
}

static inline void ib_umem_lost(struct ib_umem *umem)
{
}

static inline int ib_umem_notify_init(void)
{
	return 0;
}

static inline void ib_umem_notify_exit(void)
{
}

static inline int ib_mr_notify_command(u32 command,
				       const struct uverbs_attr_bundle *attrs)
{
	return 0;
}

static inline void ib_mr_notify_close(struct ib_ucontext *context)
{
}

static inline struct ib_umem_notify *
ib_mr_notify_track(struct ib_ucontext *context, u64 addr, u64 length, u32 *access)
{
	return NULL;
}

static inline void ib_mr_notify_tracked(struct ib_device *device, struct ib_mr *mr,
					struct ib_umem_notify *tracker)
{
}

static inline int ib_mr_notify_reg(struct ib_mr *mr,
				   struct uverbs_attr_bundle *attrs)
{
	return 0;
}

static inline int ib_mr_notify_dereg(enum rdma_remove_reason why,
				     struct ib_mr *mr, struct ib_udata *udata)
{
	return ib_dereg_mr_user(mr, udata);
}

static inline void ib_mr_notify_hold(struct ib_mr *mr, u32 *access)
{
}

static inline void ib_mr_notify_unhold(struct ib_mr *mr)
{
}

static inline void ib_mr_notify_read_stats(struct ib_device *device,
					   u64 *values)
{
}

static inline u64 ib_mr_notify_caps(const struct ib_device *device)
{
	return 0;
}

#endif /* CONFIG_INFINIBAND_MR_NOTIFY */
#endif /* IB_UMEM_NOTIFY_H */
