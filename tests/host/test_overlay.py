#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Tests of buildlib/overlay.py and fetch.py on small trees in a temporary folder, without network.

Why: both scripts fail only when upstream changes, which is rare. At that time the message must name
the files. Run: /usr/bin/python3 -m unittest discover -s tests/host
"""
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../buildlib"))

import private_apt  # noqa: E402
import fetch  # noqa: E402
import overlay  # noqa: E402

UPSTREAM = {"CMakeLists.txt": 'set(PACKAGE_VERSION "56.1")\n',
            "libibverbs/verbs.h": "first\nsecond\nthird\nfourth\n",
            "pyverbs/mr.pyx": "class MR\nend\n"}
HOOK = """libibverbs: Add one line

--- a/libibverbs/verbs.h
+++ b/libibverbs/verbs.h
@@ -2,2 +2,3 @@
 second
+added
 third
"""


class Fixture(unittest.TestCase):
    """A repository, and a tree in its build folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repo = os.path.join(folder.name, "repo")
        self.build = os.path.join(self.repo, "build")
        self.tree = os.path.join(self.build, "src/rdma-core-56.1")
        for path, text in UPSTREAM.items():
            self.write(os.path.join(self.tree, path), text)
        patch = mock.patch.object(fetch, "say")
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, path, text):
        """Write a file; a relative path is below the repository."""
        path = os.path.join(self.repo, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def read(self, path):
        """The text of a file of the tree."""
        with open(os.path.join(self.tree, path), encoding="utf-8") as text:
            return text.read()

    def lay(self, **options):
        """Lay and hook."""
        overlay.overlay("rdma-core", self.tree, repo=self.repo, **options)

    def fails(self, *words, error=overlay.OverlayError, func=None):
        """The message of the expected error contains all these words."""
        with self.assertRaises(error) as caught:
            (func or self.lay)()
        for word in words:
            self.assertIn(word, str(caught.exception))


class LayTest(Fixture):
    """Our files in the tree."""

    def test_links_follow_edits(self):
        ours = self.write("libibverbs/mr_notify.c", "one")
        self.lay()
        self.assertTrue(os.path.islink(os.path.join(self.tree, "libibverbs/mr_notify.c")))
        self.write("libibverbs/mr_notify.c", "two")
        self.assertEqual(self.read("libibverbs/mr_notify.c"), "two")
        self.assertTrue(os.path.samefile(ours, os.path.join(self.tree, "libibverbs/mr_notify.c")))

    def test_mapping(self):
        self.write("kernel-patches/notify/include/uapi/rdma/ib_user_x.h", "x")
        self.write("tests/test_x.py", "x")
        self.write("tests/host/test_not.py", "x")
        self.write("tests/run", "x")
        self.write("libibverbs/examples/x/main.cpp", "x")
        self.write("libibverbs/mr.c~", "x")
        self.lay()
        laid = {"kernel-headers/rdma/ib_user_x.h", "tests/test_x.py",
                "libibverbs/examples/x/main.cpp"}
        found = {os.path.relpath(os.path.join(folder, name), self.tree)
                 for folder, _, names in os.walk(self.tree) for name in names}
        self.assertEqual(found - set(UPSTREAM), laid)

    def test_removed_file_leaves_the_tree(self):
        ours = self.write("libibverbs/old.c", "x")
        self.lay()
        os.unlink(ours)
        self.lay()
        self.assertFalse(os.path.lexists(os.path.join(self.tree, "libibverbs/old.c")))

    def test_over_upstreams_file(self):
        self.write("libibverbs/verbs.h", "ours")
        self.fails("libibverbs/verbs.h", "replace")
        self.assertEqual(self.read("libibverbs/verbs.h"), UPSTREAM["libibverbs/verbs.h"])

    def test_state_lost(self):
        self.write("libibverbs/new.c", "x")
        self.lay()
        os.unlink(os.path.join(fetch.state_folder(self.tree), "state.json"))
        self.lay()

    def test_copies(self):
        self.write("libibverbs/new.c", "x")
        self.lay()
        self.lay(copy=True)
        place = os.path.join(self.tree, "libibverbs/new.c")
        self.assertFalse(os.path.islink(place))
        self.write("libibverbs/new.c", "y")
        self.lay(copy=True)
        self.assertEqual(self.read("libibverbs/new.c"), "y")
        self.lay()
        self.assertTrue(os.path.islink(place))


class HookTest(Fixture):
    """Our patches to upstream's files."""

    def test_applies_once(self):
        self.write("buildlib/hooks/0001-a.patch", HOOK)
        self.lay()
        self.assertEqual(self.read("libibverbs/verbs.h"), "first\nsecond\nadded\nthird\nfourth\n")
        place = os.path.join(self.tree, "libibverbs/verbs.h")
        os.utime(place, (1, 1))
        self.lay()
        self.assertEqual(os.stat(place).st_mtime, 1, "rewritten though nothing changed")

    def test_changed_and_removed_hook(self):
        patch = self.write("buildlib/hooks/0001-a.patch", HOOK)
        self.lay()
        self.write("buildlib/hooks/0001-a.patch", HOOK.replace("+added", "+other"))
        self.lay()
        self.assertIn("other", self.read("libibverbs/verbs.h"))
        self.assertNotIn("added", self.read("libibverbs/verbs.h"))
        os.unlink(patch)
        self.lay()
        self.assertEqual(self.read("libibverbs/verbs.h"), UPSTREAM["libibverbs/verbs.h"])

    def test_two_hooks_in_order(self):
        self.write("buildlib/hooks/0002-b.patch", HOOK.replace(" second\n", " added\n")
                   .replace("+added", "+again").replace("-2,2 +2,3", "-3,2 +3,3"))
        self.write("buildlib/hooks/0001-a.patch", HOOK)
        self.lay()
        self.assertIn("added\nagain\n", self.read("libibverbs/verbs.h"))

    def test_does_not_apply(self):
        """The message names the patch and upstream's file; no file is hooked in part."""
        self.write("buildlib/hooks/0001-a.patch", HOOK)
        self.write("buildlib/hooks/0002-b.patch", HOOK.replace(" second", " moved"))
        self.fails("buildlib/hooks/0002-b.patch", "libibverbs/verbs.h", "FAILED")
        self.assertEqual(self.read("libibverbs/verbs.h"), UPSTREAM["libibverbs/verbs.h"])

    def test_no_fuzz(self):
        """If fuzz were allowed, patch(1) would accept a difference in the outermost line of
        context.
        """
        hook = HOOK.replace("@@ -2,2 +2,3 @@", "@@ -1,4 +1,5 @@")
        hook = hook.replace(" second", " other\n second").replace(" third", " third\n fourth")
        self.write("buildlib/hooks/0001-a.patch", hook)
        self.fails("0001-a.patch", "libibverbs/verbs.h")

    def test_upstream_lost_the_file(self):
        self.write("buildlib/hooks/0001-a.patch", HOOK.replace("verbs.h", "gone.h"))
        self.fails("0001-a.patch", "libibverbs/gone.h")

    def test_new_file_in_a_patch(self):
        self.write("buildlib/hooks/0001-a.patch",
                   "--- /dev/null\n+++ b/libibverbs/new.h\n@@ -0,0 +1 @@\n+x\n")
        self.fails("0001-a.patch", "libibverbs/new.h", "put a new file")

    def test_interrupted(self):
        """If a run hooks a file and ends before it records the hook, the next run completes it."""
        self.write("buildlib/hooks/0001-a.patch", HOOK)
        self.lay()
        os.unlink(os.path.join(fetch.state_folder(self.tree), "state.json"))
        self.lay()
        self.assertEqual(self.read("libibverbs/verbs.h").count("added"), 1)

    def test_included_file_is_newer(self):
        """If a .pxi changes, the hooked .pyx that includes it becomes newer."""
        self.write("buildlib/hooks/0001-a.patch", '--- a/pyverbs/mr.pyx\n+++ b/pyverbs/mr.pyx\n'
                   '@@ -1,2 +1,3 @@\n class MR\n+include "x.pxi"\n end\n')
        ours = self.write("pyverbs/x.pxi", "x")
        self.lay()
        place = os.path.join(self.tree, "pyverbs/mr.pyx")
        os.utime(place, (1, 1))
        os.utime(ours, (2, 2))
        self.lay()
        self.assertGreater(os.stat(place).st_mtime, 2)


class EditedTest(Fixture):
    """A file of upstream that was edited in the tree."""

    def setUp(self):
        super().setUp()
        self.place = os.path.join(self.tree, "libibverbs/verbs.h")
        self.hook = self.write("buildlib/hooks/0001-a.patch", HOOK)

    def edit(self):
        """Edit a file, and make it newer than the unpacked or written file."""
        self.write(self.place, "mine\n" + self.read(self.place))
        os.utime(self.place, (2 ** 32, 2 ** 32))

    def original(self, _name, _build, path, folder):
        """Stand in for fetch.original()."""
        return self.write(os.path.join(folder, path), UPSTREAM[path])

    def check_refused(self):
        """The edit is kept. The last line of the message has the command that restores the file."""
        with self.assertRaises(overlay.OverlayError) as caught:
            self.lay()
        self.assertIn(f"{self.place} was edited", str(caught.exception))
        self.assertTrue(self.read(self.place).startswith("mine"), "the edit is lost")
        subprocess.run(str(caught.exception).splitlines()[-1], shell=True, check=True)
        self.lay()
        self.assertEqual(self.read(self.place), "first\nsecond\nadded\nthird\nfourth\n")

    def test_before_its_first_hook(self):
        self.write(os.path.join(fetch.state_folder(self.tree), fetch.UNPACKED), "")
        self.edit()
        with mock.patch.object(fetch, "original", self.original):
            self.check_refused()

    def test_after_it_was_hooked(self):
        self.lay()
        self.edit()
        self.check_refused()


class LocalTest(Fixture):
    """Patches that only the lab's own trees need are applied after the hooks."""

    def lay(self, **options):
        overlay.overlay("linux", self.tree, repo=self.repo, **options)

    def setUp(self):
        super().setUp()
        self.write("kernel-patches/notify/0001-a.patch", HOOK)
        self.place = os.path.join(self.repo, "tests/lab/patches/0001-b.patch")

    def test_applies_behind_the_hooks(self):
        self.write(self.place, HOOK.replace(" second\n", " added\n").replace("+added", "+again")
                   .replace("-2,2 +2,3", "-3,2 +3,3"))
        self.lay()
        self.lay()
        self.assertIn("second\nadded\nagain\n", self.read("libibverbs/verbs.h"))
        os.unlink(self.place)
        self.lay()
        self.assertIn("second\nadded\nthird\n", self.read("libibverbs/verbs.h"))

    def test_does_not_apply(self):
        self.write(self.place, HOOK.replace(" second", " moved"))
        self.fails("tests/lab/patches/0001-b.patch", "libibverbs/verbs.h", "FAILED")
        self.assertEqual(self.read("libibverbs/verbs.h"), UPSTREAM["libibverbs/verbs.h"])


class VersionTest(Fixture):
    """Two versions of an upstream, with the same files and patches."""

    OTHER = """Upstream's lines have moved.
--- a/libibverbs/verbs.h
+++ b/libibverbs/verbs.h
@@ -1,2 +1,3 @@
 first
+added
 second
"""

    def setUp(self):
        super().setUp()
        patch = mock.patch.dict(fetch.VERSION_OF, {"rdma-core-65": "rdma-core"})
        patch.start()
        self.addCleanup(patch.stop)
        self.patch = self.write("buildlib/hooks/0001-a.patch",
                                HOOK + HOOK.partition("\n\n")[2].replace("verbs.h", "other.h"))
        for path in ("libibverbs/other.h", "libibverbs/third.h"):
            self.write(os.path.join(self.tree, path), UPSTREAM["libibverbs/verbs.h"])

    def lay(self, name="rdma-core-65"):  # pylint: disable=arguments-differ
        overlay.overlay(name, self.tree, repo=self.repo)

    def lines(self, *names):
        """The first lines of files."""
        return [self.read(f"libibverbs/{name}.h").splitlines()[:3] for name in names]

    def test_same(self):
        self.lay()
        self.assertEqual(self.lines("verbs", "other"), [["first", "second", "added"]] * 2)

    def test_other_file(self):
        """A file of this version replaces the file of all versions."""
        self.write("libibverbs/ours.h", "every version's\n")
        self.write("libibverbs/ours.65.h", "that of 65\n")
        for name, content in (("rdma-core-65", "that of 65\n"),
                              ("rdma-core", "every version's\n")):
            self.lay(name)
            self.assertEqual(self.read("libibverbs/ours.h"), content)
            self.assertFalse(os.path.lexists(os.path.join(self.tree, "libibverbs/ours.65.h")))

    def test_other_part(self):
        """The version's part applies to one file. The patch's part applies to the other file."""
        self.write("buildlib/hooks/0001-a.65.diff", self.OTHER)
        self.lay()
        self.assertEqual(self.lines("verbs", "other"),
                         [["first", "added", "second"], ["first", "second", "added"]])
        self.lay("rdma-core")
        self.assertEqual(self.lines("verbs", "other"), [["first", "second", "added"]] * 2)

    def test_another_file(self):
        """The version's part changes one more file, and leaves out one of the patch's files."""
        self.write("buildlib/hooks/0001-a.65.diff", self.OTHER.replace("verbs.h", "third.h") +
                   "--- a/libibverbs/other.h\n+++ b/libibverbs/other.h\n")
        self.lay()
        self.assertEqual(self.lines("third", "other"),
                         [["first", "added", "second"], ["first", "second", "third"]])

    def test_only_for(self):
        """A patch of one version."""
        for name, count in (("rdma-core", 0), ("rdma-core-65", 1)):
            self.write(self.patch, "Only-For: rdma-core-65\n" + HOOK)
            self.lay(name)
            self.assertEqual(self.read("libibverbs/verbs.h").count("added"), count)

    def test_does_not_apply(self):
        self.write("buildlib/hooks/0001-a.65.diff", self.OTHER.replace(" first", " moved"))
        self.fails("buildlib/hooks/0001-a.patch", "libibverbs/verbs.h", "FAILED")


class FetchTest(Fixture):
    """Where the tree comes from."""

    def tarball(self, name="rdma-core.tar.gz"):
        """A tarball of the fake upstream, and its sha256."""
        path = os.path.join(self.repo, name)
        with tarfile.open(path, "w:gz") as tar:
            tar.add(self.tree, "rdma-core-56.1")
        with open(path, "rb") as content:
            return path, hashlib.sha256(content.read()).hexdigest()

    def pin(self, digest):
        """Put this sha256 into the pin."""
        pin = {"package": "rdma-core", "version": "56.1-1", "suite": "x",
               "file": "rdma-core.tar.gz", "sha256": digest}
        patch = mock.patch.object(fetch, "read_pin", return_value=pin)
        patch.start()
        self.addCleanup(patch.stop)

    def fetch(self, **options):
        """Fetch into an empty build folder."""
        return fetch.fetch("rdma-core", os.path.join(self.repo, "other"), **options)

    def downloads(self, path):
        """Replace apt by a mock that counts."""
        def download(_state, _package, _version, _suite, folder):
            os.makedirs(folder, exist_ok=True)
            os.link(path, os.path.join(folder, os.path.basename(path)))
        patch = mock.patch.object(private_apt, "source_tarball", side_effect=download)
        self.addCleanup(patch.stop)
        return patch.start()

    def test_pinned(self):
        path, digest = self.tarball()
        self.pin(digest)
        apt_mock = self.downloads(path)
        tree = self.fetch()
        self.assertTrue(tree.endswith("src/rdma-core-56.1"))
        self.assertTrue(os.path.exists(os.path.join(tree, "libibverbs/verbs.h")))
        subprocess.run(["rm", "-r", tree], check=True)
        self.assertEqual(self.fetch(), tree)
        self.assertEqual(apt_mock.call_count, 1, "fetched twice")

    def test_wrong_sha256(self):
        path, _ = self.tarball()
        self.pin("0" * 64)
        self.downloads(path)
        self.fails("rdma-core.tar.gz", "sha256", "0" * 64, error=fetch.FetchError, func=self.fetch)
        self.assertFalse(os.path.exists(os.path.join(self.repo, "other/src/rdma-core-56.1")))

    def test_users_tarball_and_tree(self):
        path, digest = self.tarball()
        self.pin("0" * 64)
        for source in (path, self.tree):
            tree = self.fetch(source=source)
            self.assertTrue(tree.endswith("rdma-core-56.1-local"))
            self.assertFalse(os.path.samefile(tree, self.tree))
        with mock.patch.dict(os.environ, RDMA_CORE_SOURCE=path):
            self.assertTrue(self.fetch().endswith("-local"))
        self.pin(digest)
        self.assertTrue(self.fetch(source=path).endswith("rdma-core-56.1"))

    def test_users_source_is_missing(self):
        self.fails("nowhere", error=fetch.FetchError, func=lambda: self.fetch(source="/nowhere"))

    def test_broken_tarball(self):
        path = self.write("broken.tar.gz", "no tarball")
        with contextlib.redirect_stderr(io.StringIO()):
            self.fails("broken.tar.gz", error=fetch.FetchError,
                       func=lambda: self.fetch(source=path))

    def test_linux_version_of_a_tree(self):
        tree = os.path.dirname(self.write("linux/Makefile",
                                          "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 9\n"))
        self.assertEqual(fetch.tree_version(tree), "6.12.9")


if __name__ == "__main__":
    unittest.main()
