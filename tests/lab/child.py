# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Children that end with us, even if we are killed."""
import ctypes
import os

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def dies_with_us(number):
    """A preexec_fn: the child gets that signal at our end."""
    parent = os.getpid()

    def child():
        LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)
    return child
