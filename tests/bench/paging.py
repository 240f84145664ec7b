# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure the cost of an on-demand paging fault, and how it grows with the address space.

An MR of all memory looks up each page in the page tables of the process, so its cost might grow
with the number of mappings. In each guest the ways take turns, and each figure is a median.
tests/bench/run calls this script.
"""
import json
import os
import statistics
import subprocess
import sys

import programs
from programs import OUT

COUNTS = (100, 1000, 10000, 100000)
TURNS = {"um": 7, "debian": 3}   # emulation is slow
PAGES = 16      # pages of a message, each in its own mapping
WAYS = ("registered", "all", "dropped", "touched", "left")


def measure(kernel):
    """{way: {count: nanoseconds}} in a guest."""
    folder = os.path.join(OUT, "paging-" + kernel)
    os.makedirs(folder, exist_ok=True)
    print("measuring in", kernel, file=sys.stderr, flush=True)
    lines = ["set -eu", "echo 300000 > /proc/sys/vm/max_map_count"]
    for count in COUNTS:
        for turn in range(TURNS[kernel]):
            lines.append(f"{programs.path('paging')} --benchmark_min_time=0.02 "
                         f"--benchmark_filter='/{count}/' --benchmark_out_format=json "
                         f"--benchmark_out={folder}/{count}.{turn}.json >/tmp/log 2>&1 "
                         "|| { cat /tmp/log >&2; exit 1; }")
    subprocess.run([programs.LAB, "--kernel", kernel, "--no-checks", "--results", folder, "--",
                    "sh", "-c", "\n".join(lines)], check=True)
    got = {way: {} for way in WAYS}
    for count in COUNTS:
        turns = []
        for turn in range(TURNS[kernel]):
            with open(f"{folder}/{count}.{turn}.json", encoding="utf-8") as said:
                turns.append(programs.values(said.read(), "real_time"))
        for way in WAYS:
            got[way][count] = statistics.median(
                turn[f"{way}/{count}/manual_time"][0] for turn in turns)
    return got


def show(kernel, got):
    """A table of a guest, in Markdown."""
    print(f"\n{kernel}\n")
    print("| mappings | registered before | all | all, dropped before | a fault "
          "| a fault of the CPU's |\n|" + "---|" * 6)
    for count in COUNTS:
        there = got["registered"][count]
        fault = (got["dropped"][count] - got["all"][count]) / PAGES
        touch = (got["touched"][count] - got["left"][count]) / PAGES
        print(f"| {count:,} | 1 ({there / 1000:.1f} us) | {got['all'][count] / there:.2f} "
              f"| {got['dropped'][count] / there:.2f} | {fault / 1000:.2f} us "
              f"| {touch / 1000:.2f} us |")


def main():
    """Measure, print, write."""
    found = {}
    for kernel in sys.argv[1:] or ("um", "debian"):
        found[kernel] = measure(kernel)
        show(kernel, found[kernel])
    with open(os.path.join(OUT, "paging.json"), "w", encoding="utf-8") as out:
        json.dump({"nanoseconds": found}, out, indent=1)
    print("\n" + programs.relative("paging.json"))


if __name__ == "__main__":
    main()
