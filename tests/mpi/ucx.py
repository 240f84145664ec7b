# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The limits of this system's UCX, with any libibverbs below it."""
import functools
import re
import subprocess

# If a queue pair is in the error state, soft-RoCE reports its last receive WQE at each poll. UCX
# 1.18 expects one report. With more reports UCX fails an assertion, or waits forever in MPICH's
# MPI_Finalize.
NO_MPICH = "UCX 1.18 does not end over soft-RoCE under MPICH (its issue 10432)"
NO_PERFTEST = "Debian 13's ucx_perftest runs under mpirun only"


@functools.cache
def new():
    """Is the UCX of this system Debian 13's (1.18) or later?"""
    said = subprocess.run(["ucx_info", "-v"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"ersion:? (\d+)\.(\d+)", said).groups())) >= (1, 18)
