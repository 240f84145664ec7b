#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make the tree to build: upstream's tree with our files laid over it and our hooks applied.

Why: new code is a plain file at its path in upstream, and upstream's files change by a few small
patches. The tree gets symbolic links to our files, and a hooked file is written only when its
content changes. So editing a file rebuilds only its dependents. If our file has the path of an
upstream file, or a hook does not apply without fuzz, this script fails. The script may run at any
time. It leaves an up-to-date tree alone, and prints the path of the tree.
"""
import filecmp
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import private_apt
import fetch

# The folders of changes to Linux, in the order in which the changes apply. Each folder has patches
# and new files.
TOPICS = tuple("kernel-patches/" + topic for topic in ("fixes", "notify", "paging"))
# Each item: (our folder, name pattern, folder in upstream's tree). "**" includes subfolders.
LAID = {
    "rdma-core": (("buildlib", "inject.cmake", "buildlib"),
                  ("libibverbs", "**", "libibverbs"),
                  ("providers", "**", "providers"),
                  ("pyverbs", "**", "pyverbs"),
                  ("tests", "*.py", "tests"),
                  ("kernel-patches/notify/include/uapi/rdma", "*.h", "kernel-headers/rdma")),
    "linux": tuple((f"{topic}/{part}", "**", part) for topic in TOPICS
                   for part in ("drivers", "include", "Documentation")),
    "libfabric": (("buildlib/consumers.d/libfabric/fabtests", "**", "fabtests"),
                  ("buildlib/consumers.d/libfabric/include", "**", "include"),
                  ("buildlib/consumers.d/libfabric/prov", "**", "prov")),
    "ucx": (("buildlib/consumers.d/ucx/src", "**", "src"),
            ("buildlib/consumers.d/ucx/test", "**", "test")),
    "openmpi": (),
}
# Folders of patches, in the order in which they apply.
PATCHES = {"rdma-core": ("buildlib/hooks",),
           "linux": TOPICS,
           "libfabric": ("buildlib/consumers.d/libfabric/hooks",),
           "ucx": ("buildlib/consumers.d/ucx/hooks",),
           "openmpi": ("buildlib/consumers.d/openmpi/hooks",)}
# Patches only for the trees that are built here. Upstream and the packages do not get them.
LOCAL = {"linux": "tests/lab/patches", "openmpi": "tests/consumers/openmpi"}
# Patches only for upstream. The trees that are built here and the packages do not get them, because
# modules can't change the kernel's own code: our files have workarounds.
MAILED = {"linux": "kernel-patches/mm"}
LEFTOVERS = ("~", ".pyc", ".orig", ".rej", ".swp")
# A patch or file with this line is only for the named version of an upstream.
ONLY_FOR = re.compile(r"(?m)^Only-For: (\S+)$")


class OverlayError(Exception):
    """Our files and upstream's do not fit together; the message names both."""


def patches_of(name, repo=fetch.REPO, local=False, mailed=False):
    """The patches that an upstream gets, in order. `local` adds the patches of LOCAL, and `mailed`
    adds the patches of MAILED.
    """
    upstream = fetch.family(name)
    more = [folders[upstream] for folders, wanted in ((LOCAL, local), (MAILED, mailed))
            if wanted and upstream in folders]
    return [path for folder in (*PATCHES[upstream], *more)
            for path in sorted(glob.glob(os.path.join(repo, folder, "*.patch")))
            if name in (ONLY_FOR.findall(parts(fetch.read(path))[0]) or [name])]


def parts(text):
    """Split a patch into its header and {upstream file: the part of the diff for this file}."""
    start = "diff --git " if re.search("(?m)^diff --git ", text) else r"--- \S+/"
    header, *changes = re.split(f"(?m)^(?={start})", text)
    path = re.compile(r"(?m)^(?:diff --git \S+|\+\+\+) [^/\s]+/(\S+)")
    return header, {path.search(one).group(1): one for one in changes}


def version_of(name):
    """The version in the name of an upstream, as in linux-7.3."""
    return name.removeprefix(fetch.family(name) + "-")


def form_of(patch, name):
    """The path of the file with the parts of a patch that differ for a version of upstream."""
    return f"{patch.removesuffix('.patch')}.{version_of(name)}.diff"


def text_of(patch, name=""):
    """The text of a patch for this version of the upstream."""
    text = fetch.read(patch)
    other = fetch.read(form_of(patch, name)) if name in fetch.VERSION_OF else ""
    if not other:
        return text
    header, changes = parts(text)
    changes |= parts(other)[1]
    return header + "".join(one for one in changes.values() if "\n@@ " in one)


def our_files(name, repo):
    """All files to lay over upstream's tree: {path in this tree: path of our file}.

    In the tree of linux-7.3, our NAME.7.3.h replaces our NAME.h."""
    files, own = {}, {}
    for folder, pattern, target in LAID[fetch.family(name)]:
        base = os.path.join(repo, folder)
        for path in glob.glob(os.path.join(base, pattern), recursive=True):
            if not os.path.isfile(path) or path.endswith(LEFTOVERS):
                continue
            stem, ending = os.path.splitext(os.path.join(target, os.path.relpath(path, base)))
            form = next((f for f in fetch.VERSION_OF if stem.endswith("." + version_of(f))), None)
            if not form:
                files[stem + ending] = path
            elif form == name:
                own[stem.removesuffix("." + version_of(form)) + ending] = path
    return files | own


def same(path, content_of):
    """Are both paths files with the same bytes?"""
    return os.path.isfile(path) and filecmp.cmp(path, content_of, shallow=False)


def is_link_into(path, repo):
    """Is path a symbolic link into our repository? The link may be dangling."""
    return os.path.islink(path) and os.path.realpath(path).startswith(os.path.realpath(repo) + "/")


def lay(files, before, tree, repo, copy):
    """Lay our files over the tree, and remove files of `before` that no longer exist."""
    for path in sorted(set(before) - set(files)):
        place = os.path.join(tree, path)
        if os.path.lexists(place):
            os.unlink(place)
    for path, ours in sorted(files.items()):
        place = os.path.join(tree, path)
        known = path in before or is_link_into(place, repo)
        if os.path.lexists(place) and not known:
            raise OverlayError(f"{os.path.relpath(ours, repo)} would replace upstream's {path}: "
                               "hook that file instead, or choose another name")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        real = os.path.realpath(os.path.dirname(place))
        link = os.path.relpath(os.path.realpath(ours), real)
        if copy:
            if os.path.islink(place) or not same(place, ours):
                replace(place, lambda new, ours=ours: shutil.copy2(ours, new))
        elif not os.path.islink(place) or os.readlink(place) != link:
            replace(place, lambda new, link=link: os.symlink(link, new))


def replace(place, make):
    """Make a new file in the folder of `place`, and rename it to `place`."""
    new = place + ".new"
    if os.path.lexists(new):
        os.unlink(new)
    make(new)
    os.replace(new, place)


def hooked_files(patch, name=""):
    """The upstream files that a patch changes."""
    pairs = re.findall(r"^--- (\S+).*\n\+\+\+ (\S+)", text_of(patch, name), re.MULTILINE)
    if not pairs:
        raise OverlayError(f"{patch}: changes no file")
    for old, new in pairs:
        if "/dev/null" in (old, new):
            raise OverlayError(f"{patch}: adds or removes {new if old == '/dev/null' else old}: "
                               "put a new file at its path in the overlay, not in a patch")
    return [new.partition("/")[2] for _, new in pairs]


def apply_hook(patch, repo, work, name=""):
    """Apply one patch, without fuzz, to the copies in `work`."""
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--batch", "--forward", "-d", work,
                           "--no-backup-if-mismatch"], input=text_of(patch, name),
                          capture_output=True, text=True, check=False, env={**os.environ,
                                                                            "LC_ALL": "C"})
    if done.returncode:
        failed, current = [], "?"
        for line in done.stdout.splitlines():
            if line.startswith("patching file "):
                current = line.split(" ", 2)[2].strip("'")
            elif "FAILED" in line or "ignored" in line or "malformed" in line:
                failed.append(f"{current}: {line.strip()}")
        detail = "\n  ".join(failed or (done.stdout + done.stderr).splitlines())
        raise OverlayError(f"hook {os.path.relpath(patch, repo)} does not apply to the files of "
                           f"{name or 'upstream'}\n  {detail}")


def keep(name, path, tree, kept):
    """Keep a copy of upstream's version of a file. If the file in the tree was edited, the copy
    comes from upstream's package.
    """
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    place = os.path.join(tree, path)
    unpacked = os.path.join(fetch.state_folder(tree), fetch.UNPACKED)
    if not os.path.exists(unpacked) or os.stat(place).st_mtime <= os.stat(unpacked).st_mtime:
        replace(kept, lambda new: shutil.copy2(place, new))
        return
    with tempfile.TemporaryDirectory() as folder:
        own = fetch.original(name, os.path.dirname(os.path.dirname(tree)), path, folder)
        replace(kept, lambda new: shutil.copy2(own, new))


def hook(name, patches, before, tree, pristine, repo):
    """Apply the patches in order; return the list of files that are hooked now.

    The hooks are applied to upstream's versions of the files, which are in `pristine`. `before` has
    the files that are hooked already, and the times at which they were written. If a file was
    edited after this time, or before its first hook, this raises an error.
    """
    targets = {}
    for patch in patches:
        for path in hooked_files(patch, name):
            targets.setdefault(path, patch)
    with tempfile.TemporaryDirectory() as work:
        for path, patch in targets.items():
            place, kept = os.path.join(tree, path), os.path.join(pristine, path)
            if not os.path.isfile(place) or os.path.islink(place):
                raise OverlayError(f"hook {os.path.relpath(patch, repo)} does not apply: "
                                   f"upstream has no {path}")
            if not os.path.exists(kept):
                keep(name, path, tree, kept)
            os.makedirs(os.path.dirname(os.path.join(work, path)), exist_ok=True)
            shutil.copy(kept, os.path.join(work, path))
        for patch in patches:
            try:
                apply_hook(patch, repo, work, name)
            except OverlayError as problem:
                if name not in fetch.VERSION_OF:
                    raise
                raise OverlayError(
                    f"{problem}\nto write other lines for this version: buildlib/hook.py "
                    f"--for {name} {os.path.relpath(patch, repo)}") from problem
        for path in targets:
            refuse_edited(path, before, tree, pristine, work)
        for path in targets:
            update(os.path.join(tree, path), os.path.join(work, path))
    for path in set(before) - set(targets):
        if os.path.exists(os.path.join(pristine, path)):
            update(os.path.join(tree, path), os.path.join(pristine, path))
            os.unlink(os.path.join(pristine, path))
    return list(targets)


def refuse_edited(path, before, tree, pristine, work):
    """Raise an error if a file of the tree was edited, because the edit would be lost."""
    place, kept = os.path.join(tree, path), os.path.join(pristine, path)
    if path in before and os.stat(place).st_mtime <= before[path]:
        return
    if not same(place, kept) and not same(place, os.path.join(work, path)):
        raise OverlayError(f"{place} was edited. It is a file of the build tree, so the edit would "
                           "be lost.\n  Keep the edit elsewhere (kernel-patches/README.md "
                           "describes how to make a hook), then put upstream's file back:\n"
                           f"  cp {kept} {place}")


def update(place, content_of):
    """Give `place` the content of another file. If it already has this content, leave it alone."""
    if not same(place, content_of):
        mode = os.stat(place).st_mode
        replace(place, lambda new: shutil.copyfile(content_of, new))
        os.chmod(place, mode)


def touch_includers(laid, hooked, tree):
    """Touch the files that include a changed file, because upstream's build does not know which
    files Cython includes.
    """
    included = [os.stat(os.path.join(tree, f)).st_mtime for f in laid if f.endswith(".pxi")]
    for path in (os.path.join(tree, f) for f in hooked if f.endswith((".pyx", ".pxd"))):
        if os.stat(path).st_mtime < max(included, default=0):
            os.utime(path)


def overlay(name, tree, repo=fetch.REPO, copy=False):
    """Lay our files over an unpacked tree and apply the hooks. The caller holds fetch.locked()."""
    state = fetch.state_folder(tree)
    os.makedirs(state, exist_ok=True)
    book = os.path.join(state, "state.json")
    done = {"laid": [], "hooked": []}
    if os.path.exists(book):
        with open(book, encoding="utf-8") as text:
            done = json.load(text)
    files = our_files(name, repo)
    patches = patches_of(name, repo, local=True)
    before = dict.fromkeys(done["hooked"], os.path.exists(book) and os.stat(book).st_mtime)

    def record(**new):
        done.update(new)
        replace(book, lambda path: write_json(path, done))

    lay(files, done["laid"], tree, repo, copy)
    record(laid=sorted(files))
    # The record is also written before hooking, because a later run must know the files that an
    # interrupted run hooked.
    hooked = {path for patch in patches for path in hooked_files(patch, name)}
    record(hooked=sorted(hooked.union(done["hooked"])))
    pristine = os.path.join(state, "pristine")
    hooked = hook(name, patches, before, tree, pristine, repo)
    touch_includers(done["laid"], hooked, tree)
    record(hooked=sorted(hooked))


def write_json(path, content):
    """Write one JSON file."""
    with open(path, "w", encoding="utf-8") as out:
        json.dump(content, out, indent=1)


def hooked_tree(name, build=fetch.BUILD, source=None, update=False, part=(), copy=False):
    """Fetch an upstream, put our files into its tree and apply the hooks; return the path of the
    tree. With `part`, fetch only these paths.
    """
    hooked = {path for patch in patches_of(name, local=True)
              for path in hooked_files(patch, name)}
    below = tuple(path + "/" for path in part)
    part = part and (*part, *sorted(path for path in hooked if not path.startswith(below)))
    with fetch.locked(build, name):
        tree = fetch.fetch(name, build, source, update, part)
        overlay(name, tree, copy=copy)
    return tree


def main():
    """Print the path of the tree."""
    parser = fetch.arguments(__doc__.splitlines()[0],
                             [*LAID, *fetch.VERSION_OF])
    parser.add_argument("--copy", action="store_true",
                        help="copy our files instead of linking them, for another machine")
    parser.add_argument("--part", nargs="*", default=[],
                        help="fetch only these paths and the hooked files (default: all)")
    args = parser.parse_args()
    print(hooked_tree(args.name, os.path.abspath(args.build), args.source, args.update, args.part,
                      args.copy))


if __name__ == "__main__":
    try:
        main()
    except (OverlayError, fetch.FetchError, private_apt.AptError) as error:
        sys.exit(f"overlay: {error}")
