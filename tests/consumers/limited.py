# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run a command with a time limit, and count the registrations that were armed."""
import os
import subprocess


def run(limit, command, env):
    """Run a command; return its output (both streams in stdout) and status. After `limit` seconds
    the status is -9.
    """
    try:
        return subprocess.run(command, env=env, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired as ended:
        said = (ended.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(command, -9, f"{said}\nended after {limit} s\n")


def arms(device):
    """The number of armings on a device so far, or None without a counter."""
    path = f"/sys/class/infiniband/{device}/ports/1/hw_counters/mr_notify_arms"
    if not os.path.exists(path):
        return None
    with open(path, encoding="ascii") as text:
        return int(text.read())
