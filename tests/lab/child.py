# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Child processes that end with this process, even if it is killed."""
import ctypes
import os

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def dies_with_us(number):
    """Return a preexec_fn, so that the child gets this signal when this process ends."""
    parent = os.getpid()

    def child():
        LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)
    return child
