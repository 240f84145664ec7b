#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Our kernel files compile for PREEMPT_RT, where a spinlock is eight times as large."""
import os
import subprocess
import sys
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path[:0] = [os.path.join(REPO, "buildlib"), os.path.join(REPO, "tests/lab")]

import build  # noqa: E402
import fetch  # noqa: E402
import kconfig  # noqa: E402
import kernel_modules  # noqa: E402
import overlay  # noqa: E402

OURS = ("drivers/infiniband/core/", "drivers/infiniband/sw/")


class Realtime(unittest.TestCase):
    """The files are only compiled, not run."""

    def run_make(self, *arguments):
        """Run make in the kernel's source, and show its output if it fails."""
        env = kernel_modules.compiler_environment()
        done = subprocess.run([*self.make, *arguments, f"KCFLAGS={env['KCFLAGS']} -Werror"],
                              capture_output=True, text=True, check=False, env=env)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])

    def test_compiles(self):
        tree = build.hooked_tree()
        out = os.path.join(fetch.BUILD, "realtime")
        self.make = ["make", "-C", tree, "ARCH=x86_64", f"O={out}"]
        kconfig.configure(["common", "linux-6.12", "realtime"], out, self.run_make)
        objects = [name[:-2] + ".o" for name in overlay.our_files("linux", REPO)
                   if name.startswith(OURS) and name.endswith(".c")]
        self.assertIn("drivers/infiniband/core/umem_notify.o", objects)
        self.run_make(f"-j{os.cpu_count()}", *objects)


if __name__ == "__main__":
    unittest.main()
