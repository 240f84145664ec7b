#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run the C tests and other built programs that need no kernel, and check libibverbs itself.

Why: the names and versions of the exported symbols are the ABI, and no other test would notice a
missing symbol or a dependency on a C++ run time. The test needs the whole build.
"""
import glob
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import test_abi  # noqa: E402

BUILT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/rdma-core")


def output(*command):
    """The output of a command."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@unittest.skipUnless(os.path.exists(os.path.join(BUILT, "bin/mr_notify_test")), "not built")
class BuiltTest(unittest.TestCase):
    """The build's results."""

    def setUp(self):
        self.library = os.path.join(BUILT, "lib/libibverbs.so.1")

    def test_c_tests(self):
        for name in ("mr_notify_test", "mr_cache_test", "mr_cache_sanitized_test",
                     "rxe_wr_test"):
            with self.subTest(name):
                done = subprocess.run([os.path.join(BUILT, "bin", name)], capture_output=True,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_symbol_versions(self):
        nodes = {}
        for name, node in re.findall(r" (\w+)@@?(MRNOTIFY_\S+)", output("nm", "-D", self.library)):
            nodes.setdefault(node, set()).add(name)
        self.assertEqual(nodes, {node: set(functions)
                                 for node, (functions, _) in test_abi.RELEASED.items()})

    def test_no_cxx_runtime(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", self.library))
        self.assertIn("libc.so.6", needed)
        self.assertFalse([name for name in needed if "stdc++" in name or "gcc_s" in name])

    def test_no_guarded_statics(self):
        # With -fno-threadsafe-statics another thread may see a static's guard before its value.
        symbols = output("nm", self.library)
        self.assertIn(" mr_cache_find", symbols)
        self.assertFalse(re.findall(r"\b_ZGV\w+", symbols))

    def test_refused_options(self):
        """The status is as in the man pages, and standard output is empty."""
        for command in ("ibv_mr_notify --unknown", "ibv_mr_notify --size 0",
                        "ibv_mr_notify --json --all", "ibv_mr_notify --json --reclaim",
                        "ibv_mr_notify --all --reclaim", "ibv_mr_notify --cost --all",
                        "ibv_mr_notify --cost --reclaim", "ibv_mr_notify --only TYPO",
                        "ibv_mr_notify --only TYPO --reclaim", "ibv_mr_notify --only TYPO --list",
                        "ibv_mr_cache --unknown", "ibv_mr_cache --rounds 0",
                        "ibv_mr_cache --env --json"):
            with self.subTest(command):
                done = subprocess.run(os.path.join(BUILT, "bin", command), capture_output=True,
                                      text=True, shell=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertNotEqual(done.stderr, "")
                if "TYPO" in command:
                    self.assertIn("TYPO", done.stderr)

    def test_help_names_the_variable(self):
        for name in ("ibv_mr_notify", "ibv_mr_cache"):
            self.assertIn("MR_NOTIFY_DEVICE", output(os.path.join(BUILT, "bin", name), "--help"))

    @unittest.skipUnless(os.path.exists(os.path.join(BUILT, "libibverbs/man/ibv_advise_mr.3")),
                         "upstream's pages are not built either")
    def test_man_pages(self):
        sources = glob.glob(os.path.join(os.path.dirname(BUILT), "../libibverbs/man/*.md"))
        self.assertTrue(sources)
        for page in (os.path.basename(path).removesuffix(".md") for path in sources):
            self.assertTrue(os.path.exists(os.path.join(BUILT, "libibverbs/man", page)),
                            f"{page}, which `cmake --build build` makes")


if __name__ == "__main__":
    unittest.main()
