#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""tests/run itself: its counts and displays, and its order of steps."""
import contextlib
import fcntl
import io
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../runner")
sys.path.insert(0, RUNNER)

import again  # noqa: E402
import gate  # noqa: E402
import lanes  # noqa: E402
import output  # noqa: E402
import results  # noqa: E402
import schedule  # noqa: E402
import screen  # noqa: E402

SPEC = importlib.util.spec_from_file_location("runner", os.path.join(RUNNER, "__main__.py"))
runner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)


class Counting(unittest.TestCase):
    """The counts in each suite's output."""

    def test_lines(self):
        count = results.lines("noise\nok one\nx.cpp:7: failed: a\nnot ok two\nskip three: no\n")
        self.assertEqual(str(count), "1 passed, 1 failed, 1 skipped")
        self.assertEqual(count.failures, [results.Failure("two", "x.cpp:7: failed: a", case="two")])
        self.assertEqual(count.skips, ["three: no"])

    def test_paced(self):
        count = results.lines("pace one\nnot ok one\nnot ok two\nok three\npace four\nok five\n")
        self.assertEqual([(one.case, one.paced) for one in count.failures],
                         [("one", True), ("two", False)])

    def test_unittest(self):
        """A real run, with a failure, an error, a skipped test and an expected failure."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "test_x.py"), "w", encoding="utf-8") as out:
                out.write("import unittest\n"
                          "class T(unittest.TestCase):\n"
                          " def test_a(self):\n  'Doc.'\n  self.assertEqual(1, 2, 'why')\n"
                          " def test_b(self): raise OSError('what')\n"
                          " def test_c(self): self.skipTest('no')\n"
                          " def test_d(self): pass\n"
                          " @unittest.expectedFailure\n"
                          " def test_e(self): pass\n")
            done = subprocess.run([sys.executable, "-B", "-m", "unittest", "discover", "-v", "-s",
                                   folder], stderr=subprocess.PIPE, text=True, check=False)
        count = results.unittest(done.stderr)
        self.assertEqual(str(count), "1 passed, 3 failed, 1 skipped")
        said = {one.name.split()[0]: one.said for one in count.failures}
        self.assertEqual(sorted(said), ["test_a", "test_b", "test_e"])
        self.assertIn("AssertionError: 1 != 2 : why", said["test_a"])
        self.assertNotIn("OSError", said["test_a"])
        self.assertIn("OSError: what", said["test_b"])
        self.assertNotIn("Ran 5", said["test_b"])

    def test_silence_and_crashes_are_failures(self):
        for text, status in (("", 0), ("hello\n", 0), ("ok one\nthen\n", 139)):
            with self.subTest(text):
                count = results.judge("p", results.lines, text, status)
                self.assertEqual(count.failed, 1)
                self.assertEqual(count.failures[0].said, text)

    def test_matrix_with_words_behind_it(self):
        count = results.matrix('\n{"scenario": [{"step": "a", "ok": true}], "operations": '
                               '[{"operation": "b", "ok": false, "wrong": "w"}]}\nwarning\n')
        self.assertEqual(str(count), "1 passed, 1 failed, 0 skipped")

    def test_unended(self):
        """If a step did not end, the failure is named after the step and the lab's messages."""
        text = "test_a ... ok\nlab: booted\nlab: the kernel reported: Oops: 0\n" \
               "lab: the guest ended without a result\n"
        self.assertEqual(results.unended("step", text).failures[0].name,
                         "step: did not end; the kernel reported: Oops: 0; "
                         "the guest ended without a result")
        self.assertEqual(results.unended("step", "").failures[0].name,
                         "step: did not end")

    def test_shortened(self):
        text = "".join(f"{number}\n\n" for number in range(100))
        self.assertEqual(results.shortened(text, 4), ["0", "1", "... 96 lines ...", "98", "99"])
        self.assertEqual(results.shortened("a\n\nb\n", 2), ["a", "b"])


class Again(unittest.TestCase):
    """The printed command that repeats one failed case."""

    def test_catch(self):
        """Characters that are special for Catch2 or for the shell are escaped."""
        self.assertEqual(again.catch("p")("race: a, [b]'s"), "p 'race: a\\, \\[b\\]'\"'\"'s'")

    def test_unittest(self):
        run = again.unittest("p")
        self.assertEqual(run("test_a (test_x.T.test_a)"), "p -k T.test_a")
        self.assertEqual(run("test_a (test_x.T)"), "p -k T.test_a")
        self.assertEqual(run("test_a (tests.test_x.T.test_a) (i=1)"), "p -k T.test_a")
        self.assertEqual(run("setUpClass"), "p")

    def test_steps(self):
        """The command has the prefix, the variables and the seed of the run."""
        step, = lanes.on_siw(*lanes.guest_programs("race", seconds=10))
        self.assertEqual(step.command_again("a b", "RUN_SEED=7, then RUN_SEED=8"),
                         "env RUN_SEED=8 env MR_NOTIFY_DEVICE=siw0 env RUN_SECONDS=10 "
                         "build/tests/guest_race 'a b'")
        self.assertEqual(lanes.ALL.command_again("munmap: 1 == 0"),
                         "ibv_mr_notify --system --all --only munmap")
        self.assertEqual(lanes.Step("x", "a | b").command_again("case"), "sh -c 'a | b'")


class Guest(unittest.TestCase):
    """The script of a guest, which a shell runs here, and the results in the guest's outputs."""

    def told(self, *commands, cut=None):
        """The output of each command, as (number, status, text)."""
        ended = []
        with tempfile.TemporaryDirectory() as folder:
            steps = output.Steps(lambda number: output.Told(folder, f"step {number}"),
                                 lambda *one: ended.append(one))
            done = subprocess.run(["sh", "-c", output.script(commands)], capture_output=True,
                                  text=True, check=True)
            readers = [threading.Thread(
                target=lambda name=name, text=text: [
                    steps.feed(name, line) for line in text.splitlines(True)[:cut]])
                for name, text in (("out", done.stdout), ("err", done.stderr))]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            for told in steps.told.values():
                if told.status is None:
                    told.end(None)
            return [(number, told.status, told.text) for number, told in ended], steps

    def test_outputs_belong_to_their_steps(self):
        ended, _ = self.told("echo a; echo b >&2", "printf c; (exit 7)", "true")
        self.assertEqual([(number, status) for number, status, _ in ended],
                         [(0, 0), (1, 7), (2, 0)])
        self.assertEqual([text.split() for *_, text in ended], [["a", "b"], ["c"], []])

    def test_long_output_is_kept_whole(self):
        (_, _, text), = self.told("seq 100000; exit 3")[0]
        self.assertEqual(text.split(), [str(number) for number in range(1, 100001)])

    def test_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["sh", "-c", output.script(["echo a", "exit 7"])], check=True,
                           env={**os.environ, "TMPDIR": folder}, capture_output=True)
            self.assertEqual(os.listdir(folder), [])

    def test_a_step_that_is_cut_off_has_not_ended(self):
        ended, steps = self.told("echo a", "echo b", cut=-3)
        self.assertEqual([number for number, *_ in ended], [0])
        self.assertIsNone(steps.told[1].status)

    def test_times(self):
        times = output.Times()
        for line in ("ok one", "not ok two", "test_x (a.B.test_x) ... ok", "noise",
                     "test_y (a.B.test_y)", "Doc. ... skipped 'no'",
                     "test_z (a.B.test_z) ... noise", "ok"):
            times.feed(line)
        self.assertEqual([name for _, name in times.tests],
                         ["one", "two", "test_x (a.B.test_x)", "test_y (a.B.test_y)",
                          "test_z (a.B.test_z)"])


class Schedule(unittest.TestCase):
    """The order."""

    def done(self, jobs, *tasks):
        """Run tasks, each of them (name, needs, seconds, good). Return the order in which they were
        done or given up."""
        order = []

        def work(name, good):
            order.append(name)
            return good
        schedule.run([schedule.Task(name, lambda name=name, good=good: work(name, good),
                                    lambda need, name=name: order.append(f"{name} without {need}"),
                                    needs, seconds) for name, needs, seconds, good in tasks], jobs)
        return order

    def test_needs_and_longest_chain_first(self):
        self.assertEqual(self.done(1, ("a short one", (), 5, True), ("end", ("start",), 7, True),
                                   ("long", (), 6, True), ("start", (), 1, True)),
                         ["start", "end", "long", "a short one"])

    def test_a_step_is_given_up_with_the_one_it_needs(self):
        self.assertEqual(self.done(2, ("a", (), 9, False), ("b", ("a",), 1, True),
                                   ("c", ("b",), 1, True)), ["a", "b without a", "c without b"])

    def test_side_by_side(self):
        """Two tasks wait for each other, so they must run at the same time."""
        meet = threading.Barrier(2)

        def work():
            meet.wait(60)
            return True
        schedule.run([schedule.Task(name, work) for name in "ab"], 2)

    def test_an_error_of_ours_is_not_lost(self):
        def work():
            raise ValueError
        with self.assertRaises(ValueError):
            schedule.run([schedule.Task("a", work), schedule.Task("b", work, needs=("a",))], 2)


class Whole(unittest.TestCase):
    """A run of the test's own lanes, on the host."""

    def run_lanes(self, builds, *lane_rows, repeat=1, late=None):
        """The printed lines, and the count."""
        rows = {f"lane{number}": row for number, row in enumerate(lane_rows)}
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed), \
                mock.patch.object(lanes, "BUILDS", builds), \
                mock.patch.object(runner, "RESULTS", folder), \
                screen.Screen(printed) as display:
            run = runner.Run(rows, repeat, late, display)
            schedule.run(run.tasks(), 2)
            run.repeat_paced()
            run.report()
        return printed.getvalue().splitlines(), run.count

    def test_failures_stand_above_the_last_line(self):
        printed, _ = self.run_lanes(
            {"made": lanes.Build("echo made")},
            lanes.Lane([lanes.Step("good", "echo ok one", results.lines),
                        lanes.Step("bad", "echo why; echo not ok two; exit 1", results.lines)],
                       needs=("made",)))
        self.assertEqual(printed[-1], "1 passed, 1 failed, 0 skipped")
        self.assertEqual(printed[-5], "FAILED: lane0: bad: two")
        self.assertIn("why", printed[-4])
        self.assertIn("    whole output: ", printed[-3])
        self.assertEqual(printed[-2], "    to repeat: sh -c 'echo why; echo not ok two; exit 1'")
        self.assertTrue(any("lane0     good" in line and "1 passed" in line for line in printed))
        self.assertFalse(any("made" == line for line in printed))

    def test_a_failure_is_told_at_its_step(self):
        """A failure is printed immediately. The report comes after all lanes. After ^C there is no
        report.
        """
        printed, _ = self.run_lanes(
            {}, lanes.Lane([lanes.Step("bad", "echo not ok two; exit 1", results.lines)]))
        first = next(number for number, line in enumerate(printed) if "FAILED: " in line)
        self.assertIn("FAILED: lane0: bad: two", printed[first])
        self.assertLess(first, printed.index("failed:"))
        self.assertIn("    whole output: ", printed[first + 1])
        self.assertEqual(printed[first + 2], "    to repeat: sh -c 'echo not ok two; exit 1'")

    def test_the_command_builds_the_program_that_failed(self):
        """The command first builds the program, because the old program lacks the user's fix."""
        guest = lanes.Step("guest", "echo not ok two; exit 1", results.lines,
                           again=again.catch("build/tests/guest_word"))
        printed, _ = self.run_lanes({}, lanes.Lane([guest]))
        self.assertEqual(printed[-2], "    to repeat: cmake --build build --target guest_word && "
                                      "build/tests/guest_word two")

    def test_a_lane_whose_build_fails_is_a_failure(self):
        printed, count = self.run_lanes(
            {"made": lanes.Build("echo because; exit 2"), "more": lanes.Build("true", ("made",))},
            lanes.Lane([lanes.Step("one", "echo ok one", results.lines)], needs=("more",)),
            lanes.Lane([lanes.Step("one", "echo ok one", results.lines)]))
        self.assertEqual(str(count), "1 passed, 2 failed, 0 skipped")
        self.assertIn("    because", printed)

    def test_repeated(self):
        printed, count = self.run_lanes(
            {}, lanes.Lane([lanes.Step("one", "echo not ok one", results.lines)]), repeat=3)
        self.assertEqual(count.failed, 3)
        self.assertIn("    3  lane0: one: one", printed)

    def test_too_few_tests(self):
        _, count = self.run_lanes(
            {}, lanes.Lane([lanes.Step("one", "echo ok one", results.lines, least=2)]))
        self.assertEqual(str(count), "1 passed, 1 failed, 0 skipped")

    def test_a_guest_program_that_skips_all(self):
        step, = lanes.guest_programs("contract")
        _, count = self.run_lanes(
            {}, lanes.Lane([lanes.replace(step, command="echo skip one: nothing works")]))
        self.assertEqual(str(count), "0 passed, 1 failed, 1 skipped")

    def run_guest(self, *said, status=0, late=None):
        """Run a guest whose step prints the first text. Each later command prints the next text."""
        texts = [f"{output.MARK} 0 begins\n{said[0]}{output.MARK} 0 ended 1\n", *said[1:]]
        commands = []

        def command(_run, _name, text, feed, streams=False, **_):
            commands.append(text)
            if streams:
                with open(shlex.split(text)[-1], encoding="utf-8") as script:
                    commands.append(script.read())
            for line in texts.pop(0).splitlines(True):
                feed("out", line)
                if line.startswith(output.MARK):
                    feed("err", line)
            return status if streams else 0
        step, = lanes.guest_programs("contract")
        with mock.patch.object(runner.Run, "command", command):
            printed, count = self.run_lanes({}, lanes.Lane([step], guest="--kernel um"), late=late)
        return printed, str(count), commands[2:], commands[1]

    def test_a_case_at_the_kernels_pace_is_repeated_once(self):
        failed = "pace one\nnot ok one\nok two\n"
        printed, count, more, _ = self.run_guest(failed, "ok one\n")
        self.assertEqual(count, "3 passed, 0 failed, 0 skipped")    # one for the kernel
        self.assertEqual(more, ["tests/lab/run --kernel um -- build/tests/guest_contract one "
                                "-r lines"])
        self.assertIn("unsteady: lane0: contract: one", printed)
        printed, count, more, _ = self.run_guest(failed, failed)
        self.assertEqual((count, len(more)), ("2 passed, 1 failed, 0 skipped", 1))
        self.assertIn("FAILED: lane0: contract: one", printed)

    def test_nothing_else_is_repeated(self):
        self.assertEqual(self.run_guest("not ok one\nok two\n")[1:3],
                         ("2 passed, 1 failed, 0 skipped", []))
        # If a kernel reports a problem, or a guest dies, no case is repeated.
        self.assertEqual(self.run_guest("pace one\nnot ok one\nok two\n", status=99)[1:3],
                         ("1 passed, 2 failed, 0 skipped", []))

    def test_a_late_machine(self):
        """The library is preloaded in the guest, and by the command that repeats a failure."""
        slow = f"RUN_SLOW=calls LD_PRELOAD={lanes.REPO}/build/tests/libslow_machine.so"
        printed, _, _, script = self.run_guest("not ok one\n", late="calls")
        self.assertIn(f"\nexport {slow}\n", script)
        self.assertTrue(any(f" -- env {slow} build/tests/guest_contract one" in line
                            for line in printed))

    def run_for(self, command):
        """Run a step that may be silent for 5 s; return its count, the printed lines and its
        seconds.
        """
        start = time.monotonic()
        with mock.patch.object(runner, "SILENCE", 5), mock.patch.object(runner, "GRACE", 1):
            printed, count = self.run_lanes(
                {}, lanes.Lane([lanes.Step("one", command, results.lines)]))
        return str(count), printed, time.monotonic() - start

    def test_a_step_that_hangs_is_ended(self):
        for command in ("echo ok one; sleep 999", "trap '' TERM; echo ok one; sleep 999; true",
                        "trap 'exit 0' TERM; echo ok one; sleep 999 & wait",
                        "echo ok one; exec >/dev/null 2>&1; sleep 999",
                        "trap '' TERM; echo ok one; exec >/dev/null 2>&1; sleep 999; true",
                        "echo ok one; setsid sleep 999"):
            with self.subTest(command):
                count, printed, seconds = self.run_for(command)
                self.assertEqual(count, "1 passed, 1 failed, 0 skipped")
                self.assertIn("FAILED: lane0: one: exit status 124, expected 0", printed)
                self.assertIn("    tests/run: killed, because it printed nothing for 5 s", printed)
                self.assertLess(seconds, 600)

    def test_a_step_that_goes_on_may_last(self):
        """A step may run longer than the limit as long as it prints, because machines can be slow.
        """
        count, _, _ = self.run_for(
            "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.5; echo $i; done; echo ok one")
        self.assertEqual(count, "1 passed, 0 failed, 0 skipped")

    def test_a_guest_may_last(self):
        """The steps of a guest may take hours on a slow machine. A step that hangs is ended
        earlier.
        """
        with mock.patch.object(runner.Run, "command", return_value=1) as command:
            self.run_lanes({}, lanes.Lane([lanes.Step("one", "true")], guest="--kernel um"))
        found = re.search(r" --timeout (\d+) ", command.call_args.args[1])
        self.assertGreaterEqual(int(found.group(1)), 3 * runner.SILENCE)
        self.assertEqual(command.call_args.kwargs["silence"], runner.SILENCE)


class Alone(unittest.TestCase):
    """Two runs in one clone would delete each other's outputs."""

    def main(self, folder, command):
        """The exit status of a run with this step, and its output."""
        printed = io.StringIO()
        rows = {"lane": lanes.Lane([lanes.Step("one", command, results.lines)])}
        with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", ["tests/run"]), \
                mock.patch.object(gate, "LANES", rows), \
                mock.patch.object(screen.Screen.__init__, "__defaults__", (printed, 60)), \
                mock.patch.object(runner, "RESULTS", os.path.join(folder, "results")):
            status = runner.main()
        return status, printed.getvalue().splitlines()

    def test_another_run_works_in_the_clone(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "results.lock"), "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                status, printed = self.main(folder, "echo ok one")
            self.assertEqual((status, printed), (1, [
                "FAILED: another tests/run uses this clone", "0 passed, 1 failed, 0 skipped"]))
            self.assertFalse(os.path.exists(os.path.join(folder, "results")))
            status, printed = self.main(folder, "echo ok one")
            self.assertEqual((status, printed[-1]), (0, "1 passed, 0 failed, 0 skipped"))

    def test_a_process_that_outlives_a_run_does_not_hold_up_the_next_one(self):
        with tempfile.TemporaryDirectory() as folder:
            command = f"sleep 100 >/dev/null 2>&1 & echo $! >{folder}/pid; echo ok one"
            self.assertEqual(self.main(folder, command)[0], 0)
            with open(os.path.join(folder, "pid"), encoding="ascii") as pid:
                self.addCleanup(os.kill, int(pid.read()), signal.SIGKILL)
            self.assertEqual(self.main(folder, "echo ok one")[0], 0)


class Lanes(unittest.TestCase):
    """The rows of lanes.py and gate.py."""

    def test_needs_exist(self):
        rows = [*lanes.LANES.values(), *gate.LANES.values()]
        for row in (*lanes.BUILDS.values(), *rows, *(step for lane in rows for step in lane.steps)):
            self.assertLessEqual(set(row.needs), set(lanes.BUILDS))

    def test_names_differ(self):
        self.assertFalse(set(lanes.LANES) & set(lanes.BUILDS))
        for name, lane in (*lanes.LANES.items(), *gate.LANES.items()):
            names = [step.name for step in lane.steps]
            self.assertEqual(len(names), len(set(names)), name)

    def test_the_gate_is_a_part_of_all(self):
        for name, lane in gate.LANES.items():
            whole = {step.name for step in lanes.LANES[name].steps}
            self.assertFalse(lanes.LANES[name].named_only)
            self.assertLessEqual({step.name for step in lane.steps}, whole, name)

    def test_skipped_suites_are_noticed(self):
        for name, lane in (*lanes.LANES.items(), *gate.LANES.items()):
            for step in lane.steps:
                if step.name.startswith("pyverbs") and name != "stock":     # no notification
                    self.assertGreater(step.least, 0, f"{name}: {step.name}")
                if "build/tests/guest_" in step.command:
                    self.assertGreater(step.least, 0, f"{name}: {step.name}")
        self.assertGreater(lanes.INSTALLED_SUITE.least, lanes.UPSTREAM_EXECUTED)
        least = {step.name: step.least for step in lanes.LANES["um"].steps}
        for name in ("retransmit_answers", "odp_packets"):     # both need one capability
            self.assertGreater(least[name], 1, name)

    def test_every_file_of_host_tests_is_a_step(self):
        here = os.path.dirname(os.path.abspath(__file__))
        files = {name.removesuffix(".py") for name in os.listdir(here)
                 if name.startswith("test_") and name.endswith(".py")}
        self.assertLessEqual(files, {step.name for step in lanes.LANES["host"].steps})


if __name__ == "__main__":
    unittest.main()
