# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""What is run where: the steps on the host, and those of each guest (one boot for all of them)."""
from dataclasses import dataclass, replace

import results

PYTHON = "/usr/bin/python3 -B"
UNIT_PROGRAMS = ("cache", "parts", "schedule", "tsan", "asan")
GUEST_PROGRAMS = ("contract", "word", "in_use", "revoke", "worker", "lifetime", "race", "cache",
                  "peer", "nested", "owner", "differential", "adversary", "observe")
# Upstream's suite as upstream's kernel passes it: what the fork may not do worse.
UPSTREAM_EXECUTED = 103


@dataclass
class Step:
    """One program: its output is read by `parse`, its exit status must be `expected`."""
    name: str
    command: str
    parse: object = results.status
    expected: int = 0
    least: int = 0      # as many tests must have been executed, skipped ones not counted


def guest_programs(*names, seconds=3):
    """The Catch2 programs; those that can go on for ever do so for some seconds each."""
    return [Step(name, f"RUN_SECONDS={seconds} build/tests/guest_{name} -r lines", results.lines)
            for name in names or GUEST_PROGRAMS]


def pyverbs(*names, least=0, program="build/rdma-core/bin/run_tests.py"):
    """unittests of pyverbs: the named modules, or all of upstream's and ours."""
    only = " ".join(f"-k {name}" for name in names)
    return Step("pyverbs " + (" ".join(names) or "all"),
                f"{program} -v --dev rxe0 {only}", results.unittest, least=least)


def cached(step):
    """The same with registrations cached, first those that no peer can notice, then all."""
    return [replace(step, name=f"{step.name} cached {value}",
                    command=f"RDMAV_MR_CACHE={value} {step.command}") for value in ("1", "remote")]


def on_siw(*steps):
    """The same on soft-iWARP."""
    return [replace(step, name=step.name + " siw0", command="MR_NOTIFY_DEVICE=siw0 " + step.command)
            for step in steps]


MATRIX = Step("matrix", "ibv_mr_notify --system --json", results.matrix)
PYTHON_EXAMPLE = Step("python example", f"{PYTHON} pyverbs/examples/mr_notify.py rxe0")
# The suite that the package python3-pyverbs brings, compressed as documentation is.
UNPACK_SUITE = Step("unpack suite", "mkdir /run/suite && cp -r /usr/share/doc/rdma-core/tests "
                    "/run/suite && gunzip -r /run/suite/tests")
UNPACKED = f"{PYTHON} /run/suite/tests/run_tests.py"
INSTALLED_SUITE = pyverbs(least=UPSTREAM_EXECUTED, program=UNPACKED)


def examples(kernel):
    """The examples of Documentation/ under MPI, on a kernel that "notifies", or is "stock"."""
    return Step("examples", f"{PYTHON} tests/mpi/examples.py {kernel}", results.lines, least=5)


# How a lane's guest is started, if its name is not just its kernel's.
OPTIONS = {"packages": ("--kernel", "um", "--packages"),
           "stock": ("--kernel", "stock", "--packages")}
GUESTS = {
    "um": [MATRIX, *guest_programs(),
           *on_siw(MATRIX, *guest_programs("contract", "in_use", "revoke")),
           PYTHON_EXAMPLE, pyverbs("test_mr_notify", "test_mr_cache"),
           *cached(pyverbs("test_mr_notify", "test_mr_cache"))],
    # What a user installs, under Debian's own programs and upstream's suite.
    "packages": [Step("programs", f"{PYTHON} tests/installed/programs.py", results.lines),
                 Step("mpi", f"{PYTHON} tests/mpi/compare.py", results.lines, least=19),
                 examples("notifies"),
                 UNPACK_SUITE, INSTALLED_SUITE, *cached(INSTALLED_SUITE)],
    # Windows are between two CPUs, and a transfer is cut short by another CPU.
    "debian": [MATRIX, *guest_programs(), *guest_programs("window", "stress", seconds=10),
               *guest_programs("transfer"),
               *on_siw(*guest_programs("contract", "in_use", "revoke", "transfer", "lifetime",
                                       "race")),
               pyverbs("test_mr_notify", "test_mr_cache")],
    "stock": [Step("no capability", "ibv_mr_notify", expected=3),
              examples("stock"), replace(PYTHON_EXAMPLE, expected=3),
              UNPACK_SUITE, pyverbs("test_mr_notify", "test_mr_cache", program=UNPACKED)],
    # As the DKMS package leaves the kernel's modules.
    "dkms": [MATRIX, *on_siw(MATRIX), pyverbs("test_mr_notify", "test_mr_cache"),
             Step("modules", "tests/guest/dkms_modules build/lab/dkms/life/removed",
                  results.lines)],
    # KASAN makes it slow: what has threads, ends or errors in it, and the matrix.
    "debug": [MATRIX, *guest_programs("contract", "word", "revoke", "worker", "lifetime"),
              *guest_programs("race", "in_use", seconds=2),
              *guest_programs("stress", seconds=10),
              *on_siw(*guest_programs("contract", "in_use", "revoke", "transfer"))],
}

HOST = [
    Step("host", f"{PYTHON} -m unittest discover -v -s tests/host", results.unittest),
    Step("lint", f"{PYTHON} buildlib/lint.py", results.lines),
    *(Step(f"unit-{name}", f"build/tests/unit_{name} -r lines", results.lines)
      for name in UNIT_PROGRAMS),
]
