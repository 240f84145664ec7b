# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Build modules of the hooked kernel tree against the headers of a distribution's kernel.

This file chooses the files of the tree and gives the make command. Its users are the lab
(tests/lab/debian.py) and the DKMS package (buildlib/packaging/dkms.py).
"""
import glob
import os
import re
import shutil

import compiler_cache
import fetch

# The links keep the folder layout, because trace headers include one another by relative paths.
HEADERS = ("include/rdma", "include/uapi/rdma")
TRACE_HEADERS = ("ib_mad.h", "ib_umad.h", "rdma_core.h")

# The modules of MR notification: the core and the drivers that can revoke in software.
STACK = ("drivers/infiniband/core", "drivers/infiniband/sw/rxe", "drivers/infiniband/sw/siw")

# Our own options, which a distribution's configuration lacks.
OPTIONS = ("INFINIBAND_MR_NOTIFY", "RDMA_RXE_PAGING")

# The folders of all users of ib_core: {folder: options of modules that can't be built}.
USERS = {
    "drivers/infiniband": "",
    "drivers/nvme/host": "NVME_CORE BLK_DEV_NVME NVME_FABRICS NVME_FC NVME_TCP",
    "drivers/nvme/target": "NVME_TARGET NVME_TARGET_LOOP NVME_TARGET_FC NVME_TARGET_FCLOOP "
                           "NVME_TARGET_TCP",
    "net/9p": "NET_9P NET_9P_FD NET_9P_VIRTIO NET_9P_XEN NET_9P_USBG",
    "net/rds": "RDS RDS_TCP",
    "net/smc": "",
    "net/sunrpc/xprtrdma": "",
}
# Drivers of network cards. drivers/infiniband/hw includes headers of these drivers, which a
# distribution's package of headers lacks.
NEIGHBOURS = tuple("drivers/net/ethernet/" + name for name in (
    "broadcom/bnxt", "chelsio/cxgb4", "chelsio/libcxgb", "cisco/enic", "emulex/benet",
    "hisilicon/hns3", "intel/ice", "pensando/ionic"))
# The part of a kernel's tree from which modules are built.
PART = (*USERS, *NEIGHBOURS, *HEADERS, "include/trace/events")


def kbuild(folders, options=OPTIONS):
    """The Kbuild file at the top of the modules' tree."""
    defined = " ".join(f"-DCONFIG_{name}=1" for name in options)
    near = "".join(f"subdir-ccflags-y += -I$(src)/{name}\n" for name in neighbours(folders))
    return ("# The in-tree values of options that the distribution's configuration does not know.\n"
            f"subdir-ccflags-y += {defined}\n"
            f"{near}obj-m += {' '.join(folder + '/' for folder in folders)}\n")


def neighbours(folders):
    """The folders whose headers are needed to build `folders`."""
    return NEIGHBOURS if any((folder + "/hw/").startswith("drivers/infiniband/hw/")
                             for folder in folders) else ()


def make(headers, place, folders=STACK, options=OPTIONS):
    """The make command that builds the modules at `place`; paths may be shell variables."""
    off = [f"CONFIG_{name}=" for folder in folders for name in USERS.get(folder, "").split()]
    # The compiler must find our headers before the kernel's. Only NOSTDINC_FLAGS comes before the
    # kernel's include folders.
    return ["make", "-C", headers, f"M={place}", "CONFIG_RDMA_RXE=m", "CONFIG_RDMA_SIW=m",
            *(f"CONFIG_{name}=y" for name in options), "CONFIG_DEBUG_INFO=",
            "CONFIG_DEBUG_INFO_BTF_MODULES=", *off,
            f"NOSTDINC_FLAGS=-nostdinc -I{place}/include -I{place}/include/uapi", "modules"]


def compiler_options(headers):
    """Options of make if this machine lacks the compiler that built the kernel.

    The kernel may be configured with an option that an older compiler does not know.
    """
    with open(os.path.join(headers, ".kernelvariables"), encoding="utf-8") as text:
        own = re.search(r"\bgcc-\d+", text.read()).group()
    return [] if shutil.which(own) else ["CC=gcc", "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT="]


def compiler_environment():
    """The environment of a kernel build that uses ccache if it exists. The result has no time
    stamps."""
    env = {**os.environ, "KBUILD_BUILD_TIMESTAMP": "2025-01-01", "KBUILD_BUILD_USER": "lab",
           "KBUILD_BUILD_HOST": "lab", "LC_ALL": "C",
           # Recording the position of errors inside macros costs a tenth of the time.
           "KCFLAGS": "-ftrack-macro-expansion=0"}
    if os.path.isdir("/usr/lib/ccache"):
        env["PATH"] = "/usr/lib/ccache:/usr/sbin:/usr/bin:/sbin:/bin"
        env.setdefault("CCACHE_BASEDIR", fetch.BUILD)
        # With this variable ccache reads the names of included files from the .d file. Otherwise
        # it would preprocess, which takes as long as compiling.
        env.setdefault("CCACHE_DEPEND", "1")
        # Without this variable the package's build calls "gcc-12", not /usr/lib/ccache.
        env["DEBIAN_KERNEL_USE_CCACHE"] = "1"
        env.update(compiler_cache.settings())
    for name in ("MAKEFLAGS", "ARCH", "CROSS_COMPILE", "LD_LIBRARY_PATH"):
        env.pop(name, None)
    return env


def sources(tree, folders=STACK):
    """The files of `tree` from which the modules are built, as relative paths."""
    wanted = {"include/trace/events/" + name for name in TRACE_HEADERS}
    for folder in (*folders, *HEADERS, *neighbours(folders)):
        ends = (".h",) if folder in NEIGHBOURS else (".c", ".h", "/Makefile", "/Kbuild")
        for path in glob.glob(os.path.join(tree, folder, "**"), recursive=True):
            if path.endswith(ends):
                wanted.add(os.path.relpath(path, tree))
    return wanted


def write_kbuild(place, folders, options):
    """Write the Kbuild file if its content has changed."""
    path = os.path.join(place, "Kbuild")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as text:
            if text.read() == kbuild(folders, options):
                return
    with open(path, "w", encoding="utf-8") as out:
        out.write(kbuild(folders, options))


def link(tree, place, folders=STACK, options=OPTIONS):
    """Fill the folder `place` with symbolic links to the files. Remove stale links."""
    wanted = sources(tree, folders)
    present = {os.path.relpath(path, place) for path in
               glob.glob(os.path.join(place, "**"), recursive=True) if os.path.islink(path)}
    for name in present - wanted:
        os.unlink(os.path.join(place, name))
    for name in wanted:
        target, at = os.path.join(tree, name), os.path.join(place, name)
        if name not in present or os.readlink(at) != target:
            os.makedirs(os.path.dirname(at), exist_ok=True)
            if os.path.lexists(at):
                os.unlink(at)
            os.symlink(target, at)
    write_kbuild(place, folders, options)
