#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Our part of pyverbs calls every verb without Python's lock (the GIL).

Why: a verb may wait for another thread of the program, which supplies a page or is in another call.
If that thread runs Python, it needs the lock.
"""
import glob
import os
import re
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def calls(text):
    """Each call of a verb: its name, and whether the GIL is released."""
    free = None     # the indentation of the block without the lock
    for line in text.splitlines():
        code = line.partition("#")[0]
        depth = len(code) - len(code.lstrip())
        if code.strip() and free is not None and depth <= free:
            free = None
        if code.strip() == "with nogil:":
            free = depth
        for name in re.findall(r"\bv\.(ibv_\w+)\(", code):
            yield name, free is not None


class Verbs(unittest.TestCase):
    """All files."""

    def test_no_verb_has_the_lock(self):
        seen = set()
        for path in glob.glob(os.path.join(REPO, "pyverbs/*.pxi")):
            with open(path, encoding="utf-8") as text:
                for name, free in calls(text.read()):
                    seen.add(name)
                    self.assertTrue(free, f"{name} in {path}")
        self.assertLessEqual({"ibv_is_reg", "ibv_query_mr_cache", "ibv_settle_mr_notify"}, seen)


if __name__ == "__main__":
    unittest.main()
