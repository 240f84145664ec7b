# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""A hit through the caches of libfabric and UCX, with the kernel's word and with hooks.

Both are those of buildlib/consumers, so each way is the same build of the same cache. All ways run
at the same time in a guest of one processor, which gives each a few milliseconds in turn and counts
their time: where a virtual machine's processors are threads of a core that others use, its speed
changes by 1.7 times from second to second, and ways that run one after the other do not meet the
same. In each turn memory lies elsewhere (shuffled.h). Called by tests/bench/run, with the names of
the libraries, or none for both.
"""
import json
import os
import shlex
import statistics
import sys

import programs
from programs import OUT

TURNS = 9
SECONDS = 2    # of each way; a guest counts CPU time in ticks of 10 ms
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


def command(library, way, count, shift):
    """One way with so many entries, with the library that was built, memory moved by pages."""
    program, name, ways, _ = LIBRARIES[library]
    built = os.path.join(programs.REPO, "build/consumers", library, "lib")
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in ways[way].items())
    return (f'LD_LIBRARY_PATH={shlex.quote(built)}:"${{LD_LIBRARY_PATH:-}}" {setting} '
            f"BENCH_SHIFT={shift} " + shlex.join([
                programs.path(program), "--benchmark_format=json",
                f"--benchmark_min_time={SECONDS}", f"--benchmark_filter=^{name.format(count)}$"]))


def measure(library):
    """{way: {benchmark: nanoseconds of each turn}}."""
    ways = LIBRARIES[library][2]
    script = "set -e\nout=$(mktemp -d)\ntrap 'rm -r \"$out\"' EXIT\n"
    for turn in range(TURNS):
        for count in COUNTS:
            script += "".join(f'{{ {command(library, way, count, 37 * turn)} >"$out/{number}" || '
                              f'echo "status $?" >"$out/{number}"; }} &\n'
                              for number, way in enumerate(ways)) + "wait\n"
            script += "".join(f"echo '=== {way}'\ncat \"$out/{number}\"\n"
                              for number, way in enumerate(ways))
    print(f"measuring: {library}, {TURNS} turns in um", file=sys.stderr, flush=True)
    found = {way: {} for way in ways}
    for part in (programs.lab("um", ["sh", "-c", script]) or "").split("=== ")[1:]:
        way, _, said = part.partition("\n")
        try:
            for name, values in programs.values(said, "cpu_time").items():
                found[way].setdefault(name, []).extend(values)
        except ValueError:
            print(f"no result: {library}, {way}: {said[-400:]}", file=sys.stderr)
    return found


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    got, good = {}, True
    print(f"{'':32}{'ns':>8}  beside its hooks: median of {TURNS} turns, least, most")
    for library in sys.argv[1:] or LIBRARIES:
        _, pattern, ways, one = LIBRARIES[library]
        got[library] = measure(library)
        for count in COUNTS:
            name = pattern.format(count)
            base = got[library][one].get(name, [])
            for way in ways:
                values = got[library][way].get(name, [])
                if len(values) != TURNS or len(base) != TURNS:
                    good = False
                    print(f"{library:10} {way:12} {count:>7,}        -", flush=True)
                    continue
                ratios = [mine / his for mine, his in zip(values, base)]
                print(f"{library:10} {way:12} {count:>7,}{statistics.median(values):>9.1f} "
                      + "".join(f"{of(ratios):>8.2f}" for of in (statistics.median, min, max)),
                      flush=True)
        with open(os.path.join(OUT, f"consumers-{library}.json"), "w", encoding="utf-8") as out:
            json.dump(got[library], out, indent=1)
        print(programs.relative(f"consumers-{library}.json"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
