#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test the archives of kernel_archive.py: the older kernel, and the files of its image."""
import hashlib
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lab"))
import kernel_archive  # noqa: E402
import machine as machines  # noqa: E402


class Older(unittest.TestCase):
    """The kernel with which an update begins, chosen from apt's list."""

    @staticmethod
    def before(version, *offered):
        """The version that is chosen."""
        with mock.patch.object(kernel_archive.fetch, "machine_apt") as apt:
            apt.return_value.versions.return_value = list(offered)
            return kernel_archive.older(version)

    def test_next(self):
        """The newest of the older versions."""
        self.assertEqual(self.before("6.12.116-1", "6.12.117-1", "6.12.116-1", "6.12.115-1",
                                     "6.12.113-1"), "6.12.115-1")

    def test_in_two_suites(self):
        """A version in two suites is not older than itself."""
        self.assertEqual(self.before("6.12.117-1", "6.12.117-1", "6.12.117-1", "6.12.116-1"),
                         "6.12.116-1")

    def test_revision(self):
        """A new revision has the kernel's old name, so an update to this revision tests nothing."""
        self.assertEqual(self.before("6.12.115-2", "6.12.115-2", "6.12.115-1", "6.12.113-1"),
                         "6.12.113-1")

    def test_none(self):
        """Without an older version the error gives this reason."""
        for offered in ((), ("6.12.116-1",), ("6.12.117-2", "6.12.117-1")):
            with self.assertRaisesRegex(machines.LabError, "no update can be tried"):
                self.before("6.12.117-1", *offered)


class Smaller(unittest.TestCase):
    """The image of a kernel in the archive."""

    def test_left_out(self):
        """Some drivers are missing. md5sums lists exactly the other files, which all exist."""
        with tempfile.TemporaryDirectory() as folder:
            tree = os.path.join(folder, "image")
            modules = "lib/modules/6.12.1-test/kernel/"
            kept = [modules + "drivers/infiniband/core/ib_core.ko.xz", "boot/vmlinuz-6.12.1-test"]
            gone = [modules + "sound/core/snd.ko.xz",
                    modules + "drivers/net/wireless/ath/ath.ko.xz"]
            for path in (*kept, *gone):
                os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
                with open(os.path.join(tree, path), "w", encoding="utf-8") as text:
                    text.write(path)
            os.mkdir(os.path.join(tree, "DEBIAN"))
            with open(os.path.join(tree, "DEBIAN/control"), "w", encoding="utf-8") as text:
                text.write("Package: image\nVersion: 1\nArchitecture: all\n"
                           "Maintainer: Test <test@test>\nDescription: test\n")
            with open(os.path.join(tree, "DEBIAN/md5sums"), "w", encoding="utf-8") as text:
                text.writelines(f"{hashlib.md5(path.encode()).hexdigest()}  {path}\n"
                                for path in (*kept, *gone))
            deb = os.path.join(folder, "whole.deb")
            subprocess.run(["dpkg-deb", "-b", tree, deb], check=True, capture_output=True)
            kernel_archive.without_drivers(deb, folder)
            made = os.path.join(folder, "image_1_all.deb")
            said = {what: subprocess.run(["dpkg-deb", *what.split(), made, *member], check=True,
                                         capture_output=True, text=True).stdout
                    for what, member in (("-c", ()), ("-I", ("md5sums",)))}
            files = {line.split()[-1].removeprefix("./") for line in said["-c"].splitlines()
                     if not line.startswith("d")}
            self.assertEqual(files, set(kept))
            self.assertEqual([line.split()[1] for line in said["-I"].splitlines()], kept)
            self.assertEqual(os.listdir(folder).count("tree"), 0)


if __name__ == "__main__":
    unittest.main()
