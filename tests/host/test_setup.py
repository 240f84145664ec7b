#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Try buildlib/setup while another apt runs. Shell scripts replace the commands that it calls."""
import os
import shutil
import subprocess
import tempfile
import unittest

BUILDLIB = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                         "../../buildlib"))
PACKAGES = """# Those of no set come
# only with all.
missing

# [demo] A group's comment may
# have [gate] lines.
shown # why

# [demo gate] A group may be in several sets.
both several

# [double] One that is there, twice.
twice
"""
LOCKED = "E: Could not get lock lists/lock.\\nE: Unable to lock directory lists/"
# `told` has the error messages of the first updates, one per line.
STUBS = {
    "apt-get": 'echo "$*" >>calls; [ "$1" = update ] && [ -s told ] || exit 0\n'
               'printf "$(head -n 1 told)\\n" >&2; sed -i 1d told; exit 100',
    # `twice` is installed for two architectures; no other package is installed.
    "dpkg-query": '[ "$3" = twice ] || exit 1; for _ in 1 2; do\n'
                  'printf "$(printf %s "$2" | sed "s/^-f=//; s/[$]{.*}/installed/")"; done',
    "sleep": "exec /bin/sleep 0.1", "id": "echo 1000",
    # If the file `asks` exists, the user always needs a password. If not, only -v needs a password.
    "sudo": 'echo "sudo $*" >>sudo; case $1 in\n-n) [ ! -e asks ] ;;\n-v) [ -e asks ] ;;\n'
            '*) exec "$@" ;;\nesac'}


class Setup(unittest.TestCase):
    """Each test runs setup in its own folder, with missing packages."""

    def set_up(self, *told, sets=(), asks=False):
        """The exit status and the calls of apt-get, for a user with or without a sudo password."""
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "buildlib"))
            os.makedirs(os.path.join(folder, "bin"))
            for name in ("setup", "step"):
                shutil.copy(os.path.join(BUILDLIB, name), os.path.join(folder, "buildlib"))
            files = {"buildlib/packages": PACKAGES, "calls": "",
                     "told": "".join(f"{one}\n" for one in told),
                     **({"asks": ""} if asks else {}),
                     **{f"bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in STUBS.items()}}
            for name, text in files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                    out.write(text)
                os.chmod(os.path.join(folder, name), 0o755)
            done = subprocess.run(
                [os.path.join(folder, "buildlib/setup"), *sets], capture_output=True, text=True,
                env={"PATH": f"{folder}/bin:/usr/bin:/bin"}, check=False)
            with open(os.path.join(folder, "calls"), encoding="utf-8") as calls:
                return done.returncode, calls.read().splitlines()

    def test_waits_for_another_apt(self):
        status, calls = self.set_up(LOCKED, LOCKED)
        self.assertEqual((status, calls[:3]), (0, ["update -q"] * 3))
        self.assertIn("-o DPkg::Lock::Timeout=600", calls[3])
        self.assertRegex(calls[3], "^install .*=600 missing shown both several$")

    def test_another_failure_is_one(self):
        status, calls = self.set_up(LOCKED, "E: The repository is gone.")
        self.assertEqual((status, calls), (100, ["update -q"] * 2))

    def test_sets(self):
        for sets, names in ((["demo"], "shown both several"), (["gate"], "both several"),
                            (["demo", "gate"], "shown both several")):
            with self.subTest(sets=sets):
                status, calls = self.set_up(sets=sets)
                self.assertEqual(status, 0)
                self.assertRegex(calls[-1], f"^install .*=600 {names}$")

    def test_sudo_asks(self):
        for asks in (False, True):
            with self.subTest(asks=asks):
                status, calls = self.set_up(asks=asks)
                self.assertEqual((status, len(calls)), (0, 2))

    def test_of_two_architectures(self):
        self.assertEqual(self.set_up(sets=["double"]), (0, []))

    def test_no_such_set(self):
        for sets in (["dem"], ["demo", "all"], ["lines"], ["."], ["demo gate"]):
            with self.subTest(sets=sets):
                self.assertEqual(self.set_up(sets=sets), (2, []))


if __name__ == "__main__":
    unittest.main()
