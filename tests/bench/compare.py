# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run the benchmarks of the cache and of its peers one after the other, and put them side by side.

Why: a figure means something only beside the others of the same run on the same machine. Each
program is one of Google Benchmark's and prints JSON; the median of several repetitions counts.
Called by tests/bench/run.
"""
import json
import os
import statistics
import subprocess
import sys

import programs
from programs import OUT

REPEAT = ["--benchmark_format=json", "--benchmark_repetitions=5", "--benchmark_min_time=0.1"]


def run(program, *options, kernel=None, environment=None, field="cpu_time"):
    """{benchmark: median} of a program on the host or in a guest; {} if it can't run."""
    command = [programs.path(program), *REPEAT, *options]
    if kernel:
        command = [programs.LAB, "--kernel", kernel, "--no-checks", "--", *command]
    print("measuring:", program, *options, kernel or "host", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    try:
        found = programs.values(done.stdout[done.stdout.index("{"):], field)
    except ValueError:
        print(f"{program}: no result, status {done.returncode}: {done.stderr.strip()[-400:]}",
              file=sys.stderr)
        return {}
    return {name: statistics.median(values) for name, values in found.items()}


def one_by_one(program, wanted):
    """The same with a process for each row: a cache may keep what another one made large.

    None for a row that can't be run.
    """
    found = {}
    for row in programs.rows(program, wanted):
        found.update(run(program, f"--benchmark_filter=^{row}$") or {row: None})
    return found


def measure():
    """Everything, as {column: {benchmark: nanoseconds}}, of a miss its ratio."""
    libfabric = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
    return {
        "core": one_by_one("cache", "^(hit/(apart|same|guarded)/1(000|00000)?|"
                           "atomics(_same/1000)?|search/1000(00)?)/"),
        "ucx": run("ucx"),
        "verbs": run("verbs", "--benchmark_filter=hit/(apart|guarded)/", kernel="um"),
        "memhooks": run("libfabric", kernel="um",
                        environment={**libfabric, "FI_MR_CACHE_MONITOR": "memhooks"}),
        "uffd": run("libfabric", kernel="um",
                    environment={**libfabric, "FI_MR_CACHE_MONITOR": "userfaultfd"}),
        "miss": run("verbs", "--benchmark_filter=miss", kernel="debian", field="ratio"),
        "munmap": run("verbs", "--benchmark_filter=munmap",
                      "--benchmark_enable_random_interleaving=true", kernel="debian"),
    }


def rows(got):
    """(what, limit, ours: core, through the verbs, memhooks, userfaultfd, UCX), in nanoseconds."""
    core, ucx, verbs = got["core"], got["ucx"], got["verbs"]
    one = "/real_time/threads:1"
    two = "/real_time/threads:2"
    return [
        ("1 entry, 1 thread", core.get("atomics" + one), core.get("hit/apart/1" + one),
         verbs.get("hit/apart/1"), got["memhooks"].get("libfabric/1"),
         got["uffd"].get("libfabric/1"), ucx.get("ucx/1/real_time")),
        ("1,000 entries, 1 thread", core.get("search/1000" + one),
         core.get("hit/apart/1000" + one), verbs.get("hit/apart/1000"),
         got["memhooks"].get("libfabric/1000"), got["uffd"].get("libfabric/1000"),
         ucx.get("ucx/1000/real_time")),
        ("1,000 entries, a guard page after each", core.get("search/1000" + one),
         core.get("hit/guarded/1000" + one), verbs.get("hit/guarded/1000"), None, None, None),
        ("1,000 entries, 2 threads, same buffers", core.get("atomics_same/1000" + two),
         core.get("hit/same/1000" + two), None, None, None, ucx.get("ucx/1000" + two)),
        ("1,000 entries, 2 threads, own buffers", None, core.get("hit/apart/1000" + two), None,
         None, None, None),
        ("100,000 entries, 1 thread", core.get("search/100000" + one),
         core.get("hit/apart/100000" + one),
         verbs.get("hit/apart/100000/iterations:1048576"), None, None, None),
    ]


def ratios(got):
    """(what, ratio) of what issue no absolute figure: a guest's times are not a machine's."""
    found = [(f"cached miss / plain ibv_reg_mr, {int(name.split('/')[1]) // 1024} KiB", value)
             for name, value in got["miss"].items()]
    beside = {name.split("/")[1]: value for name, value in got["munmap"].items()}
    for count, value in beside.items():
        if count != "0" and beside.get("0"):
            found.append((f"munmap beside {int(count):,} armed / beside none", value / beside["0"]))
    return found


def cell(value):
    """A number of the table."""
    return f"{value:10.1f}" if value else " " * 9 + "-"


def plot(table):
    """hits.svg by gnuplot."""
    data = os.path.join(OUT, "hits.dat")
    with open(data, "w", encoding="utf-8") as out:
        print('"" "bare atomics" ours "libfabric memhooks" "libfabric userfaultfd" "UCX rcache"',
              file=out)
        for what, limit, core, _, memhooks, uffd, ucx in table:
            values = [f"{v:.1f}" if v else "NaN" for v in (limit, core, memhooks, uffd, ucx)]
            print(f'"{what}"', *values, file=out)
    programs.gnuplot(f"""
set terminal svg size 900,480 font "sans,12"; set output "{OUT}/hits.svg"
set title "hit + release"; set ylabel "ns per thread"; set yrange [0:*]; set grid ytics
set style data histograms; set style histogram clustered gap 1
set style fill solid 0.8 border -1; set xtics rotate by -12; set key top left
plot for [i=2:6] "{data}" using i:xtic(1) title columnheader(i)
""")


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    got = measure()
    table = rows(got)
    print("hit + release, ns per thread (medians of 5)\n")
    print(f"{'':40} {'limit':>10} {'ours':>10} {'verbs (um)':>10} {'memhooks':>10} {'uffd':>10} "
          f"{'UCX':>10}")
    for what, *values in table:
        print(f"{what:40} {' '.join(cell(value) for value in values)}")
    print("""
limit: two bare atomics, from 1,000 entries on with a binary search (2 threads: without); what
two threads share depends on where their CPUs are, so compare within one run
ours: the cache's core on the host; verbs (um): ibv_reg_mr + ibv_dereg_mr in a guest at native
speed. CPU time on the host, so that a busy machine counts less.
""")
    for what, ratio in ratios(got):
        print(f"{what:55} {ratio:6.2f}")
    with open(os.path.join(OUT, "results.json"), "w", encoding="utf-8") as out:
        json.dump({"measured": got, "ratios": dict(ratios(got))}, out, indent=1)
    plot(table)
    print(f"\n{programs.relative('results.json')}, {programs.relative('hits.svg')}")
    return 0 if all(column and all(column.values()) for column in got.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
