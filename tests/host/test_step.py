#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""buildlib/step prints one line, and all output of a command that fails. No process is left."""
import os
import pty
import subprocess
import tempfile
import unittest

STEP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../buildlib/step")


class Step(unittest.TestCase):
    """Each test calls step as setup, demo and package do."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = os.path.join(folder.name, "folder/log")

    def run_step(self, command):
        """Run a shell command as a step, and wait until no process has its outputs open."""
        return subprocess.run([STEP, "title", self.log, "sh", "-c", command], text=True,
                              check=False, capture_output=True)

    def test_one_line(self):
        done = self.run_step("echo much; echo more >&2")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r"\Atitle: \d+ s\n\Z")
        with open(self.log, encoding="utf-8") as text:
            self.assertEqual(text.read(), "much\nmore\n")

    def test_failure_shows_all(self):
        done = self.run_step("seq 1000; exit 7")
        self.assertEqual((done.returncode, done.stdout), (7, ""))
        lines = done.stderr.splitlines()
        self.assertEqual(lines[:-1], [str(number) for number in range(1, 1001)])
        self.assertRegex(lines[-1], r"^title: FAILED with 7 after \d+ s; the above is .*/log$")

    def test_progress_on_a_terminal(self):
        """The log's last line appears immediately. The command ends only after the line was shown.
        """
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", 0) as terminal:
            child = subprocess.Popen([STEP, "title", self.log, "sh", "-c", "echo half; "
                                      "while [ ! -e \"$0.seen\" ]; do sleep 0.1; done", self.log],
                                     stderr=theirs)
            os.close(theirs)
            seen = b""
            while b"half" not in seen:
                seen += terminal.read(1000)
            with open(self.log + ".seen", "w", encoding="utf-8"):
                pass
            self.assertEqual(child.wait(), 0)
            while not seen.endswith(b" s\r\n"):
                seen += terminal.read(1000)


if __name__ == "__main__":
    unittest.main()
