# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Draw the share of messages with old bytes under Debian's Open MPI and MPICH, for each cache.

Runs tests/mpi/compare.py in a guest. It sends 20 messages from a buffer that is unmapped and mapped
again before each message. The results are counts, so other load does not matter. tests/bench/run
calls this script.
"""
import json
import os
import subprocess
import sys

import programs
from programs import OUT, REPO


def measure():
    """The rows of tests/mpi/compare.py, or []."""
    path = os.path.join(OUT, "stale.json")
    if os.path.exists(path):
        os.unlink(path)
    print("measuring in um", file=sys.stderr, flush=True)
    done = subprocess.run([programs.LAB, "--kernel", "um", "--results", OUT, "--",
                           "/usr/bin/python3", "-B", os.path.join(REPO, "tests/mpi/compare.py"),
                           "--json", path], check=False)
    if done.returncode:
        return []
    with open(path, encoding="utf-8") as text:
        return json.load(text)


def plot(rows):
    """stale.svg."""
    data = os.path.join(OUT, "stale.dat")
    with open(data, "w", encoding="utf-8") as out:
        for number, row in enumerate(reversed(rows)):
            share = 100 * row["stale"] / row["messages"]
            by = row["kept_by"].replace("libibverbs (", "ours (")
            print(number, f"{share:.0f}", f'"{row["over"]}: {by}"',
                  f'"{row["stale"]} of {row["messages"]}"', file=out)
    programs.figure("stale", (960, 440), "Messages that arrive with old bytes, of 20 from a buffer "
                    "that was unmapped and mapped again", "tests/bench/run stale", f"""
set title TITLE offset screen -0.22,0
set lmargin at screen 0.48; set rmargin at screen 0.97; set xrange [0:120]
set yrange [-0.7:{len(rows) - 0.3}]; set grid xtics; unset key
set xlabel "% of the messages"; set xtics 0,25,100; set style fill solid 0.8
set ytics noenhanced; set boxwidth 0.7
plot "{data}" using (0):1:(0):2:($1-0.35):($1+0.35):ytic(3) with boxxyerror lc rgb "#c03030" \\
    title "old bytes", \\
    "" using 2:1:4 with labels left offset 0.5,0
""")


def main():
    """Measure, write."""
    os.makedirs(OUT, exist_ok=True)
    rows = measure()
    if not rows:
        return 1
    plot(rows)
    print(f"\n{programs.relative('stale.json')}, {programs.relative('stale.svg')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
