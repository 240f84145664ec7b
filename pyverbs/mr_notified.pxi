# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# MR notification: the class NotifiedMR. mr.pyx includes this file after class MR.


cdef class NotifiedMR(MR):
    """
    An MR that is armed when it is registered, in one system call. It has the methods and
    notify_word of an MR after reg_notify().
    """
    def __init__(self, PD pd not None, length, access, address=None, iova=None, value=0,
                 in_use=None, changes=None, event_fd=None, idle_ms=None):
        """
        Allocate a buffer, or use memory of the caller, and register it.
        :param pd: A PD
        :param length: The number of bytes, an int
        :param access: Access flags, see ibv_access_flags; the MR is never cached
        :param address: The address of the memory, an int. None: the MR allocates a buffer,
                        and frees it when it is closed.
        :param iova: The address of the first byte for the device, an int. None: the address of
                     the memory.
        :param value, in_use, changes, event_fd, idle_ms: As for reg_notify()
        :raises PyverbsRDMAErrno: as for an MR, or as for reg_notify(); nothing is registered
        :raises PyverbsUserError, OverflowError, TypeError: as reg_notify()
        :raises PyverbsError: no memory for the buffer
        """
        cdef v.ibv_mr_notify_attr attr
        cdef v.mr_notify_word start = PyNumber_Index(value)
        cdef size_t size = length
        cdef unsigned int flags = access
        cdef uint64_t first = 0
        cdef v.ibv_pd *parent
        cdef v.ibv_mr *mr
        mr_fill_notify_attr(&attr, start, in_use, changes, event_fd, idle_ms)
        if address is not None:
            self.is_user_addr = True
            self.buf = <void*><uintptr_t>address
        elif posix_memalign(&self.buf, resource.getpagesize(), size):
            self.buf = NULL
            raise PyverbsError(f'Failed to allocate MR buffer of size {length}')
        else:
            memset(self.buf, 0, size)
        try:
            first = <uintptr_t>self.buf if iova is None else PyNumber_Index(iova)
            if pd.pd == NULL:
                raise PyverbsUserError('The PD is closed')
            parent = pd.pd
            attr.word = mr_alloc_notify_word(parent.context, start)
            with nogil:
                mr = v.ibv_reg_notified_mr(parent, self.buf, size, first, flags, &attr)
            if mr == NULL:
                error = PyverbsRDMAErrno('Failed to register a notified MR')
                mr_release_word(attr.word)
                raise error
        except BaseException:
            if not self.is_user_addr:
                free(self.buf)
            self.buf = NULL
            raise
        self.mr = mr
        self._notify_word = attr.word
        self._notify_changes = changes
        super().__init__(pd)
        self.is_huge = False
        self.pd = pd
        pd.add_ref(self)
