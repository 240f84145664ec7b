# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Read what a test program printed, and count: every suite says it in a way of its own.

A program whose output says of no test at all, or says that all is well and exits with a failure,
counts as one failure: silence is not success.
"""
import json
import re
from dataclasses import dataclass, field


@dataclass
class Count:
    """Tests passed, failed, skipped; the names of the failed ones, the reasons of the skipped."""
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


def failure(name):
    """One failed test."""
    return Count(failed=1, failures=[name])


def lines(text):
    """The reporter of tests/guest/main.cpp: ok NAME, not ok NAME, skip NAME: REASON."""
    count = Count()
    for line in text.splitlines():
        if line.startswith("ok "):
            count.passed += 1
        elif line.startswith("not ok "):
            count += failure(line[7:])
        elif line.startswith("skip "):
            count += Count(skipped=1, skips=[line[5:]])
    return count


def unittest(text):
    """Python's unittest, run with -v."""
    ran = re.search(r"^Ran (\d+) tests? in", text, re.MULTILINE)
    closing = re.search(r"^(?:OK|FAILED)(?: \((.*)\))?$", text, re.MULTILINE)
    if not ran or not closing:
        return Count()
    kinds = {kind: int(number) for kind, number
             in re.findall(r"([a-z ]+)=(\d+)", closing.group(1) or "")}
    kinds = {kind.strip(): number for kind, number in kinds.items()}
    skipped = kinds.get("skipped", 0)
    failed = sum(kinds.get(kind, 0) for kind in ("failures", "errors", "unexpected successes"))
    names = re.findall(r"^(?:FAIL|ERROR): (.*)$", text, re.MULTILINE)
    return Count(int(ran.group(1)) - skipped - failed, failed, skipped, names)


def matrix(text):
    """The JSON of ibv_mr_notify: the steps of its scenario and the rows of its table."""
    try:
        said = json.loads(text)
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
            count += failure(f"{row['operation']}: {row['wrong']}")
    return count


def status(_text):
    """A program whose exit status says it all."""
    return Count(passed=1)


def judge(name, parse, text, exit_status, expected=0):
    """The count of one program's run."""
    count = parse(text)
    if exit_status != expected and not count.failed:
        if parse is status:
            count = Count()
        count += failure(f"{name}: exit status {exit_status}, expected {expected}")
    elif not count.passed and not count.failed and not count.skipped:
        count = failure(f"{name}: ran no test")
    return count
