#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""tests/mutations.md names files, functions and cases that are there.

Why: a row whose case has another name by now can't be repeated, and nothing else reads the page.
"""
import functools
import glob
import os
import re
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOP = ("Documentation", "buildlib", "kernel-patches", "libibverbs", "providers", "pyverbs", "tests")
PAGE = "tests/mutations.md"
IN = r"`(\S+)`(?:: (\w+\(\)(?:, \w+\(\))*))?"
CASES = r'([\w-]+)(?: siw0)?: ("[^"]+"(?:, "[^"]+")*)'
NO_CASE = re.compile("nothing|not tried|the compiler|the package build")
NO_NAME = re.compile("the time limit of|a crash of|a hang of|data races in")
CATCH = r'TEST_CASE(?:_METHOD\(\w+,|\()\s*((?:"[^"]*"\s*)+)'
METHOD = r"def (test_\w+)"
# Not of Catch2, and not test_NAME: their sources, and the names of the cases there.
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
# Of these a part of the name, which they put together.
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
    """{name: paths} of the files and folders: a name may lack the folders before it, and of a patch
    all behind its number."""
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
    """The names of a program's cases; of one that is not there, none."""
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
    """Whether a case begins so."""
    if program in SCRIPTS:
        return case in read(SCRIPTS[program])
    return any(name.startswith(case) for name in cases(program))


def complaints(row):
    """The names in a row of the page that are not there."""
    cells = row.strip("|").split(" | ")
    if len(cells) != 3:
        return ["not three columns"]
    wrong = []
    for place in cells[1].split("; "):
        found = re.fullmatch(IN, place.strip())
        paths = named().get(found.group(1), []) if found else []
        if len(paths) != 1:
            wrong.append(f"{place}: {paths}")
            continue
        wrong += [f"{function}() in {paths[0]}"
                  for function in re.findall(r"\w+", found.group(2) or "")
                  if not re.search(rf"\b{function}\b", read(paths[0]))]
    found_by = re.sub(r" \([^()]*\)", "", cells[2].strip())
    if NO_CASE.match(found_by):
        return wrong
    for part in found_by.split("; "):
        found = re.fullmatch(CASES, part)
        if NO_NAME.match(part):
            continue
        if not found:
            wrong.append(f"no case: {part}")
            continue
        wrong += [f'{found.group(1)}: "{case}"' for case in re.findall('"([^"]+)"', found.group(2))
                  if not has(found.group(1), case)]
    return wrong


class Mutations(unittest.TestCase):
    """The page, and the check itself."""

    def test_rows(self):
        rows = [line for line in read(PAGE).splitlines()
                if line.startswith("| ") and not line.startswith("| mistake |")]
        self.assertGreater(len(rows), 300)
        for row in rows:
            with self.subTest(row[:60]):
                self.assertEqual(complaints(row), [])

    def test_a_wrong_name_is_seen(self):
        good = '| a mistake | `cache.h`: find() | race: "race: the word", "race: arm" (each) |'
        self.assertEqual(complaints(good), [])
        for here, wrong in (("cache.h", "cach.h"), ("cache.h", "README.md"), ("find()", "fynd()"),
                            ("race: ", "rays: "), ('"race: arm', '"arm'), ('"race: arm"', "arm"),
                            (" | race", " or race")):
            with self.subTest(wrong):
                self.assertNotEqual(complaints(good.replace(here, wrong)), [])


if __name__ == "__main__":
    unittest.main()
