#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""libfabric's atomics on systems other than this one, and the comparison of test results."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../consumers"))

import beside  # noqa: E402

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
LIBFABRIC = os.path.join(REPO, "buildlib/consumers.d/libfabric")
WITH_ATOMICS = "util_mr_notify.c"


class Windows(unittest.TestCase):
    """Windows has its own atomics instead of gcc's."""

    def has_atomics(self, *options):
        """Does the monitor use gcc's atomics with these preprocessor options?"""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "ofi_mr.h"), "w", encoding="ascii") as header:
                header.write('#include "ofi_mr_notify.h"')
            return "__atomic_" in subprocess.run(
                ["gcc", "-E", "-I", folder, "-I", os.path.join(LIBFABRIC, "include"), *options,
                 os.path.join(LIBFABRIC, "prov/util/src", WITH_ATOMICS)], text=True, check=True,
                stdout=subprocess.PIPE).stdout

    def test_atomics(self):
        self.assertFalse(self.has_atomics())
        self.assertFalse(self.has_atomics("-DHAVE_BUILTIN_ATOMICS", "-DHAVE_ATOMICS"))
        self.assertTrue(self.has_atomics("-DHAVE_BUILTIN_MM_ATOMICS"))


class Beside(unittest.TestCase):
    """If a test fails with the word, its failure counts, except if the test also fails with
    hooks.
    """

    def compare(self, with_word, *with_hooks):
        """Return (status, number of runs with hooks, the printed line of the test)."""
        ways = {"word": iter([with_word]), "hooks": iter(with_hooks)}
        runs = []

        def run(_group, way):
            runs.append(way)
            return {"a test": next(ways[way])}, {}

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = beside.run_all(run, ["group"], (), "word", "hooks")
        return status, runs.count("hooks"), said.getvalue().split("#", maxsplit=1)[0].strip()

    def test_a_crash_is_a_failure(self):
        self.assertEqual(self.compare("crash", *["pass"] * 6),
                         (1, 6, "not ok a test: crash, with hooks: pass"))

    def test_but_for_one_that_hooks_have_too(self):
        self.assertEqual(self.compare("crash", "pass", "pass", "crash"),
                         (0, 3, "skip a test: crash, with hooks: crash"))
        self.assertEqual(self.compare("crash", "crash"),
                         (0, 1, "skip a test: crash, with hooks: crash"))

    def test_no_other_failure_of_hooks_is_one(self):
        self.assertEqual(self.compare("crash", *["fail"] * 6)[0], 1)
        self.assertEqual(self.compare("fail", "crash")[0], 1)

    def test_one_that_names_a_known_defect(self):
        self.assertEqual(self.compare("known crash", "pass")[:2], (0, 1))


if __name__ == "__main__":
    unittest.main()
