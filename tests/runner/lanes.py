# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The builds, and the tests of each lane. To add a lane, add a row to LANES.

The steps of a lane run in one guest, which boots once for all steps, or on the host. A lane begins
when the builds that it `needs` (rows of BUILDS) are done. Other builds and lanes run at the same
time, so a lane must not rely on an idle or fast machine. `seconds` is roughly the time of the lane
from scratch on two idle cores. It decides only the order in which lanes begin.
"""
import glob
import os
import shlex
from dataclasses import dataclass, replace

import again
import results

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = "/usr/bin/python3 -B"
UNIT_PROGRAMS = ("cache", "fail_nth", "parts", "views", "schedule", "tsan", "asan")
GUEST_PROGRAMS = ("contract", "word", "changes", "in_use", "reclaim", "revoke", "worker",
                  "lifetime", "race", "cache", "peer", "rights", "invalidate", "nested", "owner",
                  "differential",
                  "adversary", "observe", "retransmit_answers", "errors", "qp_state",
                  "wqe_ring", "lossy", "no_cross_process_wait", "idle")
# At least this many tests of these programs must run, because one missing requirement would skip
# all of them. The test "at most 512 packets wait" may be skipped on a slow machine.
GUEST_LEAST = {"retransmit_answers": 5, "nodes": 8, "odp_packets": 15}
# This many tests of upstream's suite run on soft-RoCE. On upstream's kernel 103 tests run.
UPSTREAM_EXECUTED = 118


@dataclass
class Build:
    """A command that builds something that lanes need. It skips parts that are up to date."""
    command: str
    needs: tuple = ()
    seconds: int = 60


@dataclass
class Step:
    """One program. `parse` reads its output, and its exit status must be `expected`."""
    name: str
    command: str
    parse: object = results.status
    expected: int = 0
    least: int = 0      # at least this many tests must run; skipped tests do not count
    needs: tuple = ()   # on the host: needs of the step, in addition to the lane's `needs`
    seconds: int = 10   # on the host: the time of the step, roughly
    again: object = None    # name of a case -> the command that runs it alone; None: the whole step

    def command_again(self, case, said=""):
        """The command that repeats a failed case."""
        if self.again and case:
            return again.seeded(self.again(case), said)
        return f"sh -c {shlex.quote(self.command)}"


@dataclass
class Lane:
    """In a guest the steps run one after the other. On the host they may run in parallel."""
    steps: list
    guest: str = ""     # the options of tests/lab/run; "": on the host
    on: str = ""        # the options of tests/lab/on, if the guest is another release
    needs: tuple = ()
    seconds: int = 60
    named_only: bool = False    # runs only if it is named


def guest_programs(*names, seconds=3):
    """The steps of Catch2 programs. Each open-ended program runs for some seconds."""
    longer = f"env RUN_SECONDS={seconds} " if seconds != 3 else ""
    return [Step(name, f"RUN_SECONDS={seconds} build/tests/guest_{name} -r lines", results.lines,
                 least=GUEST_LEAST.get(name, 1),
                 again=again.catch(f"{longer}build/tests/guest_{name}"))
            for name in names or GUEST_PROGRAMS]


def pyverbs(*names, least=0, program="build/rdma-core/bin/run_tests.py"):
    """unittests of pyverbs: the named modules, or all modules of upstream and ours."""
    only = " ".join(f"-k {name}" for name in names)
    return Step("pyverbs " + (" ".join(names) or "all"),
                f"{program} -v --dev rxe0 {only}", results.unittest, least=least,
                again=again.unittest(f"{program} -v --dev rxe0"))


def with_variable(step, variable):
    """The same step with one more variable in its environment."""
    return replace(step, command=f"{variable} {step.command}",
                   again=step.again and (lambda case: f"env {variable} {step.again(case)}"))


def cached(step):
    """The step twice: with the cache for local rights, and for all rights."""
    return [with_variable(replace(step, name=f"{step.name} cached {value}"),
                          f"RDMAV_MR_CACHE={value}") for value in ("1", "remote")]


def on_siw(*steps):
    """The steps on soft-iWARP."""
    return [with_variable(replace(step, name=step.name + " siw0"), "MR_NOTIFY_DEVICE=siw0")
            for step in steps]


def matrix(name, parse, option):
    """The rows of ibv_mr_notify."""
    command = f"ibv_mr_notify --system {option}"
    return Step(name, command, parse, again=again.matrix(command))


MATRIX = matrix("matrix", results.matrix, "--json")
ALL = matrix("matrix, all memory", results.lines, "--all")
SUSPENDED = matrix("matrix, suspended", results.lines, "--reclaim")
# On-demand paging: our tests and upstream's.
PAGING = [*guest_programs("odp", "odp_memory", "odp_packets", "odp_wait", "odp_oracle"),
          pyverbs("test_mr_all", "test_odp", least=24)]
# All tests must run, except three tests that need a device without a capability.
NOTIFY_AND_CACHE = pyverbs("test_mr_notify", "test_mr_cache", least=67)
# Debian's programs that can page on demand. They use the fork's library from the build folder.
PAGING_PROGRAMS = Step("programs on demand", f"{PYTHON} tests/installed/programs.py 'on demand'",
                       results.lines, least=18)
# If the guest's clock were coarse, all waits would end at the next tick, and races would be rare.
CLOCK = Step("fine clock", "! grep jiffies /sys/devices/system/clocksource/*/current_clocksource")
# Check that machines/debug.toml compiled these files with KASAN, which detects a use after free.
KASAN = Step("KASAN", " && ".join(
    f"grep -q __asan_report build/lab/debug/build/{name}.o" for name in (
        "drivers/infiniband/core/umem_notify", "drivers/infiniband/core/rdma_core",
        "drivers/infiniband/sw/rxe/rxe_mr", "drivers/infiniband/sw/siw/siw_mem",
        "mm/mmu_notifier", "kernel/workqueue", "lib/interval_tree", "net/core/skbuff",
        "fs/char_dev")))
# In this case KASAN finds most mistakes. The other cases write word by word, and would take minutes
# with KASAN.
WQE_RING = replace(guest_programs("wqe_ring")[0],
                   command="RUN_SECONDS=10 build/tests/guest_wqe_ring -r lines "
                   "'wqe_ring: anything is written anywhere at any time'")
# Debian's kernel refuses the probes of the other cases.
LOOKUP = replace(guest_programs("lookup")[0], command="RUN_SECONDS=10 build/tests/guest_lookup "
                 "-r lines 'a packet reaches a queue pair that is being destroyed'")
# siw0 has no on-demand paging and no atomic operations, so 6 of the 8 cases run.
NODES = [*guest_programs("nodes"),
         *(replace(step, least=6) for step in on_siw(*guest_programs("nodes")))]
TOOLS = Step("tools", "tests/guest/tools", results.lines, least=7)
PYTHON_EXAMPLE = Step("python example", f"{PYTHON} pyverbs/examples/mr_notify.py rxe0")
PYTHON_SERVER = Step("python server", f"{PYTHON} pyverbs/examples/notify_server.py rxe0")
UNPACK_SUITE = Step("unpack suite", "tests/installed/unpack_suite")
UNPACKED = f"{PYTHON} /run/suite/tests/run_tests.py"
# Upstream's tests and ours. If the kernel notifies, 77 of ours run.
INSTALLED_SUITE = pyverbs(least=UPSTREAM_EXECUTED + 71, program=UNPACKED)


def examples(kernel):
    """The examples of Documentation/ under MPI. `kernel` is "notifies" or "stock"."""
    return Step("examples", f"{PYTHON} tests/mpi/examples.py {kernel}", results.lines, least=5)


def host_tests():
    """A step for each file of tests/host. `more` has needs, and the times of long steps.
    """
    more = {"test_abi": {"needs": ("debs",), "seconds": 90},
            "test_packages": {"needs": ("debs",), "seconds": 60},
            "test_dkms": {"needs": ("kernel dkms", "kernel dkms-next")},
            "test_architectures": {"seconds": 40},
            "test_lab_run": {"needs": ("kernel um", "kernel debian"), "seconds": 60},
            "test_lab_emulator": {"needs": ("kernel debian",), "seconds": 40},
            "test_lab_um": {"needs": ("kernel um",)},
            "test_realtime": {"seconds": 100},
            "test_rdma_core_series": {"seconds": 500},
            "test_series": {"needs": ("kernel debian",), "seconds": 800}}
    names = sorted(os.path.basename(path).removesuffix(".py")
                   for path in glob.glob(os.path.join(REPO, "tests/host/test_*.py")))
    made = []
    for name in names:
        command = f"{PYTHON} -m unittest discover -v -s tests/host -p {name}.py"
        made.append(Step(name, command, results.unittest, again=again.unittest(command),
                         **more.get(name, {})))
    return made


def unit(*names):
    """The unit tests of the cache's core."""
    return [Step(f"unit-{name}", f"build/tests/unit_{name} -r lines", results.lines,
                 again=again.catch(f"build/tests/unit_{name}")) for name in names or UNIT_PROGRAMS]


# A guest of Debian 13 with the kernel that was built on this machine.
TRIXIE = "trixie --kernel um"

BUILDS = {
    "fork": Build("cmake -S . -B build -GNinja && cmake --build build", seconds=180),
    # This builds only the parts for guest programs and unit tests (targets of CMakeLists.txt).
    "fork, only its tests":
        Build("cmake -S . -B build -GNinja && cmake --build build --target guest_tests unit_tests",
              seconds=100),
    "debs": Build("buildlib/package debs", seconds=200),
    "libfabric and UCX": Build("buildlib/consumers", ("fork",), 240),
    "Open MPI 5": Build("buildlib/consumers openmpi", ("libfabric and UCX",), 1500),
    "fabtests": Build("buildlib/consumers fabtests", ("libfabric and UCX",), 60),
    "UCX's gtest": Build("buildlib/consumers gtest", ("libfabric and UCX",), 500),
    "libfabric with the thread sanitizer":
        Build("buildlib/consumers libfabric_tsan", ("libfabric and UCX",), 60),
    "MPICH's tests": Build("buildlib/consumers mpich_tests", ("libfabric and UCX",), 100),
    "installed": Build("tests/lab/run --prepare --kernel um --packages", ("debs", "kernel um"), 30),
    "kernel um": Build("tests/lab/run --prepare --kernel um", seconds=240),
    "kernel debian": Build("tests/lab/run --prepare --kernel debian", seconds=120),
    "kernel stock": Build("tests/lab/run --prepare --kernel stock", ("kernel debian",), 10),
    "kernel dkms": Build("tests/lab/run --prepare --kernel dkms", ("kernel debian",), 300),
    "kernel dkms-next": Build("tests/lab/run --prepare --kernel dkms-next", seconds=500),
    "kernel next-um": Build("tests/lab/run --prepare --kernel next-um", seconds=240),
    "kernel next-odp": Build("tests/lab/run --prepare --kernel next-odp", ("kernel next-um",), 30),
    "kernel next": Build("tests/lab/run --prepare --kernel next", seconds=150),
    "kernel debug": Build("tests/lab/run --prepare --kernel debug", seconds=420),
    "trixie root": Build("tests/lab/on trixie -- true", seconds=130),
    "trixie programs": Build(
        f"tests/lab/on {TRIXIE} -- sh -euc 'cmake -S . -B build -GNinja && "
        "cmake --build build && "
        "tests/lab/run --prepare --kernel um --packages'", ("trixie root", "kernel um"), 600),
}

CONSUMERS = ("fork", "kernel um", "libfabric and UCX")


def hits(name, libfabric, least, options=""):
    """A step that counts the verbs which libfabric's cache calls. `libfabric` is the build to use.
    """
    return Step(name, f"LD_LIBRARY_PATH=build/consumers/{libfabric}/lib:$LD_LIBRARY_PATH {options} "
                f"build/tests/consumers_{name}", results.lines, least=least)


LANES = {
    "um": Lane(
        [MATRIX, ALL, SUSPENDED, *guest_programs(), *PAGING, *guest_programs("fuzz", seconds=60),
         *on_siw(MATRIX, *guest_programs("contract", "changes", "in_use", "revoke", "rights",
                                         "siw")),
         TOOLS, PYTHON_EXAMPLE, PYTHON_SERVER, NOTIFY_AND_CACHE, *cached(NOTIFY_AND_CACHE)],
        guest="--kernel um", needs=("fork", "kernel um"), seconds=150),
    # Tests without a kernel, and tests of the lab itself.
    "host": Lane(
        [*host_tests(),
         Step("lint", f"{PYTHON} buildlib/lint.py", results.lines, seconds=400),
         *unit()],
        needs=("fork",)),
    # The packages for users, with Debian's own programs and upstream's suite.
    "packages": Lane(
        [Step("programs", f"{PYTHON} tests/installed/programs.py", results.lines),
         # On Debian 13, MPICH's UCX hangs over soft-RoCE, so compare.py skips its rows, and 18 are
         # left.
         Step("mpi", f"{PYTHON} tests/mpi/compare.py", results.lines, least=18),
         examples("notifies"),
         UNPACK_SUITE, INSTALLED_SUITE, *cached(INSTALLED_SUITE)],
        guest="--kernel um --packages", needs=("fork", "installed"), seconds=400),
    # The caches of libfabric and UCX with the kernel's word instead of hooks.
    "consumers": Lane(
        [Step("mpi", f"{PYTHON} tests/mpi/compare.py --consumers", results.lines, least=40),
         Step("ucx_perftest", f"{PYTHON} tests/consumers/ucx_perftest.py", results.lines, least=11),
         Step("probing", f"{PYTHON} tests/consumers/probing.py", results.lines, least=204),
         hits("hits", "libfabric", 27), hits("notify_ops", "libfabric", 60)],
        guest="--kernel um", seconds=150, named_only=True, needs=CONSUMERS),
    # MPI windows, derived types and others, with hooks, with the word, and with only our cache.
    "consumers-windows": Lane(
        [Step("windows", f"{PYTHON} tests/mpi/windows.py", results.lines, least=11)],
        guest="--kernel um --memory 2G", seconds=300, named_only=True, needs=CONSUMERS),
    # The consumers' own tests. UCX's tests use a share of all memory for buffers. The memory of a
    # um guest is a file, and a process can have only 65,530 separate mappings.
    "consumers-tests": Lane(
        [Step("fabtests", f"{PYTHON} tests/consumers/fabtests.py verbs", results.lines, least=30),
         Step("gtest", f"{PYTHON} tests/consumers/ucx_gtest.py", results.lines, least=580)],
        guest="--kernel um --memory 1G", seconds=300, named_only=True,
        needs=(*CONSUMERS, "fabtests", "UCX's gtest")),
    # Programs that check their results, over the consumers.
    "consumers-programs": Lane(
        [Step("real programs", f"{PYTHON} tests/consumers/real_programs.py", results.lines,
              least=122)],
        guest="--kernel um --memory 3G", seconds=600, named_only=True,
        needs=(*CONSUMERS, "MPICH's tests")),
    # Open MPI's own cache, which is above fi_mr_reg() and also checks the word.
    "consumers-openmpi": Lane(
        [Step("grdma", f"{PYTHON} tests/mpi/compare.py --openmpi", results.lines, least=11)],
        guest="--kernel um", seconds=30, named_only=True, needs=(*CONSUMERS, "Open MPI 5")),
    # Open MPI's cache with threads. This lane needs no libfabric.
    "consumers-openmpi-races": Lane(
        [Step("grdma_threads", "build/consumers/openmpi/build/opal/mca/rcache/grdma/grdma_threads",
              results.lines, least=6)],
        named_only=True, needs=("Open MPI 5",)),
    # Hits, settling and sweeps, on two CPUs.
    "consumers-races": Lane(
        [hits("hits_tsan", "libfabric_tsan", 27, "TSAN_OPTIONS=log_path=stdout RUN_SECONDS=20")],
        guest="--kernel debian", seconds=100, named_only=True,
        needs=("fork", "kernel debian", "libfabric with the thread sanitizer")),
    # The consumers are compiled with our header, but run with Debian's libibverbs.
    "consumers-library": Lane(
        [Step("probing", f"env -u LD_LIBRARY_PATH {PYTHON} tests/consumers/probing.py --old",
              results.lines, least=24)],
        guest="--kernel um", named_only=True, needs=CONSUMERS),
    # A kernel without notification, with either libibverbs.
    "consumers-stock": Lane(
        [Step("probing", f"{PYTHON} tests/consumers/probing.py --old", results.lines, least=20),
         Step("probing, stock library", "env -u LD_LIBRARY_PATH "
              f"{PYTHON} tests/consumers/probing.py --old", results.lines, least=20)],
        guest="--kernel stock", seconds=120, named_only=True,
        needs=("fork", "libfabric and UCX", "kernel stock")),
    # Tests that need two CPUs: races, and transfers that another CPU interrupts.
    "debian": Lane(
        [CLOCK, MATRIX, ALL, SUSPENDED, *guest_programs(), *PAGING, PAGING_PROGRAMS,
         *guest_programs("interleaving", "stress", "odp_stress", "retransmit", seconds=10),
         *guest_programs("transfer", "pressure"), LOOKUP, *guest_programs("fuzz", seconds=60),
         *on_siw(*guest_programs("contract", "in_use", "revoke", "rights", "siw", "transfer",
                                 "lifetime", "race", "wqe_ring")),
         NOTIFY_AND_CACHE],
        guest="--kernel debian", needs=("fork", "kernel debian"), seconds=600),
    # Linux 7.3, with the same files.
    "next-um": Lane(
        [MATRIX, ALL, SUSPENDED, *guest_programs(), *PAGING, *guest_programs("odp_upstream"),
         *on_siw(MATRIX, *guest_programs("contract", "changes", "in_use", "revoke", "rights",
                                         "siw")),
         NOTIFY_AND_CACHE],
        guest="--kernel next-um", needs=("fork", "kernel next-um"), seconds=150),
    # Upstream's on-demand paging, with our fixes.
    "next-odp": Lane(
        [*guest_programs("odp_upstream"), pyverbs("test_odp", least=12)],
        guest="--kernel next-odp", needs=("fork", "kernel next-odp"), seconds=30),
    "next": Lane(
        [MATRIX, ALL, SUSPENDED, *guest_programs(), *PAGING,
         *guest_programs("interleaving", "stress", "odp_stress", "retransmit", seconds=10),
         *on_siw(*guest_programs("contract", "revoke", "rights", "siw")), NOTIFY_AND_CACHE],
        guest="--kernel next", needs=("fork", "kernel next"), seconds=600),
    # The same tests on Debian 13, with other compilers, Python, Catch2 and MPIs.
    "trixie": Lane(
        [*unit("parts"), MATRIX,
         Step("programs", f"{PYTHON} tests/installed/programs.py", results.lines),
         Step("mpi", f"{PYTHON} tests/mpi/compare.py", results.lines, least=18),
         UNPACK_SUITE, replace(INSTALLED_SUITE, least=UPSTREAM_EXECUTED)],
        guest="--kernel um --packages", on=TRIXIE, needs=("trixie programs",), seconds=90,
        named_only=True),
    "stock": Lane(
        [Step("no capability", "ibv_mr_notify", expected=3),
         examples("stock"),
         *(replace(step, expected=3) for step in (PYTHON_EXAMPLE, PYTHON_SERVER)),
         UNPACK_SUITE, pyverbs("test_mr_notify", "test_mr_cache", program=UNPACKED)],
        guest="--kernel stock --packages", needs=("fork", "installed", "kernel stock"),
        seconds=120),
    # Peers on another machine, and wires that lose, repeat and reorder packets.
    "nodes": Lane(NODES, guest="--kernel debian --nodes 2", needs=("fork", "kernel debian"),
                  seconds=400),
    "nodes-next": Lane(NODES, guest="--kernel next --nodes 2", needs=("fork", "kernel next"),
                       seconds=400),
    # Debian's MPIs, with a process on each of two machines. After a loss, soft-RoCE sends all later
    # packets again. A message of 1 MiB has a thousand packets, so with more loss the message never
    # ends.
    "nodes-mpi": Lane(
        [Step("mpi", f"{PYTHON} tests/mpi/compare.py --nodes", results.lines, least=18),
         Step("mpi, lossy", "lab-node 2 wire loss 0.1% && "
              f"{PYTHON} tests/mpi/compare.py --nodes libibverbs 'no cache'", results.lines,
              least=12)],
        guest="--kernel um --nodes 2 --packages", needs=("fork", "installed"), seconds=150),
    # Memory that goes offline.
    "hotplug": Lane(
        guest_programs("offline"), guest="--kernel hotplug", needs=("fork", "kernel debian"),
        seconds=60),
    # The kernel's modules are from the DKMS package.
    "dkms": Lane(
        [MATRIX, *on_siw(MATRIX), NOTIFY_AND_CACHE,
         Step("modules", "tests/guest/dkms_modules build/lab/dkms/life/removed", results.lines)],
        guest="--kernel dkms", needs=("fork", "kernel dkms"), seconds=200),
    # As in dkms, but on Linux 7.3, after an update of Debian 13's kernel.
    "dkms-next": Lane(
        [MATRIX, *on_siw(MATRIX), NOTIFY_AND_CACHE,
         Step("modules", "tests/guest/dkms_modules build/lab/dkms-next/life/removed",
              results.lines)],
        guest="--kernel dkms-next", needs=("fork", "kernel dkms-next"), seconds=200),
    # KASAN is slow, so only the matrix and programs with threads, exits or errors run.
    "debug": Lane(
        [CLOCK, KASAN, MATRIX,
         *guest_programs("contract", "word", "changes", "revoke", "rights", "worker", "lifetime",
                         "invalidate", "qp_state", "no_cross_process_wait"),
         *guest_programs("race", "in_use", "reclaim", "odp", "odp_wait", "lookup", seconds=2),
         WQE_RING,
         *guest_programs("stress", "odp_stress", seconds=10), *guest_programs("fuzz", seconds=60),
         *on_siw(*guest_programs("contract", "in_use", "revoke", "rights", "siw", "transfer",
                                 "wqe_ring"))],
        guest="--kernel debug", needs=("fork", "kernel debug"), seconds=600),
}
