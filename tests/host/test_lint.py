# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""clang-tidy sees the same in an included file as in a main file.

Why: a unit of buildlib/lint.py that it looks at with half of its checks would be no less "ok",
nor would a file that it leaves out for no reason.
"""
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import lint  # noqa: E402

DEFECTS = """
int *nothing() { return 0; }
int dereference(int *p) { if (!p) return *p; return 0; }
int garbage(bool b) { int x; if (b) x = 1; return x; }
int unused(int a) { return 1; }
"""
CHECKS = ("modernize-use-nullptr", "clang-analyzer-core.NullDereference",
          "clang-analyzer-core.uninitialized.UndefReturn", "misc-unused-parameters")


class Lint(unittest.TestCase):
    """Defects on purpose."""

    def test_defects_of_included_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "tests", "defects.cpp")  # as HeaderFilterRegex wants it
            os.mkdir(os.path.dirname(source))
            with open(source, "w", encoding="utf-8") as out:
                out.write(DEFECTS)
            unit = lint.write_unit(os.path.join(folder, "unit"), [source])
            done = subprocess.run(
                ["clang-tidy", "--quiet", f"--config-file={os.path.join(REPO, '.clang-tidy')}",
                 unit, "--", "-std=c++20"], capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        for check in CHECKS:
            self.assertIn(check, done.stdout)

    def test_files_that_are_looked_at_for_unused_names(self):
        for text, expected in (("using a::b;", True), ("namespace c = a;", True),
                               ("using namespace a;", False), ("int using_a;", False)):
            with self.subTest(text), tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
                source.write("namespace a { struct b; }\n" + text + "\n")
                source.flush()
                found = subprocess.run(
                    ["clang-tidy", "--quiet", "--checks=-*,misc-unused-*-decls",
                     "--warnings-as-errors=*", source.name, "--", "-std=c++20"],
                    capture_output=True, text=True, check=False).returncode
                self.assertEqual(bool(found), expected)
                self.assertEqual(lint.declares_names(source.name), expected)

    def test_a_passed_folder_is_left_out_until_it_changes(self):
        """One folder of one source; its content is the digest's."""
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder}), \
                mock.patch.object(lint, "tidy_units", lambda: [(["a.cpp"], [["unit"]])]), \
                mock.patch.object(lint, "tidy_digest") as digest, \
                mock.patch.object(lint, "report") as report:
            def commands(content, changed, good):
                digest.return_value, report.return_value = content, good
                self.assertEqual(lint.check_tidy(changed), good)
                return len(report.call_args.args) - 1
            self.assertEqual(commands("one", True, False), 1)
            self.assertEqual(commands("one", True, True), 1)    # a failure is not remembered
            self.assertEqual(commands("one", True, True), 0)
            self.assertEqual(commands("one", False, True), 1)
            self.assertEqual(commands("two", True, True), 1)

    def test_a_digest_is_of_sources_headers_and_settings(self):
        source = "libibverbs/examples/mr_notify/main.cpp"
        before = lint.tidy_digest([source])
        self.assertEqual(lint.tidy_digest([source]), before)
        self.assertNotEqual(lint.tidy_digest([source, "tests/demo/stale_bytes.cpp"]), before)
        for name in (source, ".clang-tidy", "libibverbs/examples/mr_notify/device.h"):
            with self.subTest(name), mock.patch("builtins.open", self.other_content(name)):
                self.assertNotEqual(lint.tidy_digest([source]), before)

    @staticmethod
    def other_content(name):
        """open() of a tree in which that file has another content."""
        def other(path, *args, **kwargs):
            return real(os.devnull if path == os.path.join(REPO, name) else path, *args, **kwargs)
        real = open
        return other

    def test_a_clone_of_another_user(self):
        """git refuses it if it is not told that it is safe; its files are looked at."""
        other = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "GIT_CONFIG_GLOBAL": os.devnull,
                 "GIT_CONFIG_NOSYSTEM": "1"}
        with mock.patch.dict(os.environ, other):
            self.assertIn("buildlib/lint.py", lint.tracked(".py"))
            with mock.patch("builtins.print"):
                self.assertTrue(lint.report("finds", ["git", "grep", "-q", "SPDX", "--", "tests"]))


if __name__ == "__main__":
    unittest.main()
