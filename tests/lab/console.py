# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Find the kernel's reports in a guest's console.

Why: a command may succeed although the kernel was damaged. So a run fails after a panic, oops, BUG
or WARNING, and after a report of lockdep, KASAN, UBSAN, KFENCE, RCU or the hung-task detector. A
program's own crash ("traps: ...") and an out-of-memory kill are no such reports.
"""
import dataclasses
import re

# "[   12.345678] " or, with CONFIG_PRINTK_CALLER, "[   12.345678][  T123] ".
STAMP = re.compile(r"^(?:<\d+>)?(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? )")

# The name of each kind of report, and its first distinctive line. The first matching row counts.
KINDS = (
    ("panic", r"Kernel panic - not syncing|PANIC: double fault"),
    ("KASAN", r"BUG: KASAN:"),
    ("KFENCE", r"BUG: KFENCE:"),
    ("KCSAN", r"BUG: KCSAN:"),
    ("KMSAN", r"BUG: KMSAN:"),
    ("UBSAN", r"UBSAN: "),
    ("lockdep", r"^WARNING: (?:possible (?:circular|recursive|irq lock inversion)|.*lock held|"
                r"inconsistent lock state|bad unlock balance|suspicious RCU usage|.*-unsafe lock|"
                r"HARDIRQ|SOFTIRQ|Nested lock|held lock freed)|INFO: trying to register non-static|"
                r"\[ BUG: Invalid wait context|DEBUG_LOCKS_WARN_ON|BUG: MAX_LOCK\w+ too low|"
                r"BUG: .* lock held"),
    ("lockup", r"BUG: (?:soft|workqueue) lockup|Watchdog detected hard LOCKUP"),
    ("RCU stall", r"rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stall|"
                  r"INFO: \w+ (?:self-)?detected stall|rcu: INFO: rcu_tasks detected stall"),
    ("hung task", r"INFO: task .* blocked for more than|^task:.* state:D "),
    ("busy CPU", r"^NMI backtrace for cpu \d+$"),
    ("oops", r"Oops[:\s]|(?:^|Oops: )general protection fault[,:] |Internal error:|"
             r"BUG: unable to handle|BUG: kernel NULL pointer|Unable to handle kernel|"
             r"Kernel mode fault at|kernel BUG at|stack-protector: Kernel stack is corrupted"),
    ("slab", r"BUG [\w.:-]+ (?:\(|: )|Slab corruption|pagealloc: (?:memory|single bit)"),
    ("WARNING", r"^WARNING(?:: |$)"),
    ("BUG", r"(?:^|\b)BUG: "),
    ("kmemleak", r"kmemleak: \d+ new suspected memory leaks"),
    ("refcount", r"refcount_t: "),
)
PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in KINDS]

OPENING = re.compile(r"-+\[ cut here \]-+$|^=+$|^-{20,}$")   # may precede the distinctive line
CLOSING = re.compile(r"---\[ end (?:trace|Kernel panic)")
# tests/lab/init prints the stacks of hung tasks, and then the stacks of the CPUs, one by one.
CLOSING_STACK = re.compile(r"disables this message|</TASK>")
LONGEST = 120


@dataclasses.dataclass
class Report:
    """A report of the kernel: its kind, its distinctive line, all lines without time stamps."""
    kind: str
    title: str
    lines: list[str]


def kind_of(line):
    """The kind of report that a line (without its time stamp) begins, or None."""
    if line.startswith("traps: "):  # a program's fault
        return None
    return next((kind for kind, pattern in PATTERNS if pattern.search(line)), None)


def ends(report, line):
    """Does a report end with this line? KASAN's first and last lines look alike."""
    return (CLOSING.search(line) or len(report.lines) >= LONGEST
            or report.kind in ("hung task", "busy CPU") and CLOSING_STACK.search(line)
            or report.kind in ("KASAN", "KFENCE", "KCSAN") and OPENING.search(line))


def parse(text):
    """The reports in a console log, in order."""
    reports, current, before = [], None, None
    for raw in text.splitlines():
        raw = raw.rstrip("\r")
        stamp = STAMP.match(raw)
        line = raw[stamp.end():] if stamp else raw
        kind = kind_of(line) if stamp else None
        if kind == "panic" and reports and reports[-1].kind == "oops":
            current = reports[-1]  # the panic that the oops causes
        elif kind and (current is None or kind == "panic"):
            current = Report(kind, line.strip(), [before] if before else [])
            reports.append(current)
        if current is not None:
            current.lines.append(line)
            if ends(current, line):
                current = None
        before = line if OPENING.search(line) else None
    return reports


def show(reports):
    """The reports as text for a person."""
    return "\n".join(f"--- {report.kind}: {report.title}\n" + "\n".join(report.lines)
                     for report in reports)
