#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test the QEMU that the lab starts. A guest's kernel can't compensate for faults of QEMU.

The tests are skipped until tests/lab/run --prepare has built the guest, which takes minutes.
"""
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "tests/lab"))
import emulator  # noqa: E402  pylint: disable=wrong-import-position
import guest  # noqa: E402  pylint: disable=wrong-import-position
import machine as machines  # noqa: E402  pylint: disable=wrong-import-position

# Enabling trace events patches code of timers, wake-ups and interrupts, which both CPUs run. QEMU
# 7.2 crashed every time.
PATCHING = """
cd /sys/kernel/tracing
for i in 1 2 3; do (while :; do sleep 0.001; done) & done
(yes | cat | cat >/dev/null) &
end=$(($(date +%s) + 10))
while [ "$(date +%s)" -lt $end ]; do
    for event in sched/sched_wakeup sched/sched_switch sched/sched_waking irq/softirq_entry \\
            sched/sched_stat_runtime irq/softirq_exit timer/hrtimer_start timer/timer_start; do
        echo 1 >events/$event/enable
    done
    echo 0 >events/enable
done
echo patched
"""


class Emulator(unittest.TestCase):
    """The chosen QEMU."""

    def test_version(self):
        """The version of the chosen QEMU is reliable."""
        self.assertGreaterEqual(emulator.version(emulator.program()), emulator.RELIABLE)
        self.assertFalse(emulator.version("/does/not/exist"))

    def test_no_archive(self):
        """Without a newer QEMU in the archive the system's QEMU is used."""
        none = emulator.private_apt.AptError("on purpose")
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(emulator, "FOLDER", folder), \
                mock.patch.object(emulator, "version", lambda _: ()), \
                mock.patch.object(emulator.private_apt, "archive_uris", side_effect=none):
            self.assertEqual(emulator.program(), emulator.SYSTEMS)

    @unittest.skipUnless(os.path.exists(os.path.join(REPO, "build/lab/debian/kernel")),
                         "Debian's kernel is not made ready")
    def test_code_that_is_patched(self):
        """After a CPU has written code, the other CPU runs the new code."""
        done = subprocess.run([os.path.join(REPO, "tests/lab/run"), "--kernel", "debian", "--",
                               "sh", "-c", PATCHING], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "patched\n"), done.stderr)


class Accelerator(unittest.TestCase):
    """The lab's decision whether to use KVM, with a fake guest."""

    def find(self, name, in_time, console):
        """The answer for a machine whose guest prints this console, and ends in time or late."""
        with mock.patch.object(guest, "Guest") as tried, \
                mock.patch.object(guest.os, "access", return_value=True):
            one = tried.return_value.__enter__.return_value
            one.pump.return_value = in_time
            one.console_text.return_value = console
            answer = guest.accelerator(machines.load(name))
            self.tried = [call.args[0] for call in tried.call_args_list]
        return answer

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.mkdir(os.path.join(folder.name, "lab"))
        patch = mock.patch.object(guest, "BUILD", folder.name)
        patch.start()
        self.addCleanup(patch.stop)

    def check_once(self, console, answer):
        """The answer is determined once and kept."""
        self.assertEqual(self.find("debian", True, console), answer)
        self.assertEqual(self.find("debian", True, "?"), answer)
        self.assertEqual(self.tried, [])

    def test_works(self):
        self.check_once("reboot: Restarting system", "kvm")

    def test_does_not_work(self):
        self.check_once("", "tcg")

    def test_a_machine_with_devices(self):
        """The trial leaves out the machine's devices, which may need more memory and CPUs."""
        self.assertTrue(machines.load("hotplug").devices)
        self.find("hotplug", True, "reboot: Restarting system")
        self.assertEqual([one.devices for one in self.tried], [[]])

    def test_a_busy_machine(self):
        """If the guest was late, the answer is not kept."""
        self.assertEqual(self.find("debian", False, ""), "tcg")
        self.assertEqual(self.find("debian", True, "reboot: Restarting system"), "kvm")


if __name__ == "__main__":
    unittest.main()
