#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Check the form of everything in the repository: one line a check, "ok NAME" or "not ok NAME".

Why: a rule that nobody runs is broken within a week. C++: clang-format and clang-tidy
(on what is installed). Python: flake8. Shell: shellcheck. Kernel C: checkpatch
--strict, in tests/host/test_series.py.
"""
import concurrent.futures
import os
import re
import subprocess
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The repository may be another user's.
SAFE = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": os.path.realpath(REPO)}


def tracked(*endings):
    """The files of the repository with such an ending, new ones that are not ignored included."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPO,
                            capture_output=True, text=True, check=True,
                            env={**os.environ, **SAFE}).stdout.split("\n")
    return [name for name in listed if name.endswith(endings) and
            os.path.isfile(os.path.join(REPO, name))]


def shell_scripts():
    """Files whose first line asks for sh."""
    found = []
    for name in tracked(""):
        try:
            with open(os.path.join(REPO, name), encoding="utf-8") as text:
                if text.readline().startswith("#!/bin/sh"):
                    found.append(name)
        except UnicodeDecodeError:
            pass
    return found


def python_files():
    """*.py, and files whose first line asks for Python."""
    found = tracked(".py")
    for name in tracked(""):
        if "." not in os.path.basename(name):
            with open(os.path.join(REPO, name), encoding="utf-8", errors="replace") as text:
                if "python3" in text.readline():
                    found.append(name)
    return found


def report(name, *commands):
    """Run the commands of one check, side by side; what those say that fail is printed."""
    def run(command):
        return subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, env={**os.environ, **SAFE})

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [done.stdout.rstrip() for done in pool.map(run, commands) if done.returncode]
    print(*bad, ("not ok " if bad else "ok ") + name, sep="\n", flush=True)
    return not bad


def write_unit(place, names):
    """Write a file that includes others; its path.

    By its name clang's analyzer knows to look at their functions as at those of a main file.
    """
    os.makedirs(place, exist_ok=True)
    unit = os.path.join(place, "UnifiedSource.cpp")
    with open(unit, "w", encoding="utf-8") as out:
        out.writelines(f'#include "{os.path.relpath(os.path.join(REPO, name), place)}" '
                       "// NOLINT(bugprone-suspicious-include)\n" for name in names)
    return unit


def declares_names(name):
    """Is there a using-declaration in the file, or another name for a namespace?"""
    with open(os.path.join(REPO, name), encoding="utf-8") as text:
        return bool(re.search(r"\busing\s+(?!namespace\b)|\bnamespace\s+\w+\s*=", text.read()))


def tidy_units():
    """Arguments of clang-tidy for each folder with C++ sources: what to check.

    Most of what it does is in the headers of the standard library, so it does it once for each
    folder. Names that are declared by "using" and not used it looks for in a main file only.
    """
    folders = {}
    for name in tracked(".cpp", ".cc"):
        if name.startswith(("libibverbs/", "tests/demo/")):
            folders.setdefault(os.path.dirname(name), []).append(name)
    for folder, names in folders.items():
        yield [write_unit(os.path.join(REPO, "build/lint", folder), names)]
        declaring = [name for name in names if declares_names(name)]
        if declaring:
            yield ["--checks=-*,misc-unused-*-decls", *declaring]


def main():
    """Run all the checks."""
    good = True
    # What is for others is in the style of theirs.
    good &= report("clang-format", ["clang-format", "--dry-run", "-Werror",
                                    *(name for name in tracked(".cpp", ".cc", ".hpp")
                                      if not name.startswith("buildlib/communication-libraries/")),
                                    *(name for name in tracked(".h")
                                      if name.startswith(("tests/", "libibverbs/examples/",
                                                         "libibverbs/mr_cache/")))])
    good &= report("clang-tidy", *(["clang-tidy", "--quiet", *arguments, "--", "-std=c++20",
                                    "-DFMT_HEADER_ONLY", "-isystem", "build/rdma-core/include",
                                    "-Ilibibverbs/examples/mr_notify"]
                                   for arguments in tidy_units()))
    good &= report("flake8", ["flake8", "--max-line-length", "100", *python_files()])
    good &= report("shellcheck", ["shellcheck", *shell_scripts()])
    # The other headers are of one release only: of Debian 12 or of 13.
    good &= report("Catch2 through tests/support/catch.h",
                   ["sh", "-c", "! git grep -n '<catch2/' -- tests ':!tests/support/catch.h' "
                    "':!tests/guest/main.cpp'"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
