#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Build Documentation/examples with mpicc on the installed packages, and run them by mpirun.

This script is for a guest that was started with tests/lab/run --packages. The argument names the
guest's kernel: "notifies" or "stock". The Makefile builds the examples with the packages' headers.
These examples keep registrations if the kernel notifies. The host has built copies with Debian's
headers, which keep no registrations. No message is stale in any case. The servers need no MPI. On
"stock" the servers exit with 3.
"""
import os
import re
import subprocess
import sys
import tempfile

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "2",
          "--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
LIMIT = 900             # seconds until a command counts as hung; compiling in a guest is slow
# An example sends 20 messages from memory that is mapped again between messages, 20 messages from
# memory that stays mapped, and 1 message from a part of a larger registration.
MESSAGES = 41
SENDER_REGISTERS = {"kept": range(21, 23), "not kept": range(42, 43)}


def output(command):
    """The output of a command, and its exit status."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, timeout=LIMIT, check=False)
        return done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        return "not done in time", 1


def check(name, good, said):
    """Print one line of the result, and the output after a failure."""
    if not good:
        print(said)
    print(("ok " if good else "not ok ") + name, flush=True)
    return good


def builds(folder):
    """Build as a user does, by the Makefile, which asks pkg-config."""
    said, status = output(["make", "-s", "-C", os.path.join(REPO, "Documentation/examples"),
                           "all", "servers", f"OUT={folder}", "MPICC=mpicc.openmpi",
                           *(f"{flags}=-O1 -Wall -Wextra -Werror"
                             for flags in ("CFLAGS", "CXXFLAGS"))])
    return check("examples: built on the packages", status == 0, said)


def works(name, program, mode):
    """Run an example; does it report this mode, and no stale message?"""
    said, status = output([*MPIRUN, program])
    found = re.search(r"^(.*): (\d+) messages, (\d+) stale, (\d+) registrations$", said,
                      re.MULTILINE)
    good = (status == 0 and found is not None and found.group(1, 2, 3) == (mode, str(MESSAGES), "0")
            and int(found.group(4)) in SENDER_REGISTERS[mode])
    return check(f"examples: {name}: {mode}", good, f"status {status}\n{said}")


def serves(program, folder, kernel):
    """Does the client write to each of the five buffers?"""
    said, status = output([os.path.join(folder, program)])
    good = (status == 3 if kernel == "stock" else
            status == 0 and re.findall(r"written: message (\d)", said) == list("01234"))
    return check(f"examples: {program}", good, f"status {status}\n{said}")


def main():
    """Build the examples, and run them."""
    packages = {"notifies": "kept", "stock": "not kept"}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        good = [builds(folder), *(serves(program, folder, sys.argv[1])
                                  for program in ("notify_server_c", "notify_server_cxx"))]
        for headers, place, mode in (
                ("packages", folder, packages),
                ("Debian", os.path.join(REPO, "build/tests/mpi/examples"), "not kept")):
            good.append(works(f"mpi_write, headers of {headers}",
                              os.path.join(place, "mpi_write"), mode))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
