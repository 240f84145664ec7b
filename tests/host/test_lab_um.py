#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""One patch lets User Mode Linux run on every CPU. Only the tree that is built has this patch.

If a CPU's floating-point state does not fit, the runner prints one line before the boot.
"""
import glob
import os
import subprocess
import sys
import unittest
from unittest import mock

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, "buildlib"), os.path.join(REPO, "tests/lab")]

import build  # noqa: E402
import fetch  # noqa: E402
import kernel_modules  # noqa: E402
import machine as machines  # noqa: E402
import overlay  # noqa: E402
import series  # noqa: E402
import um  # noqa: E402

OFFSETS = "arch/x86/um/user-offsets.c"


def patches():
    """The lab's patches."""
    return sorted(glob.glob(os.path.join(REPO, overlay.LOCAL["linux"], "*.patch")))


class Patch(unittest.TestCase):
    """The trees that get the lab's patches."""

    def test_in_the_tree_that_is_built(self):
        with open(os.path.join(build.hooked_tree(), OFFSETS), encoding="utf-8") as text:
            self.assertIn(f"DEFINE_LONGS(HOST_FP_SIZE, {um.room()});", text.read())

    def test_laid_again_changes_nothing(self):
        before = os.stat(os.path.join(build.hooked_tree(), OFFSETS))
        after = os.stat(os.path.join(build.hooked_tree(), OFFSETS))
        self.assertEqual((before.st_ino, before.st_mtime_ns), (after.st_ino, after.st_mtime_ns))

    def test_not_in_the_series_or_the_package(self):
        taken = (*series.PLAIN, *kernel_modules.USERS)
        for patch in patches():
            for path in overlay.hooked_files(patch):
                self.assertFalse(path.startswith(tuple(one + "/" for one in taken)), path)
        self.assertFalse(set(patches()) & {one.path for one in series.patches_of()})

    def test_part_of_the_fingerprint(self):
        machine = machines.load("um")
        before = build.fingerprint(machine)
        with mock.patch.object(build, "OUR_KERNEL", [pattern for pattern in build.OUR_KERNEL
                                                     if "tests/lab/patches" not in pattern]):
            self.assertNotEqual(build.fingerprint(machine), before)

    def test_the_kernel_has_it(self):
        """If the built kernel exists, it has the size of the patch."""
        made = os.path.join(fetch.BUILD, "lab/um/build/include/generated/user_constants.h")
        if not os.path.exists(made):
            self.skipTest("the um kernel is not built")
        with open(made, encoding="utf-8") as text:
            self.assertIn(f"#define HOST_FP_SIZE {um.room() // 8} ", text.read())


class Host(unittest.TestCase):
    """The size of a CPU's state."""

    def test_size(self):
        """The size is enough for every 64-bit CPU, and smaller than um.LARGEST."""
        self.assertGreaterEqual(um.host_state(), 512 + 64)
        self.assertLess(um.host_state(), um.LARGEST)

    def test_fits(self):
        with mock.patch.object(um, "host_state", return_value=um.room()):
            um.check_host()

    def test_too_large(self):
        with mock.patch.object(um, "host_state", return_value=um.room() + 64), \
                self.assertRaises(machines.LabError) as caught:
            um.check_host()
        said = str(caught.exception)
        self.assertNotIn("\n", said)
        for word in (str(um.room()), str(um.room() + 64), "tests/lab/patches"):
            self.assertIn(word, said)

    def test_said_before_the_boot(self):
        """The runner prints one line, and builds and starts nothing."""
        code = (f"import runpy, sys; sys.path.insert(0, {os.path.join(REPO, 'tests/lab')!r}); "
                "import um; um.host_state = lambda: 1 << 30; "
                "sys.argv = ['run', '--kernel', 'um', '--', 'true']; "
                f"runpy.run_path({os.path.join(REPO, 'tests/lab/run')!r}, run_name='__main__')")
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 99, done.stderr)
        self.assertRegex(done.stderr, r"\Alab: this CPU's floating-point state takes .*\n\Z")


if __name__ == "__main__":
    unittest.main()
