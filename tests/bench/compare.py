# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run the benchmarks of the cache and of its peers one after the other, and print a table.

Figures can be compared only within one run on one machine. Each program is a Google Benchmark and
prints JSON. The median of several repetitions counts. tests/bench/run calls this script.
"""
import json
import os
import statistics
import sys

import programs
from programs import OUT

REPETITIONS = 5
REPEAT = ["--benchmark_format=json", f"--benchmark_repetitions={REPETITIONS}",
          "--benchmark_min_time=0.1"]
ONE, TWO = "/real_time/threads:1", "/real_time/threads:2"
# {column of the table: its title in the plot}
COLUMNS = {"limit": "bare atomics", "core": "ours, the core", "verbs (um)": "ours, the verbs (um)",
           "memhooks (um)": "libfabric memhooks (um)", "uffd (um)": "libfabric userfaultfd (um)",
           "UCX": "UCX rcache"}
# (title, one cell for each column): a cell is (key of measure()'s result, benchmark), or None
TABLE = [
    ("1 entry, 1 thread", ("core", "atomics" + ONE), ("core", "hit/apart/1" + ONE),
     ("verbs", "hit/apart/1"), ("memhooks", "libfabric/1"), ("uffd", "libfabric/1"),
     ("ucx", "ucx/1/real_time")),
    ("1,000 entries, 1 thread", ("core", "search/1000" + ONE), ("core", "hit/apart/1000" + ONE),
     ("verbs", "hit/apart/1000"), ("memhooks", "libfabric/1000"), ("uffd", "libfabric/1000"),
     ("ucx", "ucx/1000/real_time")),
    ("1,000 entries, a guard page after each", ("core", "search/1000" + ONE),
     ("core", "hit/guarded/1000" + ONE), ("verbs", "hit/guarded/1000"), None, None, None),
    ("1,000 entries, 2 threads, same buffers", ("core", "atomics_same/1000" + TWO),
     ("core", "hit/same/1000" + TWO), None, None, None, ("ucx", "ucx/1000" + TWO)),
    ("1,000 entries, 2 threads, own buffers", None, ("core", "hit/apart/1000" + TWO), None, None,
     None, None),
    ("100,000 entries, 1 thread", ("core", "search/100000" + ONE),
     ("core", "hit/apart/100000" + ONE), ("verbs", "hit/apart/100000/iterations:1048576"),
     None, None, None),
]
MISSES = (64 << 10, 1 << 20, 16 << 20)


def run(program, *options, kernel=None, environment=None, field="cpu_time"):
    """{benchmark: median} of a program on the host or in a guest; {} if it can't run."""
    command = [programs.path(program), *REPEAT, *options]
    print("measuring:", program, *options, kernel or "host", file=sys.stderr, flush=True)
    said = (programs.lab(kernel, command, environment=environment) if kernel else
            programs.run(command, environment))
    try:
        found = programs.values(said or "", field)
    except ValueError:
        print(f"no result: {program}", file=sys.stderr)
        return {}
    return {name: statistics.median(values) for name, values in found.items()
            if len(values) == REPETITIONS}


def one_by_one(program, wanted):
    """Like run(), but each row has its own process. Otherwise a row might use tables of the cache
    that an earlier row made large.

    The value of a row that can't run is None.
    """
    found = {}
    for row in programs.rows(program, wanted):
        found.update(run(program, f"--benchmark_filter=^{row}$") or {row: None})
    return found


def measure():
    """All results, as {column: {benchmark: nanoseconds}}; misses have ratios instead."""
    libfabric = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
    return {
        "core": one_by_one("cache", "^(hit/(apart|same|guarded)/1(000|00000)?|"
                           "atomics(_same/1000)?|search/1000(00)?)/"),
        "ucx": run("ucx"),
        "verbs": run("verbs", "--benchmark_filter=hit/(apart/(1|1000|100000.*)|guarded/1000)$",
                     kernel="um"),
        "memhooks": run("libfabric", "--benchmark_filter=^libfabric/1(000)?$", kernel="um",
                        environment={**libfabric, "FI_MR_CACHE_MONITOR": "memhooks"}),
        "uffd": run("libfabric", "--benchmark_filter=^libfabric/1(000)?$", kernel="um",
                    environment={**libfabric, "FI_MR_CACHE_MONITOR": "userfaultfd"}),
        "miss": run("verbs", "--benchmark_filter=miss", kernel="debian", field="ratio"),
    }


def rows(got):
    """(title, a value in nanoseconds for each of COLUMNS).

    A value is None if the cell is empty, and 0 if the program failed.
    """
    return [(what, *(one and (got[one[0]].get(one[1]) or 0) for one in cells))
            for what, *cells in TABLE]


def ratios(got):
    """(title, ratio) of rows that were measured in a guest, where absolute times mean nothing."""
    return [(f"cached miss / plain ibv_reg_mr, {size >> 10} KiB",
             got["miss"].get(f"miss/{size}") or 0) for size in MISSES]


def cell(value):
    """A number of the table."""
    return f"{value:13.1f}" if value else " " * 12 + "-"


def plot(table):
    """hits.svg by gnuplot."""
    data = os.path.join(OUT, "hits.dat")
    with open(data, "w", encoding="utf-8") as out:
        print('""', *(f'"{title}"' for title in COLUMNS.values()), file=out)
        for what, *values in table:
            print(f'"{what}"', *(f"{v:.1f}" if v else "NaN" for v in values), file=out)
    programs.figure("hits", (1000, 500), "A hit and its release; (um): in a guest, the others on "
                    "the host", "tests/bench/run", f"""
set title TITLE
set ylabel "ns per thread"; set yrange [0:*]; set grid ytics
set style data histograms; set style histogram clustered gap 1
set style fill solid 0.8 border -1; set xtics rotate by -12; set key top left
plot for [i=2:{len(COLUMNS) + 1}] "{data}" using i:xtic(1) title columnheader(i)
""")


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    got = measure()
    table = rows(got)
    print("hit + release, ns per thread (medians of 5)\n")
    print(" " * 40, *(f"{title:>13}" for title in COLUMNS))
    for what, *values in table:
        print(f"{what:40} {' '.join(cell(value) for value in values)}")
    print("""
limit: the time of two bare atomics, and from 1,000 entries on of a binary search (2 threads:
without the search). If two threads share buffers, the cost depends on the places of their CPUs, so
compare within one run.
On the host, only the caches: core is our core without the verbs; UCX is ucs_rcache_get + put.
In a guest at native speed, the whole cost for a caller: verbs is our ibv_reg_mr + ibv_dereg_mr;
memhooks and uffd are libfabric's fi_mr_reg + fi_close. So compare verbs with these two.
All are CPU time. Use a quiet machine: load distorts the columns of the guest, and the host's less.
""")
    for what, ratio in ratios(got):
        print(f"{what:55} {ratio:6.2f}")
    with open(os.path.join(OUT, "results.json"), "w", encoding="utf-8") as out:
        json.dump({"measured": got, "ratios": dict(ratios(got))}, out, indent=1)
    plot(table)
    print(f"\n{programs.relative('results.json')}, {programs.relative('hits.svg')}")
    failed = [what for what, *values in [*table, *ratios(got)] if 0 in values]
    for what in failed:
        print("no result:", what, file=sys.stderr)
    return 0 if not failed and all(all(column.values()) for column in got.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
