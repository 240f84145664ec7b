#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""tests/mutations.toml and the READMEs of the patches name programs and cases that exist.

Why: a row that has the old name of a case is useless. No other test reads these files.
"""
import functools
import glob
import os
import re
import subprocess
import sys
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOP = ("Documentation", "buildlib", "kernel-patches", "libibverbs", "providers", "pyverbs", "tests")
TABLE = "tests/mutations.toml"
sys.path.insert(0, os.path.join(REPO, "tests"))
import mutations  # noqa: E402

CATCH = r'TEST_CASE(?:_METHOD\(\w+,|\()\s*((?:"[^"]*"\s*)+)'
METHOD = r"def (test_\w+)"
# For programs other than Catch2's and test_NAME: their sources, and the names of their cases.
OTHERS = {
    "matrix": ("libibverbs/examples/mr_notify/operations_*.cpp",
               r'\b(?:invalidates|harmless|add)\(\s*"([^"]+)"'),
    "mr_cache_test": ("libibverbs/tests/mr_cache_test.c", r"(?m)^static void (test_\w+)"),
    "mr_notify_test": ("libibverbs/tests/mr_notify_test.c", r"(?m)^static void (test_\w+)"),
    "rxe_wr_test": ("providers/rxe/tests/rxe_wr_test.c", r"(?m)^static void (test_\w+)"),
    "test_rcache_notify": ("buildlib/consumers.d/ucx/test/gtest/ucs/test_rcache_notify.cc",
                           r"UCS_TEST_F\(\w+, (\w+)[,)]"),
    "fi_mr_notify_test": ("buildlib/consumers.d/libfabric/fabtests/unit/mr_notify_test.c",
                          r"TEST_ENTRY\w*\((\w+)"),
    "tools": ("tests/guest/tools", r'(?m)^\s*ends "([^"]+)"'),
}
# Programs that compose the names of their results, so a row's case is only a part of a name.
SCRIPTS = {name: f"tests/{path}" for name, path in {
    "compare": "mpi/compare.py", "examples": "mpi/examples.py",
    "grdma_threads": "consumers/openmpi/grdma_threads.c", "hits": "consumers/hits.cpp",
    "hits_tsan": "consumers/hits.cpp", "notify_ops": "consumers/notify_ops.cpp",
    "fabtests": "consumers/fabtests.py",
    "probing": "consumers/probing.py", "programs": "installed/programs.py",
    "real_programs": "consumers/real_programs.py",
    "ucx_perftest": "consumers/ucx_perftest.py"}.items()}


@functools.cache
def read(path):
    """A file of the repository."""
    with open(os.path.join(REPO, path), encoding="utf-8") as text:
        return text.read()


@functools.cache
def named():
    """{name: paths} of the files and folders. A name may lack the folders before it; the name of a
    patch may end after its number."""
    found = {}
    for top in TOP:
        for folder, folders, names in os.walk(os.path.join(REPO, top)):
            for name in folders + names:
                parts = os.path.relpath(os.path.join(folder, name), REPO).split("/")
                for start in range(len(parts)):
                    short = "/".join(parts[start:])
                    for one in {short, re.sub(r"/(\d{4})-[^/]*\.patch$", r"/\1", short)}:
                        found.setdefault(one, []).append("/".join(parts))
    return found


@functools.cache
def catch_programs():
    """{program: its sources} of the programs.cmake files."""
    guest, unit = read("tests/guest/programs.cmake"), read("tests/unit/programs.cmake")
    found = {name: [f"tests/guest/{folder}/{name}_test.cpp"]
             for folder, names in re.findall(r"add_guest_tests\((\w+) \w+ ([^)]+)\)", guest)
             for name in names.split()}
    for name, sources in re.findall(r"add_executable\(guest_(\w+)\s([^)]+)\)", guest):
        found[name] = [f"tests/{source}" for source in sources.split()]
    for name, sources in re.findall(r'add_unit\((\w+) "?([\w.;]+)', unit):
        found[f"unit-{name}"] = [f"tests/unit/{source}" for source in sources.split(";")]
    return found


@functools.cache
def cases(program):
    """The names of a program's cases; none if the program is missing."""
    pattern = CATCH
    paths = catch_programs().get(program, [])
    if program in OTHERS:
        where, pattern = OTHERS[program]
        paths = glob.glob(where, root_dir=REPO)
    elif program.startswith("test_"):
        pattern = METHOD
        paths = glob.glob(f"tests/**/{program}.py", root_dir=REPO, recursive=True)
    found = [name for path in paths for name in re.findall(pattern, read(path))]
    if pattern is CATCH:
        found = ["".join(re.findall('"([^"]*)"', name)) for name in found]
    return found


def has(program, case):
    """Does the name of a case begin with this text?"""
    if program in SCRIPTS:
        return case in read(SCRIPTS[program])
    return any(name.startswith(case) for name in cases(program))


def has_kernel(part):
    """Is the kernel that a topic or row names a kernel of the lab? True if it names no kernel."""
    return "kernel" not in part or f"machines/{part['kernel']}.toml" in named()


def complaints(row):
    """The names in a row that do not exist, and the fields that the row lacks."""
    wrong = [f"unknown: {key}" for key in row
             if key not in ("mistake", "function", "case", "kernel", "tried", "note")]
    if not row["mistake"] or not row["function"]:
        wrong.append("no mistake, or no file")
    for name, functions in row["function"].items():
        paths = named().get(name, [])
        if len(paths) != 1:
            wrong.append(f"{name}: {paths}")
            continue
        wrong += [f"{function}() in {paths[0]}" for function in functions
                  if not re.search(rf"\b{re.escape(function)}\b", read(paths[0]))]
    for name, of_it in row["case"].items():
        program = name.removesuffix(" siw0")
        if program not in SCRIPTS and not cases(program):
            wrong.append(f"no program: {program}")
        wrong += [f"{program}: {case!r}" for case in of_it if not has(program, case)]
    if not has_kernel(row):
        wrong.append(f"no kernel: {row['kernel']}")
    if row["case"] and not row.get("tried", True):
        wrong.append("a case of a mistake that was not tried")
    if not row["case"] and row.get("tried", True) and not row.get("note"):
        wrong.append("neither a case nor a reason")
    return wrong


class Mutations(unittest.TestCase):
    """The table, the check itself, and the printed rows."""

    def test_rows(self):
        topics = mutations.topics(read(TABLE))
        self.assertGreater(sum(len(topic["row"]) for topic in topics), 300)
        for topic in topics:
            self.assertTrue(has_kernel(topic), topic["title"])
            for row in topic["row"]:
                with self.subTest(row["mistake"][0]):
                    self.assertEqual(complaints(row), [])

    def test_readmes(self):
        found = 0
        for path in glob.glob("kernel-patches/*/README.md", root_dir=REPO):
            program = ""
            for other, case in re.findall(r'`(?:(\w+) )?"([^"]+)"', read(path)):
                program = other or program
                found += 1
                with self.subTest(f"{path}: {program} {case}"):
                    self.assertTrue([name for name in cases(program) if case in name])
        self.assertGreater(found, 50)

    def test_a_wrong_name_is_seen(self):
        good = """
[[topic]]
[[topic.row]]
mistake = "A mistake."
function."cache.h" = "find"
case.race = ["race: the word", "race: arm"]
kernel = "debian"
[[topic.row]]
mistake = ["One.", "Another."]
function."fixes/0410" = []
case.odp = []
[[topic.row]]
mistake = "A third."
function."locked.h" = ["locked", "shrink"]
note = "A reason."
"""

        def wrong(text):
            return [one for row in mutations.topics(text)[0]["row"] for one in complaints(row)]
        self.assertEqual(wrong(good), [])
        for here, other in (("cache.h", "cach.h"), ("cache.h", "README.md"), ('"find"', '"fynd"'),
                            ("case.race", "case.rays"), ('"race: arm', '"arm'),
                            ("debian", "debien"),
                            ("fixes/0410", "fixes/0411"), ("case.odp", "case.opd"),
                            ('"shrink"', '"shrunk"'), ("note =", "tried = true #"),
                            ("kernel =", "kernels ="), ("kernel =", "tried = false #")):
            with self.subTest(other):
                self.assertIn(here, good)
                self.assertNotEqual(wrong(good.replace(here, other, 1)), [])

    def test_printed(self):
        def rows(*words):
            program = os.path.join(REPO, "tests/mutations.py")
            done = subprocess.run([sys.executable, program, *words],
                                  capture_output=True, text=True, check=True)
            return [line for line in done.stdout.splitlines()
                    if line.startswith("| ") and not line.startswith("| mistake |")]
        table = mutations.topics(read(TABLE))
        self.assertEqual(len(rows()), sum(len(topic["row"]) for topic in table))
        for word in ("umem_notify_word.c", "fixes/0410", "event_changes", "odp_oracle"):
            found = rows(word)
            self.assertTrue(found)
            self.assertEqual([line for line in found if word not in line], [])
            self.assertEqual(len(found), sum(word in line for line in rows()))


if __name__ == "__main__":
    unittest.main()
