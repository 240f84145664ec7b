# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Show the user a line for each finished step, and the running tasks.

On a terminal the last line always names the running tasks. Otherwise a new line names them once a
minute.
"""
import contextlib
import os
import sys
import threading
import time


class Screen:
    """Lines from several threads."""

    def __init__(self, out=sys.stdout, every=60):
        self.out = out
        self.live = out.isatty()
        self.every = 1 if self.live else every
        self.start = time.monotonic()
        self.lock = threading.Lock()
        self.doing = {}             # name: (start time, current part)
        self.over = threading.Event()
        self.ticker = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self):
        self.ticker.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.ticker.join()
        self.clear()

    def elapsed(self):
        """The first column."""
        return f"{time.monotonic() - self.start:5.0f} s  "

    def say(self, text):
        """One line."""
        with self.lock:
            self.clear()
            print(self.elapsed() + text, file=self.out, flush=True)

    def clear(self):
        """Erase the line of the running tasks."""
        if self.live:
            self.out.write("\r\033[K")
            self.out.flush()

    @contextlib.contextmanager
    def busy(self, name):
        """A context for a running task. Its value is a function that shows the name of the current
        part.
        """
        def part(text):
            with self.lock:
                self.doing[name] = (time.monotonic(), text)
        part("")
        try:
            yield part
        finally:
            with self.lock:
                del self.doing[name]

    def tick(self):
        """Show the running tasks regularly."""
        while not self.over.wait(self.every):
            with self.lock:
                now = time.monotonic()
                text = self.elapsed() + "... " + ", ".join(
                    f"{name}{part} ({now - since:.0f} s)"
                    for name, (since, part) in self.doing.items())
                if self.live:
                    width = os.get_terminal_size(self.out.fileno()).columns - 1
                    self.out.write("\r\033[K" + text[:width])
                elif self.doing:
                    self.out.write(text + "\n")
                self.out.flush()
