# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure and plot transfers from several buffers in turn, including each buffer's registration.

The cost of a hit says little about the gain of a program. Here the buffer of each message is
registered, written to the peer by RDMA over soft-RoCE, and deregistered. There is a way for each
cache, and a way without a cache. One more way, the limit, registers all buffers before the first
message. In each guest the ways take turns, and the best turn of each way counts, because other load
only adds time. tests/bench/run calls this script.
"""
import json
import os
import subprocess
import sys

import programs
from programs import OUT

GUESTS = {"um": "User Mode Linux, 1 CPU, native speed; slow system calls",
          "debian": "Debian's kernel in QEMU, 2 CPUs"}
TURNS = {"um": 5, "debian": 2}   # emulation is slow
LIBFABRIC = "FI_MR_CACHE_MAX_COUNT=200000 FI_MR_CACHE_MAX_SIZE=-1 FI_MR_CACHE_MONITOR="
# Way: (environment, program, which of its benchmarks)
WAYS = {
    "registered before": ("", "transfer", "registered"),
    "no cache": ("", "transfer", "none"),
    "ours": ("", "transfer", "cached"),
    "all memory": ("", "transfer", "all"),
    "all memory, dropped before": ("", "transfer", "dropped"),
    "libfabric, no cache": (LIBFABRIC + "disabled", "libfabric_transfer", ""),
    "libfabric memhooks": (LIBFABRIC + "memhooks", "libfabric_transfer", ""),
    "libfabric userfaultfd": (LIBFABRIC + "userfaultfd", "libfabric_transfer", ""),
    "libfabric on ours": (LIBFABRIC + "disabled RDMAV_MR_CACHE=remote", "libfabric_transfer", ""),
}
MESSAGES = 8    # in an iteration, one for each buffer of rotation.h


def script(kernel, folder):
    """Shell commands that leave WAY.TURN.json in a folder."""
    lines = ["set -eu", "cd /tmp", "unset RDMAV_MR_CACHE"]
    for turn in range(TURNS[kernel]):
        for number, (environment, program, which) in enumerate(WAYS.values()):
            out = os.path.join(folder, f"{number}.{turn}.json")
            lines.append(f"env {environment} {programs.path(program)} --benchmark_filter='^{which}'"
                         f" --benchmark_min_time=0.02 --benchmark_out={out}"
                         " --benchmark_out_format=json >log 2>&1 || { cat log >&2; exit 1; }")
    return "\n".join(lines)


def measure(kernel):
    """{way: {counter: {size: nanoseconds a message}}} in a guest."""
    folder = os.path.join(OUT, "transfer-" + kernel)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    print("measuring in", kernel, file=sys.stderr, flush=True)
    subprocess.run([programs.LAB, "--kernel", kernel, "--no-checks", "--results", folder, "--",
                    "sh", "-c", script(kernel, folder)], check=True)
    got = {}
    for number, way in enumerate(WAYS):
        best = {}
        for turn in range(TURNS[kernel]):
            with open(os.path.join(folder, f"{number}.{turn}.json"), encoding="utf-8") as said:
                for name, values in programs.values(said.read(), "real_time").items():
                    _, what, size = name.removesuffix("/real_time").split("/")
                    sizes = best.setdefault(what, {})
                    took = min(values) / MESSAGES
                    sizes[int(size)] = min(took, sizes.get(int(size), took))
        got[way] = best
    return got


def size_text(size):
    """4096 as 4 KB."""
    return f"{size >> 10} KB" if size < 1 << 20 else f"{size >> 20} MB"


# The printed tables: (key, title, unit, function of nanoseconds per message and of bytes)
VIEWS = [
    ("latency", "one message at a time: register, write, deregister", "us a message",
     lambda ns, size: ns / 1e3),
    ("bandwidth", "four messages on their way", "MB/s", lambda ns, size: size / ns * 1e3),
]


def show(kernel, got):
    """The tables of a guest."""
    for key, title, unit, value in VIEWS:
        print(f"\n{kernel} ({GUESTS[kernel]})\n{title}, {unit}\n")
        print(" " * 24 + "".join(f"{size_text(size):>10}" for size in got["ours"][key]))
        for way, seen in got.items():
            print(f"{way:24}" + "".join(f"{value(ns, size):10.1f}"
                                        for size, ns in seen[key].items()))


def plot(kernel, got):
    """transfer-KERNEL.svg: for each size the time, relative to the limit, and the bandwidth."""
    data = os.path.join(OUT, f"transfer-{kernel}.dat")
    limit = got["registered before"]["latency"]
    with open(data, "w", encoding="utf-8") as out:
        for way, seen in got.items():
            print(f'"{way}"', file=out)
            for size, ns in seen["latency"].items():
                print(size, f"{ns / limit[size]:.3f}",
                      f"{size / seen['bandwidth'][size] * 1e3:.1f}", file=out)
            print("\n", file=out)
    tics = ", ".join(f'"{size_text(size)}" {size}' for size in limit)
    lines = (f'plot for [i=0:{len(WAYS) - 1}] "{data}" index i using 1:{{}} with linespoints '
             "lw i < 3 ? 3 : 1 ps 0.6 title columnheader(1)")
    programs.figure(f"transfer-{kernel}", (1100, 580),
                    f"RDMA writes from rotating buffers: {GUESTS[kernel]}",
                    f"tests/bench/run transfer {kernel}", f"""
set multiplot layout 1,2 title TITLE
set logscale x 2; set xrange [3500:20000000]; set yrange [0:*]; set xtics ({tics})
set xlabel "message size"; set grid; set key below maxrows 4
set title "one message at a time"; set ylabel "time / time with buffers registered before"
{lines.format(2)}
set title "four messages on their way"; set ylabel "MB/s"
{lines.format(3)}
""")


def main():
    """Measure, print, write."""
    os.makedirs(OUT, exist_ok=True)
    found = {}
    for kernel in sys.argv[1:] or GUESTS:
        found[kernel] = measure(kernel)
        show(kernel, found[kernel])
        plot(kernel, found[kernel])
    with open(os.path.join(OUT, "transfer.json"), "w", encoding="utf-8") as out:
        json.dump({"nanoseconds a message": found}, out, indent=1)
    print("\n" + ", ".join(programs.relative(name) for name in
                           ("transfer.json", *(f"transfer-{kernel}.svg" for kernel in found))))


if __name__ == "__main__":
    main()
