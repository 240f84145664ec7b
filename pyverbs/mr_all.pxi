# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# All memory of the process as one MR. mr_notify.pxi includes this file.

cimport cython
from cpython.number cimport PyNumber_Index


@cython.binding(True)
def register_mr_all(PD pd not None, access):
    """
    Register all memory of this process, mapped now or later. An address in the MR is an
    address of the process. With a remote right, each peer that has the key can access all
    of this memory.
    Thread safe, except for closing the PD or its context during the call.
    :param pd: The PD
    :param access: Access rights, see ibv_access_flags; on demand is implied
    :return: The MR. It has no buffer: read() and write() do not work
    :raises PyverbsRDMAError: error_code EOPNOTSUPP: the device has no
                              _IBV_DEVICE_MR_ALL, or not with these rights
                              EINVAL: rights that exclude each other
                              ENOMEM: out of memory
                              EAGAIN: a limit allows no further thread of the process
    :raises PyverbsUserError: the PD is closed
    """
    cdef int rights = PyNumber_Index(access)
    if pd.pd == NULL:
        raise PyverbsUserError('The PD is closed')
    cdef v.ibv_pd *of = pd.pd
    cdef v.ibv_mr *mr
    with nogil:
        mr = v.ibv_register_mr_all(of, rights)
    if mr == NULL:
        raise PyverbsRDMAErrno('Failed to register all memory')
    cdef MR everything = MR.__new__(MR)
    everything.mr = mr
    # If `mr` is set, the constructor does not register.
    MR.__init__(everything, pd)
    everything.is_user_addr = True
    everything.pd = pd
    pd.add_ref(everything)
    return everything
