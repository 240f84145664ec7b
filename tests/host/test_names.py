#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Each `name()` in a comment, a page or a patch is a function or macro that exists.

Why: if a function gets another name, its comments keep the old name, and no other test notices.
"""
import os
import re
import subprocess
import sys
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "buildlib"))

import fetch  # noqa: E402
import kernel_modules  # noqa: E402
import overlay  # noqa: E402

SOURCES = (".c", ".h", ".cc", ".cpp")
PAGES = (".md", ".rst", ".patch")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
NAME = re.compile(r"\b([a-z_][a-z0-9_]{2,})\(\)")
# The folders where a function of the kernel may be defined.
KERNEL = ("arch", "block", "drivers/base", "drivers/infiniband", "drivers/nvme", "drivers/vhost",
          "fs", "include", "io_uring", "kernel", "lib", "mm", "net")
# Pages that name functions of other versions of the libraries.
OTHER_VERSIONS = "buildlib/consumers.d/"


def prose(path, text):
    """The comments of a source, or the text of a page or patch without examples."""
    if path.endswith(SOURCES):
        return "\n".join(COMMENT.findall(text))
    if path.endswith(".patch"):
        return re.sub("(?m)^Fixes: .*$", "", text.partition("\n---\n")[0])
    return re.sub(r"(?m)^(    |\t).*$", "", re.sub(r"(?s)```.*?```", "", text))


def names_of(files):
    """{name: the files that name it}, and all words of the code."""
    named, words = {}, set()
    for path in files:
        with open(os.path.join(REPO, path), encoding="utf-8") as lines:
            text = lines.read()
        if path.endswith((*SOURCES, *PAGES)):
            for name in NAME.findall(prose(path, text)):
                named.setdefault(name, []).append(path)
        if not path.endswith(PAGES):
            words.update(re.findall(r"\w+", COMMENT.sub(" ", text)))
    return named, words


def upstream_has(names):
    """The names that an upstream or a header of this machine has."""
    linux = overlay.hooked_tree("linux")
    later = overlay.hooked_tree("linux-7.3", part=kernel_modules.PART)
    folders = [os.path.join(linux, name) for name in KERNEL]
    done = subprocess.run(["grep", "-rhoFw", "-f", "-", "--include=*.[ch]", "--include=*.pyx",
                           *folders, os.path.join(later, "drivers/infiniband"),
                           *map(overlay.hooked_tree, fetch.versions("rdma-core")),
                           "/usr/include"],
                          input="\n".join(names), capture_output=True, text=True, check=False)
    return set(done.stdout.split())


class Names(unittest.TestCase):
    """All files of the repository."""

    def test_names_exist(self):
        files = subprocess.run(["git", "-C", REPO, "ls-files"], capture_output=True, text=True,
                               check=True).stdout.split()
        named, words = names_of(path for path in files if path.endswith((*SOURCES, *PAGES, ".py"))
                                and not path.startswith(OTHER_VERSIONS))
        self.assertIn("ib_umem_lost", named)
        lost = set(named) - words
        lost -= upstream_has(sorted(lost))
        self.assertEqual({name: named[name] for name in lost}, {})

    def test_prose(self):
        self.assertEqual(prose("a.c", "f(); /* g() */ h(); // i()\n"), "/* g() */\n// i()")
        self.assertEqual(prose("a.patch", "f()\nFixes: 1 (\"g()\")\n---\n+h();\n"), "f()\n")
        self.assertNotIn("g()", prose("a.md", "f()\n\n    g()\n```\ng()\n```\n"))


if __name__ == "__main__":
    unittest.main()
