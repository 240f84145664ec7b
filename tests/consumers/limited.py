# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A command that must end in time, and whether registrations were armed meanwhile."""
import os
import subprocess


def run(limit, command, env):
    """Its output, both streams in stdout, and its status: -9 after so many seconds."""
    try:
        return subprocess.run(command, env=env, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired as ended:
        said = (ended.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(command, -9, f"{said}\nended after {limit} s\n")


def arms(device):
    """How many registrations were armed on a device, or None where nothing counts them."""
    path = f"/sys/class/infiniband/{device}/ports/1/hw_counters/mr_notify_arms"
    if not os.path.exists(path):
        return None
    with open(path, encoding="ascii") as text:
        return int(text.read())
