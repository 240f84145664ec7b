#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The cache's core compiles without a warning for all architectures of Debian's rdma-core, and
calls only functions that the C library has.

Why: compilers differ in atomics, thread-local variables and layouts, and this machine builds only
for its own architecture. Debian packages the headers of other architectures, and clang compiles for
all. musl has no spare room in the static TLS, so in a build for musl our variables must be outside
the static TLS.
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

# The architecture in names of packages, and the compiler's name.
TARGETS = {"arm64": "aarch64-linux-gnu", "ppc64el": "powerpc64le-linux-gnu",
           "s390x": "s390x-linux-gnu", "riscv64": "riscv64-linux-gnu",
           "i386": "i686-linux-gnu", "armhf": "arm-linux-gnueabihf"}
WITH_32_BITS = ("i386", "armhf")
CORE = os.path.join(REPO, "libibverbs/mr_cache/mr_cache_core.cc")
CORE_OPTIONS = os.path.join(REPO, "libibverbs/no_cxx_runtime.cmake")


def flags():
    """The options that the build compiles the core with."""
    with open(CORE_OPTIONS, encoding="utf-8") as text:
        found = re.findall(r"set\(MR_CACHE_(?:WARNINGS|NO_RUNTIME) ([^)]*)\)", text.read())
    assert len(found) == 2
    return [flag for flag in " ".join(found).split() if "deprecated-enum-enum" not in flag]


class Core(unittest.TestCase):
    """Each target."""

    @classmethod
    def setUpClass(cls):
        cls.version = subprocess.run(["g++", "-dumpversion"], stdout=subprocess.PIPE, text=True,
                                     check=True).stdout.split(".")[0].strip()
        names = [f"{name}-{arch}-cross" for arch in TARGETS
                 for name in ("libc6-dev", "linux-libc-dev", f"libstdc++-{cls.version}-dev")]
        apt = fetch.machine_apt(fetch.BUILD)
        missing = [name for name in names if not apt.versions(name)]
        if missing:
            raise unittest.SkipTest(f"this release has no {', '.join(missing)}")
        debs = fetch.download_packages({name: apt.versions(name)[0] for name in names})
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        for deb in debs.values():
            subprocess.run(["dpkg-deb", "-x", deb, cls.folder.name], check=True)

    def compiled(self, arch, *more):
        """The assembly for one target."""
        triplet = TARGETS[arch]
        include = os.path.join(self.folder.name, "usr", triplet, "include")
        system = [os.path.join(include, "c++", self.version),
                  os.path.join(include, "c++", self.version, triplet), include]
        self.assertEqual([path for path in system if not glob.glob(path + "/*")], [])
        done = subprocess.run(["clang++", f"--target={triplet}", "-std=c++20", "-O2", "-fPIC",
                               "-D_GNU_SOURCE", *flags(), "-nostdinc++",
                               *(f"-isystem{path}" for path in system), *more,
                               "-S", "-o", "-", CORE],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 0)
        return done.stdout

    def test_it_compiles(self):
        for arch in TARGETS:
            with self.subTest(arch):
                text = self.compiled(arch)
                self.assertNotIn("__atomic_", text)
                self.assertIn("mr_cache_find", text)
                # an architecture without the cache needs no lock
                self.assertEqual("pthread_mutex_lock" in text, arch not in WITH_32_BITS)

    def test_no_static_tls_without_glibc(self):
        self.assertNotIn("tlsdesc", self.compiled("arm64"))
        self.assertIn("tlsdesc", self.compiled("arm64", "-DNOT_GLIBC"))


if __name__ == "__main__":
    unittest.main()
