#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Rules for the patches to upstream's files, user space and kernel.

Why: a hook is read again only when upstream moves; its header must tell its purpose then, and the
delta must stay small enough to carry.
"""
import collections
import glob
import os
import re
import sys
import unittest

REPO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import overlay  # noqa: E402

# Lines that the hooks may add: to upstream's rdma-core, to the kernel's RDMA core with the drivers
# that can be run and mlx5, to each other driver, to the communication libraries (UCX has a cache in
# two of its layers, and documents its interfaces where they are declared; libfabric's second patch
# hooks its cache at each place that changes an entry). A feature beside
# notification and cache has its own: all memory in rdma-core 8 of these lines (its capability,
# prefetching on rxe), and rxe's on-demand paging a line at each place of its three state machines
# that touches memory, with the fields behind them. Errors of rxe and siw that our tests met are
# mended: those that let a peer walk round a memory window (15), or any user or peer end the kernel
# (10), windows that outlive their queue pair (30), flushes that are not counted (4), a page whose
# waiter has left (1), requests that are sent again (26 + 4), windows that are bound beside
# something else (2 + 13), a message without an end (8), and queues that are reset, drained or
# changed, or whose peer is not ready (14 + 17 + 4 * 3), rings that their owners write
# (20 + 25 + 5), a kernel client's MR that anybody ends (6), windows that anybody's queue pair looks
# at (39), a receive that is lost (5), and a flush of nothing (5); in siw, where a peer or the owner
# of a queue can end the kernel or read its memory in many ways, 60.
MOST = {"rdma-core": 60 + 8, "linux": 180 + 3, "on-demand paging": 50,
        "errors of rxe": 51 + 15 + 10 + 30 + 5 + 26 + 4 + 2 + 13 + 8 + 14 + 17 + 12 +
        20 + 25 + 5 + 6 + 39 + 5 + 5,
        "errors of siw": 10 + 60, "a driver": 10, "libfabric": 60 + 55, "ucx": 340}
# irdma can revoke, and freed twice; of mlx4 a re-registration may fail in four places
SPECIAL = {"irdma": 17, "mlx4": 12}
FEATURES = {"on-demand paging": re.compile(r"/003[01]-RDMA-rxe-"),
            "errors of rxe": re.compile(r"/00(?:05|09|3[2-7]|4[1-6]|[67]\d)-RDMA-(?:rxe|core)-"),
            "errors of siw": re.compile(r"/00(?:3[89]|40|4[7-9]|5\d)-RDMA-siw-")}
DRIVER = re.compile(r"drivers/infiniband/(?:hw|sw)/(?!mlx5/|rxe/|siw/)(\w+)/")


class HookRules(unittest.TestCase):
    """Each rule on each patch."""

    def setUp(self):
        self.texts = {}
        for folder in (*overlay.HOOKS.values(), *overlay.LOCAL.values()):
            for path in sorted(glob.glob(os.path.join(REPO, folder, "*.patch"))):
                with open(path, encoding="utf-8") as text:
                    self.texts[os.path.relpath(path, REPO)] = text.read()
        self.user = {path: text for path, text in self.texts.items()
                     if path.startswith(overlay.HOOKS["rdma-core"])}
        # Upstream's later corrections are as upstream has them.
        self.own = {path: text for path, text in self.user.items()
                    if "\nUpstream-Status: Backport [https://" not in text}

    def test_names(self):
        for path in self.texts:
            self.assertRegex(os.path.basename(path), r"^\d{4}-[\w-]+\.patch$")

    def test_headers(self):
        for path, text in self.texts.items():
            header = text.partition("\n--- ")[0]
            self.assertRegex(header, r"(?m)^Upstream-Status: (Inappropriate \[.+\]|.*https?://)",
                             path)
            self.assertRegex(header, r"(?m)^Signed-off-by: .+ <.+@.+>", path)
        for path, text in self.user.items():
            for field in ("Why: ", "Without it: ", "Calls: "):
                self.assertIn("\n" + field, text.partition("\n--- ")[0], path)

    def test_only_additions_in_user_space(self):
        for path, text in self.own.items():
            removed = re.findall(r"(?m)^-(?!-- ).*", text.partition("\n--- ")[2])
            self.assertFalse(removed, path)

    def test_size(self):
        added = collections.Counter()
        for name, folder in overlay.HOOKS.items():
            for path, text in self.texts.items():
                if path.startswith(folder):
                    for change in text.split("\ndiff --git ")[1:]:
                        driver = DRIVER.match(change, len("a/"))
                        feature = next((feature for feature, paths in FEATURES.items()
                                        if paths.search(path)), name)
                        added[driver.group(1) if driver else feature] += \
                            len(re.findall(r"(?m)^\+(?!\+\+ )", change))
        self.assertIn("bnxt_re", added)
        self.assertLessEqual(set(FEATURES), set(added))
        for name, lines in added.items():
            most = MOST.get(name) or SPECIAL.get(name) or MOST["a driver"]
            self.assertLessEqual(lines, most, name)

    def test_one_hook_for_each_file_in_user_space(self):
        """The kernel's are a series by topic, to be read as one sends it; these are not."""
        seen = {}
        for path in self.own:
            for file in overlay.hooked_files(os.path.join(REPO, path)):
                self.assertNotIn(file, seen, f"{path} and {seen.get(file)}")
                seen[file] = path

    def test_table(self):
        for folder in (overlay.HOOKS["rdma-core"], *overlay.LOCAL.values()):
            with open(os.path.join(REPO, folder, "README.md"), encoding="utf-8") as text:
                table = text.read()
            for path in self.texts:
                if path.startswith(folder):
                    self.assertIn(os.path.basename(path), table)


if __name__ == "__main__":
    unittest.main()
