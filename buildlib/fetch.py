#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Obtain the pinned upstream trees, and unpack them unchanged below the build folder.

Why: the repository holds only this project's own files. buildlib/upstream/*.pin name packages and
versions in the machine's Debian archive. A user may name a tarball or tree instead (--source, or
variables such as RDMA_CORE_SOURCE). Files are downloaded once. overlay.py lays our files over the
tree that this script unpacked.
"""
import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys

import private_apt

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(REPO, "build")
SOURCE_VARIABLE = {"rdma-core": "RDMA_CORE_SOURCE", "linux": "LINUX_SOURCE",
                   "libfabric": "LIBFABRIC_SOURCE", "ucx": "UCX_SOURCE", "mpich": "MPICH_SOURCE",
                   "openmpi": "OPENMPI_SOURCE", "linux-7.3": "LINUX_7_3_SOURCE",
                   "rdma-core-65": "RDMA_CORE_65_SOURCE"}
# {name of another version: name of the upstream}. Both versions get the same files and patches
# from us.
VERSION_OF = {"linux-7.3": "linux", "rdma-core-65": "rdma-core"}
PART = ".part"  # a file in an incomplete tree that lists the tree's paths
UNPACKED = "unpacked"  # a file in overlay.py's notes that is newer than the unpacked files


class FetchError(Exception):
    """Upstream could not be obtained; the message is for the user."""


def say(text):
    """Print progress on standard error, because standard output is for results."""
    print(f"fetch: {text}", file=sys.stderr, flush=True)


def family(name):
    """The name of the upstream, for the name of one of its versions."""
    return VERSION_OF.get(name, name)


def versions(upstream):
    """All pinned versions of an upstream, the default first."""
    return [upstream, *(name for name in VERSION_OF if family(name) == upstream)]


def base():
    """The name of the rdma-core to build. RDMA_CORE_BASE=65 selects rdma-core-65."""
    version = os.environ.get("RDMA_CORE_BASE")
    name = f"rdma-core-{version}" if version else "rdma-core"
    if family(name) != "rdma-core":
        raise FetchError(f"RDMA_CORE_BASE={version}: no {name}.pin in buildlib/upstream")
    return name


def read_pin(name):
    """The pin file of an upstream as a dictionary."""
    pin = {}
    with open(os.path.join(REPO, "buildlib/upstream", name + ".pin"), encoding="utf-8") as lines:
        for line in lines:
            key, equals, value = line.partition("#")[0].partition("=")
            if equals:
                pin[key.strip()] = value.strip()
    return pin


def sha256(path):
    """The sha256 of a file, in hex."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read(path):
    """The content of a file, or "" if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="utf-8") as text:
            return text.read()
    return ""


def write(path, text):
    """Write a file, and rename it when it is complete. On a full disk the old file stays."""
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(path + ".new", path)


def locked(build, name="linux"):
    """A lock. Only its holder prepares the tree of an upstream in `build`."""
    return private_apt.alone(os.path.join(build, "src", f".{name}.lock"))


def machine_apt(build):
    """apt with the machine's sources and fresh indexes, in a private state."""
    private = private_apt.PrivateApt(os.path.join(build, "apt/machine"))
    try:
        private.update()
    except private_apt.AptError as problem:  # an unreachable third-party source must not stop us
        say(str(problem))
    return private


def suite_apt(build, suite, package, version=""):
    """A private apt for the suite, with the first archive whose suite has this package."""
    problems = []
    for uri in private_apt.archive_uris():
        private = private_apt.PrivateApt(
            os.path.join(build, "apt", suite),
            f"deb [signed-by={private_apt.keyring()}] {uri} {suite} main\n")

        def offers(private=private):
            offered = private.versions(package)
            return version in offered if version else bool(offered)

        try:
            if not offers():
                private.update()
            if offers():
                return private
        except private_apt.AptError as problem:
            problems.append(str(problem))
    wanted = f"{package}={version}" if version else package
    raise FetchError("\n".join([f"{suite} has no {wanted}", *problems]))


def archive_apt(build, name):
    """A private apt for the kernel of a pin. Its sources are those of the suite if the pin has a
    version, otherwise those of the machine.
    """
    pin = read_pin(name)
    if not pin["version"]:
        return machine_apt(build)
    return suite_apt(build, pin["suite"], pin["package"], pin["version"])


def kernel_packages(name="linux"):
    """Two names for the package of a pinned kernel's newest image. A release of Debian uses one.

    6.12 is Debian 13's default kernel (linux-image-amd64), and an additional kernel for Debian 12
    (linux-image-6.12-amd64).
    """
    arch = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True,
                          check=True).stdout.strip()
    return (f"{read_pin(name)['package'].replace('source', 'image')}-{arch}",
            f"linux-image-{arch}")


def version_file(name="linux", build=BUILD):
    """The file with the version of the kernel in use."""
    return os.path.join(build, name + ".version")


def linux_version(build=BUILD, update=False, name="linux"):
    """The Debian version of the kernel in use, e.g. 6.12.117-1~deb12u1.

    The version is resolved once and kept in build/linux.version, so that all results are of one
    version. The image and headers that the lab uses must be of this version.
    """
    kept = version_file(name, build)
    known = read(kept).strip()
    pin = read_pin(name)
    if known and not update and pin["version"] in ("", known):
        return known
    version = pin["version"]
    if not version:
        private = machine_apt(build)
        offered = private.versions(pin["package"])
        images = sum(map(private.versions, kernel_packages(name)), [])
        both = [v for v in offered if v in images]  # the signed image comes later
        if not offered:
            raise FetchError(f"apt on this machine offers no {pin['package']}: is "
                             f"{pin['suite']} among its sources?")
        version = (both or offered)[0]
    os.makedirs(build, exist_ok=True)
    write(kept, version + "\n")
    return version


def download_packages(packages, build=BUILD, upstream="linux", apt=None):
    """Download binary packages {name: version} into build/download; return {name: path of its
    .deb}.
    """
    folder = os.path.join(build, "download")
    with private_apt.alone(os.path.join(folder, ".lock")):
        return download_alone(packages, build, folder, upstream, apt)


def download_alone(packages, build, folder, upstream, apt):
    """The same as download_packages(). The caller excludes other users of the folder."""

    def start(name, version):
        return f"{name}_{version.replace(':', '%3a')}_"

    def have(name, version):
        names = os.listdir(folder) if os.path.isdir(folder) else ()
        return next((os.path.join(folder, n) for n in names
                     if n.startswith(start(name, version)) and n.endswith(".deb")), None)

    missing = [f"{n}={v}" for n, v in packages.items() if not have(n, v)]
    if missing:
        say("downloading " + " ".join(missing))
        private = apt or archive_apt(build, upstream)
        with_partial = os.path.join(folder, "partial")
        try:
            private.download(missing, with_partial)
        except private_apt.AptError as problem:
            raise FetchError(f"{problem}\nIf apt offers newer versions now: "
                             f"buildlib/overlay.py {upstream} --update") from problem
        # Move only the requested files, because other files may be incomplete.
        for name in os.listdir(with_partial):
            if name.startswith(tuple(start(*package) for package in packages.items())):
                os.rename(os.path.join(with_partial, name), os.path.join(folder, name))
    return {name: have(name, version) for name, version in packages.items()}


def tarball_of(name, build):
    """Download the archive of the pinned upstream once. Return its path and its version."""
    pin = read_pin(name)
    if family(name) == "linux":
        version = linux_version(build, name=name)
        return download_packages({pin["package"]: version}, build, name)[pin["package"]], version
    path = os.path.join(build, "download", pin["file"])
    if not os.path.exists(path):
        say(f"downloading {pin['package']}={pin['version']}")
        state = os.path.join(build, "apt", name)
        # While apt downloads a file, the incomplete file already has its final name.
        partial = os.path.join(build, "download/partial", pin["file"])
        private_apt.source_tarball(state, pin["package"], pin["version"], pin["suite"],
                                   os.path.dirname(partial))
        os.replace(partial, path)
    return path, pin["version"].rpartition("-")[0]


def check_sum(path, wanted):
    """Raise if the sha256 of a file differs from the pinned value."""
    found = sha256(path)
    if wanted and found != wanted:
        raise FetchError(f"{path}: sha256 is {found}, but the pin has {wanted}: "
                         "remove the file, so that it is downloaded again")


def tree_version(tree):
    """The version that a tree declares."""
    for file, pattern in (("CMakeLists.txt", r'PACKAGE_VERSION "([\w.]+)"'),
                          ("configure.ac", r"AC_INIT\(\[libfabric\], \[([\w.]+)\]"),
                          ("configure.ac", r"ucx_ver_major, (\d+)\)(?s:.*?)"
                                           r"ucx_ver_minor, (\d+)\)(?s:.*?)ucx_ver_patch, (\d+)"),
                          ("VERSION", r"(?m)^major=(\d+)\nminor=(\d+)\nrelease=(\d+)"),
                          ("maint/version.m4", r"MPICH_VERSION_m4\],\[([\w.]+)\]"),
                          ("Makefile", r"VERSION = (\d+)\nPATCHLEVEL = (\d+)\nSUBLEVEL = (\d+)")):
        path = os.path.join(tree, file)
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as text:
                match = re.search(pattern, text.read())
            if match:
                return ".".join(match.groups())
    raise FetchError(f"{tree}: not a tree of {', '.join(SOURCE_VARIABLE)}")


def extract(archive, folder, part=()):
    """Unpack a tarball, or the tarball within a linux-source .deb, into `folder`.

    With `part`, unpack only these paths.
    """
    say(f"unpacking {'a part of ' if part else ''}{os.path.basename(archive)}")
    os.makedirs(folder)
    into = ["tar", "-x", "--strip-components=1", "--no-same-owner", "-C", folder,
            "--checkpoint=20000", "--checkpoint-action=echo=fetch: unpacked %{}T"]
    only = ["--anchored", "--wildcards", "--no-wildcards-match-slash",
            *("*/" + path for path in part)]
    if archive.endswith(".deb"):
        steps = [["dpkg-deb", "--fsys-tarfile", archive],
                 ["tar", "-xO", "--wildcards", "./usr/src/linux-source-*.tar.xz"],
                 ["xz", "-dc", "-T0"], into + only]
    elif archive.endswith(".xz"):
        steps = [["xz", "-dc", "-T0", archive], into + only]
    else:
        steps = [into + ["-f", archive] + only]
    children, previous = [], None
    for step in steps:
        last = step is steps[-1]
        child = subprocess.Popen(step, stdin=previous, stdout=None if last else subprocess.PIPE)
        if previous:
            previous.close()
        previous = child.stdout
        children.append(child)
    if any([child.wait() for child in children]):
        raise FetchError(f"{archive}: could not be unpacked")
    if part:
        write(os.path.join(folder, PART), "\n".join(part))


def complete(tree, archive):
    """Add the missing files of a tree. Existing files stay unchanged, because a build may read
    them.
    """
    whole = tree + ".whole"
    shutil.rmtree(whole, ignore_errors=True)
    extract(archive, whole)
    for folder, folders, files in os.walk(whole):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        target = os.path.join(tree, os.path.relpath(folder, whole))
        os.makedirs(target, exist_ok=True)
        for name in (*files, *links):
            if not os.path.lexists(os.path.join(target, name)):
                os.rename(os.path.join(folder, name), os.path.join(target, name))
    shutil.rmtree(whole)
    os.unlink(os.path.join(tree, PART))


def place(build, name, version, fill):
    """Make a tree by fill(folder). Give the tree its final name when it is complete."""
    unfinished = os.path.join(build, "src", f".{name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    fill(unfinished)
    folder = f"{family(name)}-{version or tree_version(unfinished) + '-local'}"
    tree = os.path.join(build, "src", folder)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.rmtree(state_folder(tree), ignore_errors=True)
    if version:
        os.makedirs(state_folder(tree))
        write(os.path.join(state_folder(tree), UNPACKED), "")
    os.rename(unfinished, tree)
    return tree


def original(name, build, path, folder):
    """Unpack one unchanged file of the pinned upstream below `folder`."""
    archive, _ = tarball_of(name, build)
    check_sum(archive, read_pin(name)["sha256"])
    extract(archive, os.path.join(folder, "package"), (path,))
    return os.path.join(folder, "package", path)


def state_folder(tree):
    """The folder of overlay.py's notes about a tree, outside of the tree."""
    return os.path.join(os.path.dirname(tree), ".overlay", os.path.basename(tree))


def users_tree(name, source, build, update):
    """Unpack or copy the user's tarball or tree. The original does not change."""
    source = os.path.realpath(source)
    if not os.path.exists(source):
        raise FetchError(f"{source}: no such tarball or tree")
    if os.path.isfile(source) and read_pin(name)["sha256"] == sha256(source):
        version = read_pin(name)["version"].rpartition("-")[0]
        tree = os.path.join(build, "src", f"{family(name)}-{version}")
        if os.path.isdir(tree) and not update:
            return tree
        return place(build, name, version, lambda folder: extract(source, folder))
    seen = os.path.join(build, "src", f".{name}.source")
    mark = f"{source} {os.path.getmtime(source)}"
    known, _, tree = read(seen).partition("\n")
    if known == mark and os.path.isdir(tree) and not update:
        return tree
    say(f"{source}: taken as it is, not compared with the pin")
    if os.path.isdir(source):
        tree = place(build, name, None, lambda folder: shutil.copytree(
            source, folder, symlinks=True, ignore=shutil.ignore_patterns(".git", "build")))
    else:
        tree = place(build, name, None, lambda folder: extract(source, folder))
    write(seen, f"{mark}\n{tree}")
    return tree


def fetch(name, build=BUILD, source=None, update=False, part=()):
    """The path of the unpacked tree of an upstream. The caller holds locked(build).

    With `part`, the tree has at least these paths of the pinned tree.
    """
    source = source or os.environ.get(SOURCE_VARIABLE[name])
    if any(map(str.isspace, build)):
        raise FetchError(f"{build}: upstream can't be built in a folder with a blank in its name")
    if source:
        return users_tree(name, source, build, update)
    if family(name) == "linux":
        version = linux_version(build, update, name)
    else:
        version = read_pin(name)["version"].rpartition("-")[0]
    tree = os.path.join(build, "src", f"{family(name)}-{version}")
    has = read(os.path.join(tree, PART)).split("\n")
    if os.path.isdir(tree) and (has == [""] or part and set(part) <= set(has)):
        return tree
    archive, _ = tarball_of(name, build)
    check_sum(archive, read_pin(name)["sha256"])
    if not os.path.isdir(tree):
        return place(build, name, version, lambda folder: extract(archive, folder, part))
    complete(tree, archive)
    return tree


def arguments(description, names=SOURCE_VARIABLE):
    """The command line that fetch.py and overlay.py share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name", choices=sorted(names))
    parser.add_argument("--source", help="a tarball or tree to use instead of the pinned version")
    parser.add_argument("--build", default=BUILD, help="the build folder (default: build)")
    parser.add_argument("--update", action="store_true",
                        help="use the newest point release; if --source is given, unpack it again")
    return parser


def main():
    """Print the path of the unpacked tree."""
    args = arguments(__doc__.splitlines()[0]).parse_args()
    args.build = os.path.abspath(args.build)
    with locked(args.build, args.name):
        print(fetch(args.name, args.build, args.source, args.update))


if __name__ == "__main__":
    try:
        main()
    except (FetchError, private_apt.AptError) as error:
        sys.exit(f"fetch: {error}")
