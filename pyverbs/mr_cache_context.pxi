# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The registration cache: the methods of class Context. device.pyx includes this file
# before the class and names the methods in it.

cimport cython
from cpython.number cimport PyNumber_Index
from collections import namedtuple

MRCacheLimits = namedtuple('MRCacheLimits', 'max_bytes max_entries')
MRCacheStats = namedtuple('MRCacheStats', 'hits misses suspects invalidations evictions '
                                          'bytes entries suspensions restorations')


cdef context_check_open(Context context):
    if context.context == NULL:
        raise PyverbsUserError('The context is closed')


@cython.binding(True)
def context_reg_mr_limits(Context self not None, max_bytes=None, max_entries=None):
    """
    Return the limits of the context's registration cache, and change the given limits. Idle
    registrations beyond the new limits are evicted before the call returns. Registrations in use
    end with their last users. Thread safe, except for closing the context during the call. If two
    threads change different limits at the same time, one change may undo the other change.
    :param max_bytes: How many bytes the cache may register, an int; None: unchanged
    :param max_entries: How many registrations the cache may have, an int; None: unchanged
    :return: The previous limits, an MRCacheLimits(max_bytes, max_entries)
    :raises PyverbsRDMAError: error_code EOPNOTSUPP: the context has no cache (the device
                              has no IBV_DEVICE_MR_NOTIFY, or RDMAV_MR_CACHE=0 is set)
                              ENOMEM: too many contexts (1,024) have a cache
    :raises PyverbsUserError: the context is closed
    """
    cdef bint has_bytes = max_bytes is not None
    cdef bint has_entries = max_entries is not None
    cdef v.ibv_mr_cache_limits old
    cdef v.ibv_mr_cache_limits new
    new.max_bytes = PyNumber_Index(max_bytes) if has_bytes else 0
    new.max_entries = PyNumber_Index(max_entries) if has_entries else 0
    context_check_open(self)
    cdef int rc
    with nogil:
        rc = v.ibv_reg_mr_limits(self.context, NULL, &old)
    if rc == 0 and (has_bytes or has_entries):
        if not has_bytes:
            new.max_bytes = old.max_bytes
        if not has_entries:
            new.max_entries = old.max_entries
        with nogil:
            rc = v.ibv_reg_mr_limits(self.context, &new, NULL)
    if rc != 0:
        raise PyverbsRDMAError('Failed to access the limits of the MR cache', rc)
    return MRCacheLimits(old.max_bytes, old.max_entries)


@cython.binding(True)
def context_reg_mr_clean(Context self not None, keep_bytes=0):
    """
    Evict idle registrations of the context's cache, least recently used first. Their pages are
    unpinned when the call returns. Thread safe, except for closing the context during the call.
    :param keep_bytes: How many bytes of idle registrations may stay, an int
    :return: None
    :raises PyverbsRDMAError: error_code EOPNOTSUPP: the context has no cache, as above
                              other values: a registration could not be deregistered
    :raises PyverbsUserError: the context is closed
    """
    cdef size_t keep = PyNumber_Index(keep_bytes)
    context_check_open(self)
    cdef int rc
    with nogil:
        rc = v.ibv_reg_mr_clean(self.context, keep)
    if rc != 0:
        raise PyverbsRDMAError('Failed to clean the MR cache', rc)


@cython.binding(True)
def context_query_mr_cache(Context self not None):
    """
    Return the contents and counters of the context's registration cache. Each number is exact
    while no other thread registers. Thread safe, except for closing the context during the call.
    :return: An MRCacheStats of ints. These are counted since the context was opened:
             hits: requests that were answered without registering
             misses: registrations that the cache made
             suspects: suspect registrations that the kernel found intact
             invalidations: registrations dropped because their memory had changed
             evictions: idle registrations dropped to make room
             suspensions: idle registrations whose pages the kernel took back
             restorations: hits on suspended registrations, which were pinned again
             bytes, entries: what is registered now, in use, idle or suspended
    :raises PyverbsRDMAError: error_code EOPNOTSUPP: the context has no cache, as above
    :raises PyverbsUserError: the context is closed
    """
    context_check_open(self)
    cdef v.ibv_mr_cache_stats stats
    cdef int rc
    with nogil:
        rc = v.ibv_query_mr_cache(self.context, &stats)
    if rc != 0:
        raise PyverbsRDMAError('Failed to query the MR cache', rc)
    return MRCacheStats(stats.hits, stats.misses, stats.suspects, stats.invalidations,
                        stats.evictions, stats.bytes, stats.entries, stats.suspensions,
                        stats.restorations)
