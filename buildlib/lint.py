#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Check the style of all files. Each check prints a line: "ok NAME" or "not ok NAME".

Why: an unchecked rule is broken within a week. clang-format and clang-tidy (with the installed
headers) check C++, flake8 checks Python, shellcheck checks shell, and prose.py checks comments and
pages. tests/host/test_series.py runs checkpatch --strict on kernel C.

clang-tidy takes minutes. With --changed, it skips each folder that has already passed with the same
content, headers, settings and version. The user's cache keeps digests of these folders, so other
clones skip these folders, too.
"""
import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys

import prose

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# git refuses the repository of another user without this setting.
SAFE = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": os.path.realpath(REPO)}


def tracked(*endings):
    """The files with these endings: tracked files, and new files that git does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPO,
                            capture_output=True, text=True, check=True,
                            env={**os.environ, **SAFE}).stdout.split("\n")
    return [name for name in listed if name.endswith(endings) and
            os.path.isfile(os.path.join(REPO, name))]


def shell_scripts():
    """Files whose first line names sh."""
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
    """*.py, and files whose first line names Python."""
    found = tracked(".py")
    for name in tracked(""):
        if "." not in os.path.basename(name):
            with open(os.path.join(REPO, name), encoding="utf-8", errors="replace") as text:
                if "python3" in text.readline():
                    found.append(name)
    return found


def report(name, *commands):
    """Run the commands of one check in parallel. Print the output of each failed command."""
    def run(command):
        return subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, env={**os.environ, **SAFE})

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [done.stdout.rstrip() for done in pool.map(run, commands) if done.returncode]
    print(*bad, ("not ok " if bad else "ok ") + name, sep="\n", flush=True)
    return not bad


def write_unit(place, names):
    """Write a file that includes the named files; return its path.

    The name UnifiedSource.cpp makes clang's analyzer treat all included functions as functions of a
    main file.
    """
    os.makedirs(place, exist_ok=True)
    unit = os.path.join(place, "UnifiedSource.cpp")
    with open(unit, "w", encoding="utf-8") as out:
        out.writelines(f'#include "{os.path.relpath(os.path.join(REPO, name), place)}" '
                       "// NOLINT(bugprone-suspicious-include)\n" for name in names)
    return unit


def declares_names(name):
    """Does the file have a using-declaration or a namespace alias?"""
    with open(os.path.join(REPO, name), encoding="utf-8") as text:
        return bool(re.search(r"\busing\s+(?!namespace\b)|\bnamespace\s+\w+\s*=", text.read()))


def tidy_units():
    """Arguments of clang-tidy for each folder with C++ sources.

    clang-tidy spends most of its time on the headers of the standard library, so one run checks all
    sources of a folder. clang-tidy finds unused names of "using" only in a main file. So another
    run checks the files with such names.
    """
    folders = {}
    for name in tracked(".cpp", ".cc"):
        if name.startswith(("libibverbs/", "tests/demo/")):
            folders.setdefault(os.path.dirname(name), []).append(name)
    for folder, names in folders.items():
        units = [[write_unit(os.path.join(REPO, "build/lint", folder), names)]]
        declaring = [name for name in names if declares_names(name)]
        if declaring:
            units.append(["--checks=-*,misc-unused-*-decls", *declaring])
        yield names, units


def passed_before(digest):
    """The file that exists if a folder with this digest has passed."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "rdma-core-lint", digest)


def tidy_digest(sources):
    """A digest of all inputs of clang-tidy for these sources."""
    version = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE, check=True).stdout
    digest = hashlib.sha256(version)
    upstream = [name for name in tracked("") if name.startswith(("buildlib/hooks/",
                                                                 "buildlib/upstream/rdma-core"))]
    for name in sorted({".clang-tidy", "buildlib/lint.py", *upstream, *tracked(".h"), *sources}):
        with open(os.path.join(REPO, name), "rb") as content:
            digest.update(f"{name}\0".encode() + hashlib.sha256(content.read()).digest())
    return digest.hexdigest()


def check_tidy(changed):
    """Run clang-tidy on each folder. If `changed` is set, skip folders that have passed."""
    folders = [(units, passed_before(tidy_digest(names))) for names, units in tidy_units()]
    todo = [one for one in folders if not (changed and os.path.exists(one[1]))]
    good = report("clang-tidy", *(["clang-tidy", "--quiet", *arguments, "--", "-std=c++20",
                                   "-DFMT_HEADER_ONLY", "-isystem", "build/rdma-core/include",
                                   "-Ilibibverbs/examples/mr_notify"]
                                  for units, _ in todo for arguments in units))
    if good:
        for _, stamp in todo:
            os.makedirs(os.path.dirname(stamp), exist_ok=True)
            with open(stamp, "w", encoding="utf-8"):
                pass
    return good


def check_prose():
    """Check that the sentences of comments and pages name their subjects."""
    found = prose.complaints(REPO, tracked(""))
    print(*found, ("not ok " if found else "ok ") + "subjects of comments", sep="\n", flush=True)
    return not found


def main():
    """Run all the checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--changed", action="store_true",
                        help="skip folders that clang-tidy has passed with the same content")
    changed = parser.parse_args().changed
    good = True
    # Files for other projects have the style of these projects.
    good &= report("clang-format", ["clang-format", "--dry-run", "-Werror",
                                    *(name for name in tracked(".cpp", ".cc")
                                      if not name.startswith("buildlib/consumers.d/")),
                                    *(name for name in tracked(".h")
                                      if name.startswith(("tests/", "libibverbs/examples/",
                                                         "libibverbs/mr_cache/")))])
    good &= report("flake8", ["flake8", "--max-line-length", "100", *python_files()])
    good &= report("shellcheck", ["shellcheck", *shell_scripts()])
    good &= check_prose()
    # Tests include Catch2 by catch.h, because its headers differ between Debian 12 and 13.
    good &= report("Catch2 through tests/support/catch.h",
                   ["sh", "-c", "! git grep -n '<catch2/' -- tests ':!tests/support/catch.h' "
                    "':!tests/support/main.cpp'"])
    good &= check_tidy(changed)  # takes minutes
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
