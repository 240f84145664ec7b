# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make rdma-mr-notify-dkms, the DKMS package with the kernel modules for Linux 6.12 and 7.3.

For each of the two versions, the package has a folder with our files, fixes and hooks. It has no
source of Linux. dkms takes the source of a kernel's release from linux-source-6.12 or
linux-source-7.3 (dkms/tree), and builds every module of this kernel that uses ib_core
(dkms/modules). Our struct ib_device_ops changes the checksum of every symbol that refers to the
struct. So with CONFIG_MODVERSIONS a kernel refuses to load its own RDMA modules together with ours.
If a kernel has a module that is not in kernel_modules.USERS, the kernel keeps its own modules.

The version has three parts: upstream's version of the library, "+mrnotify" and our revision, for
example 56.1+mrnotify3. REVISION is our next revision.
"""
import os
import re
import shutil
import subprocess

import fetch
import kernel_modules
import overlay

REVISION = 3
NAME = "rdma-mr-notify"
PLACE = os.path.join(fetch.BUILD, "packages")
FILES = os.path.splitext(os.path.abspath(__file__))[0]      # our files for the package
FOLDERS = tuple(kernel_modules.USERS)
# Modules that the package brings because a distribution may not build them.
ADDED = ("siw",)
# {version of Linux: its name in buildlib/upstream}
LINUX = {fetch.read_pin(name)["package"].rpartition("-")[2]: name
         for name in fetch.versions("linux")}
SOURCE = "usr/src/@NAME@-@VERSION@"
# {path of a file: (our file, its mode)}. @WORDS@ in the path and in the file are replaced.
TEMPLATES = {
    **{f"{SOURCE}/dkms/{name}": (name, 0o755)
       for name in ("keep-source", "tree", "modules", "undo", "initramfs", "kernel")},
    f"{SOURCE}/dkms/build.mk": ("build.mk", 0o644),
    f"{SOURCE}/dkms.conf": ("dkms.conf", 0o644),
    "usr/share/dkms/modules_to_force_install/@NAME@": ("override", 0o644),
    "etc/kernel/preinst.d/dkms-@NAME@": ("kernel-preinst", 0o755),
    # This name sorts after the hook of dkms, and before the hook of initramfs-tools.
    "etc/kernel/postinst.d/dkms-@NAME@": ("kernel-postinst", 0o755),
    "etc/kernel/header_postinst.d/dkms-@NAME@": ("kernel-postinst", 0o755),
    "usr/share/doc/@NAME@-dkms/copyright": ("copyright", 0o644),
    **{f"DEBIAN/{name}": (name, 0o644) for name in ("control", "conffiles", "triggers")},
    **{f"DEBIAN/{name}": (name, 0o755) for name in ("postinst", "prerm", "postrm")},
}


def version():
    """The version of the package."""
    return f"{fetch.read_pin('rdma-core')['version'].rpartition('-')[0]}+mrnotify{REVISION}"


def patterns():
    """The files that keep-source unpacks from a linux-source, as arguments of tar in a shell."""
    kept = ["Makefile", "Documentation/infiniband", *FOLDERS, *kernel_modules.HEADERS,
            *("include/trace/events/" + name for name in kernel_modules.TRACE_HEADERS),
            *(folder + "/*.h" for folder in kernel_modules.neighbours(FOLDERS))]
    return " \\\n\t".join(f'"linux-source-$linux/{name}"' for name in kept)


def make_line():
    """The command of build.mk."""
    _, *command = kernel_modules.make("$(HEADERS)", "$(CURDIR)", FOLDERS)
    return " ".join(["$(MAKE)", *(word if " " not in word else f"'{word}'" for word in command)])


def words():
    """The values of the @WORDS@ of the templates."""
    arch = subprocess.run(["dpkg", "--print-architecture"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()
    return {"NAME": NAME, "VERSION": version(), "ARCH": arch, "MAKE": make_line(),
            "PATTERNS": patterns(), "FOLDERS": "|".join(FOLDERS), "ADDED": " ".join(ADDED),
            "LINUX": " ".join(LINUX), "LINUX_NAMES": " and ".join(LINUX),
            "SOURCES": " | ".join(f"linux-source-{linux}" for linux in LINUX),
            "TRIGGERS": "\n".join(f"interest-noawait /usr/src/linux-source-{linux}.tar.xz"
                                  for linux in LINUX)}


def fill(text, values):
    """A template with its @WORDS@ replaced; a word without a value is a bug."""
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found.group(1)], text)


def write(path, content, mode=0o644):
    """Write a file and make its folders."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(content)
    os.chmod(path, mode)


def stage_linux(place, name):
    """Write our files and patches for a version of Linux."""
    write(os.path.join(place, "ours/Kbuild"), kernel_modules.kbuild(FOLDERS))
    for target, path in overlay.our_files(name, fetch.REPO).items():
        write(os.path.join(place, "ours", target), fetch.read(path))
    for path in overlay.patches_of(name):
        topic = os.path.relpath(path, os.path.join(fetch.REPO, "kernel-patches"))
        write(os.path.join(place, topic), overlay.text_of(path, name))


def stage(root):
    """Lay out the files of the package below `root`; return the name of its .deb file."""
    values = words()
    for target, (name, mode) in TEMPLATES.items():
        with open(os.path.join(FILES, name), encoding="utf-8") as text:
            write(os.path.join(root, fill(target, values)), fill(text.read(), values), mode)
    for linux, name in LINUX.items():
        stage_linux(os.path.join(root, fill(SOURCE, values), linux), name)
    return f"{NAME}-dkms_{values['VERSION']}_{values['ARCH']}.deb"


def make():
    """Make the package, which takes a second; return a list with only its path."""
    os.umask(0o022)  # the caller's umask must not change the modes of the files
    with fetch.locked(fetch.BUILD):
        root = os.path.join(PLACE, "dkms")
        shutil.rmtree(root, ignore_errors=True)
        name = stage(root)
        # SOURCE_DATE_EPOCH makes equal packages of equal files. An earlier package may be in use.
        new = os.path.join(PLACE, f".{name}.new")
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, new], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
        os.replace(new, os.path.join(PLACE, name))
        shutil.rmtree(root)
    return [os.path.join(PLACE, name)]
