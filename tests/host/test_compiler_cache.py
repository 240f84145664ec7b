#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The folder of ccache if the user's folder is not writable."""
import os
import sys
import tempfile
import unittest
from unittest import mock

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import compiler_cache  # noqa: E402
import fetch  # noqa: E402


class Folder(unittest.TestCase):
    """The folder for a user with a home folder, and for a user without one."""

    def test_folder(self):
        with tempfile.TemporaryDirectory() as home, \
                mock.patch.object(fetch, "BUILD", os.path.join(home, "build")):
            ours = f"{home}/build/ccache"
            for theirs, used, lacking in ((f"{home}/mine", f"{home}/mine", {}),
                                          ("/proc/none", ours, {"CCACHE_DIR": ours})):
                with self.subTest(theirs), mock.patch.dict(os.environ, CCACHE_DIR=theirs):
                    self.assertEqual(compiler_cache.folder(), used)
                    self.assertEqual(compiler_cache.settings(), lacking)

    def test_no_ccache(self):
        with mock.patch.dict(os.environ, PATH="/nowhere"):
            self.assertEqual(compiler_cache.settings(), {})


if __name__ == "__main__":
    unittest.main()
