#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Spin checks the word protocol of registrations that can be suspended, in all interleavings.

Why: Spin tries all interleavings, which are millions. A test in a guest may hit a race only once a
month. Mistakes that are seeded in the model show that Spin can find a race.
"""
import os
import subprocess
import sys
import tempfile
import unittest

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../model/word.pml")


def search(bug=None):
    """Check the model, with or without a mistake. Return whether an assertion failed, and whether
    the search was complete.
    """
    with tempfile.TemporaryDirectory() as folder:
        with open(MODEL, encoding="utf-8") as text, \
                open(os.path.join(folder, "word.pml"), "w", encoding="utf-8") as out:
            out.write((f"#define {bug}\n" if bug else "") + text.read())
        for command in (["spin", "-a", "word.pml"],
                        ["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]):
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(["./pan", "-m1000000", "-n"], cwd=folder, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(f"{bug}:", *[line.strip() for line in done.stdout.splitlines()
                       if "states, stored" in line or "errors:" in line], file=sys.stderr)
    return "assertion violated" in done.stdout, \
        "errors: 0" in done.stdout and "Search not completed" not in done.stdout and \
        "max search depth too small" not in done.stdout


class WordProtocol(unittest.TestCase):
    """The model keeps the guarantees for a user. A mistake that is seeded in the model's kernel
    breaks a guarantee.
    """

    def test_all_interleavings(self):
        self.assertEqual(search(), (False, True))

    def test_bit_set_without_a_compare_and_swap(self):
        self.assertTrue(search("BUG_SWAP")[0])

    def test_an_event_while_suspended_is_not_recorded(self):
        self.assertTrue(search("BUG_SUSPENDED_EVENT")[0])

    def test_the_state_is_cleared_after_pinning(self):
        self.assertTrue(search("BUG_LATE_CLEAR")[0])

    def test_a_restored_word_is_never_suspect(self):
        self.assertTrue(search("BUG_RESTORED_VALID")[0])

    def test_pinning_ignores_events_in_progress(self):
        self.assertTrue(search("BUG_IN_PROGRESS")[0])

    def test_the_end_of_one_event_ends_all(self):
        self.assertTrue(search("BUG_FIRST_END")[0])


if __name__ == "__main__":
    unittest.main()
