#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Documentation/user-guide.md disables other caches as tests/mpi/compare.py does."""
import os
import sys
import unittest
from unittest import mock

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(REPO, "tests/mpi"))

import ucx  # noqa: E402

with mock.patch.object(ucx, "new", lambda: False):  # compare.py can be imported without UCX
    import compare  # noqa: E402


class Guide(unittest.TestCase):
    """The settings that the user guide names."""

    def test_other_caches_are_turned_off(self):
        with open(os.path.join(REPO, "Documentation/user-guide.md"), encoding="utf-8") as text:
            told = set(text.read().split())
        off = {**compare.FABRIC_OFF, **compare.UCX_OFF}
        self.assertEqual({f"{name}={value}" for name, value in off.items()} - told, set())


if __name__ == "__main__":
    unittest.main()
