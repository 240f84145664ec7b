# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Keep the output of programs in files, split it into steps, and time it while it arrives.

The script in a guest marks the begin and the end of each step in both outputs of the guest. A step
has ended when both outputs have its end mark. Then the whole output of the step has arrived, on any
transport.
"""
import os
import re
import threading
import time

MARK = "@@ step"


class Times:
    """The time of each test. It begins at the end of the previous test."""

    def __init__(self):
        self.tests = []             # (seconds, name)
        self.name = None            # the running test; unittest prints its name before the result
        self.last = time.monotonic()

    def feed(self, line):
        """One more line has come."""
        found = re.match(r"(?:not )?ok (.+)", line)
        named = re.match(r"(test\w* \([\w.]+\))", line)
        if named:
            self.name = named.group(1)
        if found:
            self.end(found.group(1))
        elif self.name and re.search(r"(?:^|\.\.\. )(?:ok|FAIL|ERROR|skipped .*|expected failure)$",
                                     line):
            self.end(self.name)
            self.name = None

    def end(self, name):
        """The test with this name has ended."""
        now = time.monotonic()
        self.tests.append((now - self.last, name))
        self.last = now


class Told:
    """The output of one step, in a file per stream (NAME.out and NAME.err), and the times of its
    tests.
    """

    def __init__(self, folder, name, streams=("out", "err")):
        self.base = os.path.join(folder, name.replace(" ", "-"))
        self.files = {stream: open(f"{self.base}.{stream}", "w", encoding="utf-8")
                      for stream in streams}
        self.times = Times()
        self.start = time.monotonic()
        self.seconds = None
        self.status = None

    def feed(self, stream, line):
        """Take a line with its line end."""
        self.files[stream].write(line)
        self.files[stream].flush()
        self.times.feed(line.rstrip("\n"))

    def end(self, status):
        """The step has ended with this exit status, or None."""
        self.status = status
        self.seconds = time.monotonic() - self.start
        for file in self.files.values():
            file.close()

    @property
    def text(self):
        """All output, standard output first."""
        said = []
        for stream in self.files:
            with open(f"{self.base}.{stream}", encoding="utf-8") as text:
                said.append(text.read())
        return "\n".join(filter(None, said))


class Steps:
    """Splits the outputs of a guest into its steps. Each stream may have its own thread."""

    def __init__(self, begin, end):
        self.begin = begin          # begin(number): a Told
        self.end = end              # end(number, told)
        self.told = {}              # number: Told
        self.at = {}                # stream: the number of its current step
        self.waiting = {}           # number: True after one of the two streams has ended the step
        self.lock = threading.Lock()

    def feed(self, stream, line):
        """Take a line of a stream. Return whether the line belonged to a step."""
        with self.lock:
            found = re.match(rf"{MARK} (\d+) (?:begins|ended (\d+))$", line)
            if not found:
                told = self.told.get(self.at.get(stream))
                if told and told.status is None:
                    told.feed(stream, line)
                return told is not None
            number = int(found.group(1))
            if found.group(2) is None:
                self.at[stream] = number
                if number not in self.told:
                    self.told[number] = self.begin(number)
            else:
                self.at.pop(stream, None)
                if self.waiting.pop(number, None):
                    self.told[number].end(int(found.group(2)))
                    self.end(number, self.told[number])
                else:
                    self.waiting[number] = True
            return True


def script(commands):
    """A shell script that runs the commands and marks where each begins and ends."""
    text = f"""set -u
mark() {{
    printf '\\n{MARK} %s\\n' "$*"
    printf '\\n{MARK} %s\\n' "$*" >&2
}}
status=$(mktemp)
trap 'rm -f "$status"' EXIT
"""
    for number, command in enumerate(commands):
        # When no process can write to the pipe any more, cat ends. Then the step ends.
        text += f"mark {number} begins\n{{ ( {command} ); echo $? >\"$status\"; }} | cat\n"
        text += f'mark {number} ended "$(cat "$status")"\n'
    return text
