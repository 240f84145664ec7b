# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test lint.py and prose.py. clang-tidy finds the same faults in included files and in main files.

Why: lint.py would also print "ok" if it ran only half of the checks on a source, or if it left a
file out without a reason.
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
import prose  # noqa: E402

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
            source = os.path.join(folder, "tests", "defects.cpp")  # for HeaderFilterRegex
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
        """One folder with one source. The content of the source stands for its digest."""
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
        """An open() that returns another content for this file."""
        def other(path, *args, **kwargs):
            return real(os.devnull if path == os.path.join(REPO, name) else path, *args, **kwargs)
        real = open
        return other

    def test_a_clone_of_another_user(self):
        """If git refuses a clone because it belongs to another user, its files are still checked.
        """
        other = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "GIT_CONFIG_GLOBAL": os.devnull,
                 "GIT_CONFIG_NOSYSTEM": "1"}
        with mock.patch.dict(os.environ, other):
            self.assertIn("buildlib/lint.py", lint.tracked(".py"))
            with mock.patch("builtins.print"):
                self.assertTrue(lint.report("finds", ["git", "grep", "-q", "SPDX", "--", "tests"]))


class Prose(unittest.TestCase):
    """Files with headless clauses, which prose.py finds."""

    @staticmethod
    def complaints(*names, not_yet=(), text="{} is idle", word="what"):
        """Write files that contain the text, and return the mistakes that lint finds in them. The
        word replaces {} in the text.
        """
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(prose, "NOT_YET", not_yet):
            for name in names:
                os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
                with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                    out.write(text.format(word))
            return prose.complaints(folder, names)

    def test_a_headless_clause_is_found(self):
        for name, text in (("a.c", "int b;\n/*\n * {} c\n */"), ("a.h", "\n\nint b; // {} c\n"),
                           ("a.cpp", 'f("//");\n\n/* {} c */'), ("a.py", "import b\n\n# {} c"),
                           ("a.pxi", 'def b():\n    """\n    {} c"""'), ("a.cmake", "#\n\n# {} c"),
                           ("a", "#!/bin/sh\nb\nb   # {} c"), ("a.md", "# b\n\n{} c"),
                           ("b", "#!/usr/bin/python3\nb = 1\nb = '#' # {} c")):
            with self.subTest(text):
                found, place = self.complaints(name, text=text)
                self.assertRegex(found, r"^\.: 1 headless clauses in \d+ words$")
                self.assertTrue(place.startswith(f"{name}:3: "), place)

    def test_each_word(self):
        for word in ("what", "What", "who", "Whoever", "whatever", "nobody", "SOMEBODY"):
            self.assertEqual(len(self.complaints("a.md", word=word)), 2, word)
        for word in ("whole", "whose", "somewhat", "anybody"):
            self.assertEqual(self.complaints("a.md", word=word), [], word)

    def test_code_and_strings_are_not_comments(self):
        for name, text in (("a.c", 'int {}; f("/* {}", \'"\'); /* b */'),
                           ("a", "#!/bin/sh\nb#{} $#"), ("a.py", "{} = '# {}', \"# {}\"\n# b"),
                           ("a.patch", "# {}"), ("b", "#!/usr/bin/python3\nb = ' # {}'")):
            with self.subTest(text):
                self.assertEqual(self.complaints(name, text=text.replace("{}", "what")), [])

    def test_a_folder_may_have_two_in_a_thousand_words(self):
        text = "{0} {0} " + "b " * 998
        self.assertEqual(self.complaints("a/b/c/d.md", text=text), [])
        self.assertEqual(self.complaints("a/b/c/d.md", text=text[:-2])[0],
                         "a/b: 2 headless clauses in 999 words")

    def test_the_list_of_the_others_shrinks(self):
        names = ("a/b.md", "a/c.md", "a/d/e.md")
        self.assertEqual([one.partition(":")[0] for one in
                          self.complaints(*names, not_yet=("a/b.md", "a/d"))], ["a", "a/c.md"])
        self.assertEqual(self.complaints(*names, not_yet=("a", "a/d", "f")),
                         ["f of NOT_YET in buildlib/prose.py does not exist"])
        self.assertEqual(self.complaints("a/b.md", not_yet=("a",), text="b"),
                         ["a is done: remove it from NOT_YET in buildlib/prose.py"])

    def test_lint_says_so(self):
        for found, expected in ((["a: 1"], "a: 1\nnot ok subjects of comments"),
                                ([], "ok subjects of comments")):
            with mock.patch.object(prose, "complaints", return_value=found), \
                    mock.patch("builtins.print") as printed:
                self.assertEqual(lint.check_prose(), not found)
            self.assertEqual("\n".join(printed.call_args.args), expected)


if __name__ == "__main__":
    unittest.main()
