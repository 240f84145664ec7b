# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Write a machine's initramfs, with busybox, tests/lab/enter, and the modules for booting.

This module writes cpio's "newc" format itself, because mknod of /dev/console would need root.
"""
import os
import shutil
import stat
import sys

from machine import HERE, REPO, LabError

sys.path.insert(0, os.path.join(REPO, "buildlib"))
from kernel_package import module_name  # noqa: E402  pylint: disable=wrong-import-position

APPLETS = ("sh", "mount", "mkdir", "mkfifo", "ln", "ip", "insmod", "switch_root", "reboot",
           "uname")


class Archive:
    """A cpio archive in the making."""

    def __init__(self, out):
        self.out = out
        self.count = 0

    def add(self, name, mode, content=b"", device=(0, 0)):
        """Add one entry."""
        self.count += 1
        fields = (self.count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self.out.write(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))

    def add_file(self, name, path):
        """Add an executable file."""
        with open(path, "rb") as content:
            self.add(name, stat.S_IFREG | 0o755, content.read())

    def close(self):
        """End the archive."""
        self.add("TRAILER!!!", 0)


def busybox():
    """The static busybox of the host."""
    path = shutil.which("busybox", path="/usr/bin:/bin")
    if not path:
        raise LabError("busybox is missing: run buildlib/setup")
    return path


def load_order(machine):
    """The files of the machine's boot modules, each after its dependencies."""
    order = []
    if not machine.boot_modules:
        return order
    with open(os.path.join(machine.module_tree, "modules.dep"), encoding="utf-8") as lines:
        needs = dict(line.rstrip("\n").split(":") for line in lines)
    by_name = {module_name(path): path for path in needs}
    for name in machine.boot_modules:
        if name not in by_name:  # siw if it is not ours
            continue
        path = by_name[name]
        for needed in [*reversed(needs[path].split()), path]:
            if needed not in order:
                order.append(needed)
    return order


def write(machine):
    """Write the archive of a machine."""
    new = machine.initramfs + ".new"
    with open(new, "wb") as out:
        archive = Archive(out)
        for folder in ("bin", "dev", "proc", "sys", "host", "over", "root", "modules"):
            archive.add(folder, stat.S_IFDIR | 0o755)
        archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        archive.add_file("init", os.path.join(HERE, "enter"))
        archive.add_file("bin/busybox", busybox())
        for applet in APPLETS:
            archive.add("bin/" + applet, stat.S_IFLNK | 0o777, b"busybox")
        order = load_order(machine)
        for path in order:
            archive.add_file("modules/" + os.path.basename(path),
                             os.path.join(machine.module_tree, path))
        archive.add("modules/order", stat.S_IFREG | 0o644,
                    "".join(os.path.basename(path) + "\n" for path in order).encode())
        archive.close()
    os.replace(new, machine.initramfs)


def replace_link(target, link):
    """Make `link` point to `target`, in one step."""
    new = link + ".new"
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(os.path.relpath(target, os.path.dirname(link)), new)
    os.replace(new, link)
