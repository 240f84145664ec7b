#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Write a change as a patch series that can be mailed: `git am` applies it to plain sources.

Why: here a change is kept as hooks and whole new files, which is good to work on, but a
maintainer reads commits. Each hook becomes one commit: its diff, the new files of its header
(Overlay-Files:), and its text without the parts about the overlay; and each commit becomes a mail.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import fetch
import kernel_modules
import overlay

REPO = fetch.REPO
PLAIN = ("drivers/infiniband", "include/rdma", "include/uapi/rdma", "include/trace/events",
         "Documentation/infiniband")


class Hook:
    """One hook: mail header, text, the new files that belong to it, the diff."""

    def __init__(self, path, upstream):
        self.path = path
        header, _, self.diff = overlay.text_of(path, upstream).partition("\n---\n")
        self.sender = re.search(r"^From: (.*)$", header, re.MULTILINE).group(1)
        self.new_files = re.findall(r"^Overlay-Files: (.*)$", header, re.MULTILINE)
        subject = re.search(r"^Subject: \[PATCH\] (.*)$", header, re.MULTILINE).group(1)
        body = header.partition("\n\n")[2]
        body = re.sub(r"^(Overlay-Files|Only-For|Stands-On|Upstream-Status): .*\n", "", body,
                      flags=re.MULTILINE)
        self.message = f"{subject}\n\n{body.strip()}\n"


def hooks(upstream="linux"):
    """All that an upstream gets, in order."""
    return [Hook(path, upstream) for path in overlay.patches_of(upstream, REPO)]


def git(folder, *arguments, text=None):
    """Run git in a folder, with a fixed identity and without the user's configuration."""
    return subprocess.run(["git", "-C", folder, "-c", "user.name=series",
                           "-c", "user.email=series@localhost", "-c", "commit.gpgsign=false",
                           "-c", "core.autocrlf=false", *arguments],
                          input=text, capture_output=True, text=True, check=True).stdout


def plain_kernel(place, upstream):
    """Put the kernel's files as they are into a folder: those that the series touches, or
    includes."""
    with fetch.locked(fetch.BUILD, upstream):
        tree = fetch.fetch(upstream)
        overlay.overlay(upstream, tree)
        ours = overlay.our_files(upstream, REPO)
        pristine = os.path.join(fetch.state_folder(tree), "pristine")
        for part in (*PLAIN, *kernel_modules.NEIGHBOURS):
            for folder, _, names in os.walk(os.path.join(tree, part)):
                for name in names:
                    path = os.path.relpath(os.path.join(folder, name), tree)
                    if path in ours or path.endswith((".o", ".cmd", ".ko")):
                        continue
                    if part not in PLAIN and not path.endswith(".h"):
                        continue
                    source = os.path.join(pristine, path)
                    if not os.path.exists(source):
                        source = os.path.join(tree, path)
                    target = os.path.join(place, path)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    shutil.copyfile(source, target)


def plain_tarball(place, upstream):
    """Put the files of an upstream's tarball into a folder."""
    with fetch.locked(fetch.BUILD):
        archive, _ = fetch.tarball_of(upstream, fetch.BUILD)
        fetch.check_sum(archive, fetch.read_pin(upstream)["sha256"])
    shutil.rmtree(place)
    fetch.extract(archive, place)


def plain_tree(place, upstream="linux"):
    """A repository with upstream's files as they are."""
    if fetch.family(upstream) == "linux":
        plain_kernel(place, upstream)
    else:
        plain_tarball(place, upstream)
    git(place, "init", "-q")
    git(place, "add", "-A", "-f")
    git(place, "commit", "-q", "-m", "Debian's source package, as it is")


def missing_files(series, upstream="linux"):
    """New files that belong to no hook, so that the series would lack them."""
    brought = {name for hook in series for name in hook.new_files}
    return sorted(set(overlay.our_files(upstream, REPO)) - brought)


def write(folder, upstream="linux"):
    """Write the series; the paths of its mails."""
    series = hooks(upstream)
    missing = missing_files(series, upstream)
    if missing:
        raise overlay.OverlayError("no hook names in Overlay-Files: " + ", ".join(missing))
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(os.path.join(folder, "*.patch")):
        os.unlink(old)
    with tempfile.TemporaryDirectory() as place:
        plain_tree(place, upstream)
        ours = overlay.our_files(upstream, REPO)
        for hook in series:
            git(place, "apply", "--index", "--whitespace=nowarn", "-", text=hook.diff)
            for name in hook.new_files:
                target = os.path.join(place, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(ours[name], target)
                git(place, "add", name)
            git(place, "commit", "-q", f"--author={hook.sender}", "-F", "-", text=hook.message)
        git(place, "format-patch", "-q", "--zero-commit", "-n", f"-{len(series)}",
            "-o", os.path.abspath(folder))
    return sorted(glob.glob(os.path.join(folder, "*.patch")))


def main():
    """Write the series and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", default="linux",
                        choices=sorted({*overlay.PATCHES, *fetch.VERSION_OF} - {"rdma-core"}),
                        help="whose sources the series is for (default: linux)")
    parser.add_argument("folder", nargs="?", default=os.path.join(fetch.BUILD, "series"),
                        help="where the mails go (default: build/series)")
    args = parser.parse_args()
    for path in write(args.folder, args.of):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except (overlay.OverlayError, fetch.FetchError) as error:
        sys.exit(f"series: {error}")
