#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Scripts that install and build print their arguments before they begin."""
import os
import shutil
import subprocess
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
SCRIPTS = ("buildlib/demo", "buildlib/setup", "tests/mpi/run")


class Arguments(unittest.TestCase):
    """Each script in a folder where it finds no work."""

    def called(self, name, *arguments):
        """Exit status, output and errors of a script."""
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, os.path.dirname(name)))
            script = shutil.copy(os.path.join(REPO, name), os.path.join(folder, name))
            done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

    def test_help(self):
        for name in SCRIPTS:
            for argument in ("-h", "--help"):
                with self.subTest(name=name, argument=argument):
                    status, output, errors = self.called(name, argument)
                    self.assertEqual((status, errors), (0, ""))
                    self.assertRegex(output, f"^usage: {name}.*\n$")

    def test_other_arguments(self):
        for name in SCRIPTS:
            for arguments in (["--no-such"], ["um", "um"], ["--help", "um"], [""]):
                with self.subTest(name=name, arguments=arguments):
                    status, output, errors = self.called(name, *arguments)
                    self.assertEqual((status, output), (2, ""))
                    self.assertRegex(errors, f"^usage: {name}.*\n$")


if __name__ == "__main__":
    unittest.main()
