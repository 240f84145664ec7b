# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# The registration cache: the method of class MR. mr_notify.pxi includes this file.

cimport cython
from libc.errno cimport EBUSY


@cython.binding(True)
def mr_forget(MR self not None):
    """
    Close this MR and remove its registration from the registration cache. (close() alone leaves a
    cached registration there, with usable keys.) An MR that is not cached is only deregistered.
    For a DmaBufMR forget() calls close(), even the close() of a subclass. For other MRs forget()
    does not call close(). Thread safe, but during the call no other thread may close the PD or
    context of the MR. The only methods of the MR that another thread may call are close() and
    forget().
    :return: True: the device and peers have no access by the keys of the MR any more.
             False: the registration has other users. No request finds it any more, and it
             ends with its last user. This MR is closed in both cases.
    :raises PyverbsRDMAError: the MR can't be deregistered (error_code), and is still open
    :raises PyverbsUserError: the MR is closed, or imported
    """
    mr_check_open(self)
    if self._is_imported:
        raise PyverbsUserError('An imported MR is not deregistered here')
    # A DmaBufMR is never cached, and its close() does not check for an import.
    if isinstance(self, DmaBufMR):
        self.close()
        return True
    cdef v.ibv_mr *mr = self.mr
    cdef void *buf = self.buf
    cdef int rc
    # If another thread closes the MR (or its PD) now, that thread finds nothing to deregister.
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
