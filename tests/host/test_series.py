#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The kernel series as mails applies to plain sources, each patch builds, and checkpatch passes.

Why: daily builds use the overlay, and only this test builds the series. The test builds against
Debian's headers, and skips a series that it has built before.
"""
import filecmp
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, "buildlib"), os.path.join(REPO, "tests/lab")]

import debian  # noqa: E402
import driver  # noqa: E402
import fetch  # noqa: E402
import kernel_package  # noqa: E402
import overlay  # noqa: E402
import series  # noqa: E402

# New files below drivers/infiniband and include/rdma have their entries in MAINTAINERS.
# Without the history of Linux checkpatch can't find the commit that a fix names.
CHECKPATCH = ["--strict", "--terse", "--no-tree", "--no-summary",
              "--ignore", "FILE_PATH_CHANGES,UNKNOWN_COMMIT_ID"]
# Drivers of devices that the lab does not have, and a part of the kernel that is no module. Their
# changed files are only compiled.
UNTRIED = ("drivers/infiniband/hw/", "drivers/infiniband/sw/rdmavt/", "mm/")
# The files that differ between the mails and the tree that we build, and words of the workarounds
# that the mails lack.
DIFFERENT = {"mm/vma.c", "mm/mmu_notifier.c", "drivers/infiniband/core/umem_notify_event.c"}
WORKAROUNDS = {"event_nr_spaces", "queue_work", "synchronize_rcu"}


def touched(mail):
    """The files that a mail changes or brings."""
    with open(mail, encoding="utf-8") as text:
        return re.findall(r"(?m)^\+\+\+ b/(\S+)$", text.read())


def different(one, other, names):
    """Those of the files that differ between two folders."""
    return {name for name in names
            if not filecmp.cmp(os.path.join(one, name), os.path.join(other, name), shallow=False)}


def words(folder, name):
    """The words of a file."""
    return set(re.findall(r"\w+", fetch.read(os.path.join(folder, name))))


def only_in_mails(version):
    """The diffs that the mails have and the tree that we build lacks."""
    built = overlay.patches_of(version)
    patches = [overlay.text_of(path, version)
               for path in overlay.patches_of(version, mailed=True) if path not in built]
    return [*patches, *filter(None, (fetch.read(series.changes_of(path)) for path in built))]


def batches(files):
    """Lists of {mail: its files}. The mails of one list are built together.

    Most lists have one mail. Mails share a list if they change only drivers that the lab can't try,
    and if no two of them change the same driver. The mistakes of each mail still show.
    """
    done, seen = [], set()
    for mail, names in files.items():
        folders = {os.path.dirname(name) for name in names}
        tried = not all(name.startswith(UNTRIED) for name in names)
        if tried or not seen or seen & folders:
            done.append([])
            seen = set()
        done[-1].append(mail)
        seen = set() if tried else seen | folders
    return done


def empty_places():
    """Two folders for builds. The compiler cache needs the same folders each time."""
    places = [os.path.join(fetch.BUILD, name) for name in ("series.modules", "series.objects")]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
        os.mkdir(place)
    return places


def build(package, tree, places, names):
    """Build the modules of a tree. For drivers that the lab can't try, compile only the files in
    `names`.
    """
    untried = {name for name in names if name.startswith(UNTRIED)}
    if names - untried:
        debian.build_modules(package, tree, places[0], driver.make)
    if untried:
        driver.build(package, tree, places[1], untried)


class Series(unittest.TestCase):
    """A maintainer's steps with the series."""

    VERSION = "linux"
    MORE = ()   # options of checkpatch

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.mails = series.write(os.path.join(cls.temporary.name, "mails"), cls.VERSION)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_checkpatch(self):
        with fetch.locked(fetch.BUILD, self.VERSION):
            tool = os.path.join(fetch.fetch(self.VERSION), "scripts/checkpatch.pl")
        for mail in self.mails:
            done = subprocess.run([tool, *CHECKPATCH, *self.MORE, mail], capture_output=True,
                                  text=True, check=False)
            with open(mail, encoding="utf-8") as text:
                lines = text.read().splitlines()
            # The subject of an upstream commit keeps upstream's spelling.
            said = [line for line in (done.stdout + done.stderr).splitlines()
                    if not ("may be misspelled" in line
                            and lines[int(line.split(":")[1]) - 1].startswith("Fixes: "))]
            self.assertEqual(said, [], mail)

    def test_says_nothing_of_the_overlay(self):
        for mail in self.mails:
            with open(mail, encoding="utf-8") as text:
                self.assertNotRegex(text.read(), r"(?m)^(Overlay-Files|Upstream-Status):", mail)

    def test_result_is_the_tree_that_we_build(self):
        """The mails make the tree that we build, with the patches to mm/ in place of workarounds.
        """
        plain = os.path.join(self.temporary.name, "whole")
        os.mkdir(plain)
        series.plain_tree(plain, self.VERSION)
        series.git(plain, "am", "-q", *self.mails)
        with fetch.locked(fetch.BUILD, self.VERSION):
            tree = fetch.fetch(self.VERSION)
        names = series.git(plain, "ls-files").split()
        self.assertEqual(different(plain, tree, names), DIFFERENT)
        file = next(name for name in DIFFERENT if name.startswith("drivers/"))
        self.assertEqual(words(plain, file) & WORKAROUNDS, set())
        self.assertEqual(words(tree, file) & WORKAROUNDS, WORKAROUNDS)
        for text in only_in_mails(self.VERSION):
            series.git(plain, "apply", "--reverse", "-", text=text)
        self.assertEqual(different(plain, tree, names), set())

    def test_each_patch_builds(self):
        digest = hashlib.sha256(fetch.linux_version(name=self.VERSION).encode())
        for mail in self.mails:
            with open(mail, "rb") as text:
                digest.update(text.read().partition(b"\n---\n")[2])
        known = os.path.join(fetch.BUILD, f"series.{self.VERSION}.built")
        if os.path.exists(known):
            with open(known, encoding="utf-8") as text:
                if text.read() == digest.hexdigest():
                    return
        with fetch.locked(fetch.BUILD, self.VERSION):
            package = kernel_package.unpack(upstream=self.VERSION)
        plain = os.path.join(self.temporary.name, "steps")
        os.mkdir(plain)
        series.plain_tree(plain, self.VERSION)
        places = empty_places()
        files = {mail: touched(mail) for mail in self.mails}
        for mails in batches(files):
            series.git(plain, "am", "-q", *mails)
            build(package, plain, places, {name for mail in mails for name in files[mail]})
        with open(known, "w", encoding="utf-8") as text:
            text.write(digest.hexdigest())

    def test_builds_without_paging(self):
        with fetch.locked(fetch.BUILD, self.VERSION):
            package = kernel_package.unpack(upstream=self.VERSION)
            tree = fetch.fetch(self.VERSION)
        names = {os.path.relpath(path, tree)
                 for path in glob.glob(os.path.join(tree, "drivers/infiniband/sw/rxe/*.c"))
                 if not os.path.basename(path).startswith("rxe_mem_")}
        self.assertIn("drivers/infiniband/sw/rxe/rxe_resp.c", names)
        place = os.path.join(self.temporary.name, "without")
        os.mkdir(place)
        driver.build(package, tree, place, names, ["INFINIBAND_MR_NOTIFY"])

    def test_batches(self):
        nic, other = "drivers/infiniband/hw/efa/a.c", "drivers/infiniband/hw/hns/b.c"
        rxe = "drivers/infiniband/sw/rxe/c.c"
        self.assertEqual(batches({1: [rxe], 2: [rxe], 3: [nic], 4: [other], 5: [nic], 6: [nic, rxe],
                                  7: [other]}), [[1], [2], [3, 4], [5], [6], [7]])

    def test_a_file_that_no_patch_brings_is_found(self):
        patches = series.patches_of(self.VERSION)
        lost = next(one.new_files for one in patches if one.new_files).pop()
        self.assertEqual(series.missing_files(patches, self.VERSION), [lost])
        self.assertEqual(series.missing_files(series.patches_of(self.VERSION), self.VERSION), [])
        self.assertIn(lost, overlay.our_files(self.VERSION, REPO))


class LaterSeries(Series):
    """The same steps for Linux 7.3."""

    VERSION = "linux-7.3"
    # Both versions have the same files, but 6.12 has kzalloc_obj() only since 6.12.97.
    MORE = ("--ignore", "ALLOC_WITH_SIZEOF")


class Topics(unittest.TestCase):
    """A maintainer's steps with the series of one topic."""

    AUTHOR = "Anne Person <anne@example.org>"
    BASE = "0123456789" * 4

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def write(self, topic, version="linux"):
        """The texts of the mails, by folder."""
        mails = series.write(os.path.join(self.folder, version, topic), version, topic,
                             self.AUTHOR, self.BASE)
        found = {}
        for mail in mails:
            with open(mail, encoding="utf-8") as text:
                found.setdefault(os.path.dirname(mail), []).append(text.read())
        return found

    def test_mails(self):
        for version in fetch.versions("linux"):
            for topic in series.TOPICS:
                for cover, *mails in self.write(topic, version).values():
                    self.assertNotIn("***", cover)
                    self.assertIn(f"\nbase-commit: {self.BASE}\n", cover)
                    self.assertRegex(cover, r"\nThe series is for Linux \d+\.\d+\.\d+")
                    self.assertRegex(cover, r"\nUsers: \w")
                    self.assertTrue(mails)
                    for mail in (cover, *mails):
                        self.assertIn(f"\nFrom: {self.AUTHOR}\n", mail)
                        self.assertRegex(mail, r"\nSubject: \[PATCH (for-(rc|next)|mm-new) ")
                    for mail in mails:
                        self.assertEqual(re.findall("(?m)^Signed-off-by: (.*)$", mail),
                                         [self.AUTHOR])

    def test_stable_fixes_come_first(self):
        found = self.write("fixes")
        place = os.path.join(self.folder, "linux/fixes")
        self.assertEqual(set(found), {place + "/for-rc", place + "/for-next"})
        stable = [sum("\nCc: stable@vger.kernel.org\n" in mail for mail in mails)
                  for mails in found.values()]
        fixes = [one for one in series.patches_of() if one.topic == "fixes"]
        self.assertEqual(stable, [sum(one.is_stable for one in fixes), 0])
        self.assertEqual(sum(len(mails) - 1 for mails in found.values()), len(fixes))

    def test_each_topic_builds_alone(self):
        for version in fetch.versions("linux"):
            with fetch.locked(fetch.BUILD, version):
                package = kernel_package.unpack(upstream=version)
            for topic in series.TOPICS:
                with self.subTest(version=version, topic=topic):
                    self.build_alone(package, topic, version)

    def build_alone(self, package, topic, version):
        """Apply the mails of one topic to the plain tree, and build it."""
        self.write(topic, version)
        place = os.path.join(self.folder, version, topic)
        mails = [mail for folder in ("needs", ".", "for-rc", "for-next") for mail in
                 sorted(glob.glob(os.path.join(place, folder, "*.patch")))
                 if "0000-cover" not in mail]
        plain = os.path.join(place, "plain")
        os.mkdir(plain)
        series.plain_tree(plain, version)
        series.git(plain, "am", "-q", *mails)
        build(package, plain, empty_places(), {name for mail in mails for name in touched(mail)})


if __name__ == "__main__":
    unittest.main()
