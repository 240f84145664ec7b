#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The QEMU that the lab starts: what it gets wrong no kernel can make right.

Skipped where Debian's kernel was not made ready yet (tests/lab/run --prepare): that takes minutes.
"""
import os
import subprocess
import sys
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(REPO, "tests/lab"))
import emulator  # noqa: E402  pylint: disable=wrong-import-position

# Both CPUs run what trace events patch: timers, wake-ups, interrupts. QEMU 7.2 never got through.
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
    """The chosen one."""

    def test_version(self):
        """It is one that can be relied on."""
        self.assertGreaterEqual(emulator.version(emulator.program()), emulator.RELIABLE)
        self.assertFalse(emulator.version("/does/not/exist"))

    @unittest.skipUnless(os.path.exists(os.path.join(REPO, "build/lab/debian/kernel")),
                         "Debian's kernel is not made ready")
    def test_code_that_is_patched(self):
        """A CPU runs what the other one has written, and not what was there before."""
        done = subprocess.run([os.path.join(REPO, "tests/lab/run"), "--kernel", "debian", "--",
                               "sh", "-c", PATCHING], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "patched\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
