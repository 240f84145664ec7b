# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The constants of MR notification. libibverbs_enums.pxd includes this file.

cdef extern from '<infiniband/mr_notify.h>':
    cpdef enum ibv_mr_notify_bits:
        IBV_MR_NOTIFY_INVALID
        IBV_MR_NOTIFY_SUSPECT
        IBV_MR_NOTIFY_SUSPENDED
        IBV_MR_NOTIFY_KERNEL_MASK

    cpdef enum ibv_mr_notify_attr_mask:
        IBV_MR_NOTIFY_ATTR_IN_USE
        IBV_MR_NOTIFY_ATTR_CHANGES
        IBV_MR_NOTIFY_ATTR_EVENT_FD
        IBV_MR_NOTIFY_ATTR_IDLE_MS

    cdef unsigned long long IBV_DEVICE_MR_REVOKE
    cdef unsigned long long IBV_DEVICE_MR_RECLAIM

_IBV_DEVICE_MR_REVOKE = IBV_DEVICE_MR_REVOKE
_IBV_DEVICE_MR_RECLAIM = IBV_DEVICE_MR_RECLAIM

cdef extern from '<infiniband/mr_all.h>':
    cdef unsigned long long IBV_DEVICE_MR_ALL

_IBV_DEVICE_MR_ALL = IBV_DEVICE_MR_ALL

include "mr_cache_enums.pxi"
