# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make the builds, and run the tests on the host and in guests. The last line counts the tests.

tests/run calls this program. Without arguments it runs the gate (gate.py). Arguments are names of
lanes to run. --all runs all lanes except those that run only by name. A lane that could not run is
a failure. The outputs are kept in build/results.
"""
import argparse
import collections
import contextlib
import fcntl
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import gate
import lanes
import output
import results
import schedule
import screen

RESULTS = os.path.join(lanes.REPO, "build", "results")
SLOW_MACHINE = os.path.join(lanes.REPO, "build", "tests", "libslow_machine.so")
LIMIT = 4 * 3600    # seconds for all steps of a guest, on a slow machine
SILENCE = 3600      # if a step prints nothing for this many seconds, it counts as hung
GRACE = 30          # seconds for a step to end its processes
TIMED_OUT = 124     # the exit status of timeout(1)
SLOWEST = 10
LINES = 150         # the most lines printed of the outputs of all failures


def shown(count):
    """A count as text, without the numbers that are 0."""
    parts = [f"{number} {word}" for number, word in
             ((count.passed, "passed"), (count.failed, "FAILED"), (count.skipped, "skipped"))
             if number]
    return ", ".join(parts)


def jobs():
    """The number of parallel tasks: one more than the processors, but at most 4. Each guest needs 3
    GB.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() + 1, 4, memory // (3 << 30)))


class Run:
    """One call of tests/run. `chosen` maps names to lanes. `late` is a value of RUN_SLOW."""

    def __init__(self, chosen, repeat, late, display):
        self.chosen = chosen
        self.repeat = repeat
        self.late = late and f"RUN_SLOW={late} LD_PRELOAD={shlex.quote(SLOW_MACHINE)}"
        self.screen = display
        self.lock = threading.Lock()
        self.count = results.Count()
        self.lane_counts = {}       # run of a lane: its count so far
        self.left = {}              # run of a lane: the number of its tasks that have not ended
        self.took = {}              # run of a lane, build: [seconds, processor seconds]
        self.tests = []             # (seconds, name)
        self.paced = []             # failures that may be repeated once
        self.unsteady = []          # failures that passed when repeated
        self.children = set()

    def command(self, name, command, feed, streams=False, silence=math.inf):
        """Run a shell command, and call feed(stream, line) for each line. Return the exit status.

        If the command prints no line for `silence` seconds, it is ended.
        """
        child = subprocess.Popen(
            command, shell=True, cwd=lanes.REPO, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
            stderr=subprocess.PIPE if streams else subprocess.STDOUT)
        self.children.add(child)
        start = heard = time.monotonic()

        def read(stream, pipe):
            nonlocal heard
            with pipe:
                for line in pipe:
                    heard = time.monotonic()
                    feed(stream, line)
        readers = [threading.Thread(target=read, args=pair, daemon=True)
                   for pair in (("out", child.stdout), ("err", child.stderr)) if pair[1]]
        for reader in readers:
            reader.start()

        def is_running():
            """Does the process run, or may another process still write to its outputs? Does not
            reap the process.
            """
            nohang = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return (any(reader.is_alive() for reader in readers) or
                    os.waitid(os.P_PID, child.pid, nohang) is None)

        def outlives(seconds):
            """Wait at most this many seconds. Return whether the process is still running."""
            until = time.monotonic() + seconds
            while is_running() and time.monotonic() < until:
                time.sleep(0.02)
            return is_running()
        while is_running() and time.monotonic() - heard < silence:
            readers[0].join(1)
            outlives(0.1)
        hung = is_running()
        if hung:
            feed("out", f"tests/run: killed, because it printed nothing for {silence} s\n")
            end(child, signal.SIGTERM)
            if outlives(GRACE):
                end(child, signal.SIGKILL)
                outlives(GRACE)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = TIMED_OUT if hung else os.waitstatus_to_exitcode(status)
        self.children.discard(child)
        with self.lock:
            took = self.took.setdefault(name, [0, 0])
            took[0] += time.monotonic() - start
            took[1] += used.ru_utime + used.ru_stime
        return child.returncode

    def stop(self):
        """End all children."""
        for child in list(self.children):
            end(child, signal.SIGTERM)

    def build(self, name, build):
        """Do a build; return whether it succeeded."""
        told = output.Told(fresh("build", clear=False), name, ("log",))
        with self.screen.busy(name):
            status = self.command(name, build.command, lambda _, line: told.feed("log", line))
        told.end(status)
        if status:
            failed = results.failure(f"build: {name}: exit status {status}", told.text)
            self.add("build", told, failed)
        self.screen.say(f"{'build':<9} {name:<36} {'FAILED' if status else 'done':<30} "
                        f"{told.seconds:4.0f} s")
        return not status

    def add(self, lane, told, count):
        """Add a count to the count of a lane."""
        file = os.path.relpath(told.base, lanes.REPO) + ".*" if told else ""
        with self.lock:
            for one in count.failures:
                one.file = one.file or file
            self.lane_counts[lane] = self.lane_counts.get(lane, results.Count()) + count
            self.count += count

    def judge(self, lane, step, told, where=""):
        """Count and print the results of a step that has ended. `where` is the prefix of its
        commands.
        """
        name = f"{lane}: {step.name}"
        if told.status is None:
            count = results.unended(name, told.text)
        else:
            count = results.judge(name, step.parse, told.text, told.status, step.expected)
        executed = count.passed + count.failed
        if executed < step.least:
            count += results.failure(f"{name}: ran {executed} tests, but must run at least "
                                     f"{step.least}")
        for one in count.failures:
            one.again = where + step.command_again(one.case, one.said)
        self.add(lane, told, count)
        with self.lock:
            tests = told.times.tests or [(told.seconds, "")]
            self.tests += [(seconds, f"{name}: {test}".removesuffix(": "))
                           for seconds, test in tests]
        self.screen.say(f"{lane:<9} {step.name:<36} {shown(count):<30} {told.seconds:4.0f} s")
        for one in count.failures:  # print them now, because the report comes after all lanes
            self.screen.say("\n".join((f"FAILED: {one.name}", *where_to_look(one))))
        return count

    def over(self, lane):
        """A task of a lane has ended. If it was the last one, print the lane."""
        with self.lock:
            self.left[lane] -= 1
            if self.left[lane]:
                return
            count = self.lane_counts[lane]
            seconds, used = self.took.get(lane, (0, 0))
        self.screen.say(f"{lane}: {count} in {seconds:.0f} s ({used:.0f} processor seconds)")

    def step(self, lane, folder, step):
        """Run a step on the host."""
        told = output.Told(folder, step.name, ("out",))
        with self.screen.busy(f"{lane}: {step.name}"):
            told.end(self.command(lane, step.command, lambda _, line: told.feed("out", line),
                                  silence=SILENCE))
        self.judge(lane, step, told)
        self.over(lane)
        return True

    def guest(self, lane, folder, row):
        """Run the steps of a guest. If the guest's kernel reports a problem, this counts as one
        more failed test."""
        with open(os.path.join(folder, "steps.sh"), "w", encoding="utf-8") as text:
            # Check the library first, because the loader would ignore a missing library.
            text.write(f"[ -r {shlex.quote(SLOW_MACHINE)} ] || exit\nexport {self.late}\n"
                       if self.late else "")
            text.write(output.script([step.command for step in row.steps]))
        on = f"tests/lab/on {row.on} " if row.on else ""
        where = f"{on and on + '-- '}tests/lab/run {row.guest} -- " + (
            f"env {self.late} " if self.late else "")
        ended, paced = set(), []

        def begin(number):
            part(": " + row.steps[number].name)
            return output.Told(folder, row.steps[number].name)

        def end(number, told):
            ended.add(number)
            count = self.judge(lane, row.steps[number], told, where)
            paced.extend(one for one in count.failures if one.paced)
        steps = output.Steps(begin, end)
        lab = output.Told(folder, "lab", ("log",))

        def feed(stream, line):
            if not steps.feed(stream, line):
                lab.feed("log", line)
        quoted = shlex.quote(folder)
        on = on and f"{on}--results {quoted} -- "
        with self.screen.busy(lane) as part:
            status = self.command(
                lane, f"{on}tests/lab/run {row.guest} --results {quoted} --timeout {LIMIT} "
                f"-- sh {quoted}/steps.sh", feed, streams=True, silence=SILENCE)
        lab.end(status)
        for number, step in enumerate(row.steps):
            if number in ended:
                continue
            if number in steps.told:
                steps.told[number].end(None)
                self.judge(lane, step, steps.told[number], where)
            else:
                self.add(lane, None, results.failure(f"{lane}: {step.name}: not run"))
        if status:
            self.add(lane, lab, results.failure(
                f"{lane}: the guest ended with status {status}", lab.text))
        else:
            self.paced += paced
            self.add(lane, None, results.Count(passed=1))   # the guest's kernel reported no problem
        self.over(lane)
        return True

    def lane_tasks(self, name, after, number):
        """The tasks of one run of a lane, and the tasks that must wait for this run."""
        row = self.chosen[name]
        lane = name if self.repeat == 1 else f"{name} {number}"
        folder = fresh(lane.replace(" ", "-"))
        needs = (*row.needs, *after)

        def give_up(need):
            self.add(lane, None, results.failure(f"{lane}: not run, because {need} failed"))
            self.over(lane)
        if row.guest:
            made = [schedule.Task(lane, lambda: self.guest(lane, folder, row), give_up, needs,
                                  row.seconds)]
        else:
            made = [schedule.Task(f"{lane}: {step.name}",
                                  lambda step=step: self.step(lane, folder, step), give_up,
                                  (*needs, *step.needs), step.seconds) for step in row.steps]
        self.left[lane] = len(made)
        return made

    def tasks(self):
        """All the tasks."""
        made = []
        for name in self.chosen:
            after = ()
            for number in range(1, self.repeat + 1):
                run = self.lane_tasks(name, after, number)
                after = tuple(task.name for task in run)
                made += run
        wanted = {need for task in made for need in task.needs if need in lanes.BUILDS}
        while more := {need for name in wanted for need in lanes.BUILDS[name].needs} - wanted:
            wanted |= more
        made += [schedule.Task(name, lambda name=name, row=row: self.build(name, row), None,
                               row.needs, row.seconds)
                 for name, row in lanes.BUILDS.items() if name in wanted]
        return made

    def repeat_paced(self):
        """Repeat each failed case that depends on the kernel's pace: once, alone, in a fresh guest.

        `self.paced` lacks the cases of a guest whose kernel reported a problem, or whose steps did
        not all end.
        """
        for one in self.paced:
            folder = fresh("again")
            told = output.Told(folder, one.name.replace("/", "-")[:80], ("out",))
            with self.screen.busy(f"repeating: {one.name}"):
                told.end(self.command("repeated cases", f"{one.again} -r lines",
                                      lambda _, line, told=told: told.feed("out", line),
                                      silence=SILENCE))
            count = results.judge(one.name, results.lines, told.text, told.status)
            good = count.passed and not count.failed
            self.screen.say(f"repeated: {one.name}: {'passed' if good else 'FAILED'}")
            if good:
                self.unsteady.append(one)
                self.count.failures.remove(one)
                self.count += results.Count(passed=1, failed=-1)

    def report(self):
        """Print the slow, skipped and failed tests. The last line has the counts."""
        print("\nseconds, processor seconds:")
        for name, (seconds, used) in sorted(self.took.items(), key=lambda one: -one[1][0]):
            print(f"  {seconds:5.0f} {used:5.0f}  {name}")
        print(f"  {'':5} {sum(used for _, used in self.took.values()):5.0f}  total")
        print("\nthe slowest tests:")
        for seconds, name in sorted(self.tests, reverse=True)[:SLOWEST]:
            print(f"  {seconds:5.1f}  {name}")
        if self.count.skips:
            print("\nskipped:")
        for reason in sorted(set(self.count.skips)):
            print(f"  {reason}")
        if self.count.failures:
            print("\nfailed:")
        most = max(3, LINES // max(1, len(self.count.failures)))
        for one in self.count.failures:
            self.show("FAILED", one, most)
        if self.unsteady:
            print("\nunsteady (failed once, but passed when repeated alone):")
        for one in self.unsteady:
            self.show("unsteady", one, most)
        if self.repeat > 1:
            print(f"\nfailures in {self.repeat} runs:")
            times = collections.Counter(re.sub(r"^(\S+) \d+:", r"\1:", one.name)
                                        for one in self.count.failures)
            for name, number in times.most_common():
                print(f"  {number:3}  {name}")
        print(self.count)

    @staticmethod
    def show(word, one, most):
        """Print a failure: its name, at most `most` lines of output, and the command that repeats
        it.
        """
        print(f"{word}: {one.name}")
        for line in results.shortened(one.said.replace(lanes.REPO + "/", ""), most):
            print(f"    {line[:300]}")
        for line in where_to_look(one):
            print(line)


def where_to_look(one):
    """The lines with the path of a failure's output, and with the command that repeats it."""
    if one.file:
        yield f"    whole output: {one.file}"
    if one.again:   # without the build this command would run the old program
        built = re.search(r"build/tests/((?:guest|unit)_\w+)", one.again)
        build = f"cmake --build build --target {built.group(1)} && " if built else ""
        yield f"    to repeat: {build}{one.again}"


def end(child, number):
    """Send a signal to a child and its descendants."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def fresh(name, clear=True):
    """Make an empty folder for the files of a lane."""
    folder = os.path.join(RESULTS, name)
    if clear:
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    return folder


def arguments():
    """The command line."""
    names = list(lanes.LANES)
    parser = argparse.ArgumentParser(prog="tests/run", description=__doc__.splitlines()[0])
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=", ".join(names))
    parser.add_argument("--all", action="store_true",
                        help="run all lanes except those that run only by name")
    parser.add_argument("--jobs", type=int, default=jobs(), metavar="N",
                        help="run this many jobs in parallel (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="run each lane N times, to find tests that fail sometimes")
    parser.add_argument("--late", metavar="PART",
                        choices=("child", "parent", "thread", "creator", "calls"),
                        help="preload libslow_machine.so in the guests' programs; it delays PART, "
                        "which is one of: %(choices)s")
    args = parser.parse_args()
    for name in args.lanes:
        if name not in names:
            parser.error(f"{name} is not a lane; the lanes are {', '.join(names)}")
    if args.all and args.lanes:
        parser.error("give --all or names of lanes, not both")
    args.lanes = {name: lanes.LANES[name] for name in args.lanes or names
                  if args.lanes or not lanes.LANES[name].named_only} \
        if args.all or args.lanes else gate.LANES
    return args


@contextlib.contextmanager
def alone():
    """A context that excludes other runs in this clone. Its value is False if another run uses the
    clone.
    """
    os.makedirs(os.path.dirname(RESULTS), exist_ok=True)
    with open(RESULTS + ".lock", "w", encoding="utf-8") as lock:    # no child inherits it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        yield first


def main():
    """Build, run, count."""
    args = arguments()
    with alone() as first:
        if not first:
            print("FAILED: another tests/run uses this clone")
            print(results.failure("tests/run"))
            return 1
        with screen.Screen() as display:
            run = Run(args.lanes, args.repeat, args.late, display)
            try:
                schedule.run(run.tasks(), args.jobs)
                run.repeat_paced()
            except KeyboardInterrupt:
                run.stop()
                raise
        run.report()
    return 1 if run.count.failed else 0


if __name__ == "__main__":
    def interrupt(*_):
        """Handle the signal as if it were Ctrl-C."""
        raise KeyboardInterrupt

    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
