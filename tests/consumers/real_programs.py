#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run programs over soft-RoCE in a guest, and check the results: HPCC, LAMMPS, NWChem and more.

Each program runs with three caches: the cache of libfabric or UCX with hooks, the same cache with
the word (buildlib/consumers), and libibverbs' cache while the library's own cache is off. The
kernel's count of armings and libibverbs' hits show which cache was used. LAMMPS, Quantum ESPRESSO
and NWChem do not check their results, so each result must have the digits of a run without a cache.
With --nodes (tests/lab/run --nodes 2) each program except MPICH's tests has a process on each node,
and uses Debian's own libraries, which can't use the word. tests/installed/ has programs that use
verbs directly.
"""
import argparse
import gzip
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

LIMIT = 900     # seconds until a program counts as hung
MPICH_TESTS = os.path.join(HERE, "../../build/consumers/mpich_tests")
ARMS = "/sys/class/infiniband/rxe0/ports/1/hw_counters/mr_notify_arms"
FABRIC = {"plain": compare.FABRIC_OFF,
          "hooks": {"FI_MR_CACHE_MONITOR": "memhooks", **compare.ONLY_LIBFABRIC},
          "inside": {"FI_MR_CACHE_MONITOR": "verbs_notify", **compare.ONLY_LIBFABRIC},
          "below": {**compare.FABRIC_OFF, **compare.OURS}}
UCX = {"plain": compare.UCX_OFF, "hooks": compare.WORD_OFF,
       "inside": {"UCX_RCACHE_NOTIFY": "y", **compare.ONLY_LIBFABRIC},
       "below": {**compare.UCX_OFF, **compare.OURS}}
OVER = {"Open MPI, libfabric": (FABRIC, compare.FABRIC_BUILT),
        "Open MPI, UCX": (UCX, compare.UCX_BUILT), "MPICH, UCX": (UCX, compare.UCX_BUILT)}
OVER_DEBIAN = {over: ({"plain": ways["plain"], "below": ways["below"], "hooks": {}}, "")
               for over, (ways, _) in OVER.items()}


@dataclass
class Program:
    """A program that MPI starts."""
    name: str
    command: list
    good: object            # good(output, folder): are its results right?
    prepare: object = None  # prepare(folder)
    answer: object = None   # answer(output): the part that must equal a run without a cache
    over: tuple = ("Open MPI, libfabric", "Open MPI, UCX")
    processes: int = 2
    registers: bool = True  # registers its own memory, so registrations show which cache was used


def hpcc_input(folder):
    """Write HPCC's input: the package's example, made small."""
    with open("/usr/share/doc/hpcc/examples/_hpccinf.txt", encoding="ascii") as text:
        lines = text.read().splitlines()
    for number, value in ((5, 256), (10, 1), (11, 2)):      # Ns, Ps, Qs
        lines[number] = f"{value} {lines[number]}"
    with open(os.path.join(folder, "hpccinf.txt"), "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")


def hpcc_good(_said, folder):
    """Does HPCC report success for each of its parts?"""
    path = os.path.join(folder, "hpccoutf.txt")
    if not os.path.exists(path):
        return False
    with open(path, encoding="ascii", errors="replace") as text:
        said = text.read()
    return (re.search(r"^Success=1$", said, re.MULTILINE) and
            re.search(r"^ +0 tests completed and failed residual checks", said, re.MULTILINE) and
            not re.search(r"FAILED|^Failed|[1-9]\d* tests failed", said, re.MULTILINE))


# 32,000 atoms that melt, as in the benchmark that comes with LAMMPS. Each process sends the atoms
# at the border to the other process, in messages of 180 KB.
MELT = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo_style custom step temp epair etotal press
thermo_modify format float %.15g
thermo 10
run 60
"""


def melt_input(folder):
    """Write LAMMPS' input file."""
    with open(os.path.join(folder, "in.melt"), "w", encoding="ascii") as out:
        out.write(MELT)


def melt_answer(said):
    """The lines of LAMMPS' table: temperature, energies and pressure, 15 digits of each."""
    return re.findall(r"^ +\d+(?: -?\d+\.\d+){4} *$", said, re.MULTILINE)


# Eight atoms of silicon, with one atom out of its place. The processes exchange half of the grid of
# each Fourier transform. By default libfabric would copy messages of up to 128 KiB in parts instead
# of registering.
SILICON = """
&control
 calculation='scf', pseudo_dir='.', outdir='.', disk_io='none'
/
&system
 ibrav=1, celldm(1)=10.26, nat=8, ntyp=1, ecutwfc=20.0, nosym=.true.
/
&electrons
 conv_thr=1.0d-8
/
ATOMIC_SPECIES
 Si 28.0855 Si.UPF
ATOMIC_POSITIONS crystal
 Si 0.00 0.00 0.00
 Si 0.50 0.50 0.00
 Si 0.50 0.00 0.50
 Si 0.00 0.50 0.50
 Si 0.25 0.25 0.25
 Si 0.75 0.75 0.25
 Si 0.75 0.25 0.75
 Si 0.25 0.76 0.75
K_POINTS gamma
"""
SILICON_POTENTIAL = ("/usr/share/doc/quantum-espresso/examples/XSpectra/pseudo/"
                     "Si_PBE_USPP.UPF.gz")


def silicon_input(folder):
    """Write the input, and the potential of an atom, which is an example in the package."""
    with open(os.path.join(folder, "silicon.in"), "w", encoding="ascii") as out:
        out.write(SILICON)
    with gzip.open(SILICON_POTENTIAL) as text, \
            open(os.path.join(folder, "Si.UPF"), "wb") as out:
        shutil.copyfileobj(text, out)


def silicon_answer(said):
    """The energy after each iteration, and the converged energy."""
    return re.findall(r"^!? +total energy +=.*Ry$", said, re.MULTILINE)


# Six molecules of water. Each process keeps half of each matrix in a Global Array, and moves parts
# of the matrix with Open MPI's two-sided messages.
WATER = """
start water
memory 300 mb
geometry units angstrom noautosym
%s
end
basis
 * library 6-31g*
end
scf
 thresh 1e-8
end
task scf energy
task mp2 energy
"""


def water_input(folder):
    """Write the input: the molecules are 3 angstrom apart."""
    atoms = (("O", 0, 0), ("H", 0.757, 0.586), ("H", -0.757, 0.586))
    with open(os.path.join(folder, "water.nw"), "w", encoding="ascii") as out:
        out.write(WATER % "\n".join(f" {name} {x:.3f} {y:.3f} {3 * molecule:.3f}"
                                    for molecule in range(6) for name, x, y in atoms))


def water_answer(said):
    """Both energies without the digits that depend on the order in which processes took work."""
    return re.findall(r"^ +Total (?:SCF|MP2) energy.* (-\d+\.\d{9})\d{3}$", said, re.MULTILINE)


def mpich_tests():
    """The tests of MPICH in mpich.testlist, which buildlib/consumers builds."""
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
    Program("LAMMPS", ["lmp", "-in", "in.melt", "-log", "none"],
            lambda said, _: len(melt_answer(said)) == 7, melt_input, melt_answer),
    Program("Quantum ESPRESSO", ["env", "OMP_NUM_THREADS=1", "FI_OFI_RXM_SAR_LIMIT=32768", "pw.x",
                                 "-in", "silicon.in"],
            lambda said, _: "JOB DONE." in said and len(silicon_answer(said)) > 5,
            silicon_input, silicon_answer),
    Program("NWChem", ["env", "OMP_NUM_THREADS=1", "nwchem.openmpi", "water.nw"],
            lambda said, _: len(set(water_answer(said))) == 2, water_input, water_answer),
    # By default mpi4py requests MPI_THREAD_MULTIPLE, which our UCX does not support. mpi4py only
    # warns of a wrong message, so warnings are errors here.
    Program("mpi4py's ring", ["env", "MPI4PY_RC_THREADS=0", "/usr/bin/python3",
                              "-W", "error::UserWarning", "-m", "mpi4py.bench",
                              "ringtest", "-n", "1048576", "-l", "50"],
            lambda said, _: "(2 processes, 1048576 bytes)" in said and "match" not in said),
    *mpich_tests(),
]


def arms():
    """How many registrations were armed so far."""
    with open(ARMS, encoding="ascii") as text:
        return int(text.read())


def run(program, over, way, nodes, answers):
    """Run the program; return the complaints, or "". Adds the result to @answers, {way: result}."""
    settings, library = (OVER_DEBIAN if nodes else OVER)[over]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RDMAV_")}
    env.update(compare.ALWAYS, **settings[way])
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, (library, env.get("LD_LIBRARY_PATH"))))
    launcher, *options = compare.OVER[over]
    where = compare.ON_TWO_NODES if nodes else compare.ON_ONE_NODE
    command = [launcher, *where[launcher], "-np", str(program.processes), *options,
               *program.command]
    folder = tempfile.mkdtemp()
    if nodes:   # both processes use the same folder name
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
    if program.answer:
        answers[way] = program.answer(done.stdout)
        if answers[way] != answers.get("plain"):
            return f"without a cache: {answers.get('plain')}\n{way}: {answers[way]}"
    if way in ("plain", "hooks"):
        return "the kernel's word was asked" if armed or hits else ""
    if program.registers and not (armed and bool(hits) == (way == "below")):
        return f"not {way}: {armed} armed, {hits} hits of libibverbs"
    return ""


def main():
    """Run all programs. If a program also fails with hooks, print both results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", action="store_true", help="a process on each of two nodes")
    parser.add_argument("name", nargs="*", help="run only programs whose name contains NAME")
    args = parser.parse_args()
    good = True
    for program in PROGRAMS:
        if args.name and not any(text in program.name for text in args.name):
            continue
        if args.nodes and not program.registers:    # MPICH's tests
            continue
        for over in program.over:
            ways = (OVER_DEBIAN if args.nodes else OVER)[over][0]
            answers = {}
            wrong = {way: run(program, over, way, args.nodes, answers)
                     for way in ("plain", "inside", "below", "hooks")
                     if way in ways and (way != "plain" or program.answer)}
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
