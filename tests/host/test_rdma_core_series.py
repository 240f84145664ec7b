#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The mails for rdma-core apply to the plain tarball, each builds, and the result is our tree.

Why: daily builds use the overlay. Only this test builds with upstream's lists as the mails edit
them. The test skips mails that it has built before.
"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import compiler_cache  # noqa: E402
import fetch  # noqa: E402
import overlay  # noqa: E402
import rdma_core_series  # noqa: E402
import series  # noqa: E402

# The targets that mails change or add. A build makes the targets that exist so far. Then it runs
# TESTS.
TARGETS = ("ibverbs", "rxe-rdmav", "siw-rdmav", "ibv_devinfo", "check-no-cxx-runtime",
           "ibv_mr_notify", "ibv_mr_cache")
TESTS = ("rxe_wr_test", "mr_notify_test", "mr_cache_test")
BASE = fetch.base()
PLACE = os.path.join(fetch.BUILD, "series." + BASE)
OF_OVERLAY = re.compile(r"(?m)^(?:\+.*(?:inject\.cmake|buildlib/hooks|overlay)|"
                        r"(?:Files|Hook|Why|Calls|Upstream-Status): )")


def run(*command, **more):
    """The output of a command. If the command fails, the message of the failure has the output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def symbols(library):
    """The exported symbols of a library, with their versions."""
    lines = run("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()
    return sorted(line.split()[-1] for line in lines)


class Series(unittest.TestCase):
    """A maintainer's steps with the mails."""

    AUTHOR = "Anne Person <anne@example.org>"

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        written = series.write(os.path.join(cls.folder, "mails"), BASE, author=cls.AUTHOR)
        cls.covers = [mail for mail in written if "0000-cover" in mail]
        cls.mails = [mail for mail in written if mail not in cls.covers]

    def plain(self, place, mails=()):
        """The plain tree with these mails."""
        os.makedirs(place)
        series.plain_tree(place, BASE)
        if mails:
            series.git(place, "am", "-q", *mails)
        return place

    def test_texts(self):
        self.assertEqual(len(self.covers), 2)
        for mail in (*self.covers, *self.mails):
            text = fetch.read(mail)
            self.assertNotIn("***", text)
            self.assertIn(f"\nFrom: {self.AUTHOR}\n", text)
            self.assertRegex(text, r"\nSubject: \[PATCH rdma-core \d/\d\] ")
            said = re.split(r"\n---\n|\nAnne Person \(\d+\):\n", text.partition("\n\n")[2])[0]
            self.assertNotRegex(said, r"(?m)^(?!Signed-off-by: ).{76}", mail)
            if mail not in self.covers:
                self.assertIsNone(OF_OVERLAY.search(text), mail)
                self.assertIn(f"\nSigned-off-by: {self.AUTHOR}\n", text)
        self.assertRegex(fetch.read(self.covers[1]), r"\nThe series is for rdma-core \d+\.\d+")

    def test_both_orders_end_with_our_tree(self):
        of = {name: [mail for mail in self.mails if f"/{name}/" in mail]
              for name in rdma_core_series.TOPICS}
        one = self.plain(os.path.join(self.folder, "one"), of["fixes"] + of["mr"])
        other = self.plain(os.path.join(self.folder, "other"), of["mr"] + of["fixes"])
        self.assertEqual(series.git(one, "rev-parse", "HEAD^{tree}"),
                         series.git(other, "rev-parse", "HEAD^{tree}"))
        with fetch.locked(fetch.BUILD, BASE):
            tree = fetch.fetch(BASE)
            overlay.overlay(BASE, tree)
        hooked = {path for patch in overlay.patches_of(BASE)
                  for path in overlay.hooked_files(patch, BASE)}
        for name in {*overlay.our_files(BASE, REPO), *hooked}:
            if name not in (*rdma_core_series.NOT_SENT, *rdma_core_series.GENERATED):
                expected = fetch.read(os.path.join(tree, name))
                for old, new in rdma_core_series.REWRITTEN.get(name, ()):
                    expected = rdma_core_series.replaced(expected, old, new)
                self.assertEqual(fetch.read(os.path.join(one, name)), expected, name)

    def test_each_mail_builds(self):
        digest = hashlib.sha256()
        for mail in self.mails:
            digest.update(fetch.read(mail).partition("\n---\n")[2].encode())
        known = PLACE + ".built"
        if fetch.read(known) == digest.hexdigest():
            return
        shutil.rmtree(PLACE, ignore_errors=True)
        # The compiler cache needs the same folders each time.
        tree, build = self.plain(os.path.join(PLACE, "tree")), os.path.join(PLACE, "build")
        environment = {**os.environ, **compiler_cache.settings()}
        cached = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")
                  if shutil.which("ccache")]

        def configure(*options):
            run("cmake", "-S", tree, "-B", build, "-GNinja", "-DPYTHON_EXECUTABLE=/usr/bin/python3",
                "-DPython_EXECUTABLE=/usr/bin/python3", *cached, *options, env=environment)

        configure("-DNO_PYVERBS=1", "-DNO_MAN_PAGES=1", "-DENABLE_STATIC=0")
        for mail in self.mails:
            series.git(tree, "am", "-q", mail)
            run("ninja", "-C", build, "build.ninja", env=environment)
            there = {re.sub(r"(?<=-rdmav)\d+$", "", name): name for name in
                     re.findall(r"(?m)^build (\S+): phony", fetch.read(build + "/build.ninja"))}
            targets = [there[name] for name in (*TARGETS, *TESTS) if name in there]
            run("ninja", "-C", build, *targets, env=environment)
            for name in set(TESTS) & set(there):
                if name != "rxe_wr_test" or "rxe" in mail:
                    run(os.path.join(build, "bin", name), env=environment)
        self.assertEqual(sorted({*TARGETS, *TESTS} - set(there)), [])
        self.assertEqual(symbols(os.path.join(build, "lib/libibverbs.so")),
                         symbols(os.path.join(fetch.BUILD, "rdma-core/lib/libibverbs.so")))
        configure("-DNO_PYVERBS=0", "-DNO_MAN_PAGES=0", "-DENABLE_STATIC=1")
        run("ninja", "-C", build, env=environment)
        self.assertTrue(glob.glob(build + "/python/pyverbs/mr.*.so"))
        if not shutil.which("abi-dumper"):
            shutil.rmtree(os.path.join(tree, "ABI"))
        if sys.version_info < (3, 13):  # check-build imports pipes
            run(os.path.join(tree, "buildlib/check-build"), "--src", tree, "--build", build,
                env=environment)
        fetch.write(known, digest.hexdigest())


if __name__ == "__main__":
    unittest.main()
