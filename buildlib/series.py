#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Write a change as series of mails. `git am` applies the mails to upstream's plain sources.

Why: this repository has patches and whole new files, which are easy to work on, but a maintainer
reads commits. Each patch becomes one commit and one mail. The commit has the diff of the patch, the
new files that its header names (Overlay-Files:), and its text without the parts about the overlay.

Each topic of the kernel is one series. Its cover letter is in the topic's folder. The fixes are two
series. The series for-rc has the fixes for stable kernels, and the fixes that these fixes need. The
series for-next has all other fixes. If a topic needs mails of other topics, the folder "needs" has
these mails. The topic mm changes the kernel's own code. Only the mails have this topic, and they
lack the workarounds for it. rdma_core_series.py describes the mails of rdma-core.
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
import rdma_core_series

REPO = fetch.REPO
PLAIN = ("drivers/infiniband", "include/rdma", "include/uapi/rdma", "include/trace/events",
         "Documentation/infiniband")
CORE = ("mm",)  # only the files that the series changes, and the files that compiling these needs
# In the order of the mails: other topics need mails of mm.
TOPICS = [os.path.basename(topic) for topic in overlay.TOPICS]
TOPICS.insert(1, os.path.basename(overlay.MAILED["linux"]))
LIBRARIES = sorted(set(overlay.PATCHES) - {"linux"})
STANDS_ON = re.compile(r"(?m)^Stands-On: (.*)$")
NO_PERSON = ("series: the lists require that a person signs the mails off. Use "
             "--author \"NAME <ADDRESS>\"")


def changes_of(patch):
    """The path of the diff of a patch's new files for the mail."""
    return patch.removesuffix(".patch") + ".series.diff"


class Patch:
    """One patch: its topic and name, sender, text, the new files that belong to it, the diff, and
    a diff of these new files (NAME.series.diff), which only the mail gets.
    """

    def __init__(self, path, upstream, author=None):
        self.path = path
        self.topic = os.path.basename(os.path.dirname(path))
        self.key = f"{self.topic}/{os.path.basename(path)[:4]}"
        header, _, self.diff = overlay.text_of(path, upstream).partition("\n---\n")
        self.sender = author or re.search(r"^From: (.*)$", header, re.MULTILINE).group(1)
        self.new_files = re.findall(r"^Overlay-Files: (.*)$", header, re.MULTILINE)
        self.changes = fetch.read(changes_of(path))
        needs = STANDS_ON.search(header)
        self.needs = [one if "/" in one else f"{self.topic}/{one}"
                      for one in (needs.group(1).split(", ") if needs else ())]
        self.is_stable = "\nCc: stable@vger.kernel.org\n" in header
        self.subject = re.search(r"^Subject: \[PATCH\] (.*)$", header, re.MULTILINE).group(1)
        body = header.partition("\n\n")[2]
        body = re.sub(r"^(Overlay-Files|Only-For|Stands-On|Upstream-Status): .*\n", "", body,
                      flags=re.MULTILINE)
        if author:
            body = re.sub(r"^(Signed-off-by: ).*$", rf"\g<1>{author}", body, flags=re.MULTILINE)
        self.message = f"{self.subject}\n\n{body.strip()}\n"

    def apply(self, place, ours):
        """Make the commit's changes."""
        git(place, "apply", "--whitespace=nowarn", "-", text=self.diff)
        for name in self.new_files:
            target = os.path.join(place, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(ours[name], target)
        if self.changes:
            git(place, "apply", "--whitespace=nowarn", "-", text=self.changes)


class Series:
    """Mails that are sent together: their tree of upstream, the file with the text of their cover
    letter, and the patches that must be applied before them.
    """

    def __init__(self, patches, tree="", cover="", needs=(), first=()):
        self.patches = patches
        self.tree = tree
        self.cover = cover
        self.needs = needs
        self.first = first


def patches_of(upstream="linux", author=None):
    """All patches that an upstream gets, in order."""
    if fetch.family(upstream) == "rdma-core":
        return rdma_core_series.mails(author, upstream)
    return sorted((Patch(path, upstream, author)
                   for path in overlay.patches_of(upstream, REPO, mailed=True)),
                  key=lambda one: TOPICS.index(one.topic))


def with_needs(wanted, patches):
    """These patches and all patches that they need, in order."""
    known = {one.key: one for one in patches}
    found, todo = set(), [one.key for one in wanted]
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo += known[key].needs
    return [one for one in patches if one.key in found]


def series_of(upstream, topic, patches):
    """{folder: series} of a topic or of rdma-core. Without a topic, one series has all patches."""
    if fetch.family(upstream) == "rdma-core":
        return {name: Series([one for one in patches if one.topic == name], "rdma-core", cover)
                for name, cover in rdma_core_series.covers(upstream).items()}
    if not topic:
        return {"": Series(patches)}
    text = os.path.join(REPO, "kernel-patches", topic, "cover")
    own = [one for one in patches if one.topic == topic]
    if topic == "fixes":
        stable = with_needs([one for one in own if one.is_stable], own)
        others = [one for one in own if one not in stable]
        return {"for-rc": Series(stable, "for-rc", text + "-for-rc.txt"),
                "for-next": Series(others, "for-next", text + "-for-next.txt", first=stable)}
    needs = [one for one in with_needs(own, patches) if one not in own]
    tree = "mm-new" if topic == "mm" else "for-next"
    return {"": Series(own, tree, text + ".txt", needs)}


def git(folder, *arguments, text=None):
    """Run git in a folder, with a fixed identity and without the user's configuration."""
    return subprocess.run(["git", "-C", folder, "-c", "user.name=series",
                           "-c", "user.email=series@localhost", "-c", "commit.gpgsign=false",
                           "-c", "core.autocrlf=false", *arguments],
                          input=text, capture_output=True, text=True, check=True).stdout


def plain_kernel(place, upstream):
    """Copy upstream's unchanged kernel files into a folder: all files that the series may change or
    include.
    """
    with fetch.locked(fetch.BUILD, upstream):
        tree = fetch.fetch(upstream)
        overlay.overlay(upstream, tree)
        ours = overlay.our_files(upstream, REPO)
        needed = {file for one in overlay.patches_of(upstream, REPO, mailed=True)
                  for file in overlay.hooked_files(one, upstream)}
        needed.update(part + "/Makefile" for part in CORE)
        pristine = os.path.join(fetch.state_folder(tree), "pristine")
        for part in (*PLAIN, *kernel_modules.NEIGHBOURS, *CORE):
            for folder, _, names in os.walk(os.path.join(tree, part)):
                for name in names:
                    path = os.path.relpath(os.path.join(folder, name), tree)
                    if path in ours or path.endswith((".o", ".cmd", ".ko")):
                        continue
                    if part not in PLAIN and path not in needed and not path.endswith(".h"):
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
    """Make a repository with upstream's unchanged files."""
    if fetch.family(upstream) == "linux":
        plain_kernel(place, upstream)
    else:
        plain_tarball(place, upstream)
    git(place, "init", "-q")
    git(place, "add", "-A", "-f")
    git(place, "commit", "-q", "-m", "Debian's source package, as it is")


def missing_files(patches, upstream="linux"):
    """New files that no patch names, so the series would lack them."""
    if fetch.family(upstream) == "rdma-core":
        return rdma_core_series.missing(patches, upstream)
    brought = {name for one in patches for name in one.new_files}
    return sorted(set(overlay.our_files(upstream, REPO)) - brought)


def commit(place, patch, ours):
    """Apply a patch and its new files to the plain tree."""
    patch.apply(place, ours)
    git(place, "add", "-A", "-f")
    git(place, "commit", "-q", f"--author={patch.sender}", "-F", "-", text=patch.message)


def write_cover(path, series, upstream, base):
    """Put subject and text of the cover letter into git's template."""
    subject, _, text = fetch.read(series.cover).partition("\n\n")
    if fetch.family(upstream) == "linux":
        version = f"Linux {fetch.linux_version(name=upstream).partition('-')[0]}"
    else:
        pinned = fetch.read_pin(upstream)["version"].partition("-")[0]
        version = f"{fetch.family(upstream)} {pinned}"
    needs = "".join(f"  {one.subject}\n" for one in series.needs)
    text = f"{text.strip()}\n\nThe series is for {version}" + \
        (f", and needs these patches first:\n\n{needs}" if needs else ".\n")
    mail = fetch.read(path).replace("*** SUBJECT HERE ***", subject.strip())
    mail = mail.replace("*** BLURB HERE ***", text)
    mail = re.sub("(?m)^From: .*$", f"From: {series.patches[0].sender}", mail, count=1)
    if base:
        mail = re.sub(r"(?m)^base-commit: .*$", f"base-commit: {base}", mail)
    with open(path, "w", encoding="utf-8") as out:
        out.write(mail)


def write_one(folder, series, place, upstream, base=None):
    """Write the mails of one series. The first commit is the plain tree."""
    ours = overlay.our_files(upstream, REPO)
    root = git(place, "rev-list", "--max-parents=0", "HEAD").strip()
    git(place, "reset", "-q", "--hard", root)
    for patch in (*series.needs, *series.first):
        commit(place, patch, ours)
    begin = git(place, "rev-parse", "HEAD").strip()
    for patch in series.patches:
        commit(place, patch, ours)
    mails = ["format-patch", "-q", "--zero-commit", "-n", "-o"]
    options = [f"--base={root}"] if base else []
    if series.cover:
        options += [f"--subject-prefix=PATCH {series.tree}", "--cover-letter",
                    "--cover-from-description=none"]
    git(place, *mails, os.path.abspath(folder), *options, f"{begin}..HEAD")
    if series.cover:
        write_cover(os.path.join(folder, "0000-cover-letter.patch"), series, upstream, base)
    if series.needs:
        git(place, *mails, os.path.abspath(os.path.join(folder, "needs")), f"{root}..{begin}")


def write(folder, upstream="linux", topic=None, author=None, base=None):
    """Write the series; return the paths of its mails and of its cover letter."""
    patches = patches_of(upstream, author)
    missing = missing_files(patches, upstream)
    if missing:
        raise overlay.OverlayError("no patch of the series has these files: " + ", ".join(missing))
    mails = []
    with tempfile.TemporaryDirectory() as place:
        plain_tree(place, upstream)
        for name, series in series_of(upstream, topic, patches).items():
            into = os.path.join(folder, name)
            os.makedirs(into, exist_ok=True)
            for old in (*glob.glob(os.path.join(into, "*.patch")),
                        *glob.glob(os.path.join(into, "needs/*.patch"))):
                os.unlink(old)
            write_one(into, series, place, upstream, base)
            mails += sorted(glob.glob(os.path.join(into, "*.patch")))
    return mails


def main():
    """Write the series and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic", nargs="?", default="all", choices=["all", *TOPICS, *LIBRARIES],
                        help="one topic of the kernel patches, all topics (default), or a library")
    parser.add_argument("folder", nargs="?", help="where the mails go (default: build/series)")
    parser.add_argument("--for", dest="version", default="linux",
                        choices=fetch.versions("linux"), help="the version of Linux")
    parser.add_argument("--author", help="the person who sends and signs the mails")
    parser.add_argument("--base", help="the upstream commit on which the mails are based")
    args = parser.parse_args()
    if args.author and not re.fullmatch(r"[^<>]+ <[^<>\s]+@[^<>\s]+>", args.author):
        parser.error("--author: NAME <ADDRESS>")
    library = args.topic in LIBRARIES
    upstream = args.topic if library else args.version
    if args.topic == "rdma-core":
        upstream = fetch.base()
    folder = args.folder or os.path.join(fetch.BUILD, "series",
                                         "" if args.topic == "all" else args.topic)
    topic = args.topic if args.topic in TOPICS else None
    for path in write(folder, upstream, topic, args.author, args.base):
        print(path)
    if not args.author and (not library or args.topic == "rdma-core"):
        print(NO_PERSON, file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except (overlay.OverlayError, fetch.FetchError) as error:
        sys.exit(f"series: {error}")
