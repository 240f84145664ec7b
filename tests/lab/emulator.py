# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Find the QEMU that emulates guests. If the system's QEMU is not reliable, fetch a newer QEMU.

Why: if QEMU before 8.1 translates code while another emulated CPU writes to this code, QEMU may
keep the old bytes. Linux often patches its own code (static keys, trace events). Then it runs into
a breakpoint that is no longer in its memory, and dies ("Oops: int3"). Debian 12 has QEMU 7.2, and
QEMU 10.0 in its backports. apt fetches and verifies QEMU 10.0, which is unpacked below the build
folder and uses the libraries of the system's QEMU.
"""
import contextlib
import glob
import os
import re
import subprocess
import sys

from machine import BUILD, REPO

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import private_apt  # noqa: E402  pylint: disable=wrong-import-position

SYSTEMS = "qemu-system-x86_64"
RELIABLE = (8, 1)
PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
FOLDER = os.path.join(BUILD, "lab", "emulator")


def version(program):
    """The version of a QEMU as numbers; empty if it doesn't start."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ()
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else ()


def newer():
    """The path of the newer QEMU, whether it exists or not."""
    return os.path.join(FOLDER, "root/usr/bin", SYSTEMS)


def fetch(uri):
    """Unpack the QEMU of the archive's backports."""
    release = subprocess.run(["sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"],
                             capture_output=True, text=True, check=True).stdout.strip()
    apt = private_apt.PrivateApt(
        os.path.join(FOLDER, "apt"),
        f"deb [signed-by={private_apt.keyring()}] {uri} {release}-backports main\n")
    apt.update()
    apt.download(PACKAGES, os.path.join(FOLDER, "packages"))
    for package in glob.glob(os.path.join(FOLDER, "packages/*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, os.path.join(FOLDER, "root")], check=True)


@contextlib.contextmanager
def said():
    """A context that prints an archive's problem instead of raising it."""
    try:
        yield
    except (private_apt.AptError, subprocess.CalledProcessError) as problem:
        print(f"lab: {problem}", file=sys.stderr)


def program():
    """Return the QEMU to start. If a newer QEMU is needed, fetch it. If fetching fails, use the
    system's QEMU.
    """
    with private_apt.alone(os.path.join(FOLDER, ".lock")):
        if version(newer()) >= RELIABLE:
            return newer()
        if version(SYSTEMS) >= RELIABLE:
            return SYSTEMS
        print("lab: fetching a newer QEMU ...", file=sys.stderr)
        uris = []
        with said():
            uris = private_apt.archive_uris()
        for uri in uris:
            with said():
                fetch(uri)
                if version(newer()) >= RELIABLE:
                    return newer()
    print("lab: no newer QEMU found; a kernel may crash with \"Oops: int3\"", file=sys.stderr)
    return SYSTEMS


def cpu(chosen):
    """The CPU model has all features that QEMU emulates, except fast string instructions.

    QEMU executes "rep movsb" and "rep stosb" byte by byte. Without these features the kernel clears
    and copies pages eight bytes at a time.
    """
    fast = ["erms", "fsrm", "fsrs", "fzrm"] if version(chosen) >= RELIABLE else ["erms"]
    return ",".join(["max", *(f"{name}=off" for name in fast)])
