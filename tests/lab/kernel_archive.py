# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make two states of Debian's archive, which apt sees before and after a kernel update.

Why: tests/lab/dkms_life tests a kernel update, but Debian's metapackages name only the newest
kernel. Debian's archive still has the image, headers and source of the older kernel, but lacks the
older metapackages, which depend on them. This module makes them from the present metapackages. It
leaves most drivers out of the images, because dkms lets depmod read all modules each time.
"""
import contextlib
import glob
import os
import re
import shutil
import subprocess
import sys

from machine import BUILD, REPO, LabError

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import fetch  # noqa: E402  pylint: disable=wrong-import-position
import kernel_package  # noqa: E402  pylint: disable=wrong-import-position


# Folders with three in five of the image's modules. RDMA drivers use none of them (hfi1 needs i2c).
LEFT_OUT = ("sound", *(f"drivers/{name}" for name in (
    "ata", "bluetooth", "comedi", "edac", "gpu", "hid", "hwmon", "iio", "input", "leds", "md",
    "media", "mfd", "misc", "mmc", "mtd", "net/can", "net/usb", "net/wireless", "platform",
    "thermal", "usb", "video", "w1", "watchdog")))


def older(version):
    """The newest of the older versions in the archive that are not revisions of the same kernel.

    apt lists a version once per suite. Revision -2 of a kernel replaces -1.
    """
    source = fetch.read_pin("linux")["package"]
    offered = fetch.machine_apt(BUILD).versions(source)
    after = offered[offered.index(version):] if version in offered else []
    for before in after:
        if point(before) != point(version):
            return before
    raise LabError(f"the archive has no {source} before {version}, so no update can be tried")


def point(version):
    """6.12.117 of 6.12.117-1~deb12u1."""
    return version.partition("-")[0]


def followers(version):
    """The packages that depend on the image and the headers of the newest kernel."""
    apt = fetch.machine_apt(BUILD)
    for image in fetch.kernel_packages():
        if version in apt.versions(image):
            return image, image.replace("image", "headers")
    raise LabError(f"no package of the archive depends on the kernel {version}")


@contextlib.contextmanager
def repacked(deb, folder):
    """A context in which a package's files can be changed. At its end the files are packed into
    `folder`."""
    tree = os.path.join(folder, "tree")
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    yield tree
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, folder], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)


def rewrite(path, change):
    """Replace the text of a file by `change(text)`."""
    with open(path, encoding="utf-8") as text:
        changed = change(text.read())
    with open(path, "w", encoding="utf-8") as text:
        text.write(changed)


def follower_of(deb, version, before, folder):
    """Make a package like `deb`, but of the kernel `before`, in `folder`."""
    with repacked(deb, folder) as tree:
        rewrite(os.path.join(tree, "DEBIAN/control"),
                lambda text: text.replace(version, before).replace(point(version), point(before)))


def without_drivers(deb, folder):
    """Make the image of a kernel without LEFT_OUT, in `folder`. md5sums lists only the files that
    are left, so that dpkg -V reports no missing files.
    """
    with repacked(deb, folder) as tree:
        for kernel in glob.glob(os.path.join(tree, "**/lib/modules/*/kernel"), recursive=True):
            for name in LEFT_OUT:
                shutil.rmtree(os.path.join(kernel, name), ignore_errors=True)
        rewrite(os.path.join(tree, "DEBIAN/md5sums"),
                lambda text: "".join(
                    line for line in text.splitlines(True)
                    if os.path.exists(os.path.join(tree, line.split(maxsplit=1)[1].rstrip()))))


def lay(place, debs):
    """An archive that holds these packages."""
    for deb in debs:
        os.link(deb, os.path.join(place, os.path.basename(deb)))
    with open(os.path.join(place, "Packages"), "w", encoding="utf-8") as out:
        subprocess.run(["dpkg-scanpackages", "."], cwd=place, check=True, stdout=out,
                       stderr=subprocess.DEVNULL)


def make(place):
    """Make place/old and place/new; return (release, version) of the kernel in each."""
    shutil.rmtree(place, ignore_errors=True)
    found = []
    with fetch.locked(BUILD):
        version = fetch.linux_version(BUILD)
        before = older(version)
        names = kernel_package.names(version)
        newest = fetch.download_packages({name: version for name in followers(version)}, BUILD)
        for state, wanted in (("old", before), ("new", version)):
            folder = os.path.join(place, state)
            os.makedirs(folder)
            swap = [name.replace(point(version), point(wanted)) for name in names]
            debs = fetch.download_packages(
                {name: wanted for name in (*swap, fetch.read_pin("linux")["package"])}, BUILD)
            for name in swap:
                if name.startswith("linux-image-"):
                    without_drivers(debs.pop(name), folder)
            if wanted == version:
                debs |= newest
            else:
                for deb in newest.values():
                    follower_of(deb, version, wanted, folder)
            lay(folder, debs.values())
            found.append((re.sub("^linux-image-", "", swap[0]), wanted))
    return found
