#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Compile those files of a kernel driver that our patches change or add. A warning is an error.

Why: the lab's machines build only the drivers that they load, and have few kinds of devices.
"""
import argparse
import glob
import os
import subprocess
import sys

import fetch
import kernel_modules
import kernel_package
import overlay
import private_apt

# Drivers that Debian does not build.
OPTIONS = [f"CONFIG_INFINIBAND_{name}=m"
           for name in ("EFA", "ERDMA", "HNS_HIP08", "IONIC", "VMWARE_PVRDMA")]


class DriverError(Exception):
    """The driver can't be compiled; the message is for the user."""


def make(command):
    """Run make for modules that are never loaded. If make fails, the error has make's output.

    Optimizing for size saves time. Leaving out checksums of symbols saves two fifths of the time.
    """
    env = kernel_modules.compiler_environment()
    done = subprocess.run([*command, "CONFIG_MODVERSIONS=",
                           f"KCFLAGS={env['KCFLAGS']} -Werror -Os"],
                          capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise DriverError("does not compile\n" + done.stdout[-4000:] + done.stderr[-4000:])


def build(package, tree, place, names, options=kernel_modules.OPTIONS):
    """Compile the C files among `names` in the folder `place`."""
    folders = sorted({os.path.dirname(name) for name in names})
    kernel_modules.link(tree, place, folders, options)
    command = kernel_modules.make(package.headers, place, folders, options)
    more = [*OPTIONS, *kernel_modules.compiler_options(package.headers)]
    objects = [name[:-2] + ".o" for name in sorted(names) if name.endswith(".c")]
    if not objects:
        raise DriverError(f"no C file: {' '.join(sorted(names))}")
    make([*command[:-1], *more, "-s", f"-j{os.cpu_count()}", *objects])


def ours(driver, tree, repo=fetch.REPO, name="linux"):
    """The C files in a driver's Makefile that a patch changes or adds."""
    known = {os.path.basename(folder): os.path.relpath(folder, tree)
             for folder in glob.glob(os.path.join(tree, "drivers/infiniband/[hs]w/*"))
             if os.path.isdir(folder)}
    if driver not in known:
        raise DriverError(f"no such driver; the drivers are {', '.join(sorted(known))}")
    new = {path for path in overlay.our_files(name, repo)
           if os.path.dirname(path) == known[driver] and path.endswith(".c")}
    with open(os.path.join(tree, known[driver], "Makefile"), encoding="utf-8") as text:
        listed = text.read().split()
    for path in sorted(new):
        if os.path.basename(path)[:-2] + ".o" not in listed:
            raise DriverError(f"{path} is missing in the driver's Makefile")
    changed = set(new)
    for patch in overlay.patches_of(name, repo, local=True):
        changed.update(overlay.hooked_files(patch, name))
    found = {path for path in changed
             if os.path.dirname(path) == known[driver] and path.endswith(".c")}
    if not found:
        raise DriverError("no patch changes a file of this driver")
    return found


def main():
    """Hook the tree, compile the driver, and print its files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", help="the name of a folder in drivers/infiniband/hw or sw")
    parser.add_argument("--for", dest="name", default="linux", choices=fetch.versions("linux"),
                        help="the version of Linux")
    args = parser.parse_args()
    driver = args.driver
    try:
        tree = overlay.hooked_tree(args.name, part=kernel_modules.PART)
        names = ours(driver, tree, name=args.name)
        with fetch.locked(fetch.BUILD, args.name):
            package = kernel_package.unpack(fetch.BUILD, args.name)
        place = os.path.join(fetch.BUILD, "drivers", args.name, driver)
        with private_apt.alone(place + ".lock"):
            build(package, tree, place, names)
    except (DriverError, fetch.FetchError, overlay.OverlayError, private_apt.AptError) as error:
        sys.exit(f"{driver}: {error}")
    print(f"{driver}: compiled without a warning:", *sorted(map(os.path.basename, names)))


if __name__ == "__main__":
    main()
