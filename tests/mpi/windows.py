#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Compare registration caches under MPI windows, derived types and the like, in a guest.

Each job of windows.cpp has another cache: none, a cache with hooks, a cache of buildlib/consumers
with the kernel's word, or libibverbs' cache below a library whose own cache is off. The script
prints the parts of each job that had wrong bytes. Then it checks that jobs with UCX's hooks, and no
other jobs, let wrong bytes through. If all jobs were right, the test would show nothing.
"""
import sys

import compare

PROGRAM = {"mpirun.openmpi": f"{compare.BUILD}/windows_openmpi",
           "mpiexec.mpich": f"{compare.BUILD}/windows_mpich"}
# The component that Open MPI chooses for windows by default needs a BTL to the other process.
OVER = {"Open MPI, UCX": {"OMPI_MCA_osc": "ucx"}, "Open MPI, libfabric": {"OMPI_MCA_osc": "pt2pt"}}
UCX_BELOW = {**compare.OURS, **compare.UCX_OFF}
ROWS = [
    compare.Row("Open MPI, UCX", "no cache", "plain", compare.UCX_OFF),
    compare.Row("Open MPI, UCX", "UCX's hooks", "hooks", {"UCX_RCACHE_NOTIFY": "n"},
                compare.UCX_BUILT),
    compare.Row("Open MPI, UCX", "the word", "word", {**compare.ONLY_WORD,
                                                      **compare.ONLY_LIBFABRIC}, compare.UCX_BUILT),
    compare.Row("Open MPI, UCX", compare.BY_US, "ours", UCX_BELOW),
    compare.Row("Open MPI, libfabric", "no cache", "plain", compare.FABRIC_OFF),
    compare.Row("Open MPI, libfabric", "the word", "word", compare.ONLY_LIBFABRIC,
                compare.FABRIC_BUILT),
    compare.Row("Open MPI, libfabric", compare.BY_US, "ours",
                {**compare.OURS, **compare.FABRIC_OFF}),
    compare.Row("MPICH, UCX", "no cache", "plain", compare.UCX_OFF),
    compare.Row("MPICH, UCX", "UCX's hooks", "hooks", {"UCX_RCACHE_NOTIFY": "n"},
                compare.UCX_BUILT),
    compare.Row("MPICH, UCX", "the word", "word", compare.ONLY_WORD, compare.UCX_BUILT),
    compare.Row("MPICH, UCX", compare.BY_US, "ours", UCX_BELOW),
]


def main():
    """Run all rows, or only rows whose name contains one of the arguments."""
    good = True
    for row in ROWS:
        if sys.argv[1:] and not any(word in row.name for word in sys.argv[1:]):
            continue
        row.environment = {**OVER.get(row.over, {}), **row.environment}
        if not row.run(compare.ON_ONE_NODE, PROGRAM):
            good = compare.check(f"{row.name}: runs", False)
            continue
        wrong = {part: count for part, count in row.seen.items() if count}
        print(f"{row.name}: {len(wrong)} of {len(row.seen)} parts wrong {wrong or ''}", flush=True)
        if row.kind == "hooks":
            good &= compare.check(f"{row.name}: fooled", bool(wrong))
        else:
            good &= compare.check(f"{row.name}: no wrong bytes", not wrong)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
