#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Every driver that registers user memory notifies, and Documentation/drivers.md says so.

Why: a later kernel may add a driver, or move the code that registers to another file. No other test
would notice that the driver's MRs can't be armed.
"""
import glob
import os
import re
import sys
import unittest

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402
import kernel_modules  # noqa: E402
import overlay  # noqa: E402

NOTIFIES = re.compile(r"\.mr_umem = \w+,|\tINIT_RDMA_MR_UMEM\(")
REVOKES = re.compile(r"\.revoke_user_mr = \w+,")
PINS_BY_ITSELF = {"usnic"}


def drivers(name):
    """{driver: its sources} of all drivers in a hooked tree that register user memory."""
    tree = overlay.hooked_tree(name, part=kernel_modules.PART)
    found = {}
    for folder in glob.glob(os.path.join(tree, "drivers/infiniband/[hs]w/*/")):
        text = ""
        for path in glob.glob(os.path.join(folder, "*.c")):
            with open(path, encoding="utf-8") as source:
                text += source.read()
        if ".reg_user_mr = " in text:
            found[os.path.basename(os.path.dirname(folder))] = text
    return found


class Drivers(unittest.TestCase):
    """Source and documentation."""

    @classmethod
    def setUpClass(cls):
        cls.drivers = {name: drivers(name) for name in fetch.versions("linux")}
        with open(os.path.join(REPO, "Documentation/drivers.md"), encoding="utf-8") as text:
            rows = re.findall(r"(?m)^\| (\w+) \| (yes|no)\b[^|]*\| (yes|no)\b", text.read())
        cls.table = {name: (first == "yes", second == "yes") for name, first, second in rows}

    def test_all_notify(self):
        for found in self.drivers.values():
            self.assertIn("rxe", found)
            silent = {name for name, text in found.items() if not NOTIFIES.search(text)}
            self.assertEqual(silent, PINS_BY_ITSELF)

    def test_guarantees(self):
        """A driver that revokes has a paragraph of guarantees, and is not listed as a candidate."""
        path = os.path.join(REPO, "kernel-patches/notify/Documentation/infiniband/mr_notify.rst")
        with open(path, encoding="utf-8") as text:
            guarantees = text.read().partition("The drivers' guarantees\n")[2]
        with open(os.path.join(REPO, "Documentation/drivers.md"), encoding="utf-8") as text:
            to_come = text.read().partition("## Other devices that could revoke")[2]
        to_come = to_come.partition("\n## ")[0].replace("irdma's", "")   # a model, not listed
        self.assertTrue(any(re.search(rf"\b{name}\b", to_come) for name in self.table))
        for name, (_, revokes) in self.table.items():
            with self.subTest(name):
                if revokes:
                    self.assertRegex(guarantees, rf"(?m)^{name}\b.*\n    ")
                    self.assertNotRegex(to_come, rf"\b{name}\b")

    def test_readme(self):
        with open(os.path.join(REPO, "README.md"), encoding="utf-8") as text:
            rows = re.findall(r"(?m)^\| ([\w, ]+) \| stale registrations are reported(.*)",
                              text.read())
        revoking = {name for names, what in rows if "loses access" in what
                    for name in names.split(", ")}
        self.assertEqual(revoking, {name for name, (_, revokes) in self.table.items()
                                    if revokes} - {"rxe", "siw"})
        others = {"rdmavt" if name == "hfi1" else name for names, _ in rows
                  for name in names.split(", ")} - revoking
        self.assertLessEqual(others, {name for name, can in self.table.items()
                                      if can == (True, False)})

    def test_table(self):
        for found in self.drivers.values():
            for name, text in found.items():
                self.assertEqual(self.table.get(name), (bool(NOTIFIES.search(text)),
                                                        bool(REVOKES.search(text))), name)
        self.assertEqual(set(self.table), set().union(*self.drivers.values()))


if __name__ == "__main__":
    unittest.main()
