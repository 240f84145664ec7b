#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test the lab's console parser, because no other test would notice a missed report."""
import os
import sys
import unittest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "lab"))
import console  # noqa: E402  pylint: disable=wrong-import-position
import kconfig  # noqa: E402  pylint: disable=wrong-import-position


def recorded(name):
    """The reports in a recorded console."""
    with open(os.path.join(TESTS, "lab/test_data", name), encoding="utf-8") as text:
        return console.parse(text.read())


class RecordedConsoles(unittest.TestCase):
    """One console of each kind."""

    def check(self, name, *expected):
        """Check the kinds of the reports in a console, and the beginnings of their titles."""
        reports = recorded(name)
        self.assertEqual([report.kind for report in reports], [kind for kind, _ in expected])
        for report, (_, title) in zip(reports, expected):
            self.assertTrue(report.title.startswith(title), report.title)
            self.assertIn(report.title, (line.strip() for line in report.lines))
        return reports

    def test_clean(self):
        """Boot messages, a crash of a program and an out-of-memory kill are not reports."""
        self.check("clean.log")

    def test_panic(self):
        """A panic, with its backtrace."""
        report, = self.check("panic.log", ("panic", "Kernel panic - not syncing: sysrq triggered"))
        self.assertTrue(any("sysrq_handle_crash" in line for line in report.lines))

    def test_oops(self):
        """An oops that panics is one report."""
        report, = self.check("oops.log", ("oops", "BUG: kernel NULL pointer dereference"))
        self.assertTrue(any("Kernel panic" in line for line in report.lines))

    def test_warning(self):
        """The report of a WARNING begins at "cut here". Later lines of the console are not
        a part of the report.
        """
        report, = self.check("warning.log", ("WARNING", "WARNING: CPU: 0 PID:"))
        self.assertIn("cut here", report.lines[0])
        self.assertIn("end trace", report.lines[-1])

    def test_bug(self):
        """A BUG()."""
        self.check("bug.log", ("BUG", "BUG: failure at"),
                   ("panic", "Kernel panic - not syncing: BUG"))

    def test_lockdep(self):
        """A report of lockdep."""
        report, = self.check("lockdep.log", ("lockdep", "WARNING: possible circular locking"))
        self.assertTrue(report.lines[0].startswith("===="))

    def test_kasan(self):
        """A report of KASAN."""
        self.check("kasan.log", ("KASAN", "BUG: KASAN: slab-use-after-free in"))


class SingleLines(unittest.TestCase):
    """The distinctive lines of other reports, as in the kernel's sources."""

    def test_kinds(self):
        """Each report is found, with its kind."""
        for kind, line in (
                ("UBSAN", "UBSAN: array-index-out-of-bounds in drivers/x.c:12:3"),
                ("KFENCE", "BUG: KFENCE: use-after-free read in rxe_free+0x1/0x2"),
                ("RCU stall", "rcu: INFO: rcu_preempt self-detected stall on CPU"),
                ("RCU stall", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
                ("hung task", "INFO: task rping:123 blocked for more than 120 seconds."),
                ("hung task", "task:rping           state:D stack:0     pid:123   tgid:123"),
                ("busy CPU", "NMI backtrace for cpu 1"),
                ("lockup", "watchdog: BUG: soft lockup - CPU#0 stuck for 23s! [a:1]"),
                ("lockdep", "WARNING: suspicious RCU usage"),
                ("lockdep", "WARNING: lock held when returning to user space!"),
                ("slab", "BUG kmalloc-64 (Tainted: G    B  ): Poison overwritten"),
                ("BUG", "BUG: sleeping function called from invalid context at mm/x.c:1"),
                ("BUG", "BUG: Bad page state in process sh  pfn:12345"),
                ("BUG", "BUG: Bad rss-counter state mm:0 type:MM_ANONPAGES val:1"),
                ("oops", "Oops: general protection fault, probably for non-canonical address"),
                ("oops", "BUG: unable to handle page fault for address: ffff"),
                ("WARNING", "WARNING: CPU: 1 PID: 2 at drivers/infiniband/core/x.c:3 f+0x1/0x2"),
                ("refcount", "refcount_t: underflow; use-after-free.")):
            with self.subTest(line=line):
                reports = console.parse(f"[    1.000000] {line}\n")
                self.assertEqual([report.kind for report in reports], [kind])

    def test_caller_and_carriage_return(self):
        """Other forms of time stamps and line ends."""
        self.assertTrue(console.parse("[   12.345678][  T123] BUG: bad\r\n"))

    def test_programs_own_words(self):
        """A line of a program has no time stamp, and is not a report."""
        self.assertFalse(console.parse("WARNING: CPU: is what the program says\nBUG: so\n"))
        self.assertFalse(console.parse(
            "[    2.0] traps: a[1] general protection fault ip:1 sp:2 error:0 in a[1+2]\n"))

    def test_panic_after_warning(self):
        """If the previous report did not cause a panic, the panic is a separate report."""
        kinds = [report.kind for report in console.parse(
            "[    1.0] WARNING: CPU: 0 PID: 1 at a.c:1 f\n[    2.0] Kernel panic - not syncing: x")]
        self.assertEqual(kinds, ["WARNING", "panic"])


class DroppedOptions(unittest.TestCase):
    """A wanted option that Kconfig dropped must be named."""

    def test_dropped(self):
        """Options that are missing, have another value, or are set but not wanted."""
        wanted = "CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=12\n# CONFIG_D is not set\nCONFIG_E=y\n"
        result = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=13\n"
        self.assertEqual(kconfig.dropped(wanted, result),
                         ["CONFIG_B=y", "CONFIG_C=12", "CONFIG_E=y"])


if __name__ == "__main__":
    unittest.main()
