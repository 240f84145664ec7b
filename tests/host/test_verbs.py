#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Each exported verb is in all places where a user or a packager looks for it.

Why: a verb that is missing in such a place still builds and runs. A failure names the file and the
line to add.
"""
import glob
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, *(os.path.join(HERE, "../../buildlib", part) for part in ("", "packaging"))]

import debs  # noqa: E402
import fetch  # noqa: E402
import test_abi  # noqa: E402

MAP = "libibverbs/libibverbs_mr_notify.map"
# {version of rdma-core: the list of nodes for its packages}
PACKAGED = {name: f"libibverbs/libibverbs_mr_notify{ending}.symbols"
            for name, ending in (("rdma-core", ""), ("rdma-core-65", ".65"))}
CACHE = "0006-pyverbs-include-mr-cache.patch"
# A row has three values: a place that must name each verb, the Python pattern of the name (@ is the
# verb), and the text of the failure.
PLACES = (
    ("libibverbs/mr_*.h",
     r"\n \* @ - \w(?:(?!\*/)(?:.|\n))*\n \* Returns (?:.|\n)*?\*/\n[^\n]*\b@\(",
     '@(): its declaration below a comment that begins with "@ - " and says what it "Returns"'),
    ("libibverbs/man/@.3.md", r"# NAME\n\n@ - (?:.|\n)*# SYNOPSIS\n(?:.|\n)*\b@\((?:.|\n)*"
     r"# RETURN VALUE\n(?:.|\n)*# NOTES\n(?:.|\n)*# SEE ALSO\n",
     "the page, with the sections of the others"),
    ("libibverbs/man/*.md", r"\*\*@\*\*\(3\)", "SEE ALSO of a page of another verb: **@**(3)"),
    ("pyverbs/*_verbs.pxi", r"\b@\(.*(?:\n .*)*nogil\n", "the declaration of @(), nogil"),
    ("pyverbs/*.pxi", r"\bv\.@\(", "a function that calls v.@(), in a block `with nogil:`. "
     "Methods of MR, Context and PD are mr_NAME(), context_NAME() and pd_NAME(), and in "
     "buildlib/hooks/0004 (MR) or 0006, by buildlib/hook.py"),
    ("tests/guest/*/*.cpp", r"\b@\(", "the contract of @(), on a kernel"),
    ("Documentation/changes.md", r"`@`", "`@` below its node, newest first"))

HOOKS = {"mr": "0004-pyverbs-include-mr-notify.patch", "context": CACHE, "pd": CACHE}


def read(path):
    """The text of a file of the repository, or of all files that match; "" if there is none."""
    text = ""
    for found in sorted(glob.glob(os.path.join(test_abi.REPO, path))):
        with open(found, encoding="utf-8") as part:
            text += part.read() + "\n"
    return text


def nodes():
    """{node: its symbols} of the map."""
    return {node: re.findall(r"\n\t\t(\w+);", names) for node, names in
            re.findall(r"(?m)^(MRNOTIFY_[\d.]+) \{\n\tglobal:((?:\n\t\t\w+;)+)\n\}", read(MAP))}


def type_of(verb):
    """The type of a function in a header, in the notation of RELEASED."""
    found = re.search(rf"(?m)^(?!static)(\w[\w ]*[ *]){verb}\(([^)]*)\);",
                      read("libibverbs/mr_*.h"))
    if not found:
        return "..."
    names = re.sub(r"\s+", " ", found.group(2)).split(", ")
    return f"{found.group(1)}(*)({', '.join(re.sub(r' ?[a-z_]+$', '', name) for name in names)})"


def missing():
    """The missing places of each node and each verb, one line per place."""
    for name, path in PACKAGED.items():
        revision = f"{fetch.read_pin(name)['version']}+mrnotify{debs.REVISION}~"
        packaged = re.findall(r"(?m)^ \(symver\)(\S+) \S+$", read(path))
        for node in nodes().keys() - set(packaged):
            yield f"{path}: a line \" (symver){node} {revision}\", as it is"
    for node, names in nodes().items():
        if node not in test_abi.RELEASED:
            types = ", ".join(f'"{name}": "{type_of(name)}"' for name in names)
            yield f'tests/host/test_abi.py, RELEASED: "{node}": ({{{types}}}, {{}}),'
        for verb in names:
            for path, pattern, told in PLACES:
                # A symbol with a leading _ is called only by headers.
                if verb[0] != "_" and not re.search(pattern.replace("@", verb),
                                                    read(path.replace("@", verb))):
                    yield f"{path}: {told}".replace("@", verb)
    hooks = read("buildlib/hooks/*-pyverbs-*.patch")
    for kind, name in re.findall(r"(?m)^def (mr|context|pd)_(\w+)\(", read("pyverbs/*.pxi")):
        if not re.search(rf"(?m)^\+ .*\b{kind}_{name}\b", hooks):
            hook = HOOKS[kind]
            yield (f"`buildlib/hook.py {hook}` prints a folder: in its b/, beside the neighbours, "
                   f"{name} = {kind}_{name}; then `buildlib/hook.py --write {hook}`")


class Verbs(unittest.TestCase):
    """The verbs of libibverbs_mr_notify.map."""

    def test_nothing_is_missing(self):
        self.assertIn("ibv_reg_mr_notify", nodes()["MRNOTIFY_1.0"])
        lines = [*missing()]
        if lines:
            self.fail("\n".join(["a verb lacks", *lines]))

    def test_change_log(self):
        """Each node has its section, newest first."""
        self.assertEqual(re.findall(r"(?m)^## (\S+) \(\d{4}-\d\d-\d\d\)$",
                                    read("Documentation/changes.md")), [*nodes()][::-1])

    def test_a_released_node_stays(self):
        for node, (types, _) in test_abi.RELEASED.items():
            self.assertEqual(set(nodes().get(node, ())), set(types), f"{node} of {MAP}")

    def test_type(self):
        """The types in RELEASED, which are written by hand, match the headers."""
        for node, (types, _) in test_abi.RELEASED.items():
            for name, known in types.items():
                if type_of(name) != "...":  # headers declare the newest version only
                    self.assertEqual(type_of(name), known)


if __name__ == "__main__":
    unittest.main()
