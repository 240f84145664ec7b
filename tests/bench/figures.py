# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Measure and draw the figures of Documentation/figures: all, or only the named figures.

Each figure has its own script. The figure shows its command, the day and the CPU. tests/bench/run
calls this script.
"""
import os
import shutil
import subprocess
import sys

import programs

FOLDER = os.path.join(programs.REPO, "Documentation/figures")
# Figure: (script, its arguments)
FIGURES = {
    "stale": ("stale",),
    "growth": ("growth",),
    "hits": ("compare",),
    "transfer-um": ("transfer", "um"),
    "transfer-debian": ("transfer", "debian"),
}


def draw(name):
    """Draw one figure. Return whether it could be measured."""
    script, *args = FIGURES[name]
    made = os.path.join(programs.OUT, name + ".svg")
    done = subprocess.run([sys.executable, "-B",
                           os.path.join(os.path.dirname(__file__), script + ".py"), *args],
                          check=False)
    if done.returncode:
        print("no figure:", name, file=sys.stderr)
        return False
    os.makedirs(FOLDER, exist_ok=True)
    shutil.copy(made, FOLDER)
    print(os.path.relpath(os.path.join(FOLDER, name + ".svg"), programs.REPO))
    return True


def main():
    """Draw all requested figures, even if one fails."""
    chosen = sys.argv[1:] or list(FIGURES)
    for name in chosen:
        if name not in FIGURES:
            sys.exit(f"{name}: no figure; there are {', '.join(FIGURES)}")
    return 0 if all([draw(name) for name in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
