#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Print tests/mutations.toml, the mistakes that the tests catch, as tables of Markdown.

WORD is a part of the name of a file, function or program, and selects its rows, for example
umem_notify.c, fixes/0410 or reclaim.
"""
import argparse
import os
import tomllib

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mutations.toml")


def names(value):
    """A list from a name or from a list."""
    return [value] if isinstance(value, str) else value


def topics(text):
    """The topics of the file's text; single names become lists."""
    found = tomllib.loads(text)["topic"]
    for topic in found:
        for row in topic["row"]:
            row["mistake"] = names(row["mistake"])
            for key in "function", "case":
                row[key] = {name: names(value) for name, value in row.get(key, {}).items()}
    return found


def has(row, words):
    """Does the row have a name that contains one of the words?"""
    of_row = [*row["function"], *sum(row["function"].values(), []), *row["case"]]
    return any(word in name for word in words for name in of_row)


def quoted(cases):
    """The names of cases, quoted for a shell."""
    return [f'"{case}"' for case in cases]


def line(row):
    """A row of the table."""
    where = []
    for name, functions in row["function"].items():
        called = ", ".join(f"{function}()" for function in functions)
        where.append(f"`{name}`: {called}" if called else f"`{name}`")
    found_by = "; ".join(f"{program}: {', '.join(quoted(cases)) or 'all of it'}"
                         for program, cases in row["case"].items())
    if not row["case"]:
        found_by = "nothing" if row.get("tried", True) else "not tried"
    if "kernel" in row:
        found_by += f" (`{row['kernel']}`)"
    cells = " / ".join(row["mistake"]), "; ".join(where), found_by, row.get("note", "")
    return f"| {' | '.join(cells)} |"


def main():
    """Print the topics that have rows with one of the words."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("word", nargs="*", metavar="WORD",
                        help="a part of the name of a file, function or program")
    words = parser.parse_args().word
    with open(TABLE, encoding="utf-8") as text:
        found = topics(text.read())
    for topic in found:
        rows = [row for row in topic["row"] if not words or has(row, words)]
        if rows:
            said = [f"On `{topic['kernel']}`."] if "kernel" in topic else []
            said += [topic["note"]] if "note" in topic else []
            print(f"## {topic['title']}", "", " ".join(said), "",
                  "| mistake | code | found by | note |", "|---|---|---|---|",
                  *map(line, rows), "", sep="\n")


if __name__ == "__main__":
    main()
