# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The registration cache: the method of class MR. mr_notify.pxi includes this file.

cimport cython
from libc.errno cimport EBUSY


@cython.binding(True)
def mr_forget(MR self not None):
    """
    Close this MR, and keep nothing of it in the registration cache: close() leaves a
    cached registration there, and its keys go on working. One that is not cached is
    deregistered as ever. A subclass's close() is called only for a DmaBufMR. Thread safe,
    but for other methods of this MR than close() and forget(), and closing its PD or
    context, meanwhile.
    :return: True: neither the device nor a peer has access by its keys any more.
             False: others use the same registration; it is found no more, and ends with
             the last of them. This MR is closed in both cases.
    :raises PyverbsRDMAError: it can't be deregistered (error_code); it is open still
    :raises PyverbsUserError: the MR is closed, or imported
    """
    mr_check_open(self)
    if self._is_imported:
        raise PyverbsUserError('An imported MR is not deregistered here')
    # Never cached, and its close() does not ask whether it is imported.
    if isinstance(self, DmaBufMR):
        self.close()
        return True
    cdef v.ibv_mr *mr = self.mr
    cdef void *buf = self.buf
    cdef int rc
    # A close() by another thread meanwhile, of its PD say, finds nothing to deregister.
    self.mr = NULL
    with nogil:
        rc = v.ibv_forget_mr(mr)
    if rc != 0 and rc != EBUSY:
        self.mr = mr
        raise PyverbsRDMAError('Failed to forget MR', rc)
    self.buf = NULL
    if not self.is_user_addr:
        if self.is_huge:
            munmap(buf, self.mmap_length)
        else:
            free(buf)
    mr_free_notify_word(self)
    self.pd = None
    self.cmid = None
    return rc == 0
