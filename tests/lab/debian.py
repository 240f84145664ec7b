# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Debian's own kernel: unpack its packages, build our RDMA modules for it, lay out its modules.

Nothing is installed: that would pull an initramfs generator and a boot loader's hooks onto the
host. All packages must be of one version, which buildlib/fetch.py knows.
"""
import glob
import lzma
import os
import re
import shutil
import subprocess
import sys
import zlib

from initramfs import module_name
from machine import REPO, LabError

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import fetch  # noqa: E402  pylint: disable=wrong-import-position

# The parts of the tree that our modules are built from. The folder layout must stay: trace headers
# include one another by relative paths.
DRIVERS = ("drivers/infiniband/core", "drivers/infiniband/sw/rxe", "drivers/infiniband/sw/siw")
HEADERS = ("include/rdma", "include/uapi/rdma")
TRACE_HEADERS = ("ib_mad.h", "ib_umad.h", "rdma_core.h")
KBUILD = """\
# The in-tree value of the option, which Debian's configuration does not know.
subdir-ccflags-y += -DCONFIG_INFINIBAND_MR_NOTIFY=1
obj-m += {folders}
"""


class Package:
    """The unpacked kernel packages."""

    def __init__(self, place):
        self.place = place
        self.release = os.listdir(os.path.join(place, "lib/modules"))[0]
        self.kernel = os.path.join(place, "vmlinux")
        self.modules = os.path.join(place, "lib/modules", self.release)
        self.headers = os.path.join(place, "usr/src/linux-headers-" + self.release)

    def module_files(self):
        """{module name: path} of everything that the package brings."""
        return {module_name(path): path for path in
                glob.glob(os.path.join(self.modules, "kernel/**/*.ko*"), recursive=True)}


def package_names(version):
    """The packages that hold the image and the headers of one version of the kernel."""
    pin = fetch.read_pin("linux")["package"]             # linux-source-6.12
    arch = subprocess.run(["dpkg", "--print-architecture"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()
    meta = f"{pin.replace('source', 'image')}-{arch}={version}"
    about = fetch.machine_apt(fetch.BUILD).run("apt-cache", "show", meta)
    found = re.search(r"^Depends:.*?\blinux-image-(\S+)", about, re.MULTILINE)
    if not found:
        raise LabError(f"{meta} names no kernel image")
    release = found.group(1)
    common = release.removesuffix("-" + arch)
    return (f"linux-image-{release}", f"linux-headers-{release}",
            f"linux-headers-{common}-common", f"linux-kbuild-{common}")


def unpack(version, place):
    """Download and unpack the packages of one version; `place` appears when all is there."""
    new = place + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    debs = fetch.download_packages({name: version for name in package_names(version)})
    for deb in debs.values():
        subprocess.run(["dpkg", "-x", deb, new], check=True)
    for makefile in glob.glob(os.path.join(new, "usr/src/linux-headers-*/Makefile")):
        with open(makefile, encoding="utf-8") as text:
            content = text.read()
        if content.startswith("include /usr/src/"):  # the one absolute path
            with open(makefile, "w", encoding="utf-8") as text:
                text.write(content.replace("include /usr/src/", f"include {place}/usr/src/"))
    with open(glob.glob(os.path.join(new, "boot/vmlinuz-*"))[0], "rb") as image:
        uncompress(image.read(), os.path.join(new, "vmlinux"))
    os.rename(new, place)


def uncompress(image, path):
    """Take the kernel proper out of a bzImage: QEMU starts it two seconds sooner."""
    def word(offset, size=4):
        return int.from_bytes(image[offset:offset + size], "little")
    # The boot protocol's header (Documentation/arch/x86/boot.rst).
    start = (word(0x1f1, 1) + 1) * 512 + word(0x248)
    payload = image[start:start + word(0x24c)]
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        # zstd's status is no help here: the payload ends with its own length, which is no zstd.
        content = subprocess.run(["zstd", "-dcq"], input=payload, check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    elif payload.startswith(b"\xfd7zXZ"):
        content = lzma.LZMADecompressor().decompress(payload)
    else:
        content = zlib.decompressobj(31).decompress(payload)
    if not content.startswith(b"\x7fELF"):
        raise LabError("cannot take the kernel out of Debian's image")
    with open(path, "wb") as out:
        out.write(content)


def farm(tree, place, drivers):
    """Lay symbolic links to the sources of the modules into `place`; take stale ones away.

    True if a file went away or came: make does not see that by itself.
    """
    wanted = {"include/trace/events/" + name for name in TRACE_HEADERS}
    for folder in (*drivers, *HEADERS):
        for path in glob.glob(os.path.join(tree, folder, "**"), recursive=True):
            if path.endswith((".c", ".h", "/Makefile", "/Kbuild")):
                wanted.add(os.path.relpath(path, tree))
    present = {os.path.relpath(path, place) for path in
               glob.glob(os.path.join(place, "**"), recursive=True) if os.path.islink(path)}
    for name in present - wanted:
        os.unlink(os.path.join(place, name))
    for name in wanted:
        target, link = os.path.join(tree, name), os.path.join(place, name)
        if name not in present or os.readlink(link) != target:
            os.makedirs(os.path.dirname(link), exist_ok=True)
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink(target, link)
    kbuild = os.path.join(place, "Kbuild")
    content = KBUILD.format(folders=" ".join(folder + "/" for folder in drivers))
    if os.path.exists(kbuild):
        with open(kbuild, encoding="utf-8") as text:
            if text.read() == content:
                return
    with open(kbuild, "w", encoding="utf-8") as out:
        out.write(content)


def build_modules(package, tree, place, run, more_drivers=()):
    """Build the modules from `tree` in `place`; their paths."""
    farm(tree, place, (*DRIVERS, *more_drivers))
    # Only NOSTDINC_FLAGS comes before the kernel's own include folders: our headers must win.
    run(["make", "-s", f"-j{os.cpu_count()}", "-C", package.headers, f"M={place}",
         "CONFIG_RDMA_RXE=m", "CONFIG_RDMA_SIW=m", "CONFIG_INFINIBAND_RDMAVT=",
         "CONFIG_INFINIBAND_MR_NOTIFY=y", "CONFIG_DEBUG_INFO=", "CONFIG_DEBUG_INFO_BTF_MODULES=",
         f"NOSTDINC_FLAGS=-nostdinc -I{place}/include -I{place}/include/uapi", "modules"])
    with open(os.path.join(place, "modules.order"), encoding="utf-8") as order:
        return [os.path.splitext(line.strip())[0] + ".ko" for line in order]


def dependencies(path):
    """The modules that a module file says it needs."""
    done = subprocess.run(["modinfo", "-F", "depends", path], stdout=subprocess.PIPE, text=True,
                          check=True, env={**os.environ, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    return [name.replace("-", "_") for name in done.stdout.strip().split(",") if name]


def lay_modules(package, names, ours, place):
    """Fill `place` with the named modules and their dependencies, ours before the package's.

    A small tree of plain files: depmod takes 0.3 s instead of 7, and loading needs no xz. A module
    that neither has is left out (siw, without ours); depmod -e complains of a missing symbol.
    """
    files = {**package.module_files(), **{module_name(path): path for path in ours}}
    wanted, todo = set(), [name for name in names if name in files]
    while todo:
        name = todo.pop()
        if name in wanted:
            continue
        wanted.add(name)
        todo += dependencies(files[name])
    # depmod wants lib/modules/<release> below its base.
    root = place + ".root"
    tree = os.path.join(root, "lib/modules", package.release)
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("kernel", "updates"):
        os.makedirs(os.path.join(tree, folder))
    for name in wanted:
        path = files[name]
        target = os.path.join(tree, "updates" if path in ours else "kernel", name + ".ko")
        if path.endswith(".xz"):
            with lzma.open(path) as content, open(target, "wb") as out:
                shutil.copyfileobj(content, out)
        else:
            shutil.copyfile(path, target)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(os.path.join(package.modules, name), tree)
    done = subprocess.run(["depmod", "-b", root, "-e", "-E",
                           os.path.join(package.headers, "Module.symvers"), package.release],
                          stderr=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    unresolved = [line for line in done.stderr.splitlines() if "unknown symbol" in line]
    if unresolved:
        raise LabError("modules do not fit together:\n  " + "\n  ".join(unresolved[:10]))
    shutil.rmtree(place, ignore_errors=True)
    os.rename(tree, place)
    shutil.rmtree(root)
