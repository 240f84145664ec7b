# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The benchmarks' common parts: run programs, read their JSON, draw a figure."""
import datetime
import json
import os
import re
import shlex
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(REPO, "build", "bench")
LAB = os.path.join(REPO, "tests/lab/run")
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def path(name):
    """The program with this name."""
    return os.path.join(REPO, "build/tests", "bench_" + name)


def rows(name, wanted):
    """The benchmarks of a program that match a regular expression."""
    return subprocess.run([path(name), "--benchmark_list_tests=true",
                           "--benchmark_filter=" + wanted],
                          capture_output=True, text=True, check=True).stdout.split()


def run(command, environment=None):
    """The output of a command, or None if it failed. Its standard error is passed on."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **(environment or {})})
    if done.returncode:
        print(f"status {done.returncode}, so no result of: {shlex.join(command)[:200]}",
              file=sys.stderr, flush=True)
        return None
    return done.stdout


def lab(kernel, command, *options, environment=None):
    """Like run(), but in a guest. If the guest's kernel reports a problem, or the command takes too
    long, return None.
    """
    return run([LAB, "--kernel", kernel, "--no-checks", *options, "--", *command], environment)


def values(said, field):
    """{benchmark: [value of each repetition]} from a program's output, which ends in JSON.

    The field is a time (real_time, cpu_time) in nanoseconds, or a counter. Benchmarks without this
    counter are left out.
    """
    found = {}
    for one in json.loads(said[said.index("{"):])["benchmarks"]:
        if one["run_type"] == "iteration" and not one.get("error_occurred") and field in one:
            unit = UNITS[one["time_unit"]] if field.endswith("_time") else 1
            found.setdefault(one["run_name"], []).append(one[field] * unit)
    return found


def gnuplot(commands):
    """Run gnuplot with commands, one on each line."""
    subprocess.run(["gnuplot"], input=commands, text=True, check=True)


def cpu():
    """This machine's processor, by its name."""
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        found = re.search(r"^model name\s*: (.*)$", text.read(), re.M)
    return found.group(1) if found else "unknown CPU"


def figure(name, size, title, command, commands):
    """Draw OUT/NAME.svg. In the commands TITLE becomes the title and the origin of the data."""
    day = datetime.date.today().isoformat()
    heading = f'"{{/:Bold {title}}}\\n{{/=10 {command}; {day}; {cpu()}}}"'
    gnuplot(f"""
set terminal svg size {size[0]},{size[1]} font "sans,12" background "white" enhanced
set output "{OUT}/{name}.svg"
{commands.replace("TITLE", heading)}
""")


def relative(name):
    """A result's path, relative for printing."""
    return os.path.relpath(os.path.join(OUT, name), REPO)
