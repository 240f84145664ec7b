#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test the lab's arguments for two nodes and their wire. test_lab_run.py tests the nodes."""
import os
import subprocess
import sys
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN = os.path.join(REPO, "tests/lab/run")
sys.path.insert(0, os.path.join(REPO, "tests/lab"))
import wire  # noqa: E402  pylint: disable=wrong-import-position


class Wire(unittest.TestCase):
    """The words of a wire, and the arguments of netem."""

    def test_words(self):
        self.assertEqual(wire.netem("loss 2%"), "loss 2%")
        self.assertEqual(wire.netem(" loss 0.5%  delay 5ms "), "delay 5ms loss 0.5%")
        self.assertEqual(wire.netem("duplicate 100% corrupt 1%"), "corrupt 1% duplicate 100%")

    def test_reordering_needs_a_delay(self):
        self.assertEqual(wire.netem("loss 2% reorder 10%"), "delay 1ms loss 2% reorder 10%")
        self.assertEqual(wire.netem("reorder 10% delay 5ms"), "delay 5ms reorder 10%")

    def test_wrong_words(self):
        for text, said in (("", "pairs such as"), ("loss", "pairs such as"),
                           ("loss 2% delay", "pairs such as"), ("shout 2%", "shout is none of"),
                           ("loss 2", "loss 2 should be like loss 2%"),
                           ("loss 101%", "loss 101% should"),
                           ("delay 5", "delay 5 should be like delay 5ms"),
                           ("delay 5%", "delay 5% should"),
                           ("loss 1% loss 2%", "loss is given twice"),
                           ("loss 2%; delay 5ms", "loss 2%; should")):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, said):
                wire.netem(text)


class CommandLine(unittest.TestCase):
    """A mistake is reported before the build begins."""

    def test_wrong_arguments(self):
        for arguments, said in (
                (["--nodes", "3"], "--nodes: invalid choice: 3"),
                (["--nodes", "0"], "--nodes: invalid choice: 0"),
                (["--nodes", "two"], "--nodes: invalid int"),
                (["--wire", "loss 2%"], "--wire needs --nodes 2"),
                (["--nodes", "2", "--wire", "loss 2"], "loss 2 should be like loss 2%"),
                (["--nodes", "2", "--count-instructions"], "not with --nodes")):
            with self.subTest(arguments=arguments):
                done = subprocess.run([RUN, *arguments, "--", "true"], capture_output=True,
                                      text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(said, done.stderr)

    def test_kernels_that_cannot(self):
        for kernel in ("dkms", "dkms-next", "pvrdma"):
            done = subprocess.run([RUN, "--kernel", kernel, "--nodes", "2", "--", "true"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (99, "", f"lab: --kernel {kernel} does not support --nodes\n"))


if __name__ == "__main__":
    unittest.main()
