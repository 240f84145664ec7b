#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run programs that check their answers over soft-RoCE, in a guest: NetPIPE, HPCC, MPICH's tests.

Each with registrations kept in three ways: by the hooks of libfabric or UCX, by the word in the
same library (buildlib/consumers), and by libibverbs below it, the library's own cache switched
off. Which way it was, is seen in the kernel's count of armed registrations and in libibverbs' hits.
With --nodes: NetPIPE and HPCC, with a process on each of two nodes (tests/lab/run --nodes 2), over
Debian's own libraries, which can't ask for the word. Programs on verbs alone are in
tests/installed/.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mpi"))

import compare  # noqa: E402

LIMIT = 900     # seconds: it hangs
MPICH_TESTS = os.path.join(HERE, "../../build/consumers/mpich_tests")
ARMS = "/sys/class/infiniband/rxe0/ports/1/hw_counters/mr_notify_arms"
FABRIC = {"hooks": {"FI_MR_CACHE_MONITOR": "memhooks", **compare.ONLY_LIBFABRIC},
          "inside": {"FI_MR_CACHE_MONITOR": "verbs_notify", **compare.ONLY_LIBFABRIC},
          "below": {**compare.FABRIC_OFF, **compare.OURS}}
UCX = {"hooks": compare.WORD_OFF,
       "inside": {"UCX_RCACHE_NOTIFY": "y", **compare.ONLY_LIBFABRIC},
       "below": {**compare.UCX_OFF, **compare.OURS}}
OVER = {"Open MPI, libfabric": (FABRIC, compare.FABRIC_BUILT),
        "Open MPI, UCX": (UCX, compare.UCX_BUILT), "MPICH, UCX": (UCX, compare.UCX_BUILT)}
OVER_DEBIAN = {over: ({"below": ways["below"], "hooks": {}}, "")
               for over, (ways, _) in OVER.items()}


@dataclass
class Program:
    """Something that MPI starts."""
    name: str
    command: list
    good: object            # good(its output, its folder): whether its answers are right
    prepare: object = None  # prepare(folder)
    over: tuple = ("Open MPI, libfabric", "Open MPI, UCX")
    processes: int = 2
    registers: bool = True  # memory of the program's own, so that ways can be told apart


def hpcc_input(folder):
    """The package's example, made small."""
    with open("/usr/share/doc/hpcc/examples/_hpccinf.txt", encoding="ascii") as text:
        lines = text.read().splitlines()
    for number, value in ((5, 256), (10, 1), (11, 2)):      # Ns, Ps, Qs
        lines[number] = f"{value} {lines[number]}"
    with open(os.path.join(folder, "hpccinf.txt"), "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


def hpcc_good(_said, folder):
    """It says so of each of its parts."""
    path = os.path.join(folder, "hpccoutf.txt")
    if not os.path.exists(path):
        return False
    with open(path, encoding="ascii", errors="replace") as text:
        said = text.read()
    return (re.search(r"^Success=1$", said, re.MULTILINE) and
            re.search(r"^ +0 tests completed and failed residual checks", said, re.MULTILINE) and
            not re.search(r"FAILED|^Failed|[1-9]\d* tests failed", said, re.MULTILINE))


def mpich_tests():
    """Those of the list that buildlib/consumers builds."""
    with open(os.path.join(HERE, "mpich.testlist"), encoding="ascii") as text:
        for line in text:
            if not line.startswith("#"):
                name, processes = line.split()
                yield Program(f"MPICH's {name}", [os.path.join(MPICH_TESTS, name)],
                              lambda said, _: "No Errors" in said, over=("MPICH, UCX",),
                              processes=int(processes), registers=False)


PROGRAMS = [
    Program("NetPIPE", ["NPopenmpi", "-i", "-l", "1024", "-u", "4194304", "-n", "5"],
            lambda said, _: "Integrity check passed" in said and "failed" not in said.lower()),
    Program("HPCC", ["hpcc"], hpcc_good, hpcc_input),
    *mpich_tests(),
]


def arms():
    """How many registrations were armed so far."""
    with open(ARMS, encoding="ascii") as text:
        return int(text.read())


def run(program, over, way, nodes):
    """The complaints, or ""."""
    settings, library = (OVER_DEBIAN if nodes else OVER)[over]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RDMAV_")}
    env.update(compare.ALWAYS, **settings[way])
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, (library, env.get("LD_LIBRARY_PATH"))))
    launcher, *options = compare.OVER[over]
    where = compare.ON_TWO_NODES if nodes else compare.ON_ONE_NODE
    command = [launcher, *where[launcher], "-np", str(program.processes), *options,
               *program.command]
    folder = tempfile.mkdtemp()
    if nodes:   # they are in the same one
        subprocess.run(["lab-on", "2", "mkdir", folder], check=True)
    if program.prepare:
        program.prepare(folder)
    before = arms()
    begin = time.monotonic()
    try:
        done = subprocess.run(command, cwd=folder, env=env, text=True,
                              errors="replace", check=False, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        good = done.returncode == 0 and program.good(done.stdout, folder)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT} s"
    finally:
        shutil.rmtree(folder)
    if not good:
        return f"exit status {done.returncode}\n{done.stdout[-3000:]}"
    armed = arms() - before
    hits = sum(map(int, re.findall(r"^libibverbs: process .*?: (\d+) hits", done.stdout,
                                   re.MULTILINE)))
    print(f"# {program.name}, {over}, {way}: {armed} armed, {hits} hits of libibverbs, "
          f"{time.monotonic() - begin:.0f} s")
    if way == "hooks":
        return "the kernel's word was asked" if armed or hits else ""
    if program.registers and not (armed and bool(hits) == (way == "below")):
        return f"not {way}: {armed} armed, {hits} hits of libibverbs"
    return ""


def main():
    """All of them. A program that fails with hooks as well is not ours: it has both results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", action="store_true", help="a process on each of two nodes")
    parser.add_argument("name", nargs="*", help="programs with that in their name")
    args = parser.parse_args()
    good = True
    for program in PROGRAMS:
        if args.name and not any(text in program.name for text in args.name):
            continue
        if args.nodes and not program.registers:    # MPICH's tests
            continue
        for over in program.over:
            ways = (OVER_DEBIAN if args.nodes else OVER)[over][0]
            wrong = {way: run(program, over, way, args.nodes)
                     for way in ("inside", "below", "hooks") if way in ways}
            for way, why in wrong.items():
                name = f"{program.name}, {over}, {way}"
                if not why:
                    print(f"ok {name}", flush=True)
                elif wrong["hooks"] and way != "hooks":
                    print(f"skip {name}: fails with hooks too", flush=True)
                else:
                    print(f"{why}\nnot ok {name}", flush=True)
                    good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
