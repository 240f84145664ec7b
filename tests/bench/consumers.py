# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A hit through the caches of libfabric and UCX, with the kernel's word and with hooks.

Both are those of buildlib/consumers, so each way is the same build of the same cache. The ways take
turns in one guest; of each turn counts the fastest of three repetitions, and the median of the
turns' ratios is what a way costs beside hooks. Where a virtual machine's processors are threads of
a core that others use, a turn may take 1.7 times what the next one takes: then the fastest turn of
each way says more, and is printed, too. Called by tests/bench/run, with the names of the libraries,
or none for both.
"""
import json
import os
import shlex
import statistics
import subprocess
import sys

import programs
from programs import OUT

TURNS = 9
REPEAT = ["--benchmark_format=json", "--benchmark_repetitions=3",
          "--benchmark_min_time=0.5"]    # a guest counts CPU time in ticks of 10 ms
LIMITS = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
# {library: (program, name of the benchmark, {way: environment}, the way that is 1)}
LIBRARIES = {
    "libfabric": ("libfabric", "libfabric/{}", {
        "memhooks": {"FI_MR_CACHE_MONITOR": "memhooks", **LIMITS},
        "verbs_notify": {"FI_MR_CACHE_MONITOR": "verbs_notify", **LIMITS},
        "userfaultfd": {"FI_MR_CACHE_MONITOR": "userfaultfd", **LIMITS}}, "memhooks"),
    "ucx": ("ucx_md", "ucx_md/{}", {
        "hooks": {"UCX_RCACHE_NOTIFY": "n"}, "the word": {"UCX_RCACHE_NOTIFY": "y"}}, "hooks"),
}
COUNTS = (1, 1000)


def turn(library, environment):
    """The command of one way, with the library that was built."""
    built = os.path.join(programs.REPO, "build/consumers", library, "lib")
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return (f'LD_LIBRARY_PATH={shlex.quote(built)}:"${{LD_LIBRARY_PATH:-}}" {setting} '
            + shlex.join([programs.path(LIBRARIES[library][0]), *REPEAT]))


def measure(library):
    """{way: {benchmark: nanoseconds of each turn}}."""
    ways = LIBRARIES[library][2]
    script = "set -e\n"
    for number in range(TURNS):
        order = list(ways) if number % 2 else list(reversed(ways))
        script += "".join(f"echo '=== {way}'\n{turn(library, ways[way])}\n" for way in order)
    print(f"measuring: {library}, {TURNS} turns in um", file=sys.stderr, flush=True)
    done = subprocess.run([programs.LAB, "--kernel", "um", "--no-checks", "--", "sh", "-c", script],
                          capture_output=True, text=True, check=False)
    found = {way: {} for way in ways}
    for part in done.stdout.split("=== ")[1:]:
        way, _, said = part.partition("\n")
        try:
            for name, values in programs.values(said[said.index("{"):], "cpu_time").items():
                found[way].setdefault(name, []).append(min(values))
        except ValueError:
            print(f"{library}, {way}: {said[-400:]} {done.stderr.strip()[-400:]}", file=sys.stderr)
    return found


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    got, good = {}, True
    print(f"{'':32}{'ns':>8}  beside its hooks: median of {TURNS} turns, fastest turns")
    for library in sys.argv[1:] or LIBRARIES:
        _, pattern, ways, one = LIBRARIES[library]
        got[library] = measure(library)
        for count in COUNTS:
            name = pattern.format(count)
            base = got[library][one].get(name, [])
            for way in ways:
                values = got[library][way].get(name, [])
                if not values or len(values) != len(base):
                    good = False
                    continue
                ratio = statistics.median(mine / his for mine, his in zip(values, base))
                print(f"{library:10} {way:12} {count:>7,}{statistics.median(values):>9.1f} "
                      f"{ratio:>8.2f}{min(values) / min(base):>8.2f}", flush=True)
        with open(os.path.join(OUT, f"consumers-{library}.json"), "w", encoding="utf-8") as out:
            json.dump(got[library], out, indent=1)
        print(programs.relative(f"consumers-{library}.json"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
