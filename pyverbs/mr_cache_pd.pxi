# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The registration cache: the method of class PD. pd.pyx includes this file before the
# class and names the method in it.

cimport cython
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint64_t


@cython.binding(True)
def pd_is_reg(PD self not None, address, length, access):
    """
    Does a valid cached registration in this PD cover the range and allow the access? The
    answer may be out of date when the caller gets it. Without a cache it is False. Thread
    safe, except for closing the PD or its context during the call.
    :param address: Start of the range, an int
    :param length: Length of the range in bytes
    :param access: Access flags as for an MR, with or without IBV_ACCESS_CACHED
    :return: True or False
    :raises PyverbsUserError: the PD is closed
    """
    cdef uint64_t start = PyNumber_Index(address)
    cdef size_t size = PyNumber_Index(length)
    cdef unsigned int rights = PyNumber_Index(access)
    if self.pd == NULL:
        raise PyverbsUserError('The PD is closed')
    cdef v.ibv_pd *pd = self.pd
    cdef bint covered
    # The call may ask the kernel, and the kernel may wait for a page.
    with nogil:
        covered = v.ibv_is_reg(pd, <const void *><uintptr_t>start, size, rights)
    return covered
