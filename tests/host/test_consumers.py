#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The changes to libfabric, where it can't be built here."""
import os
import subprocess
import tempfile
import unittest

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
LOCKLESS = os.path.join(REPO, "buildlib/consumers.d/libfabric/prov/util/src",
                        "util_mr_lockless.h")


class Windows(unittest.TestCase):
    """It has atomics of its own, and no memory_order_*."""

    def orders(self, *options):
        """Whether the header uses them, with these options of the preprocessor."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ofi_iov.h", "ofi_mr.h"):
                with open(os.path.join(folder, name), "w", encoding="ascii"):
                    pass
            return "memory_order_" in subprocess.run(
                ["gcc", "-E", "-I", folder, *options, LOCKLESS], text=True, check=True,
                stdout=subprocess.PIPE).stdout

    def test_orders(self):
        self.assertFalse(self.orders("-D_WIN32", "-DHAVE_BUILTIN_ATOMICS"))
        self.assertFalse(self.orders())
        self.assertTrue(self.orders("-DHAVE_BUILTIN_ATOMICS"))
        self.assertTrue(self.orders("-DHAVE_ATOMICS"))


if __name__ == "__main__":
    unittest.main()
