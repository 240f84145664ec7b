#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""No two C or C++ files use one another, directly or through other files.

Why: files that use one another can only be read, changed and sent upstream together.

A file uses another file if it includes the other file's header, or if it names a function or
variable of the other file. A header next to the other file must declare this name. A header and the
source that defines its functions count as one file. If several sources define the functions, the
header counts as a file of its own. Then its inline functions and macros count as code of its users.
A function of libibverbs that the cache's core calls does not count, because the core itself
declares it.
"""
import graphlib
import os
import re
import subprocess
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CORE = "kernel-patches/notify/drivers/infiniband/core/"

LITERAL = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
DIRECTIVE = re.compile(r"(?m)^#(?:.*\\\n)*.*|^template\b.*")
HIDDEN = re.compile(r"(?ms)^namespace \{\n.*?^\} // namespace$")
# clang-format begins the definitions of a namespace in the first column.
TYPE = r"(?:[\w:<>,*&]+\s+[*&]*)+?"
SHAPED = r"|(?:struct|union|class|enum)\b[^(=]*[{;])"
DEFINED = re.compile(r"(?m)^(?!(?:static|extern|typedef|using|return|namespace)\b" + SHAPED +
                     TYPE + r"([a-z_]\w*)(?:\([^;{}]*\)[^;{}()]*\{|(?:\[\w*\])?\s*[=;{])")
DECLARED = re.compile(r"(?m)^(?!(?:static|typedef|using|return)\b" + SHAPED +
                      TYPE + r"([a-z_]\w*)(?:\([^;{}]*\)[^;{}()]*|(?:\[\w*\])?);")
INLINE = re.compile(r"(?ms)^(?:static )?(?:inline|__always_inline)\s[^;{}]*?(\w+)\([^;{}]*\)"
                    r"[^;{}()]*(\{.*?^\})")
MACRO = re.compile(r"(?m)^#\s*define\s+(\w+)((?:.*\\\n)*.*)")


def words_of(code):
    """The names in code except members of objects."""
    return set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", code.replace("->", ".")))


class File:
    """A source or a header."""

    def __init__(self, path, text):
        self.path, self.folder = path, os.path.dirname(path)
        self.is_header = path.endswith(".h")
        self.included = re.findall(r'(?m)^#\s*include\s*["<]([^">]+)[">]', text)
        code = LITERAL.sub(" ", text)
        self.words = words_of(code)
        shared = DIRECTIVE.sub("", LITERAL.sub(" ", HIDDEN.sub("", text)))
        self.names = set((DECLARED if self.is_header else DEFINED).findall(shared))
        self.inline = {name: words_of(body) for kind in (INLINE, MACRO)
                       for name, body in kind.findall(code)} if self.is_header else {}


class Graph:
    """Which file uses which."""

    def __init__(self, files):
        self.files = files
        self.included = {path: list(self.find_included(one)) for path, one in self.files.items()}
        self.sources = {one.path: self.sources_of(one) for one in self.files.values()
                        if one.is_header}
        self.uses = {}
        for path in self.files:
            uses = self.uses.setdefault(self.node(path), set())
            uses.update({self.node(one) for one in self.used_by(path)} - {self.node(path)})

    def find_included(self, one):
        """The files that a file includes."""
        for name in one.included:
            beside = os.path.normpath(os.path.join(one.folder, name))
            if beside in self.files:
                yield beside
            else:
                installed = "libibverbs/" + name.removeprefix("infiniband/")
                yield from (path for path in self.files if path.endswith("/" + name)
                            or path == installed)

    def sources_of(self, header):
        """The sources that define the names of a header: in its folder, or in the folder above."""
        folders = header.folder, os.path.dirname(header.folder)
        found = {one.path for one in self.files.values() if not one.is_header
                 and one.folder in folders and one.names & header.names}
        same = {header.path[:-2] + ending for ending in (".c", ".cc", ".cpp")}
        return found or same & self.files.keys()

    def node(self, path):
        """The source that belongs to a header, or the file itself if there is no such source."""
        sources = self.sources.get(path, ())
        return next(iter(sources)) if len(sources) == 1 else path

    def headers_for(self, path):
        """The headers that declare names to a file. In C all headers of its folder count: the file
        may include them through a header of upstream, and their names are unique.
        """
        seen, todo = set(), [path]
        if path.endswith(".c"):
            todo += (one for one in self.sources if self.files[one].folder ==
                     self.files[path].folder)
        while todo:
            seen.add(one := todo.pop())
            todo += set(self.included[one]) - seen
        return seen & self.sources.keys()

    def words_with_inline(self, path, headers):
        """The names in a file. If several sources define the functions of a header, the result
        includes the names in the header's inline functions that the file uses.
        """
        words = set(self.files[path].words)
        inline = [self.files[one].inline for one in headers if len(self.sources[one]) > 1]
        todo = list(words)
        while todo:
            name = todo.pop()
            new = set().union(*(one.get(name, ()) for one in inline)) - words
            words |= new
            todo += new
        return words

    def used_by(self, path):
        """The files that a file uses."""
        yield from self.included[path]
        if len(self.sources.get(path, ())) > 1:
            return
        headers = self.headers_for(path)
        words = self.words_with_inline(path, headers) - self.files[path].names
        for header in map(self.files.get, headers):
            for source in map(self.files.get, self.sources[header.path]):
                if source.folder == header.folder and source.names & header.names & words:
                    yield source.path

    def cycle(self):
        """The files of a cycle, or None."""
        try:
            graphlib.TopologicalSorter(self.uses).prepare()
        except graphlib.CycleError as found:
            return found.args[1]
        return None


class Repository(unittest.TestCase):
    """All files that are ours."""

    @classmethod
    def setUpClass(cls):
        listed = subprocess.run(["git", "-C", REPO, "ls-files", "-co", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout.split()
        cls.texts = {}
        for path in listed:
            if path.endswith((".c", ".cc", ".cpp", ".h")):
                with open(os.path.join(REPO, path), encoding="utf-8") as text:
                    cls.texts[path] = text.read()
        cls.files = {path: File(path, text) for path, text in cls.texts.items()}
        cls.graph = Graph(cls.files)

    def test_no_cycle(self):
        self.assertIsNone(self.graph.cycle())

    def test_order_of_the_core(self):
        """umem_notify.h lists the files of the core; a file uses only files listed before it."""
        listed = re.findall(r"(?m)^ \*  (\w+\.c) ", self.texts[CORE + "umem_notify.h"])
        sources = {os.path.basename(path) for path in self.texts
                   if path.startswith(CORE) and path.endswith(".c")}
        self.assertEqual(set(listed) | {"umem_notify_trace.c"}, sources)
        for at, name in enumerate(listed):
            used = {os.path.basename(one) for one in self.graph.uses[CORE + name]}
            self.assertEqual(used & set(listed[at:]), set(), name)

    def test_made_cycles(self):
        """A cycle is found if a use of a function, a variable or a header closes it."""
        word = CORE + "umem_notify_word.c"
        for lines in ({word: "void f(void) { umem_notify_retire(NULL); }"},
                      {word: "void *v = &variable;", CORE + "umem_notify.h": "extern int variable;",
                       CORE + "umem_notify_retire.c": "int variable;"},
                      {"libibverbs/mr_cache/word.h": '#include "locked.h"'},
                      {"libibverbs/mr_view.c": "void f(void) { ibv_forget_mr(NULL); }"},
                      {"libibverbs/examples/mr_notify/rows.cpp": '#include "operations.h"'},
                      {"tests/support/frame.cpp": '#include "lossy_wire.h"'}):
            with self.subTest(lines=lines):
                made = {path: File(path, self.texts[path] + "\n" + line + "\n")
                        for path, line in lines.items()}
                graph = Graph({**self.files, **made})
                self.assertIn(graph.node(next(iter(lines))), graph.cycle() or ())


if __name__ == "__main__":
    unittest.main()
