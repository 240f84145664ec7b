# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Draw how the cost of a hit grows with the number of registrations: ours, libfabric's, UCX's.

The programs run in a guest whose clock counts instructions, so that other load on this machine does
not matter. The libfabric and UCX are Debian's. Each row has its own process. tests/bench/run calls
this script.
"""
import json
import os
import shlex
import sys

import programs
from programs import OUT

COUNTS = (1, 10, 100, 1000, 10000)
LIMITS = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
# Way: (program, its benchmark, environment)
# In a way with "below", the library's own cache is off, as ibv_mr_cache --env sets it.
WAYS = {
    "ours: ibv_reg_mr": ("verbs", "hit/apart", {}),
    "UCX, hooks": ("ucx_md", "ucx_md", {}),
    "libfabric, memhooks": ("libfabric", "libfabric",
                            {**LIMITS, "FI_MR_CACHE_MONITOR": "memhooks"}),
    "libfabric, userfaultfd": ("libfabric", "libfabric",
                               {**LIMITS, "FI_MR_CACHE_MONITOR": "userfaultfd"}),
    "ours below UCX": ("ucx_md", "ucx_md", {"UCX_IB_REG_METHODS": "direct", "UCX_MEM_EVENTS": "n",
                                            "RDMAV_MR_CACHE": "remote"}),
    "ours below libfabric": ("libfabric", "libfabric",
                             {"FI_MR_CACHE_MAX_COUNT": "0", "RDMAV_MR_CACHE": "remote"}),
}
DRAWN = 4       # the figure shows only the first ways, the table shows all


def command(way, count):
    """The command that runs one row of one way in a process of its own."""
    program, benchmark, more = WAYS[way]
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in more.items())
    return (f"echo '=== {count}'\n{setting} {programs.path(program)} "
            "--benchmark_format=json --benchmark_min_time=0.003 "
            f"'--benchmark_filter=^{benchmark}/{count}$'\n")


def measure():
    """{way: {count: instructions}}."""
    found = {way: {} for way in WAYS}
    for way, counts in found.items():
        print("measuring in debian:", way, file=sys.stderr, flush=True)
        script = "set -e\n" + "".join(command(way, count) for count in COUNTS)
        said = programs.lab("debian", ["sh", "-c", script], "--count-instructions")
        for part in (said or "").split("=== ")[1:]:
            count, _, output = part.partition("\n")
            for values in programs.values(output, "cpu_time").values():
                counts[int(count)] = values[0]
    return found


def plot(found):
    """growth.svg."""
    data = os.path.join(OUT, "growth.dat")
    with open(data, "w", encoding="utf-8") as out:
        for way, counts in found.items():
            print(f'"{way}"', *(f"\n{count} {value:.0f}" for count, value in counts.items()),
                  "\n\n", file=out)
    programs.figure("growth", (860, 380), "Instructions for a registration that the cache has, and "
                    "its release", "tests/bench/run growth", f"""
set title TITLE
set logscale x; set xrange [0.8:13000]; set yrange [0:*]; set grid; set format x "%.0f"
set xlabel "registrations in the cache"; set ylabel "instructions"
set key outside right noenhanced
plot for [i=0:{DRAWN - 1}] "{data}" index i using 1:2 with linespoints lw (i ? 1.5 : 3) \\
    ps 0.7 title columnheader(1)
""")


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    found = measure()
    print(f"\n| registrations | {' | '.join(WAYS)} |\n" + "|---" * (1 + len(WAYS)) + "|")
    for count in COUNTS:
        print(f"| {count:,} |", " | ".join(
            f"{counts[count]:.0f}" if count in counts else "-" for counts in found.values()), "|")
    with open(os.path.join(OUT, "growth.json"), "w", encoding="utf-8") as out:
        json.dump(found, out, indent=1)
    if not all(list(counts) == list(COUNTS) for counts in found.values()):
        print("a row has no result", file=sys.stderr)
        return 1
    plot(found)
    print(f"\n{programs.relative('growth.json')}, {programs.relative('growth.svg')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
