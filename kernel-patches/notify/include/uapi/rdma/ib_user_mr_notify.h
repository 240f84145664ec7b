/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Linux-OpenIB) */
/*
 * The user ABI of MR notification:
 *  - four methods of UVERBS_OBJECT_MR
 *  - attributes that arm an MR when it is registered
 *  - the bits that the kernel sets in the notification word
 *  - the access bit that starts tracking before pinning
 *  - three device capability bits
 *
 * The method ids are at the top of the core range (0..20), so a kernel or
 * library without the feature refuses the methods. No kernel has used the bits
 * for another purpose.
 */
#ifndef IB_USER_MR_NOTIFY_H
#define IB_USER_MR_NOTIFY_H

enum uverbs_methods_mr_notify {
	UVERBS_METHOD_MR_NOTIFY_SUSPEND = 17,
	UVERBS_METHOD_MR_NOTIFY_ARM = 18,
	UVERBS_METHOD_MR_NOTIFY_DISARM = 19,
	UVERBS_METHOD_MR_NOTIFY_SETTLE = 20,
};

enum uverbs_attrs_mr_notify_arm_ids {
	UVERBS_ATTR_MR_NOTIFY_ARM_HANDLE,
	UVERBS_ATTR_MR_NOTIFY_ARM_WORD,
	UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS,
	/*
	 * u64, optional: the bits of the word that count its users. The kernel
	 * sets INVALID whether the word has users or not, but the device keeps
	 * the pages while one of these bits is set. EINVAL if the value is 0, or
	 * has a bit that belongs to the kernel.
	 */
	UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE,
	/*
	 * u32, optional: the idle time in milliseconds. The kernel suspends the registration
	 * one to two idle times after its last use. If the value is 0 or missing, there is no
	 * idle time. Values below 20 ms and above 1000 s are rounded to these limits. EINVAL if
	 * the value is not 0 and IB_UVERBS_MR_NOTIFY_ARM_RECLAIM is missing.
	 */
	UVERBS_ATTR_MR_NOTIFY_ARM_IDLE_MS,
	/*
	 * u64, optional: the user address of a counter of eight bytes. The kernel adds 1 after
	 * it has set INVALID in the word. MRs may share a counter. EINVAL if the counter is the
	 * word of this MR, EBUSY if it is the word of another MR.
	 */
	UVERBS_ATTR_MR_NOTIFY_ARM_CHANGES,
	/*
	 * Optional: an eventfd(2). The kernel adds 1 soon after it has set INVALID. EBADF if the
	 * file is not open, EINVAL if the file is not an eventfd.
	 */
	UVERBS_ATTR_MR_NOTIFY_ARM_EVENT_FD,
};

enum uverbs_attrs_mr_notify_disarm_ids {
	UVERBS_ATTR_MR_NOTIFY_DISARM_HANDLE,
};

enum uverbs_attrs_mr_notify_settle_ids {
	UVERBS_ATTR_MR_NOTIFY_SETTLE_HANDLE,
};

enum uverbs_attrs_mr_notify_suspend_ids {
	UVERBS_ATTR_MR_NOTIFY_SUSPEND_HANDLE,
};

/* Attributes of UVERBS_METHOD_INVOKE_WRITE, with IB_USER_VERBS_CMD_REG_MR. */
enum uverbs_attrs_mr_notify_reg_ids {
	/* u64: the user address of the word with which the new MR is armed. */
	UVERBS_ATTR_MR_NOTIFY_REG_WORD = 3,
	/* u64, optional: as UVERBS_ATTR_MR_NOTIFY_ARM_IN_USE. */
	UVERBS_ATTR_MR_NOTIFY_REG_IN_USE = 4,
	/* u32, optional: as UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS. (The id 5 was never used.) */
	UVERBS_ATTR_MR_NOTIFY_REG_FLAGS = 6,
	/*
	 * u32, optional: as UVERBS_ATTR_MR_NOTIFY_ARM_IDLE_MS, but if the attribute is missing,
	 * the idle time is IB_UVERBS_MR_NOTIFY_IDLE_MS.
	 */
	UVERBS_ATTR_MR_NOTIFY_REG_IDLE_MS = 7,
	/* u64, optional: as UVERBS_ATTR_MR_NOTIFY_ARM_CHANGES. */
	UVERBS_ATTR_MR_NOTIFY_REG_CHANGES = 8,
	/* Optional: as UVERBS_ATTR_MR_NOTIFY_ARM_EVENT_FD. */
	UVERBS_ATTR_MR_NOTIFY_REG_EVENT_FD = 9,
};

#define IB_UVERBS_MR_NOTIFY_IDLE_MS 1000

/* Flags of UVERBS_ATTR_MR_NOTIFY_ARM_FLAGS. */
enum ib_uverbs_mr_notify_arm_flags {
	/*
	 * While all IN_USE bits are 0, the kernel may take the pages back
	 * (SUSPENDED). EINVAL if there are no IN_USE bits, EOPNOTSUPP if the
	 * device can't be revoked.
	 */
	IB_UVERBS_MR_NOTIFY_ARM_RECLAIM = 1 << 0,
	IB_UVERBS_MR_NOTIFY_ARM_SUPPORTED_FLAGS =
		IB_UVERBS_MR_NOTIFY_ARM_RECLAIM,
};

/*
 * Bits of the notification word that belong to the kernel
 * (IB_UVERBS_MR_NOTIFY_KERNEL_MASK). The kernel never changes the other bits.
 */
enum ib_uverbs_mr_notify_bits {
	/* Final: the range no longer maps the pages that were registered. */
	IB_UVERBS_MR_NOTIFY_INVALID = 1 << 0,
	/* The range may no longer map these pages. The settle method compares them. */
	IB_UVERBS_MR_NOTIFY_SUSPECT = 1 << 1,
	/*
	 * The registration was idle, and the kernel unpinned its pages. The
	 * settle method pins the pages that the range maps at that time.
	 */
	IB_UVERBS_MR_NOTIFY_SUSPENDED = 1 << 2,
	IB_UVERBS_MR_NOTIFY_KERNEL_MASK = 0xff,
};

/*
 * An access flag in the optional range (IB_UVERBS_ACCESS_OPTIONAL_RANGE):
 * start tracking this registration before its pages are pinned, so that the cost
 * of arming it later does not depend on its size. Older kernels ignore the flag.
 */
#define IB_UVERBS_ACCESS_TRACK (1 << 28)

/*
 * Bits of device_cap_flags. NOTIFY: user MRs of the device can be armed. REVOKE: the
 * kernel can end the device's access to an MR. RECLAIM: the kernel can give other
 * pages to such an MR, under the same keys. REVOKE and RECLAIM are in
 * device_cap_flags_ex only.
 */
#define IB_UVERBS_DEVICE_MR_NOTIFY (1ULL << 28)
#define IB_UVERBS_DEVICE_MR_REVOKE (1ULL << 60)
#define IB_UVERBS_DEVICE_MR_RECLAIM (1ULL << 61)

#endif /* IB_USER_MR_NOTIFY_H */
