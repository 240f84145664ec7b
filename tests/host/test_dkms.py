#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The DKMS package: what dpkg and dkms did with it in a scratch root, and what depmod made of it.

tests/lab/dkms_life has done it, once for each package; here it is judged. The modules run in the
guest `dkms`.
"""
import os
import subprocess
import sys
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, path)
                for path in ("buildlib/packaging", "buildlib", "tests/lab")]

import build  # noqa: E402
import dkms  # noqa: E402
import fetch  # noqa: E402
import kernel_package  # noqa: E402
import machine as machines  # noqa: E402

REFUSAL = "not for kernel 6.1.0-1-amd64"


class FakePackage:
    """A kernel whose modules need what the test says."""
    release = "6.12.1-test"

    def __init__(self, needed):
        self.needed = needed

    def needs(self):
        """As kernel_package.Package has it."""
        return self.needed


class Life(unittest.TestCase):
    """What the administrator sees."""

    @classmethod
    def setUpClass(cls):
        machine = machines.load("dkms")
        with build.ready(machine):
            pass
        cls.folder = machine.dkms_life
        with fetch.locked(fetch.BUILD):
            cls.package = kernel_package.unpack()
        cls.built = dkms.modules(cls.package)

    def said(self, name):
        """The output and the exit status of one step."""
        with open(os.path.join(self.folder, name + ".out"), encoding="utf-8") as text, \
                open(os.path.join(self.folder, name + ".status"), encoding="utf-8") as status:
            return text.read(), int(status.read())

    def files(self, tree):
        """{path in a tree of modules: its inode}: what was not touched is the same file."""
        root = os.path.join(self.folder, tree)
        return {os.path.relpath(os.path.join(folder, name), root):
                os.lstat(os.path.join(folder, name)).st_ino
                for folder, _, names in os.walk(root) for name in names
                if not name.startswith("modules.")}

    def dependencies(self, tree):
        """modules.dep of a tree, as text."""
        with open(os.path.join(self.folder, tree, "modules.dep"), encoding="utf-8") as text:
            return text.read()

    def installed_line(self):
        """What `dkms status` says of an installed module."""
        return (f"{dkms.NAME}/{dkms.version(self.package)}, {self.package.release}, "
                f"{os.uname().machine}: installed")

    def test_installs(self):
        text, status = self.said("install")
        self.assertEqual(status, 0, text)
        self.assertIn(self.installed_line(), self.said("status")[0])
        self.assertNotIn(dkms.NAME, self.said("before")[0])

    def test_installs_over_itself(self):
        text, status = self.said("again")
        self.assertEqual(status, 0, text)
        self.assertIn(self.installed_line(), self.said("again-status")[0])

    def test_adds_its_modules_and_touches_nothing(self):
        stock, installed = self.files("stock"), self.files("installed")
        self.assertEqual({name: installed.get(name) for name in stock}, stock)
        added = {kernel_package.module_name(path): os.path.dirname(path)
                 for path in set(installed) - set(stock)}
        self.assertEqual(added, {name.replace("-", "_"): "updates/dkms" for name in self.built})
        self.assertLessEqual({"ib_core", "ib_uverbs", "rdma_cm", "rdma_rxe", "siw"}, set(added))

    def test_no_module_is_left_with_the_wrong_core(self):
        ours = 0
        for line in self.dependencies("installed").splitlines():
            path, _, needed = line.partition(":")
            if path.startswith("updates/dkms/"):
                ours += 1
                self.assertNotIn("kernel/drivers/infiniband/", needed, path)
            else:
                self.assertNotIn("updates/dkms/", needed, path)
        self.assertEqual(ours, len(self.built))

    def test_removes(self):
        text, status = self.said("remove")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.files("removed"), self.files("stock"))
        self.assertEqual(self.dependencies("removed"), self.dependencies("stock"))
        self.assertEqual(self.said("after"), self.said("before"))
        self.assertEqual(self.said("purge")[1], 0)

    def test_refuses_another_kernel(self):
        text, status = self.said("refuse")
        self.assertEqual(status, 77, text)
        self.assertIn(REFUSAL, self.said("install")[0])
        text, status = self.said("hook")
        self.assertEqual(status, 0, text)
        self.assertIn(REFUSAL, text)

    def test_another_kernel_installs_all_the_same(self):
        text, status = self.said("kernel")     # dkms's own hook, which would build for it
        self.assertEqual(status, 0, text)


class Making(unittest.TestCase):
    """The package itself."""

    core = "kernel/drivers/infiniband/core/ib_core.ko.xz"

    def test_finds_what_uses_the_core(self):
        fake = FakePackage({self.core: [], "kernel/a.ko.xz": [],
                            "kernel/net/smc/smc.ko.xz": ["kernel/a.ko.xz", self.core]})
        self.assertEqual(dkms.modules(fake), {"ib_core": "drivers/infiniband/core",
                                              "smc": "net/smc", **dkms.ADDED})

    def test_a_module_that_is_not_built_stops_it(self):
        fake = FakePackage({self.core: [], "kernel/fs/smb/server/ksmbd.ko.xz": [self.core]})
        with self.assertRaisesRegex(fetch.FetchError, "ksmbd"):
            dkms.modules(fake)

    def test_holds_no_link_and_only_what_is_built(self):
        deb, = dkms.make()
        listed = subprocess.run(["dpkg-deb", "-c", deb], text=True, check=True,
                                stdout=subprocess.PIPE).stdout.splitlines()
        self.assertFalse([line for line in listed if line.startswith("l")])
        sources = [line.rpartition("/usr/src/")[2].partition("/")[2] for line in listed
                   if line.endswith(".c")]
        self.assertIn("drivers/infiniband/core/umem_notify.c", sources)
        self.assertFalse([path for path in sources
                          if not path.startswith(dkms.FOLDERS)])


if __name__ == "__main__":
    unittest.main()
