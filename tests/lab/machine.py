# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The lab's kernels, read from machines/*.toml, and the paths of their files.

A machine file may start from another machine file (`like`) and name only the differences.
"""
import dataclasses
import os
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(REPO, "build")
DEFAULT = "debian"


class LabError(Exception):
    """The lab cannot do its work; the message is for the user."""


@dataclasses.dataclass
class Machine:
    """One kind of guest."""
    name: str
    engine: str                 # qemu, uml
    image: str                  # package: Debian's kernel image; tree: built from the hooked source
    cpus: int
    memory: str
    cmdline: list[str]
    linux: str = "linux"        # the kernel's pin in buildlib/upstream
    checks: list[str] = dataclasses.field(default_factory=list)     # added to cmdline for tests
    built_as: str = ""          # another machine, whose files it uses: only the start differs
    our_modules: bool = False   # package: our RDMA modules instead of the package's
    rxe: bool = True            # whether its kernel has rxe; then the guest makes rxe0
    siw: bool = True            # whether its kernel has siw; then the guest makes siw0
    # {another module of ours: the folder of its source}
    drivers: dict[str, str] = dataclasses.field(default_factory=dict)
    driver_options: list[str] = dataclasses.field(default_factory=list)     # make options for them
    devices: list[str] = dataclasses.field(default_factory=list)    # more of QEMU's arguments
    systems_emulator: bool = False      # use the system's QEMU: newer QEMUs lack a device
    scheduler: str = ""         # written to the scheduler's debugfs file "features"
    boot_modules: list[str] = dataclasses.field(default_factory=list)
    modules: list[str] = dataclasses.field(default_factory=list)
    dkms: bool = False          # package: has the modules that our DKMS package installed
    release: str = ""           # dkms: the release of Debian on which it did; "": this machine
    load: list[str] = dataclasses.field(default_factory=list)       # for modprobe in the guest
    nodes: bool = True          # two guests of it can be connected
    arch: str = ""              # tree: ARCH= of its build
    target: str = ""            # tree: make target and the program that it makes
    make_options: list[str] = dataclasses.field(default_factory=list)       # tree: more for make
    configs: list[str] = dataclasses.field(default_factory=list)
    objects_of: str = ""        # tree: another machine, whose objects the first build begins with

    @property
    def folder(self):
        """Everything that is made for this machine."""
        return os.path.join(BUILD, "lab", self.built_as or self.name)

    @property
    def kernel(self):
        """The kernel that is started."""
        return os.path.join(self.folder, "kernel")

    @property
    def initramfs(self):
        """Its initramfs."""
        return os.path.join(self.folder, "initramfs")

    @property
    def module_tree(self):
        """The folder that its initramfs takes modules from, or "" if all is built in."""
        return os.path.join(self.folder, "modules") if self.modules else ""

    @property
    def dkms_life(self):
        """The folder with the result of tests/lab/dkms_life or dkms_update."""
        return os.path.join(self.folder, "life")

    @property
    def guest_modules(self):
        """The folder of its /lib/modules/<release>, or "" if all is built in."""
        return os.path.join(self.dkms_life, "installed") if self.dkms else self.module_tree


def names():
    """The machines that exist."""
    folder = os.path.join(HERE, "machines")
    return sorted(name.removesuffix(".toml") for name in os.listdir(folder)
                  if name.endswith(".toml"))


def read(name):
    """The values of one machine file; the file named by `like` has the defaults."""
    with open(os.path.join(HERE, "machines", name + ".toml"), "rb") as text:
        values = tomllib.load(text)
    like = values.pop("like", None)
    return {**read(like), **values} if like else values


def load(name):
    """The machine with this name."""
    return Machine(name=name, **read(name))


def size(text):
    """A memory size such as 512M or 2G, in bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    if unit not in units or not number.isdigit() or not int(number):
        raise ValueError(f"{text} is not a size such as 512M or 2G")
    return int(number) << units[unit]
