#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The fork's libraries export all that upstream's and Debian's export, and more.

Why: programs that were built for them must run on ours without being built again. Symbols: our
packages against the distribution's own packages. Types (sizes, members, parameters): our build
against a plain build of the same upstream version, both with debug information.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402

LIBRARIES = {"libibverbs1": ["libibverbs.so.1"], "librdmacm1": ["librdmacm.so.1"],
             "libibumad3": ["libibumad.so.3"],
             "ibverbs-providers": ["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1", "libmana.so.1"]}
WITH_TYPES = {"ibverbs": "libibverbs.so.1", "rdmacm": "librdmacm.so.1"}
OPTIONS = ["-GNinja", "-DIN_PLACE=1", "-DNO_PYVERBS=1", "-DNO_MAN_PAGES=1",
           "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DPYTHON_EXECUTABLE=/usr/bin/python3",
           "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]


def abidiff(before, after, *options):
    """The changes and removals between two libraries, "" if none; new symbols are welcome."""
    done = subprocess.run(["abidiff", "--no-added-syms", *options, before, after],
                          capture_output=True, text=True, check=False)
    # 4: a change, 8: an incompatible one; 1 and 2: abidiff failed.
    return done.stdout + done.stderr if done.returncode else ""


def one(folder, name):
    """The one file of that name in a library folder of an unpacked package."""
    found = glob.glob(os.path.join(folder, "usr/lib/*", name))
    if len(found) != 1:
        raise FileNotFoundError(f"{name} in {folder}: {found}")
    return found[0]


def unpacked(debs, folder):
    """Unpack packages into a folder."""
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder


def plain_build():
    """Upstream's libraries, built as ours are, without anything of ours; where they are."""
    place = os.path.join(fetch.BUILD, "abi")
    with fetch.locked(place, "rdma-core"):
        source = os.environ.get(fetch.SOURCE_VARIABLE["rdma-core"])
        if not source:
            source, _ = fetch.tarball_of("rdma-core", fetch.BUILD)
        tree = fetch.fetch("rdma-core", place, source)
        build = os.path.join(place, "rdma-core")
        for command in (["cmake", "-S", tree, "-B", build, *OPTIONS],
                        ["ninja", "-C", build, *WITH_TYPES]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return os.path.join(build, "lib")


class Symbols(unittest.TestCase):
    """Our packages against the distribution's."""

    @classmethod
    def setUpClass(cls):
        made = subprocess.run([os.path.join(REPO, "buildlib/package"), "debs"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.splitlines()
        named = {os.path.basename(path).split("_")[0]: path for path in made}
        ours = {name: path for name, path in named.items()
                if name.removesuffix("t64") in LIBRARIES}
        assert len(ours) == len(LIBRARIES)
        apt = fetch.machine_apt(fetch.BUILD)
        theirs = fetch.download_packages({name: apt.versions(name)[0] for name in ours})
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.ours = unpacked(ours.values(), os.path.join(folder.name, "ours"))
        cls.theirs = unpacked(theirs.values(), os.path.join(folder.name, "theirs"))

    def test_nothing_is_missing(self):
        for name in sum(LIBRARIES.values(), []):
            with self.subTest(name):
                self.assertEqual(abidiff(one(self.theirs, name), one(self.ours, name)), "")


class Builds(unittest.TestCase):
    """Our build against a plain one; and the check itself, on a library that is worse than ours."""

    @classmethod
    def setUpClass(cls):
        cls.plain = plain_build()
        cls.ours = os.path.join(fetch.BUILD, "rdma-core/lib")
        # Only types that a header has, driver.h for the providers included: not libibverbs' own.
        cls.visible = ["--headers-dir1", os.path.join(cls.plain, "../include"),
                       "--headers-dir2", os.path.join(cls.ours, "../include")]

    def test_only_our_nodes_are_new(self):
        """Upstream's build of this version has every other symbol: its list is complete."""
        ours, upstream = ({*re.findall(r" (\w+@\S+)", subprocess.run(
            ["nm", "-D", "--defined-only", os.path.join(folder, "libibverbs.so.1")],
            capture_output=True, text=True, check=True).stdout)}
            for folder in (self.ours, self.plain))
        self.assertFalse(upstream - ours)
        self.assertTrue(ours - upstream)
        self.assertEqual({name.partition("@")[2].lstrip("@") for name in ours - upstream
                          if not name.startswith("MRNOTIFY")},
                         {f"MRNOTIFY_1.{n}" for n in range(5)})

    def test_nothing_changed(self):
        for name in WITH_TYPES.values():
            with self.subTest(name):
                self.assertEqual(abidiff(os.path.join(self.plain, name),
                                         os.path.join(self.ours, name), *self.visible), "")

    def spoilt(self, pattern, replacement):
        """abidiff's report on our libibverbs with a change in its description."""
        library = os.path.join(self.ours, "libibverbs.so.1")
        text = subprocess.run(["abidw", library], capture_output=True, text=True, check=True).stdout
        worse, count = re.subn(pattern, replacement, text)
        self.assertEqual(count, 1, pattern)
        with tempfile.NamedTemporaryFile("w", suffix=".abi") as description:
            description.write(worse)
            description.flush()
            return abidiff(os.path.join(self.plain, "libibverbs.so.1"), description.name,
                           *self.visible)

    def test_a_missing_symbol_is_seen(self):
        said = self.spoilt(r"\n *<elf-symbol name='ibv_dereg_mr' version='IBVERBS_1.1'.*/>", "")
        self.assertIn("ibv_dereg_mr", said)

    def test_another_size_is_seen(self):
        said = self.spoilt(r"(<class-decl name='ibv_mr' [^>]*size-in-bits=)'384'", r"\1'448'")
        self.assertIn("ibv_mr", said)


if __name__ == "__main__":
    unittest.main()
