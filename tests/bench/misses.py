# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Count the instructions of a hit and of a miss, for each way to keep registrations.

A hit finds a registration of 4 KiB. A miss registers 64 KiB that were unmapped and mapped again
after the last registration. The cost of unmapping and mapping is subtracted. The programs run in a
guest whose clock counts instructions, so that other load of this machine does not matter.
buildlib/consumers builds libfabric, UCX and Open MPI, and all ways of a library use the same build.
tests/bench/run calls this script.
"""
import argparse
import json
import os
import shlex
import sys

import programs
from programs import OUT

WORD_ONLY = {"UCX_RCACHE_NOTIFY": "y"}
BELOW_UCX = {"UCX_IB_REG_METHODS": "direct", "UCX_RCACHE_ENABLE": "n", "UCX_MEM_EVENTS": "n",
             "UCX_RCACHE_NOTIFY": "n", "RDMAV_MR_CACHE": "remote"}
NO_CACHE_BELOW = {"FI_MR_CACHE_MAX_COUNT": "0"}
WITHOUT_HOOKS = {"OMPI_MCA_memory": "^patcher", **NO_CACHE_BELOW}
BELOW_LIBFABRIC = {"RDMAV_MR_CACHE": "remote", **NO_CACHE_BELOW}
# Way: (program, the row of a hit, the row of a miss, environment)
WAYS = {
    "no cache": ("verbs", None, "renewed/plain", {}),
    "libibverbs": ("verbs", "hit/apart/1", "renewed/cached", {}),
    "a cache on the public verbs": ("verbs", None, "renewed/notified", {}),
    **{f"{layer}, {way}": ("ucx_md", hit, miss, environment)
       for layer, hit, miss in (("UCX", "ucx_md/1", "renewed/registered"),
                                ("UCX's ucp_mem_map", "ucp/1", "renewed/mapped"))
       for way, environment in (("hooks", {"UCX_RCACHE_NOTIFY": "n"}), ("the word", WORD_ONLY),
                                ("libibverbs below", BELOW_UCX))},
    **{f"libfabric, {way}": ("libfabric", "libfabric/1", "renewed/registered", environment)
       for way, environment in (("memhooks", {"FI_MR_CACHE_MONITOR": "memhooks"}),
                                ("userfaultfd", {"FI_MR_CACHE_MONITOR": "userfaultfd"}),
                                ("the word", {"FI_MR_CACHE_MONITOR": "verbs_notify"}),
                                ("libibverbs below", BELOW_LIBFABRIC))},
    **{f"Open MPI's grdma, {way}": ("grdma", f"grdma/{row}", f"renewed/{row}", environment)
       for way, row, environment in (
           ("hooks", "registered", {"OMPI_MCA_btl_ofi_mr_notify": "0", **NO_CACHE_BELOW}),
           ("the word", "registered", WITHOUT_HOOKS),
           ("the word by a second call", "armed", WITHOUT_HOOKS))},
}
BUILT = ":".join(os.path.join(programs.REPO, "build/consumers", name, "lib")
                 for name in ("ucx", "libfabric"))


def measure(program, environment, wanted):
    """{row: instructions} of a program, in a guest."""
    setting = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    said = programs.lab("debian", ["sh", "-c", (
        f'LD_LIBRARY_PATH={shlex.quote(BUILT)}:"${{LD_LIBRARY_PATH:-}}" {setting} '
        f"{programs.path(program)} --benchmark_format=json --benchmark_min_time=0.03 "
        f"'--benchmark_filter=^({'|'.join(wanted)})$'")], "--count-instructions")
    return {name: values[0] for name, values in programs.values(said, "cpu_time").items()} \
        if said else {}


def main():
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only ways whose names have one of these words")
    words = parser.parse_args().words
    ways = {way: row for way, row in WAYS.items()
            if not words or any(word in way for word in words)}
    os.makedirs(OUT, exist_ok=True)
    found = {}
    print("| registrations kept by | a hit | a miss |\n|---|---|---|")
    for way, (program, hit, miss, environment) in ways.items():
        print("measuring in debian:", way, file=sys.stderr, flush=True)
        rows = measure(program, environment, [row for row in (hit, miss, "renewed/nothing") if row])
        if miss in rows and "renewed/nothing" in rows and (hit in rows or not hit):
            found[way] = {"hit": rows.get(hit), "miss": rows[miss] - rows["renewed/nothing"]}
            shown = f"{rows[hit]:.0f}" if hit else "-"
            print(f"| {way} | {shown} | {found[way]['miss']:,.0f} |", flush=True)
    with open(os.path.join(OUT, "misses.json"), "w", encoding="utf-8") as out:
        json.dump(found, out, indent=1)
    print(f"\n{programs.relative('misses.json')}")
    if len(found) < len(ways):
        print("a row has no result", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
