#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The table in Documentation/events.md has the rows of ibv_mr_notify, in the same order."""
import os
import re
import subprocess
import unittest

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PROGRAM = os.path.join(REPO, "build/rdma-core/bin/ibv_mr_notify")
ROW = re.compile(r"^(\S.*?) +(?:INVALID|0) +(?:INVALID|SUSPECT|0) +(?:INVALID|0) +\d+/\d+ ")


class EventsTest(unittest.TestCase):
    """The page."""

    def test_rows_are_those_of_the_program(self):
        done = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True)
        with open(os.path.join(REPO, "Documentation/events.md"), encoding="utf-8") as page:
            rows = [found.group(1) for found in map(ROW.match, page) if found]
        printed = done.stdout.splitlines()
        self.assertEqual([row for row in printed if row not in rows], [],
                         "rows of the program that Documentation/events.md lacks")
        self.assertEqual(rows, printed, "not the program's rows, or not in its order")


if __name__ == "__main__":
    unittest.main()
