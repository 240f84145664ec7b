# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Count headless clauses (clauses without a subject) in comments and pages.

Why: such a clause hides its subject (the callback, the worker, the last user), and a reader must
guess the subject or know the code. Upstream has 0.2 such clauses in 1,000 words.
"""
import os
import re

HEADLESS = re.compile(r"\b(?:who|whoever|what|whatever|nobody|somebody)\b", re.IGNORECASE)
MOST = 2        # headless clauses in 1,000 words of a folder

# Folders and files to which this rule does not apply yet. The check reports a superfluous entry.
NOT_YET = ()

STRING = r'"(?:\\.|[^"\\\n])*"'
C = re.compile(STRING + r"|(?P<text>/\*.*?\*/|//[^\n]*)", re.DOTALL)
PYTHON = re.compile(r'(?P<text>""".*?"""|#[^\n]*)|' + STRING + r"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
HASH = re.compile(r"(?:^|(?<=\s))(?P<text>#[^\n]*)", re.MULTILINE)
PAGE = re.compile(r"(?P<text>.+)", re.DOTALL)
KINDS = (((".c", ".h", ".cc", ".cpp"), C), ((".py", ".pyx", ".pxd", ".pxi"), PYTHON),
         ((".cmake", "CMakeLists.txt", ".sh", ".toml", ".config", ".mk"), HASH),
         ((".md", ".rst"), PAGE))


def kind(name, text):
    """The pattern that finds the comments of a file, or None if they are not checked."""
    for endings, pattern in KINDS:
        if name.endswith(endings):
            return pattern
    first = text.split("\n", 1)[0]
    if "." in os.path.basename(name) or not first.startswith("#!"):
        return None
    return PYTHON if "python" in first else HASH


def count(name, text):
    """The number of words in the comments of a file, and its lines with a headless clause."""
    pattern = kind(name, text)
    words, lines = 0, []
    for found in pattern.finditer(text) if pattern else ():
        comment = found["text"] or ""
        words += len(re.findall(r"[A-Za-z']+", comment))
        lines += [text.count("\n", 0, found.start("text") + word.start()) + 1
                  for word in HEADLESS.finditer(comment)]
    return words, lines


def group(name):
    """The folder that a file counts for, or the file itself if it is in NOT_YET."""
    return name if name in NOT_YET else "/".join(os.path.dirname(name).split("/")[:2])


def complaints(folder, names):
    """One line for each mistake in these files. The names are relative to `folder`."""
    words, places = {}, {}
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            text = file.read()
        number, lines = count(name, text)
        words[group(name)] = words.get(group(name), 0) + number
        places.setdefault(group(name), []).extend(
            f"{name}:{line}: {text.splitlines()[line - 1].strip()}" for line in lines)
    found = []
    for key, hits in places.items():
        much = len(hits) * 1000 > MOST * words[key]
        if much and key not in NOT_YET:
            found += [f"{key or '.'}: {len(hits)} headless clauses in {words[key]} words", *hits]
        if not much and key in NOT_YET:
            found.append(f"{key} is done: remove it from NOT_YET in buildlib/prose.py")
    return found + [f"{key} of NOT_YET in buildlib/prose.py does not exist"
                    for key in NOT_YET if key not in places]
