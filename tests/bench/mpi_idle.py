# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run NetPIPE by Open MPI over UCX with RDMAV_MR_CACHE=remote, with and without an idle time.

The script prints the statistics of both runs, and a ratio for message sizes from 64 KiB to 1 MiB:
the throughput with the default RDMAV_MR_CACHE_IDLE_MS divided by the throughput with 0. Run it in a
guest whose clock counts instructions, so that other load on this machine does not matter:
tests/lab/run --kernel debian --count-instructions -- /usr/bin/python3 -B tests/bench/mpi_idle.py
"""
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../mpi"))
import compare  # noqa: E402 (in another folder)

OVER = "Open MPI, UCX"


def throughput(idle):
    """{size in bytes: Mbit/s}. `idle` is RDMAV_MR_CACHE_IDLE_MS, or "" for the default."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RDMAV_")}
    env.update(compare.ALWAYS, **compare.UCX_OFF, **compare.OURS)
    if idle:
        env["RDMAV_MR_CACHE_IDLE_MS"] = idle
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [*compare.OVER[OVER], *compare.ON_ONE_NODE["mpirun.openmpi"], "-np", "2", "NPopenmpi",
             "-l", "65536", "-u", "1048576", "-n", "5"],
            cwd=folder, env=env, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(f"RDMAV_MR_CACHE_IDLE_MS={idle or 'default'}",
              *(line for line in run.stdout.splitlines() if "libibverbs" in line),
              sep="\n  ", flush=True)
        if run.returncode:
            sys.exit(run.stdout)
        with open(os.path.join(folder, "np.out"), encoding="ascii") as found:
            rows = [line.split() for line in found]
    return {int(size): float(rate) for size, rate, *_ in rows}


def main():
    """Run both."""
    never, default = throughput("0"), throughput("")
    ratios = {size: default[size] / never[size] for size in sorted(default.keys() & never.keys())}
    for size, ratio in ratios.items():
        print(f"{size:8} bytes: {ratio:.3f}")
    print(f"median {statistics.median(ratios.values()):.3f}")


if __name__ == "__main__":
    main()
