#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The script that runs a lane's steps: what a program prints is kept, whatever is shown of it."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../runner")
sys.path.insert(0, RUNNER)

import lanes  # noqa: E402

SPEC = importlib.util.spec_from_file_location("runner", os.path.join(RUNNER, "__main__.py"))
runner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)


class Script(unittest.TestCase):
    """A shell runs it."""

    def test_long_output_is_kept_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            text = runner.script([lanes.Step("long", "seq 100000; (exit 7)")], folder)
            done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
            self.assertLess(len(done.stdout), 21000)
            with open(os.path.join(folder, "long.out"), encoding="utf-8") as out:
                self.assertEqual(out.read().splitlines()[-1], "100000")
            with open(os.path.join(folder, "long.status"), encoding="utf-8") as status:
                self.assertEqual(status.read().strip(), "7")


if __name__ == "__main__":
    unittest.main()
