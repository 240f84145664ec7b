# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Read a test program's output, and count its tests. Every suite has its own format.

If the output of a program names no test, this counts as one failure. If a program reports success
but exits with a failure, this counts as one failure, too.
"""
import json
import re
from dataclasses import dataclass, field


@dataclass
class Failure:
    """A failed test, its output, and how to repeat it."""
    name: str
    said: str = ""
    file: str = ""      # a file with all output of the program
    case: str = ""      # the test's name in its program, or ""
    paced: bool = False     # tagged [pace]: may be repeated once
    again: str = ""     # the command that runs it alone


@dataclass
class Count:
    """The numbers of passed, failed and skipped tests, the failures, and the reasons for skipping.
    """
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = field(default_factory=list)
    skips: list = field(default_factory=list)

    def __add__(self, other):
        return Count(self.passed + other.passed, self.failed + other.failed,
                     self.skipped + other.skipped, self.failures + other.failures,
                     self.skips + other.skips)

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def failure(name, said="", case="", paced=False):
    """One failed test."""
    return Count(failed=1, failures=[Failure(name, said, case=case, paced=paced)])


def unended(name, text):
    """The failure of a step that did not end, with the lab's messages about the guest.

    The messages are in the failure's name, because the end of a long output is cut off.
    """
    why = re.findall(r"^lab: (the .*)", text, re.MULTILINE)
    return failure("; ".join([f"{name}: did not end", *why]), text)


def lines(text):
    """The reporter of tests/support/main.cpp: ok NAME, not ok NAME, skip NAME: REASON.

    The lines before such a line belong to the test NAME. A line "pace NAME" says that the failed
    test has the tag [pace].
    """
    count, said = Count(), []
    for line in text.splitlines():
        if line.startswith("ok "):
            count.passed += 1
        elif line.startswith("not ok "):
            name = line[7:]
            paced = f"pace {name}" in said
            count += failure(name, "\n".join(said), case=name, paced=paced)
        elif line.startswith("skip "):
            count += Count(skipped=1, skips=[line[5:]])
        else:
            said.append(line)
            continue
        said = []
    return count


def unittest(text):
    """The output of Python's unittest with -v, in which blocks name the failed tests."""
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    closing = re.search(r"^(?:OK|FAILED)(?: \((.*)\))?$", text, re.MULTILINE)
    if not ran or not closing:
        return Count()
    kinds = {kind.strip(): int(number) for kind, number
             in re.findall(r"([a-z ]+)=(\d+)", closing.group(1) or "")}
    skipped = kinds.get("skipped", 0)
    failed = sum(kinds.get(kind, 0) for kind in ("failures", "errors", "unexpected successes"))
    before = re.split(r"^-{70}\nRan ", text, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.split(r"^={70}\n", before, flags=re.MULTILINE)[1:]
    found = [re.match(r"(?:FAIL|ERROR): (.*)\n((?s:.*))", block) for block in blocks]
    failures = [Failure(one.group(1), one.group(2), case=one.group(1)) for one in found if one]
    failures += [Failure(name, "succeeds, though it is expected to fail") for name
                 in re.findall(r"^UNEXPECTED SUCCESS: (.*)$", text, re.MULTILINE)]
    return Count(int(ran.group(1)) - skipped - failed, failed, skipped, failures)


def matrix(text):
    """The JSON of ibv_mr_notify. The steps of its scenario and the rows of its table are tests."""
    try:
        said, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError:
        return Count()
    count = Count()
    for one in said["scenario"]:
        count += Count(passed=1) if one["ok"] else failure(f"{one['step']} ({one['seen']})")
    for row in said["operations"]:
        if "skipped" in row:
            count += Count(skipped=1, skips=[f"{row['operation']}: {row['skipped']}"])
        elif row["ok"]:
            count += Count(passed=1)
        else:
            count += failure(f"{row['operation']}: {row['wrong']}", json.dumps(row),
                             case=row["operation"])
    return count


def status(_text):
    """A program that reports by its exit status only."""
    return Count(passed=1)


def judge(name, parse, text, exit_status, expected=0):
    """The count of one program's run."""
    count = parse(text)
    if exit_status != expected and not count.failed:
        if parse is status:
            count = Count()
        count += failure(f"exit status {exit_status}, expected {expected}", text)
    elif not count.passed and not count.failed and not count.skipped:
        count = failure("ran no test", text)
    for one in count.failures:
        one.name = f"{name}: {one.name}"
    return count


def shortened(text, most):
    """The first and last lines of a text, at most `most` lines, without empty lines."""
    kept = [line.rstrip() for line in text.splitlines() if line.strip(" -")]
    if len(kept) <= most:
        return kept
    head = most // 2
    return [*kept[:head], f"... {len(kept) - most} lines ...", *kept[len(kept) - most + head:]]
