# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Check whether User Mode Linux can run on this host's CPU.

User Mode Linux keeps the floating-point state of its programs in an area of fixed size, and the
host accepts only the whole state. If the state does not fit, init is killed at boot. This module
reports the problem before the boot.
"""
import ctypes
import glob
import os
import re
import signal

from machine import HERE, LabError

PATCHES = os.path.join(HERE, "patches", "*-um-*.patch")
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
PTRACE_TRACEME, PTRACE_GETREGSET = 0, 0x4204
NT_X86_XSTATE = 0x202
LARGEST = 1 << 20


class Buffer(ctypes.Structure):
    """struct iovec."""
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def room():
    """The number of bytes that our User Mode Linux reserves for the state."""
    for path in glob.glob(PATCHES):
        with open(path, encoding="utf-8") as text:
            found = re.search(r"^\+\s*DEFINE_LONGS\(HOST_FP_SIZE, (\d+)\);", text.read(), re.M)
        if found:
            return int(found.group(1))
    raise LabError(f"no patch of {os.path.relpath(PATCHES)} sets HOST_FP_SIZE")


def ptrace(request, pid, kind, data):
    """ptrace(2), or OSError."""
    if LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(kind), data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def host_state():
    """The number of bytes that this host's kernel needs, measured on a stopped child."""
    child = os.fork()
    if child == 0:
        try:
            ptrace(PTRACE_TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    try:
        if not os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
            child = 0
            raise LabError("User Mode Linux needs ptrace(2), which this host refuses")
        state = ctypes.create_string_buffer(LARGEST)
        buffer = Buffer(ctypes.addressof(state), LARGEST)
        ptrace(PTRACE_GETREGSET, child, NT_X86_XSTATE, ctypes.byref(buffer))
        return buffer.length
    except OSError as problem:
        raise LabError(f"this host does not report the size of its floating-point state: {problem}"
                       ) from problem
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def check_host():
    """Stop with one line if the CPU's state does not fit."""
    needed, there = host_state(), room()
    if needed > there:
        raise LabError(f"this CPU's floating-point state takes {needed} bytes, but User Mode Linux "
                       f"has room for {there}: increase HOST_FP_SIZE in tests/lab/patches")
