# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The verbs of the registration cache. mr_notify_verbs.pxi includes this file.

cdef extern from 'infiniband/mr_cache.h':
    cdef struct ibv_mr_cache_limits:
        uint64_t max_bytes
        uint64_t max_entries

    cdef struct ibv_mr_cache_stats:
        uint64_t hits
        uint64_t misses
        uint64_t suspects
        uint64_t invalidations
        uint64_t evictions
        uint64_t bytes
        uint64_t entries
        uint64_t suspensions
        uint64_t restorations

    bint ibv_is_reg(ibv_pd *pd, const void *addr, size_t length, unsigned int access) nogil
    int ibv_forget_mr(ibv_mr *mr) nogil
    int ibv_reg_mr_limits(ibv_context *context, ibv_mr_cache_limits *new_limits,
                          ibv_mr_cache_limits *old_limits) nogil
    int ibv_reg_mr_clean(ibv_context *context, size_t keep_bytes) nogil
    int ibv_query_mr_cache(ibv_context *context, ibv_mr_cache_stats *stats) nogil
