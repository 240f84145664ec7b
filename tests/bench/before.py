# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure the cores of this checkout and of another checkout in turns, and print the ratios.

Figures of two runs differ by more than the effect of most changes. So only a ratio within one run
on one machine shows whether a change made the cache faster or slower. This checkout's benchmark is
compiled once with the headers and the core of each checkout. For each row the two programs take
turns, each in a new process, so that leftover memory of another row does not slow down a row.
tests/bench/run --before calls this script.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import programs
from programs import OUT, REPO

WHICH = ("before", "now")
PROGRAMS = {"before": "cache_before", "now": "cache"}


def build(checkout):
    """Compile both programs."""
    if not os.path.exists(os.path.join(checkout, "libibverbs/mr_cache/mr_cache_core.h")):
        sys.exit(f"{checkout}: not a checkout of this repository")
    build_folder = os.path.join(REPO, "build")
    for command in (["cmake", "-S", REPO, "-B", build_folder, "-DBENCH_BEFORE=" + checkout],
                    ["cmake", "--build", build_folder, "--target", "bench_cache",
                     "bench_cache_before"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode:
            sys.exit(done.stdout)


def once(which, row, seconds):
    """Nanoseconds of CPU time of one row, or None."""
    said = programs.run([programs.path(PROGRAMS[which]), "--benchmark_format=json",
                         f"--benchmark_filter=^{row}$", f"--benchmark_min_time={seconds}"])
    try:
        values = programs.values(said or "", "cpu_time")
    except ValueError:
        print(f"no result: {which} {row}", file=sys.stderr)
        return None
    return next((times[0] for times in values.values()), None)


def measure(rows, rounds, seconds):
    """Yield (row, median before, median now). If the row did not run, its medians are None."""
    for row in rows:
        times = {which: [] for which in WHICH}
        for turn in range(rounds):
            for which in WHICH if turn % 2 else WHICH[::-1]:
                times[which].append(once(which, row, seconds))
        yield (row, *(None if None in times[which] else statistics.median(times[which])
                      for which in WHICH))


def cell(value):
    """A time."""
    return f"{value:12,.1f}" if value is not None else " " * 11 + "-"


def main():
    """Build, measure, print, write."""
    parser = argparse.ArgumentParser(prog="tests/bench/run --before",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=os.path.realpath)
    parser.add_argument("filter", nargs="?", default=".", help="only rows that this finds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a row at least")
    args = parser.parse_args()
    build(args.checkout)
    rows = programs.rows(PROGRAMS["now"], args.filter)
    if not rows:
        sys.exit(f"{args.filter}: no such row")
    os.makedirs(OUT, exist_ok=True)
    found = {}
    print(f"CPU time of one operation in ns, medians of {args.rounds}\n\n"
          f"{'':44} {'before':>12} {'now':>12} {'ratio':>7}", flush=True)
    for row, before, now in measure(rows, args.rounds, args.seconds):
        ratio = now / before if before and now else None
        found[row] = {"before": before, "now": now, "ratio": ratio}
        print(f"{row.replace('/real_time', ''):44} {cell(before)} {cell(now)} "
              f"{f'{ratio:7.2f}' if ratio else '      -'}", flush=True)
    with open(os.path.join(OUT, "before.json"), "w", encoding="utf-8") as out:
        json.dump(found, out, indent=1)
    print(f"\n{programs.relative('before.json')}")
    return 0 if all(one["ratio"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
