# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure a hit through the caches of libfabric and UCX, with the kernel's word and with hooks.

buildlib/consumers builds both libraries, and all ways of a library use the same build. All ways run
at the same time in a guest of one processor. The guest's kernel gives each way a few milliseconds
in turn, and counts the time of each way. This machine may be a virtual machine whose processors are
threads of a shared core. Then its speed changes by a factor of 1.7 from second to second, and ways
that run one after the other get different speeds. Each turn uses other addresses (shuffled.h).
tests/bench/run calls this script with the names of libraries. Without names, the script measures
both libraries.
"""
import json
import os
import shlex
import statistics
import sys

import programs
from programs import OUT

TURNS = 9
SECONDS = 1    # the time for each way; a guest counts CPU time in ticks of 10 ms
LIMITS = {"FI_MR_CACHE_MAX_COUNT": "200000", "FI_MR_CACHE_MAX_SIZE": "-1"}
# {library: (program, {title: its benchmark}, {way: environment}, the way by which the times of
# other ways are divided)}
LIBRARIES = {
    "libfabric": ("libfabric", {
        "1 entry": "libfabric/1", "1,000 entries": "libfabric/1000",
        "1 entry, 2 threads": "libfabric/1/threads:2",
        "1,000 entries, 2 threads": "libfabric/1000/threads:2",
        "1,000 of 256 bytes": "libfabric_small/1000",
        "1,000 of 256 bytes, 2 threads": "libfabric_small/1000/threads:2",
        **{f"{count} of a region{title}": f"libfabric_parts/{number}{threads}"
           for title, threads in (("", ""), (", 2 threads", "/threads:2"))
           for count, number in (("1 part", 1), ("16 parts", 16), ("16,384 parts", 16384))}}, {
        "memhooks": {"FI_MR_CACHE_MONITOR": "memhooks", **LIMITS},
        "verbs_notify": {"FI_MR_CACHE_MONITOR": "verbs_notify", **LIMITS},
        "userfaultfd": {"FI_MR_CACHE_MONITOR": "userfaultfd", **LIMITS}}, "memhooks"),
    "ucx": ("ucx_md", {"1 entry": "ucx_md/1", "1,000 entries": "ucx_md/1000"}, {
        "hooks": {"UCX_RCACHE_NOTIFY": "n"}, "the word": {"UCX_RCACHE_NOTIFY": "y"}}, "hooks"),
}


def command(library, way, name, shift):
    """The command that runs a benchmark in one way with the built library. It moves memory by
    `shift` pages.
    """
    program, _, ways, _ = LIBRARIES[library]
    built = os.path.join(programs.REPO, "build/consumers", library, "lib")
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in ways[way].items())
    return (f'LD_LIBRARY_PATH={shlex.quote(built)}:"${{LD_LIBRARY_PATH:-}}" {setting} '
            f"BENCH_SHIFT={shift} " + shlex.join([
                programs.path(program), "--benchmark_format=json",
                f"--benchmark_min_time={SECONDS}", f"--benchmark_filter=^{name}$"]))


def measure(library):
    """{way: {benchmark: nanoseconds of each turn}}."""
    _, names, ways, _ = LIBRARIES[library]
    script = "set -e\nout=$(mktemp -d)\ntrap 'rm -r \"$out\"' EXIT\n"
    for turn in range(TURNS):
        for name in names.values():
            script += "".join(f'{{ {command(library, way, name, 37 * turn)} >"$out/{number}" || '
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
    print(f"{'':54}{'ns':>8}  relative to hooks: median of {TURNS} turns, least, most")
    for library in sys.argv[1:] or LIBRARIES:
        _, names, ways, one = LIBRARIES[library]
        got[library] = measure(library)
        for title, name in names.items():
            base = got[library][one].get(name, [])
            for way in ways:
                values = got[library][way].get(name, [])
                if len(values) != TURNS or len(base) != TURNS:
                    good = False
                    print(f"{library:10} {way:12} {title:>30}        -", flush=True)
                    continue
                ratios = [mine / his for mine, his in zip(values, base)]
                print(f"{library:10} {way:12} {title:>30}{statistics.median(values):>9.1f} "
                      + "".join(f"{of(ratios):>8.2f}" for of in (statistics.median, min, max)),
                      flush=True)
        with open(os.path.join(OUT, f"consumers-{library}.json"), "w", encoding="utf-8") as out:
            json.dump(got[library], out, indent=1)
        print(programs.relative(f"consumers-{library}.json"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
