# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What the benchmarks share: where the programs are, how their JSON is read, how a plot is made."""
import json
import os
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(REPO, "build", "bench")
LAB = os.path.join(REPO, "tests/lab/run")
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def path(name):
    """The program of that name."""
    return os.path.join(REPO, "build/tests", "bench_" + name)


def rows(name, wanted):
    """Those of a program's benchmarks that a regular expression finds."""
    return subprocess.run([path(name), "--benchmark_list_tests=true",
                           "--benchmark_filter=" + wanted],
                          capture_output=True, text=True, check=True).stdout.split()


def values(said, field):
    """{benchmark: [value of each repetition]} from what a program printed as JSON.

    The field is a time (real_time, cpu_time), then in nanoseconds, or a counter, then of those that
    have it.
    """
    found = {}
    for one in json.loads(said)["benchmarks"]:
        if one["run_type"] == "iteration" and not one.get("error_occurred") and field in one:
            unit = UNITS[one["time_unit"]] if field.endswith("_time") else 1
            found.setdefault(one["run_name"], []).append(one[field] * unit)
    return found


def gnuplot(commands):
    """Run commands, one a line."""
    subprocess.run(["gnuplot"], input=commands, text=True, check=True)


def relative(name):
    """A result's path, as it is printed."""
    return os.path.relpath(os.path.join(OUT, name), REPO)
