# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
# MR notification: the class NotifyWord and the methods of class MR. mr.pyx includes this file
# before class MR and names the methods in it.
#
# reg_notify() allocates the word of an MR by ibv_alloc_notify_word(). close() frees the word after
# the MR is gone.

# A method that converts an argument may run code of the application (__index__). This code may
# close the object. So methods first convert, and then check whether the object is open.

cimport cython
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uint64_t

from pyverbs.device cimport Context

include "mr_all.pxi"
include "mr_cache_mr.pxi"

MR_NOTIFY_WORD_DOC = """
The current value of the word, an int: bits 0-7 (IBV_MR_NOTIFY_KERNEL_MASK) belong to the
kernel (see ibv_mr_notify_bits), bits 8-63 to the application. Assigning changes the
application's bits only. The word can also be read after unreg_notify(), until close().
Reading and assigning are atomic and take no system call. += and -= are a read and an
assignment: they lose changes between the two, and raise an error if the kernel has set a bit.
To count, use add_notify().
Raises PyverbsUserError if the MR has no word (before reg_notify(), after close()), and
if an assigned value has kernel bits.
"""


cdef class NotifyWord:
    """
    A counter of the library, for the changes argument of reg_notify() and NotifiedMR. When
    the word of an MR with this counter becomes INVALID, the kernel adds 1. An MR keeps its
    NotifyWord until the MR is closed.
    """
    cdef uint64_t *word

    def __init__(self, Context context not None):
        """
        :param context: An open Context
        :raises PyverbsRDMAErrno: no memory
        :raises PyverbsUserError: the context is closed
        """
        if context.context == NULL:
            raise PyverbsUserError('The context is closed')
        cdef v.ibv_context *opened = context.context
        with nogil:
            self.word = v.ibv_alloc_notify_word(opened)
        if self.word == NULL:
            raise PyverbsRDMAErrno('Failed to allocate a notification word')

    def __dealloc__(self):
        with nogil:
            v.ibv_free_notify_word(self.word)

    @property
    def value(self):
        """
        The current value, an int. Reading it is atomic and takes no system call.
        """
        if self.word == NULL:
            raise PyverbsUserError('The word is not allocated')
        return v.mr_notify_word_load(self.word)


cdef mr_check_open(MR mr):
    if mr.mr == NULL:
        raise PyverbsUserError('The MR is closed')


cdef mr_check_word(MR mr):
    if mr._notify_word == NULL:
        raise PyverbsUserError('The MR has no notification word')


cdef mr_check_application_bits(value):
    if value & e.IBV_MR_NOTIFY_KERNEL_MASK:
        raise PyverbsUserError(f'Bits 0-7 of {value:#x} belong to the kernel')


cdef mr_release_word(v.mr_notify_word *word):
    with nogil:
        v.ibv_free_notify_word(word)


cdef mr_free_notify_word(MR mr):
    mr_release_word(<v.mr_notify_word *>mr._notify_word)
    mr._notify_word = NULL
    mr._notify_changes = None


cdef v.mr_notify_word *mr_alloc_notify_word(v.ibv_context *context,
                                            v.mr_notify_word value) except NULL:
    cdef v.mr_notify_word *word
    with nogil:
        word = v.ibv_alloc_notify_word(context)
    if word == NULL:
        raise PyverbsError('Failed to allocate a notification word')
    v.mr_notify_word_store(word, value)
    return word


cdef int mr_fill_notify_attr(v.ibv_mr_notify_attr *attr, value, in_use, changes, event_fd,
                             idle_ms) except -1:
    mr_check_application_bits(value)
    attr.comp_mask = 0
    if in_use is not None:
        attr.comp_mask |= e.IBV_MR_NOTIFY_ATTR_IN_USE
        attr.in_use = PyNumber_Index(in_use)
    if changes is not None:
        if not isinstance(changes, NotifyWord):
            raise TypeError('changes is not a NotifyWord')
        attr.comp_mask |= e.IBV_MR_NOTIFY_ATTR_CHANGES
        attr.changes = (<NotifyWord>changes).word
    if event_fd is not None:
        attr.comp_mask |= e.IBV_MR_NOTIFY_ATTR_EVENT_FD
        attr.event_fd = PyNumber_Index(event_fd)
    if idle_ms is not None:
        attr.comp_mask |= e.IBV_MR_NOTIFY_ATTR_IDLE_MS
        attr.idle_ms = PyNumber_Index(idle_ms)
    return 0


@cython.binding(True)
def mr_reg_notify(MR self not None, value=0, in_use=None, changes=None, event_fd=None,
                  idle_ms=None):
    """
    Have the kernel set a bit in notify_word when this registration becomes invalid. If a system
    call of any thread takes the memory away, the word is non-zero before the end of the call. If
    the memory has already changed, the word says INVALID when this returns. close() ends the
    notification. Thread safe, but during the call no other thread may call unreg_notify(), close()
    or forget() of the MR, or close its PD or context.
    :param value: The word's first value, an int; bits 0-7 must be 0
    :param in_use: The bits of the word that count users, an int. While all are 0, the
                   kernel may unpin the pages (IBV_MR_NOTIFY_SUSPENDED), and settle_notify()
                   pins pages again. None: the kernel keeps the pages pinned.
    :param changes: A NotifyWord of this process. When the word has become INVALID, the kernel
                    adds 1, before the end of the call that takes the memory away. MRs may
                    share a NotifyWord.
    :param event_fd: An eventfd, an int. The kernel adds 1 soon after INVALID. The eventfd may be
                     closed after this call.
    :param idle_ms: The idle time in milliseconds, an int, only with in_use. When the MR was idle
                    for one to two idle times, the kernel unpins it. None or 0: no idle time.
    :return: None
    :raises PyverbsRDMAError: with this error_code, and nothing has changed:
        EOPNOTSUPP: the kernel, the driver or this kind of MR has no support (see
                    IBV_DEVICE_MR_NOTIFY in device_cap_flags); the device can't revoke
                    (only with in_use); or the kernel lacks changes, event_fd or idle_ms
        EBUSY: the MR has a word already, its registration has other users
               (RDMAV_MR_CACHE), or another thread re-registers it
        EINVAL: the MR was registered by another process; in_use is 0 or has bits 0-7;
                idle_ms without in_use; or event_fd is not an eventfd
        EBADF: event_fd is not open
        EIO: the device was removed
        ENOMEM: out of memory, or over RLIMIT_MEMLOCK (the word's page is pinned)
    :raises PyverbsUserError: value has kernel bits, or the MR is closed
    :raises PyverbsError: no memory for the word
    :raises OverflowError, TypeError: value or in_use is not an unsigned 64-bit int
    """
    cdef v.ibv_mr_notify_attr attr
    cdef v.mr_notify_word start = PyNumber_Index(value)
    mr_fill_notify_attr(&attr, start, in_use, changes, event_fd, idle_ms)
    mr_check_open(self)
    cdef v.ibv_mr *mr = self.mr
    cdef int rc
    attr.word = mr_alloc_notify_word(mr.context, start)
    with nogil:
    # An older library may lack ibv_reg_mr_notify_ex(), so use an older verb if it is enough.
        if not attr.comp_mask:
            rc = v.ibv_reg_mr_notify(mr, attr.word)
        elif attr.comp_mask == e.IBV_MR_NOTIFY_ATTR_IN_USE:
            rc = v.ibv_reg_mr_notify_reclaim(mr, attr.word, attr.in_use)
        else:
            rc = v.ibv_reg_mr_notify_ex(mr, &attr)
    if rc != 0:
        mr_release_word(attr.word)
        raise PyverbsRDMAError('Failed to register MR notification', rc)
    # The kernel no longer touches the word of an earlier notification, which has ended.
    mr_free_notify_word(self)
    self._notify_word = attr.word
    self._notify_changes = changes


@cython.binding(True)
def mr_unreg_notify(MR self not None):
    """
    Stop the notification. The word keeps its last value. reg_notify() may begin a new notification.
    If the registration is suspended, the call first restores it like settle_notify(). Thread safe,
    but during the call no other thread may call reg_notify(), close() or forget() of the MR, or
    close its PD or context.
    :return: None
    :raises PyverbsRDMAError: with this error_code, and nothing has changed:
        EINVAL: the MR has no notification, or another process registered it
        EAGAIN, ENOMEM: as for settle_notify(), if it is suspended
        EBUSY: another thread re-registers it
        EIO, EOPNOTSUPP: as for reg_notify()
    :raises PyverbsUserError: the MR is closed
    """
    mr_check_open(self)
    cdef v.ibv_mr *mr = self.mr
    cdef int rc
    with nogil:
        rc = v.ibv_unreg_mr_notify(mr)
    if rc != 0:
        raise PyverbsRDMAError('Failed to unregister MR notification', rc)


@cython.binding(True)
def mr_settle_notify(MR self not None):
    """
    Find out whether a suspect registration is intact, and restore a suspended registration with the
    pages that its range maps now. Afterwards the kernel's bits of the word are INVALID or 0. This
    covers all events before the call. An event during the call may make the word SUSPECT again, the
    kernel may suspend an idle MR again, and shared huge pages may leave the word SUSPECT. If any
    of these bits is set, or after an error, register again. If the word says INVALID, a device that
    can revoke (_IBV_DEVICE_MR_REVOKE) no longer reaches the memory. Costs a system call.
    Thread safe, but during the call no other thread may call close() or forget() of the MR, or
    close its PD or context.
    :return: The word after the call, an int
    :raises PyverbsRDMAError: with this error_code, and the word is unchanged:
        EINVAL: the MR has no notification, or another process registered it
        EAGAIN: for a second, a file of this memory was locked or the memory changed without a
                pause; or the memory can't be pinned at the moment
        ENOMEM: out of memory, or over RLIMIT_MEMLOCK
        EBUSY: another thread re-registers it
        EIO, EOPNOTSUPP: as for reg_notify()
    :raises PyverbsUserError: the MR is closed
    """
    mr_check_open(self)
    cdef v.ibv_mr *mr = self.mr
    cdef int rc
    with nogil:
        rc = v.ibv_settle_mr_notify(mr)
    if rc != 0:
        raise PyverbsRDMAError('Failed to settle MR notification', rc)
    return mr_get_notify_word(self)


@cython.binding(True)
def mr_suspend_notify(MR self not None):
    """
    Immediately unpin the pages of this registration, which must not be in use. Then
    notify_word says SUSPENDED, and settle_notify() pins pages again under the same keys. Does
    nothing if the word says SUSPENDED or INVALID already. Thread safe, but during the call no other
    thread may call close() or forget() of the MR, or close its PD or context.
    :return: None
    :raises PyverbsRDMAError: with this error_code, and nothing has changed:
        EBUSY: notify_word says that it is in use, or another thread re-registers it
        EINVAL: it has no notification or no in_use, or another process registered it
        EOPNOTSUPP: the kernel lacks this call, or the device can't restore a registration
                    (_IBV_DEVICE_MR_RECLAIM), or as for reg_notify()
        EIO: the device was removed
    :raises PyverbsUserError: the MR is closed
    """
    mr_check_open(self)
    cdef v.ibv_mr *mr = self.mr
    cdef int rc
    with nogil:
        rc = v.ibv_suspend_mr_notify(mr)
    if rc != 0:
        raise PyverbsRDMAError('Failed to suspend the MR', rc)


@cython.binding(True)
def mr_add_notify(MR self not None, delta):
    """
    Add to the application's bits of notify_word by one atomic instruction, without a system call.
    The kernel's bits of the returned word tell whether the registration was usable when this call
    took a reference. Thread safe, but during the call no other thread may call reg_notify(),
    close() or forget() of the MR, or close its PD or context.
    :param delta: The number to add, an int. It is a multiple of 256, and may be negative. The sum
                  wraps around in bits 8-63.
    :return: The word before the addition, an int
    :raises PyverbsUserError: the MR has no word, or delta has bits of the kernel
    :raises OverflowError: delta is not a signed 64-bit int
    :raises TypeError: delta is not an int
    """
    cdef int64_t signed_delta = PyNumber_Index(delta)
    mr_check_application_bits(signed_delta)
    mr_check_word(self)
    return v.mr_notify_word_add(self._notify_word, <v.mr_notify_word>signed_delta)


def mr_get_notify_word(MR self not None):
    mr_check_word(self)
    return v.mr_notify_word_load(self._notify_word)


def mr_set_notify_word(MR self not None, value):
    cdef v.mr_notify_word word = PyNumber_Index(value)
    mr_check_application_bits(word)
    mr_check_word(self)
    v.mr_notify_word_store(self._notify_word, word)
