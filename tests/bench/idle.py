# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure the costs of an idle registration: without a cache, with ours, libfabric's and UCX's.

libfabric and UCX are Debian's. Each row has its own process. All rows run in one guest, so times
can be compared only with each other. tests/bench/run calls this script.
"""
import json
import os
import shlex
import sys

import programs
from programs import OUT

# {name: (program, environment)}
WAYS = {
    "no cache": ("verbs", {}),
    "`RDMAV_MR_CACHE=1`": ("verbs", {"RDMAV_MR_CACHE": "1"}),
    "`remote`": ("verbs", {"RDMAV_MR_CACHE": "remote"}),
    "libfabric memhooks": ("libfabric", {"FI_MR_CACHE_MONITOR": "memhooks"}),
    "libfabric userfaultfd": ("libfabric", {"FI_MR_CACHE_MONITOR": "userfaultfd"}),
    "UCX": ("ucx_md", {}),
}
LIMITS = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
# (row, counter): its line in the table
LINES = {
    ("pinned", "at_once"): "pinned after the deregistration, MiB",
    ("pinned", "later"): "pinned 4 s later, MiB",
    ("unmapped", "pinned"): "pinned after its `munmap`, MiB",
    ("fork", "ms"): "fork at once, ms",
    ("fork", "copied"): "copied for the child, MiB",
    ("swap", "out"): "swapped out by `MADV_PAGEOUT`, 4 s later, MiB",
    ("node", "moved"): "moved to another NUMA node, 4 s later, MiB",
    ("huge", "huge"): "made huge pages by `MADV_COLLAPSE`, 4 s later, MiB",
}
SWAP = """set -eu
modprobe zram
echo 512M >/sys/block/zram0/disksize
mkswap /dev/zram0 >&2
swapon /dev/zram0
"""


def command(way, row):
    """The command that runs one row of one way in a process of its own."""
    program, more = WAYS[way]
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in {**LIMITS, **more}.items())
    return (f"echo '=== {row} {way}'\n{setting} {programs.path(program)} --benchmark_format=json "
            f"--benchmark_filter=^idle/{row}/\n")


def measure():
    """{way: {(row, counter): value}}."""
    rows = dict.fromkeys(row for row, _ in LINES)
    script = SWAP + "".join(command(way, row) for row in rows for way in WAYS)
    found = {way: {} for way in WAYS}
    print("measuring in debian", file=sys.stderr, flush=True)
    for part in (programs.lab("debian", ["sh", "-c", script]) or "").split("=== ")[1:]:
        title, _, said = part.partition("\n")
        row, _, way = title.partition(" ")
        for line in LINES:
            if line[0] == row:
                values = programs.values(said, line[1])
                found[way][line] = next((value[0] for value in values.values()), None)
    return found


def cell(value):
    """A counter."""
    return "-" if value is None else str(round(value))


def main():
    """Measure, print, write."""
    found = measure()
    if not all(found.values()):
        sys.exit("a way has no result")
    print(f"\n| 64 MiB, registered and deregistered | {' | '.join(WAYS)} |\n"
          + "|---" * (1 + len(WAYS)) + "|")
    for line, text in LINES.items():
        print(f"| {text} | {' | '.join(cell(found[way].get(line)) for way in WAYS)} |")
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, "idle.json"), "w", encoding="utf-8") as out:
        json.dump({way: {"/".join(line): value for line, value in values.items()}
                   for way, values in found.items()}, out, indent=1)
    print("\n" + programs.relative("idle.json"))


if __name__ == "__main__":
    main()
