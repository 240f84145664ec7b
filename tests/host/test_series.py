#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The mail-ready kernel series: applies to plain sources, each patch builds, checkpatch is content.

Why: nobody here builds it otherwise; what is built day by day is the overlay. The builds are
against Debian's headers, and skipped over when this very series has been built before.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, "buildlib"), os.path.join(REPO, "tests/lab")]

import build  # noqa: E402
import debian  # noqa: E402
import fetch  # noqa: E402
import kernel_package  # noqa: E402
import overlay  # noqa: E402
import series  # noqa: E402

# New files below drivers/infiniband and include/rdma have their entries in MAINTAINERS.
CHECKPATCH = ["--strict", "--terse", "--no-tree", "--no-summary", "--ignore", "FILE_PATH_CHANGES"]
# Drivers of devices that the lab does not have: what we change there is compiled here, and not run.
UNTRIED = ["drivers/infiniband/hw/mlx5"]


class Series(unittest.TestCase):
    """What a maintainer would do with it."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.mails = series.write(os.path.join(cls.temporary.name, "mails"))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_checkpatch(self):
        with fetch.locked(fetch.BUILD):
            tool = os.path.join(fetch.fetch("linux"), "scripts/checkpatch.pl")
        for mail in self.mails:
            done = subprocess.run([tool, *CHECKPATCH, mail], capture_output=True, text=True,
                                  check=False)
            self.assertEqual((done.stdout + done.stderr).strip(), "", mail)

    def test_says_nothing_of_the_overlay(self):
        for mail in self.mails:
            with open(mail, encoding="utf-8") as text:
                self.assertNotRegex(text.read(), r"(?m)^(Overlay-Files|Upstream-Status):", mail)

    def test_result_is_the_tree_that_we_build(self):
        plain = os.path.join(self.temporary.name, "whole")
        os.mkdir(plain)
        series.plain_tree(plain)
        series.git(plain, "am", "-q", *self.mails)
        with fetch.locked(fetch.BUILD):
            tree = fetch.fetch("linux")
        for name in series.git(plain, "ls-files").split():
            with open(os.path.join(plain, name), "rb") as one, \
                    open(os.path.join(tree, name), "rb") as other:
                self.assertEqual(one.read(), other.read(), name)

    def test_each_patch_builds(self):
        digest = hashlib.sha256(fetch.linux_version().encode())
        for mail in self.mails:
            with open(mail, "rb") as text:
                digest.update(text.read().partition(b"\n---\n")[2])
        known = os.path.join(fetch.BUILD, "series.built")
        if os.path.exists(known):
            with open(known, encoding="utf-8") as text:
                if text.read() == digest.hexdigest():
                    return
        with fetch.locked(fetch.BUILD):
            package = kernel_package.unpack()
        plain = os.path.join(self.temporary.name, "steps")
        os.mkdir(plain)
        series.plain_tree(plain)
        # Always the same folder, so that the compiler cache knows what it holds.
        modules = os.path.join(fetch.BUILD, "series.modules")
        shutil.rmtree(modules, ignore_errors=True)
        os.mkdir(modules)
        for mail in self.mails:
            series.git(plain, "am", "-q", mail)
            debian.build_modules(package, plain, modules, self.run_make, UNTRIED)
        with open(known, "w", encoding="utf-8") as text:
            text.write(digest.hexdigest())

    def run_make(self, command):
        """Run make, show what it says if it fails; a warning is a failure."""
        done = subprocess.run([*command, "KCFLAGS=-Werror"], capture_output=True, text=True,
                              check=False, env=build.compiler_environment())
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])

    def test_a_file_that_no_hook_brings_is_found(self):
        hooks = series.hooks()
        lost = hooks[1].new_files.pop()
        self.assertEqual(series.missing_files(hooks), [lost])
        self.assertEqual(series.missing_files(series.hooks()), [])
        self.assertIn(lost, overlay.our_files("linux", REPO))


if __name__ == "__main__":
    unittest.main()
