# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The access flag of the registration cache. mr_notify_enums.pxi includes this file. The flag is not
# in ibv_access_flags, because test_mr.py and other tests combine all values of ibv_access_flags for
# plain registrations.

cdef extern from '<infiniband/mr_cache.h>':
    cpdef enum:
        IBV_ACCESS_CACHED
