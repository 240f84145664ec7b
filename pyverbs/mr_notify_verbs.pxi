# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The verbs of MR notification, and atomic access to a word that the kernel changes at any
# time. libibverbs.pxd includes this file.

ctypedef uint64_t mr_notify_word

include "mr_cache_verbs.pxi"

cdef extern from 'infiniband/mr_all.h':
    ibv_mr *ibv_register_mr_all(ibv_pd *pd, int access) nogil

cdef extern from 'infiniband/mr_notify.h':
    cdef struct ibv_mr_notify_attr:
        uint64_t comp_mask
        mr_notify_word *word
        uint64_t in_use
        mr_notify_word *changes
        int event_fd
        uint32_t idle_ms

    ibv_mr *ibv_reg_notified_mr(ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                unsigned int access, const ibv_mr_notify_attr *attr) nogil
    int ibv_reg_mr_notify_ex(ibv_mr *mr, const ibv_mr_notify_attr *attr) nogil
    int ibv_suspend_mr_notify(ibv_mr *mr) nogil
    mr_notify_word *ibv_alloc_notify_word(ibv_context *context) nogil
    void ibv_free_notify_word(mr_notify_word *word) nogil
    int ibv_reg_mr_notify(ibv_mr *mr, mr_notify_word *word) nogil
    int ibv_reg_mr_notify_reclaim(ibv_mr *mr, mr_notify_word *word, mr_notify_word in_use) nogil
    int ibv_unreg_mr_notify(ibv_mr *mr) nogil
    int ibv_settle_mr_notify(ibv_mr *mr) nogil

cdef extern from *:
    """
    static inline uint64_t mr_notify_word_load(void *word)
    {
        return __atomic_load_n((uint64_t *)word, __ATOMIC_ACQUIRE);
    }

    /* Replaces the application's bits. Bits that the kernel sets at the same time stay. */
    static inline void mr_notify_word_store(void *word, uint64_t value)
    {
        uint64_t old = __atomic_load_n((uint64_t *)word, __ATOMIC_RELAXED);

        while (!__atomic_compare_exchange_n((uint64_t *)word, &old,
                    (value & ~(uint64_t)0xff) | (old & 0xff), 0,
                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
    }

    static inline uint64_t mr_notify_word_add(void *word, uint64_t delta)
    {
        return __atomic_fetch_add((uint64_t *)word, delta, __ATOMIC_ACQ_REL);
    }
    """
    uint64_t mr_notify_word_load(void *word) nogil
    void mr_notify_word_store(void *word, uint64_t value) nogil
    uint64_t mr_notify_word_add(void *word, uint64_t delta) nogil
