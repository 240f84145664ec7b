#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""buildlib/driver.py: the files that it compiles, and its message if it can't compile a driver.

The tree and the kernel's make are small fakes; the compiler is the machine's.
"""
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../buildlib"))

import driver  # noqa: E402

MAKEFILE = "%.o:\n\tgcc $(KCFLAGS) -c $(M)/$*.c -o $(M)/$@\n"
NIC = "drivers/infiniband/hw/nic"


class Driver(unittest.TestCase):
    """Two drivers, one of which has a patch."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.tree = os.path.join(self.folder, "tree")
        self.place = os.path.join(self.folder, "place")
        self.package = types.SimpleNamespace(headers=os.path.join(self.folder, "headers"))
        self.write("headers/Makefile", MAKEFILE)
        self.write("headers/.kernelvariables", "CC = $(CROSS_COMPILE)gcc-99\n")
        self.write(f"tree/{NIC}/hooked.c", "int one;\n")
        self.write(f"tree/{NIC}/other.c", "this is no C\n")
        self.write(f"tree/{NIC}/Makefile", "nic-objs := hooked.o \\\n\tnew.o\n")
        self.write("tree/drivers/infiniband/sw/plain/main.c", "")
        self.write("tree/drivers/infiniband/sw/plain/Makefile", "plain-y := main.o\n")
        self.write("kernel-patches/notify/0001-nic.patch",
                   "".join(f"--- a/{NIC}/{name}\n+++ b/{NIC}/{name}\n@@ -0,0 +1 @@\n+int one;\n"
                           for name in ("hooked.c", "hooked.h")))
        self.write(f"kernel-patches/notify/{NIC}/new.c", "")

    def write(self, name, text):
        """Write a file of the folder."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)

    def test_files(self):
        """The driver consists of the patched and the new files that the Makefile compiles."""
        self.assertEqual(driver.ours("nic", self.tree, self.folder),
                         {f"{NIC}/hooked.c", f"{NIC}/new.c"})

    def test_new_file_that_the_driver_lacks(self):
        """A file that the Makefile lacks is refused, because the module would lack it."""
        self.write(f"tree/{NIC}/Makefile", "nic-objs := hooked.o renew.o\n")
        with self.assertRaisesRegex(driver.DriverError, f"{NIC}/new.c is missing in"):
            driver.ours("nic", self.tree, self.folder)

    def test_no_patch(self):
        with self.assertRaisesRegex(driver.DriverError, "no patch"):
            driver.ours("plain", self.tree, self.folder)

    def test_unknown(self):
        """The message lists the known names."""
        with mock.patch.object(driver.overlay, "hooked_tree", return_value=self.tree), \
                mock.patch.object(sys, "argv", ["driver.py", "nick"]), \
                self.assertRaises(SystemExit) as end:
            driver.main()
        self.assertEqual(end.exception.code, "nick: no such driver; the drivers are nic, plain")

    def build(self, *names):
        """Compile these files of the driver."""
        driver.build(self.package, self.tree, self.place, {f"{NIC}/{name}" for name in names})

    def test_compiles_these_alone(self):
        self.build("hooked.c", "hooked.h")
        self.assertTrue(os.path.exists(os.path.join(self.place, NIC, "hooked.o")))

    def test_warning_is_an_error(self):
        self.write(f"tree/{NIC}/hooked.c", "void *two(void) { return 2; }\n")
        with self.assertRaisesRegex(driver.DriverError, r"hooked\.c:1:.*without a cast"):
            self.build("hooked.c")

    def test_another_compiler(self):
        """Without the kernel's compiler the machine's compiler is used, with fewer options."""
        headers = self.package.headers
        self.assertEqual(driver.kernel_modules.compiler_options(headers),
                         ["CC=gcc", "CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT="])
        with mock.patch.object(driver.kernel_modules.shutil, "which",
                               {"gcc-99": "/usr/bin/gcc-99"}.get):
            self.assertEqual(driver.kernel_modules.compiler_options(headers), [])

    def test_nothing_to_compile(self):
        with self.assertRaisesRegex(driver.DriverError, "no C file"):
            self.build("hooked.h")


if __name__ == "__main__":
    unittest.main()
