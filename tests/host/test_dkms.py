#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The DKMS package, as tests/lab/dkms_life had it installed, its kernel updated, and it removed.

That is done once for each state of the package and kept (build/lab/dkms/life): here is looked at
what it left. The kernel takes the modules in the guest `dkms` (tests/guest/dkms_modules).
"""
import os
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, path)
                for path in ("buildlib/packaging", "buildlib", "tests/lab")]

import build  # noqa: E402
import dkms  # noqa: E402
import fetch  # noqa: E402
import kernel_archive  # noqa: E402
import kernel_package  # noqa: E402
import machine as machines  # noqa: E402
import overlay  # noqa: E402

OTHER = "6.1.0-1-amd64"


class Life(unittest.TestCase):
    """What the administrator sees."""

    @classmethod
    def setUpClass(cls):
        machine = machines.load("dkms")
        with build.ready(machine):
            pass
        cls.folder = machine.dkms_life
        with fetch.locked(fetch.BUILD):
            package = kernel_package.unpack()
        cls.new = package.release
        version = fetch.linux_version(fetch.BUILD)
        cls.old = cls.new.replace(kernel_archive.point(version),
                                  kernel_archive.point(kernel_archive.older(version)))

    def users(self, tree):
        """The modules of a tree that use RDMA, and those that the package adds."""
        lines = (line.partition(":") for line in self.dependencies(tree).splitlines())
        return {kernel_package.module_name(path) for path, _, needed in lines
                if "kernel/drivers/infiniband/" in path + needed}.union(dkms.ADDED)

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

    def installed_lines(self, status):
        """The releases for which `dkms status` says that our modules are installed."""
        lines = [line.split(", ") for line in self.said(status)[0].splitlines()]
        return [line[1] for line in lines if line[0] == f"{dkms.NAME}/{dkms.version()}"
                and line[2].partition(" (")[0].endswith(": installed")]

    def has_our_modules(self, tree, stock, replaced=False):
        """All of ours are in the tree, and each of those that were there is the same file.

        But for those that dkms has put aside and will bring back: 3.2 does, and says so. And they
        are other files if the kernel was `replaced` by itself between.
        """
        before, after, ours = self.files(stock), self.files(tree), self.users(stock)
        moved = {kernel_package.module_name(name) for name, inode in before.items()
                 if name not in after or not replaced and after[name] != inode}
        aside = ours if "Original modules exist" in self.said("upgraded-status")[0] else set()
        self.assertEqual(sorted(moved - aside)[:9], [])
        added = {kernel_package.module_name(path): os.path.dirname(path)
                 for path in set(after) - set(before)}
        self.assertEqual(added, {name: "updates/dkms" for name in ours})
        self.assertLessEqual({"ib_core", "ib_uverbs", "rdma_cm", "rdma_rxe", "siw"}, set(added))

    def is_left_alone(self, tree):
        """The tree is as the distribution has it."""
        self.assertFalse([path for path in self.files(tree) if path.startswith("updates/")])
        self.assertNotIn("updates/", self.dependencies(tree))

    def test_installs(self):
        text, status = self.said("install")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("installed-status"), [self.old])
        self.assertNotIn(dkms.NAME, self.said("before")[0])
        self.has_our_modules("installed-old", "stock-old")

    def test_an_upgrade_of_the_kernel_keeps_it(self):
        text, status = self.said("upgrade")
        self.assertEqual(status, 0, text)
        self.assertEqual(sorted(self.installed_lines("upgraded-status")), [self.old, self.new])
        self.has_our_modules("installed", "removed", replaced=True)

    def test_an_initramfs_has_our_modules(self):
        text, status = self.said("initrd")
        self.assertEqual(status, 0)
        self.assertIn("/updates/dkms/", text)

    def test_the_source_of_the_older_kernel_is_kept(self):
        text, status = self.said("kept")
        self.assertEqual(status, 0, text)

    def test_removing_a_kernel_removes_its_modules(self):
        text, status = self.said("purge-old")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("purged-status"), [self.new])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "modules", self.old)))

    def test_no_module_is_left_with_the_wrong_core(self):
        ours = 0
        for line in self.dependencies("installed").splitlines():
            path, _, needed = line.partition(":")
            if path.startswith("updates/dkms/"):
                ours += 1
                self.assertNotIn("kernel/drivers/infiniband/", needed, path)
            else:
                self.assertNotIn("updates/dkms/", needed, path)
        self.assertEqual(ours, len(self.users("removed")))

    def test_without_the_source_a_kernel_is_left_alone(self):
        point = self.new.partition("+")[0]
        said = (f"{dkms.NAME}: not for kernel {self.new}: the source of Linux {point} is not here",
                "linux-source-6.12 is " + self.old.partition("+")[0])
        for step, expected in (("kernel-first", 0), ("again", 0), ("no-source", 77)):
            text, status = self.said(step)
            self.assertEqual(status, expected, text)
            for line in said:
                self.assertIn(line, text)
        self.is_left_alone("refused")

    def test_image_and_headers_ask_for_it(self):
        text, _ = self.said("kernel-first")
        self.assertEqual(text.count(f"{dkms.NAME}: not for kernel {self.new}"), 2, text)

    def test_a_kernel_that_is_replaced_gets_its_own_modules_back(self):
        self.assertEqual(self.installed_lines("kernel-first-status"), [])

    def test_a_build_that_fails_leaves_a_kernel_alone(self):
        text, status = self.said("broken")
        self.assertEqual(status, 0, text)
        self.assertIn(f"NOT BUILT for {self.new}", text)
        self.assertIn("make.log", text)

    def test_the_source_may_come_last(self):
        text, status = self.said("source-new")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.installed_lines("again-status"), [self.new])
        self.has_our_modules("late", "removed")

    def test_a_hook_that_does_not_apply_leaves_a_kernel_alone(self):
        point = self.new.partition("+")[0]
        for step, expected in (("bad-hook", 0), ("bad-hook-dkms", 77)):
            text, status = self.said(step)
            self.assertEqual(status, expected, text)
            self.assertIn(f"the hook 9999-old.patch does not apply to Linux {point}", text)
            self.assertIn("drivers/infiniband/sw/rxe/", text)

    def test_refuses_another_kernel(self):
        text, status = self.said("other-refused")
        self.assertEqual(status, 77, text)
        self.assertIn(f"not for kernel {OTHER}: this package is for Linux 6.12",
                      self.said("install")[0])

    def test_another_kernel_installs_all_the_same(self):
        text, status = self.said("other-kernel")    # dkms's own hook, which would build for it
        self.assertEqual(status, 0, text)

    def test_removes(self):
        text, status = self.said("remove")
        self.assertEqual(status, 0, text)
        self.is_left_alone("removed")
        self.assertEqual(self.said("verify"), ("", 0))      # dpkg knows what its kernel has
        self.assertEqual(self.said("after"), self.said("before"))
        self.assertEqual(self.said("purge")[1], 0)
        self.assertEqual(self.said("left"), ("", 0))


class Making(unittest.TestCase):
    """The package itself, and its look at a kernel."""

    core = "kernel/drivers/infiniband/core/ib_core.ko.xz"

    def modules(self, lines, release="6.12.1-test"):
        """What the package's `modules` says of a kernel with this modules.dep: text and status."""
        with tempfile.TemporaryDirectory() as root:
            dkms.stage(root)
            tool = os.path.join(root, dkms.fill(dkms.SOURCE, dkms.words()), "dkms/modules")
            kernel = os.path.join(root, "lib/modules", release)
            os.makedirs(os.path.join(kernel, "kernel"))
            with open(os.path.join(kernel, "modules.dep"), "w", encoding="utf-8") as out:
                out.write("\n".join(lines) + "\n")
            with open(tool, encoding="utf-8") as text:
                script = text.read().replace("/lib/modules/", os.path.dirname(kernel) + "/")
            done = subprocess.run(["sh", "-c", script, "modules", release], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return done.stdout, done.returncode

    def test_finds_what_uses_the_core(self):
        lines = [self.core + ":", "kernel/a.ko.xz:", "updates/dkms/theirs.ko.xz: " + self.core,
                 "kernel/net/smc/smc.ko.xz: kernel/a.ko.xz " + self.core]
        self.assertEqual(self.modules(lines), ("ib_core\nsiw\nsmc\n", 0))

    def test_a_module_that_is_not_built_stops_it(self):
        text, status = self.modules([self.core + ":", "kernel/fs/smb/ksmbd.ko: " + self.core])
        self.assertEqual(status, 77)
        self.assertIn("fs/smb/ksmbd would not load beside our ib_core", text)

    def test_a_kernel_without_rdma_stops_it(self):
        text, status = self.modules(["kernel/a.ko.xz:"])
        self.assertEqual(status, 77)
        self.assertIn("it has no RDMA", text)

    def test_holds_our_files_and_hooks_only(self):
        deb, = dkms.make()
        listed = subprocess.run(["dpkg-deb", "-c", deb], text=True, check=True,
                                stdout=subprocess.PIPE).stdout.splitlines()
        self.assertFalse([line for line in listed if line.startswith("l")])
        inside = {line.rpartition("/usr/src/")[2].partition("/")[2] for line in listed
                  if "/usr/src/" in line and not line.endswith("/")}
        ours = set(overlay.our_files("linux", REPO))
        self.assertIn("drivers/infiniband/core/umem_notify.c", ours)
        self.assertEqual({path.removeprefix("ours/") for path in inside
                          if path.startswith("ours/")}, ours | {"Kbuild"})
        hooks = [path for path in inside if path.startswith("hooks/")]
        self.assertEqual(len(hooks), len(os.listdir(os.path.join(REPO, "kernel-patches/hooks"))))
        self.assertLessEqual(len(inside) - len(ours) - len(hooks) - 1, 6)


if __name__ == "__main__":
    unittest.main()
