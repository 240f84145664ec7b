# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure what MR notification costs its users and others, and print the tables of costs.md.

In all tables except the last, a ratio compares two times in the same guest. The last table compares
Debian's own modules with ours. For this table two guests take turns, and the best round counts.
tests/bench/run calls this script.
"""
import json
import os
import sys

import programs

COUNTS = (1000, 100000)
ROUNDS = 3
ELSEWHERE = {"munmap": "munmap of 16 other pages", "fault": "fault that copies another page",
             "fork": "fork"}
OWN = {"munmap_own": "munmap of 16 registered pages",
       "munmap_many": "munmap of 10,000 registrations of one page",
       "exit_many": "end of a process with 10,000 registrations of one page"}


def run(kernel, only):
    """{"operation/state/count": {counter: value}} in a guest."""
    print("measuring:", only, kernel, file=sys.stderr, flush=True)
    said = programs.lab(kernel, [programs.path("cost"), "--benchmark_format=json",
                                 "--benchmark_filter=" + only], "--memory", "3G")
    if said is None:
        sys.exit(1)
    return {"/".join(one["run_name"].split("/")[:3]): one
            for one in json.loads(said[said.index("{"):])["benchmarks"]}


def beside_stock():
    """For a process that arms nothing, {operation: {kernel: nanoseconds}}."""
    best = {}
    for _ in range(ROUNDS):
        for kernel in ("stock", "debian"):
            for name, one in run(kernel, "/never/").items():
                times = best.setdefault(name.partition("/")[0], {})
                times[kernel] = min(one["median_ns"], times.get(kernel, one["median_ns"]))
    return best


def row(*cells):
    """A row of a table in Markdown."""
    print("|", " | ".join(cells), "|")


def head(*cells):
    """The first two rows of a table."""
    print()
    row(*cells)
    print("|" + "---|" * len(cells))


def main():
    """Measure, print, write."""
    os.makedirs(programs.OUT, exist_ok=True)
    got = run("debian", ".")
    stock = beside_stock()

    def median(name):
        return got[name]["median_ns"]

    head("", "no registration", *(f"{count:,} {state}" for count in COUNTS
                                  for state in ("unwatched", "armed")))
    for what, title in ELSEWHERE.items():
        none = median(what + "/never/0")
        row(title, f"1 ({none / 1000:.0f} us)",
            *(f"{median(f'{what}/{state}/{count}') / none:.2f}" for count in COUNTS
              for state in ("registered", "armed")))
    head("in turns", "unwatched", "counts its users", "armed without a count")
    for what, title in OWN.items():
        one = got[what + "/turns/0"]
        row(title, f"1 ({one['median_ns'] / 1000:.0f} us)", f"{one['counted']:.2f}",
            f"{one['armed']:.2f}")
    head("kernel memory of", "unwatched", "armed")
    row("a registration of one page", *(f"{got[f'munmap/{state}/{COUNTS[-1]}']['slab_bytes']:.0f}"
                                        for state in ("registered", "armed")))
    head("nothing is armed", "Debian's modules", "ours")
    for what, times in stock.items():
        row(ELSEWHERE.get(what, "registering 16 pages"), f"1 ({times['stock'] / 1000:.0f} us)",
            f"{times['debian'] / times['stock']:.2f}")

    with open(os.path.join(programs.OUT, "cost.json"), "w", encoding="utf-8") as out:
        json.dump({"debian": got, "beside stock": stock}, out, indent=1)
    print(f"\n{programs.relative('cost.json')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
