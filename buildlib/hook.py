#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make or change a patch to upstream's files: a hook, or a fix of the kernel.

  buildlib/hook.py PATCH FILE...     copies the patch's files and FILEs; then edit the copies in b/
  buildlib/hook.py --write PATCH     puts the edits into the patch, and applies all patches

PATCH is the path of a new patch, or the path or name of an existing patch. FILE is a path in
upstream's tree. The folder a/ has upstream's files with all earlier patches. For a fix, a/ has only
the fixes that the fix needs. The folder b/ has the files of a/ with PATCH applied. Why: a diff that
was edited by hand has wrong counts, and the built tree also has later patches.

With --for linux-7.3 (another version of Linux) the command edits only the parts of PATCH that
differ for this version. These parts are in a file with PATCH's name and the ending .7.3.diff. Hunks
of the patch that do not apply are in a file NAME.rej next to b/.
"""
import argparse
import glob
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import fetch
import kernel_modules
import overlay
import private_apt

HEADER = """From: YOU <YOUR@MAIL>
Subject: [PATCH] RDMA/DRIVER: WHAT IT DOES

SYMPTOM, AND WHY THE CHANGE IS SAFE; LINES OF AT MOST 75 CHARACTERS.

{fixes}Upstream-Status: {status}
Signed-off-by: YOU <YOUR@MAIL>
---
"""
FIXES = "kernel-patches/fixes"
STANDS_ON = re.compile(r"(?m)^Stands-On: (.*)$")


def upstream_of(patch):
    """The name of the upstream that a patch is for."""
    folder = os.path.dirname(patch)
    for name, folders in overlay.PATCHES.items():
        if folder in (*folders, overlay.LOCAL.get(name), overlay.MAILED.get(name)):
            return name
    raise overlay.OverlayError(f"{patch} is not in a folder of patches: " + ", ".join(
        folder for folders in overlay.PATCHES.values() for folder in folders))


def path_of(patch, repo=fetch.REPO):
    """The path of a patch in the repository. For an existing patch the name is enough."""
    known = [os.path.relpath(one, repo) for name in overlay.PATCHES
             for one in overlay.patches_of(name, repo, local=True, mailed=True)]
    named = [one for one in known if os.path.basename(one) == patch]
    return named[0] if len(named) == 1 else os.path.relpath(os.path.abspath(patch), repo)


def header_of(text):
    """The part of a patch above its first diff."""
    return re.split(r"(?m)^(?=diff --git |--- \S)", text, maxsplit=1)[0]


def below(patch, patches, text):
    """The patches that are applied before this patch. A fix needs only the fixes that it names."""
    if not patch.startswith(FIXES):
        return [one for one in patches if one < patch or one.startswith(FIXES)]
    needs = STANDS_ON.search(header_of(text))
    numbers = needs.group(1).split(", ") if needs else ()
    return [one for one in patches if os.path.basename(one)[:4] in numbers and
            one.startswith(FIXES)]


def place_of(patch, name=""):
    """The folder of a/ and b/."""
    if name in fetch.VERSION_OF:
        patch = overlay.form_of(patch, name)
    return os.path.join(fetch.BUILD, "patches", os.path.basename(patch).removesuffix(".patch"))


def copy(files, source, into):
    """Copy files of one tree into another."""
    for file in files:
        os.makedirs(os.path.dirname(os.path.join(into, file)), exist_ok=True)
        shutil.copy(os.path.join(source, file), os.path.join(into, file))


def upstreams(files, tree, into):
    """Copy upstream's own versions of files."""
    pristine = os.path.join(fetch.state_folder(tree), "pristine")
    for file in files:
        place = os.path.join(tree, file)
        if not os.path.isfile(place) or os.path.islink(place):
            raise overlay.OverlayError(f"upstream has no {file}")
        kept = os.path.exists(os.path.join(pristine, file))
        copy([file], pristine if kept else tree, into)


def laid_out(place):
    """Yield each file in b/, and the path of a copy that differs if the file was edited."""
    for folder, _, names in os.walk(os.path.join(place, "written")):
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, os.path.join(place, "written")), path


def part_of(name, files=()):
    """The paths to unpack for these files of an upstream. Unpacking all of Linux takes minutes."""
    if fetch.family(name) != "linux":
        return ()
    known = tuple(f"{path}/" for path in kernel_modules.PART)
    return (*kernel_modules.PART, *(file for file in sorted(files) if not file.startswith(known)))


def tree_for(name, files):
    """The tree of an upstream. If `name` is in VERSION_OF, the tree gets no hooks, because some
    patches may not apply to this version.
    """
    part = part_of(name, files)
    if name not in fetch.VERSION_OF:
        return overlay.hooked_tree(name, part=part)
    with fetch.locked(fetch.BUILD, name):
        return fetch.fetch(name, part=part)


def lay_out(patch, files, repo=fetch.REPO, name=""):
    """Make a/ and b/; return the path of b/."""
    name = name or upstream_of(patch)
    path = os.path.join(repo, patch)
    text = overlay.text_of(path, name)
    mailed = os.path.dirname(patch) in overlay.MAILED.values()
    known = [os.path.relpath(one, repo)
             for one in overlay.patches_of(name, repo, local=True, mailed=mailed)]
    before = [os.path.join(repo, one) for one in below(patch, known, text)]
    files = {*files, *(overlay.hooked_files(path, name) if text else ())}
    if not files:
        raise overlay.OverlayError(f"{patch} is new: name the files that it will change")
    needed = files.union(*(overlay.hooked_files(one, name) for one in before))
    tree = tree_for(name, needed)
    place = place_of(patch, name)
    if any(not overlay.same(os.path.join(place, "b", file), written)
           for file, written in laid_out(place)):
        raise overlay.OverlayError(f"{place}/b has edits that are not in the patch: write them "
                                   f"(--write), or remove {place}")
    shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory() as work:
        upstreams(needed, tree, work)
        for one in before:
            overlay.apply_hook(one, repo, work, name)
        copy(files, work, os.path.join(place, "a"))
    copy(files, os.path.join(place, "a"), os.path.join(place, "b"))
    if text:
        try:
            overlay.apply_hook(path, repo, os.path.join(place, "b"), name)
        except overlay.OverlayError as problem:
            if name not in fetch.VERSION_OF:
                raise
            print(problem)
            for reject in glob.glob(os.path.join(place, "b/**/*.rej"), recursive=True):
                os.rename(reject, os.path.join(place, os.path.basename(reject)))
    shutil.copytree(os.path.join(place, "b"), os.path.join(place, "written"))
    return os.path.join(place, "b")


def model(path):
    """The text of a patch. If the patch has no diff yet, the text of the first patch of its
    folder."""
    text = fetch.read(path)
    others = sorted(glob.glob(os.path.join(os.path.dirname(path), "*.patch")))
    return text if "\n@@ " in text else fetch.read(others[0]) if others else text


def context(text):
    """The number of context lines of most hunks, or 2 if there is no hunk."""
    starts = re.findall(r"(?m)^@@ .*\n((?: .*\n)*)", text)
    return statistics.mode([start.count("\n") for start in starts] or [2])


def changes(patch, repo, name):
    """The difference of a/ and b/, in the format of the folder's patches."""
    place, like = place_of(patch, name), model(os.path.join(repo, patch))
    if not os.path.isdir(place):
        raise overlay.OverlayError(f"{patch} is not laid out: call hook.py without --write first")
    done = subprocess.run(["git", "diff", "--no-index", "--no-prefix", "--no-color",
                           "--no-ext-diff", f"-U{context(like)}", "a", "b"], cwd=place,
                          capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise overlay.OverlayError(done.stderr)
    # rdma-core's hooks have no line "diff --git".
    superfluous = "index |diff --git " if like and "\ndiff --git " not in like else "index "
    return re.sub(rf"(?m)^(?:{superfluous}).*\n", "", done.stdout)


def different(made, text):
    """The parts of the diff `made` that differ from the parts of the patch `text`. If only `text`
    changes a file, the result has a heading for this file, without hunks."""
    def lines(part):
        return [line for line in part.splitlines() if not line.startswith("@@ ")]

    ours, theirs = overlay.parts(made)[1], overlay.parts(text)[1]
    head = "diff --git a/{0} b/{0}\n" if "\ndiff --git " in text else "--- a/{0}\n+++ b/{0}\n"
    gone = {path: head.format(path) for path in theirs if path not in ours}
    return "".join(part for path, part in (ours | gone).items()
                   if path not in theirs or lines(part) != lines(theirs[path]))


def form_of_header(patch):
    """The header of a new patch. Its author completes it."""
    if patch.startswith(FIXES):
        return HEADER.format(fixes='Fixes: 12 DIGITS ("SUBJECT")\n', status="Pending")
    return HEADER.format(fixes="", status="Inappropriate [overlay hook]")


def write(patch, repo=fetch.REPO, name=""):
    """Write the difference of a/ and b/ into the patch, below its header."""
    path, made = os.path.join(repo, patch), changes(patch, repo, name)
    if not made:
        raise overlay.OverlayError(f"nothing was edited in {place_of(patch, name)}/b")
    text = fetch.read(path)
    if name in fetch.VERSION_OF and name not in overlay.ONLY_FOR.findall(header_of(text)):
        path, made = overlay.form_of(path, name), different(made, text)
        header = header_of(fetch.read(path))
    else:
        header = header_of(text) if text else form_of_header(patch)
    if made:
        fetch.write(path, header + made)
    elif os.path.exists(path):
        os.unlink(path)
    for file, written in laid_out(place_of(patch, name)):
        shutil.copy(os.path.join(place_of(patch, name), "b", file), written)


def main():
    """Lay out a/ and b/, or write the patch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     usage="\n".join(__doc__.splitlines()[2:4]))
    parser.add_argument("--write", action="store_true", help="write what was edited in b/")
    parser.add_argument("--for", dest="name", default="", choices=fetch.VERSION_OF,
                        help="edit the patch for this version of the upstream")
    parser.add_argument("patch", metavar="PATCH")
    parser.add_argument("files", nargs="*", metavar="FILE")
    args = parser.parse_args()
    patch = path_of(args.patch)
    try:
        if args.write:
            write(patch, name=args.name)
            name = args.name or upstream_of(patch)
            overlay.hooked_tree(name, part=part_of(name))
            print(f"{patch}: written, and all patches applied")
        else:
            print(f"edit the files in {lay_out(patch, args.files, name=args.name)}, then: "
                  f"buildlib/hook.py {f'--for {args.name} ' * bool(args.name)}--write {patch}")
    except (fetch.FetchError, overlay.OverlayError, private_apt.AptError) as error:
        sys.exit(f"hook: {error}")


if __name__ == "__main__":
    main()
