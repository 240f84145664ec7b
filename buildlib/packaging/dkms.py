# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The DKMS package of the kernel half: rdma-mr-notify-dkms, for one release of Debian's kernel.

It holds the source of every module of that kernel that uses ib_core, from the hooked tree. A kernel
with CONFIG_MODVERSIONS would refuse those of its own beside ours: ours has another struct
ib_device_ops, and with it every symbol that knows it has another checksum. Which modules these are
the kernel's packages say; where one is not in kernel_modules.USERS there is no package.

The version is the kernel's release without its flavour, then "+mrnotify" and our revision, as that
of the library: 6.12.117+deb12+mrnotify2. Raise REVISION with what is released.
"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import time

import fetch
import kernel_modules
import kernel_package
import overlay

REVISION = 2
NAME = "rdma-mr-notify"
PLACE = os.path.join(fetch.BUILD, "packages")
FILES = os.path.splitext(os.path.abspath(__file__))[0]      # what the package has of ours
FOLDERS = tuple(kernel_modules.USERS)
# Modules that the distribution does not build, and that the package brings.
ADDED = {"siw": "drivers/infiniband/sw/siw"}
# {where a file goes: (ours, its mode)}; @WORDS@ in both are replaced.
TEMPLATES = {
    "usr/src/@NAME@-@VERSION@/dkms.conf": ("dkms.conf", 0o644),
    "usr/share/dkms/modules_to_force_install/@NAME@": ("override", 0o644),
    "etc/kernel/postinst.d/@NAME@": ("kernel-hook", 0o755),
    "etc/kernel/header_postinst.d/@NAME@": ("kernel-hook", 0o755),
    "usr/share/doc/@NAME@-dkms/copyright": ("copyright", 0o644),
    "DEBIAN/control": ("control", 0o644),
    "DEBIAN/conffiles": ("conffiles", 0o644),
    "DEBIAN/postinst": ("postinst", 0o755),
    "DEBIAN/prerm": ("prerm", 0o755),
}


def modules(package):
    """{module that is built: its folder in the kernel's tree}."""
    built, left = dict(ADDED), []
    for path, needed in package.needs().items():
        if any(one.startswith("kernel/drivers/infiniband/") for one in [path, *needed]):
            folder = os.path.dirname(path).removeprefix("kernel/")
            name = os.path.basename(path).partition(".ko")[0]
            built[name] = folder
            if not (folder + "/").startswith(tuple(user + "/" for user in FOLDERS)):
                left.append(name)
    if left:
        raise fetch.FetchError(f"{', '.join(sorted(left))} of {package.release} would not load "
                               "beside our ib_core: buildlib/kernel_modules.py must build it, too")
    return built


def version(package):
    """The version of the package."""
    return f"{package.release.rpartition('-')[0]}+mrnotify{REVISION}"


def module_lines(built):
    """The lines of dkms.conf that name what is built, and where it goes."""
    return "\n".join(f'BUILT_MODULE_NAME[{number}]="{name}"\n'
                     f'BUILT_MODULE_LOCATION[{number}]="{folder}"\n'
                     f'DEST_MODULE_LOCATION[{number}]="/updates/dkms"'
                     for number, (name, folder) in enumerate(sorted(built.items())))


def make_line():
    """The make command as dkms.conf has it, with dkms's own variables."""
    place = "$dkms_tree/$PACKAGE_NAME/$PACKAGE_VERSION/build"
    command = kernel_modules.make("$kernel_source_dir", place, FOLDERS)
    return " ".join(word if " " not in word else f"'{word}'" for word in command)


def words(package):
    """What replaces the @WORDS@ of the templates."""
    arch = subprocess.run(["dpkg", "--print-architecture"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()
    built = modules(package)
    return {"NAME": NAME, "VERSION": version(package), "RELEASE": package.release,
            "RELEASE_PATTERN": re.escape(package.release).replace(r"\-", "-"), "ARCH": arch,
            "MACHINE": os.uname().machine, "MODULES": module_lines(built), "MAKE": make_line(),
            "COUNT": str(len(built))}


def fill(text, values):
    """A template with its @WORDS@ replaced; one that has no value is an error of ours."""
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found.group(1)], text)


def stage(package, tree, root):
    """Lay out the files of the package below `root`; the name that dpkg-deb will give it."""
    values = words(package)
    for target, (name, mode) in TEMPLATES.items():
        path = os.path.join(root, fill(target, values))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.path.join(FILES, name), encoding="utf-8") as text:
            content = fill(text.read(), values)
        with open(path, "w", encoding="utf-8") as out:
            out.write(content)
        os.chmod(path, mode)
    kernel_modules.copy(tree, os.path.join(root, fill("usr/src/@NAME@-@VERSION@", values)),
                        FOLDERS)
    return f"{NAME}-dkms_{values['VERSION']}_{values['ARCH']}.deb"


def fingerprint(tree):
    """A sum of everything that decides what the package is."""
    total = hashlib.sha256(os.path.basename(tree).encode())
    ours = [*overlay.our_files("linux", fetch.REPO).values(), os.path.abspath(__file__),
            *glob.glob(os.path.join(FILES, "*")),
            *glob.glob(os.path.join(fetch.REPO, overlay.HOOKS["linux"], "*.patch")),
            *glob.glob(os.path.join(fetch.REPO, "buildlib/kernel_*.py"))]
    if os.environ.get(fetch.SOURCE_VARIABLE["linux"]):  # a tree of the user's may change
        ours += [os.path.join(tree, name) for name in kernel_modules.sources(tree, FOLDERS)]
    for path in sorted(ours):
        total.update(os.path.relpath(path, fetch.REPO).encode() + b"\0")
        total.update(fetch.sha256(path).encode())
    return total.hexdigest()


def known(total):
    """The package that was made of the same, or none: the stamp names it below its sum."""
    try:
        with open(os.path.join(PLACE, "dkms.stamp"), encoding="utf-8") as text:
            before, name = text.read().splitlines()
    except FileNotFoundError:
        return []
    path = os.path.join(PLACE, name)
    return [path] if before == total and os.path.exists(path) else []


def make():
    """Make the package, if anything changed; its path, alone in a list."""
    with fetch.locked(fetch.BUILD):
        package = kernel_package.unpack()
        tree = fetch.fetch("linux")
        overlay.overlay("linux", tree)
        total = fingerprint(tree)
        if made := known(total):
            return made
        start = time.monotonic()
        root = os.path.join(PLACE, "dkms")
        shutil.rmtree(root, ignore_errors=True)
        name = stage(package, tree, root)
        os.makedirs(PLACE, exist_ok=True)
        done = subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, PLACE],
                              text=True, check=False, capture_output=True)
        if done.returncode:
            raise fetch.FetchError(done.stderr.strip())
        shutil.rmtree(root)
        with open(os.path.join(PLACE, "dkms.stamp"), "w", encoding="utf-8") as out:
            out.write(f"{total}\n{name}\n")
        fetch.say(f"{name} in {time.monotonic() - start:.0f} s")
        return known(total)
