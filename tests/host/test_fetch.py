#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The sources of upstream's files, on machines with various apt configurations.

apt itself reads the configuration; the network is not used.
"""
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402
import private_apt  # noqa: E402

CONF = """\
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{0}/lists";
"""
FLAT = "deb https://example.org/flat/x86_64/ /\n"
CDROM = "deb cdrom:[Debian GNU/Linux 12.5.0 _Bookworm_ - Official amd64 NETINST]/ bookworm main\n"


class Archives(unittest.TestCase):
    """The addresses of the machine's archives."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.makedirs(os.path.join(self.folder, "lists/partial"))
        conf = os.path.join(self.folder, "apt.conf")
        with open(conf, "w", encoding="utf-8") as out:
            out.write(CONF.format(self.folder))
        patch = mock.patch.dict(os.environ, APT_CONFIG=conf)
        patch.start()
        self.addCleanup(patch.stop)

    def configure(self, sources):
        """Give apt only these sources."""
        with open(os.path.join(self.folder, "sources.list"), "w", encoding="utf-8") as out:
            out.write(sources)

    def test_debians_is_the_likeliest(self):
        self.configure("deb https://example.org/another bookworm main\n"
                       "deb https://example.org/debian bookworm main contrib\n"
                       "deb https://example.org/debian-security bookworm-security main\n")
        self.assertEqual(private_apt.archive_uris(),
                         ["https://example.org/debian/", "https://example.org/another/"])
        self.assertEqual(private_apt.archive_uris(security=True),
                         ["https://example.org/debian-security/"])

    def test_flat_repository_and_cdrom(self):
        """A source without release and component, and a source whose address has blanks."""
        self.configure(FLAT + CDROM + "deb https://example.org/debian bookworm main\n")
        self.assertEqual(private_apt.archive_uris(), ["https://example.org/debian/"])
        self.configure(FLAT + CDROM)
        with self.assertRaises(private_apt.AptError):
            private_apt.archive_uris()


@contextlib.contextmanager
def full_disk():
    """A context in which files can be created but not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def replace(test, **values):
    """Replace values in fetch.py during a test."""
    for name, value in values.items():
        patch = mock.patch.object(fetch, name, value)
        patch.start()
        test.addCleanup(patch.stop)


class Kept(unittest.TestCase):
    """Answers that are determined once and kept in the build folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        self.tree = os.path.join(self.build, "src/tree")
        os.makedirs(self.tree)
        replace(self, say=lambda _: None, place=self.place, read_pin=self.pin)
        self.placed = 0

    def pin(self, _):
        """The pin of any upstream."""
        return {"version": "6.12.1", "sha256": ""}

    def place(self, *_):
        """Count the calls instead of copying the tree; return its path."""
        self.placed += 1
        return self.tree

    def users_tree(self):
        """The tree that the user gave."""
        return fetch.users_tree("linux", self.build, self.build, False)

    def check(self, ask, answer, name):
        """The answer is kept, except if the disk is full. An empty kept answer is ignored."""
        kept = os.path.join(self.build, name)
        with full_disk(), self.assertRaises(OSError):
            ask()
        self.assertFalse(os.path.exists(kept))
        for _ in range(2):
            self.assertEqual(ask(), answer)
        with open(kept, "w", encoding="utf-8"):
            pass
        self.assertEqual(ask(), answer)
        self.assertGreater(os.path.getsize(kept), 0)

    def test_version(self):
        self.check(lambda: fetch.linux_version(self.build), "6.12.1", "linux.version")

    def test_users_tree(self):
        self.check(self.users_tree, self.tree, "src/.linux.source")
        self.assertEqual(self.placed, 3)


class Base(unittest.TestCase):
    """Which rdma-core is built."""

    def test_variable(self):
        for value, name in (("", "rdma-core"), ("65", "rdma-core-65")):
            with mock.patch.dict(os.environ, {"RDMA_CORE_BASE": value}):
                self.assertEqual(fetch.base(), name)
                self.assertIn(fetch.base(), fetch.versions("rdma-core"))
                self.assertEqual(fetch.read_pin(fetch.base())["package"], "rdma-core")
        with mock.patch.dict(os.environ, {"RDMA_CORE_BASE": "7.3"}):
            self.assertRaisesRegex(fetch.FetchError, "no rdma-core-7.3.pin", fetch.base)


class Suite(unittest.TestCase):
    """The kernel of a suite that the machine's apt configuration may lack."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        self.pinned, self.offered, self.updates, self.sources = "7.3.4-1", {}, 0, []
        replace(self, say=lambda _: None, machine_apt=lambda _: "the machine's",
                read_pin=lambda _: {"package": "linux-source-7.3", "suite": "backports",
                                    "version": self.pinned})
        for name, value in (("PrivateApt", self.apt), ("keyring", lambda: "keys"),
                            ("archive_uris", lambda: ["one/", "two/"])):
            patch = mock.patch.object(private_apt, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def apt(self, _folder, sources):
        """Stand in for the class PrivateApt."""
        self.sources.append(sources)
        return self

    def versions(self, _package):
        """The versions that the archive had at the last update."""
        return self.offered.get((self.sources[-1].split()[2], self.updates), [])

    def update(self):
        """Fetch the indexes."""
        self.updates += 1

    def test_known(self):
        """If the indexes lack the version, they are fetched once."""
        self.offered = {("one/", 1): ["7.3.5-1", "7.3.4-1"]}
        for _ in range(2):
            self.assertIs(fetch.archive_apt(self.build, "linux-7.3"), self)
        self.assertEqual(self.updates, 1)
        self.assertEqual(self.sources, ["deb [signed-by=keys] one/ backports main\n"] * 2)

    def test_another_archive(self):
        self.offered = {("two/", 2): ["7.3.4-1"]}
        self.assertIs(fetch.archive_apt(self.build, "linux-7.3"), self)

    def test_gone(self):
        with self.assertRaisesRegex(fetch.FetchError, "backports has no linux-source-7.3=7.3.4-1"):
            fetch.archive_apt(self.build, "linux-7.3")

    def test_machine(self):
        """If the pin has no version, the machine's own sources decide."""
        self.pinned = ""
        self.assertEqual(fetch.archive_apt(self.build, "linux"), "the machine's")

    def test_another_pin(self):
        """If the pin changes, the kept version is not used."""
        self.assertEqual(fetch.linux_version(self.build, name="linux-7.3"), "7.3.4-1")
        self.pinned = "7.3.5-1"
        self.assertEqual(fetch.linux_version(self.build, name="linux-7.3"), "7.3.5-1")


class Downloads(unittest.TestCase):
    """If apt was killed, incomplete files are fetched again."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        replace(self, say=lambda _: None, archive_apt=lambda *_: self,
                read_pin=lambda _: {"file": "a.tar.gz", "package": "a", "version": "1-1",
                                    "suite": "trixie"})
        os.makedirs(os.path.join(self.build, "download/partial"))

    def write(self, name, content):
        """A file among the downloads."""
        with open(os.path.join(self.build, "download", name), "w", encoding="utf-8") as out:
            out.write(content)

    def download(self, packages, _):
        """Stand in for apt: all requested files are complete."""
        for package in packages:
            self.write(f"partial/{package.replace('=', '_')}_all.deb", "whole")

    def test_package(self):
        """A partial package is fetched again, even if the next request names another package."""
        self.write("partial/cut_1_all.deb", "half")
        for package in ("asked", "cut"):
            path = fetch.download_packages({package: "1"}, self.build)[package]
            self.assertEqual(fetch.read(path), "whole")

    def test_tarball(self):
        def killed(*_):
            self.write("partial/a.tar.gz", "half")
            raise KeyboardInterrupt

        with mock.patch.object(private_apt, "source_tarball", killed), \
                self.assertRaises(KeyboardInterrupt):
            fetch.tarball_of("ucx", self.build)
        with mock.patch.object(private_apt, "source_tarball",
                               lambda *_: self.write("partial/a.tar.gz", "whole")):
            self.assertEqual(fetch.read(fetch.tarball_of("ucx", self.build)[0]), "whole")

    def test_version_is_gone(self):
        """The message says how to continue."""
        def gone(*_):
            raise private_apt.AptError("not found")

        with mock.patch.object(self, "download", gone), \
                self.assertRaisesRegex(fetch.FetchError, "not found\n.*--update"):
            fetch.download_packages({"asked": "1"}, self.build)


class Parts(unittest.TestCase):
    """A part of a tree is needed first, and the whole tree later."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        self.tree = os.path.join(self.build, "src/linux-6.12.1")
        top = os.path.join(self.build, "top/linux")
        for name in ("drivers/a/one.c", "drivers/b.c", "mm/two.c", "mm/drivers/a/three.c"):
            os.makedirs(os.path.dirname(os.path.join(top, name)), exist_ok=True)
            self.write(os.path.join(top, name), "theirs")
        os.symlink("drivers", os.path.join(top, "link"))
        self.archive = os.path.join(self.build, "linux.tar.xz")
        subprocess.run(["tar", "-cJf", self.archive, "-C", os.path.dirname(top), "linux"],
                       check=True)
        replace(self, say=lambda _: None, linux_version=lambda *_: "6.12.1",
                tarball_of=lambda *_: (self.archive, "6.12.1"))

    @staticmethod
    def write(path, text):
        """Give a file that content."""
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)

    def files(self):
        """The existing files of the tree."""
        return {os.path.relpath(os.path.join(folder, name), self.tree)
                for folder, folders, names in os.walk(self.tree)
                for name in (*names, *(f for f in folders
                                       if os.path.islink(os.path.join(folder, f))))}

    def test_part(self):
        for _ in range(2):
            self.assertEqual(fetch.fetch("linux", self.build, part=("drivers/a",)), self.tree)
            self.assertEqual(self.files(), {"drivers/a/one.c", fetch.PART})

    def test_rest(self):
        fetch.fetch("linux", self.build, part=("drivers/a",))
        self.write(os.path.join(self.tree, "drivers/a/one.c"), "ours")
        for part in ((), ("drivers/a",), ("mm",)):
            fetch.fetch("linux", self.build, part=part)
            self.assertEqual(self.files(), {"drivers/a/one.c", "drivers/b.c", "mm/two.c",
                                            "mm/drivers/a/three.c", "link"})
        with open(os.path.join(self.tree, "drivers/a/one.c"), encoding="utf-8") as text:
            self.assertEqual(text.read(), "ours")

    def test_more(self):
        fetch.fetch("linux", self.build, part=("drivers/a",))
        fetch.fetch("linux", self.build, part=("drivers/a", "mm"))
        self.assertIn("mm/two.c", self.files())

    def test_interrupted(self):
        fetch.fetch("linux", self.build, part=("drivers/a",))
        os.makedirs(self.tree + ".whole/mm")
        self.write(self.tree + ".whole/mm/two.c", "th")
        fetch.fetch("linux", self.build)
        with open(os.path.join(self.tree, "mm/two.c"), encoding="utf-8") as text:
            self.assertEqual(text.read(), "theirs")
        self.assertFalse(os.path.exists(self.tree + ".whole"))

    def test_blank(self):
        """A folder with a blank is refused, because upstream's build would fail after minutes."""
        with self.assertRaisesRegex(fetch.FetchError, "blank"):
            fetch.fetch("linux", self.build + "/a folder")

    def test_absent(self):
        with self.assertRaises(fetch.FetchError):
            fetch.fetch("linux", self.build, part=("drivers/a", "nowhere"))
        self.assertFalse(os.path.exists(self.tree))


if __name__ == "__main__":
    unittest.main()
