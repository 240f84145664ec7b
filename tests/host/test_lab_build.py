#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""The lab makes a machine again if needed. During this time no other process makes or uses it.

A function replaces the compiler, which would take minutes. The lab's decisions are real.
"""
import contextlib
import fcntl
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lab")
sys.path.insert(0, LAB)
import build  # noqa: E402
import machine as machines  # noqa: E402


# A program that uses the lab in a folder. Its make ends only when it is permitted to end.
MAKE = """
import sys
lab, folder = sys.argv[1:]
sys.path.insert(0, lab)
import build, machine as machines
machines.BUILD = build.BUILD = folder
build.make_from_tree = lambda _: build.run(["make", "-C", folder, "half"], folder + "/log")
with build.ready(machines.load("um")):
    pass
"""
MAKEFILE = """
half:
\ttrap 'kill $$!; until [ -e end ]; do sleep 0.1; done; exit 1' TERM; \\
\t\tsleep 100 & echo $$$$ >$@; wait
"""


class Ready(unittest.TestCase):
    """A machine in its own folder, made from one source file."""

    def setUp(self):
        with contextlib.ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory())
            self.source = os.path.join(self.folder, "source")
            for module in (build, machines):
                stack.enter_context(mock.patch.object(module, "BUILD", self.folder))
            stack.enter_context(mock.patch.object(build, "OUR_KERNEL", (self.source,)))
            stack.enter_context(mock.patch.object(build.initramfs, "write"))
            stack.enter_context(mock.patch.object(build, "make_from_tree", self.make))
            self.said = stack.enter_context(mock.patch.object(build, "say"))
            self.addCleanup(stack.pop_all().close)
        self.machine = machines.load("um")
        self.during = []        # functions to call while a machine is made, each once
        self.made = []          # the source of each machine that was made
        self.busy = 0
        self.write("1")

    def write(self, text):
        """Edit the source."""
        with open(self.source, "w", encoding="utf-8") as out:
            out.write(text)

    def make(self, machine):
        """The fake compiler, which reads the source when it starts."""
        self.busy += 1
        self.assertEqual(self.busy, 1)
        self.made.append(build.read(self.source))
        if self.during:
            self.during.pop(0)()
        with open(machine.kernel, "w", encoding="utf-8") as out:
            out.write(self.made[-1])
        self.busy -= 1

    def use(self):
        """The kernel that a guest would run if it started now."""
        with build.ready(self.machine):
            return build.read(self.machine.kernel)

    def test_once(self):
        """A machine that is up to date stays."""
        self.assertEqual([self.use(), self.use()], ["1", "1"])
        self.assertEqual(self.made, ["1"])

    def test_announced(self):
        """The message has the machine's name, and how long the last build took."""
        def said():
            text = "\n".join(call.args[0] for call in self.said.call_args_list)
            self.said.reset_mock()
            return text
        self.use()
        self.assertEqual(said(), "um is not built yet: making a kernel from Linux's source; "
                         "the first time takes minutes")
        self.use()
        self.assertEqual(said(), "")
        self.write("2")
        self.during.append(lambda: time.sleep(1))
        self.use()
        self.assertEqual(said(), "um is not up to date: making a kernel from Linux's source; "
                         "last time that took 0 s")
        os.unlink(self.machine.kernel)
        self.use()
        self.assertRegex(said(), "^um is not built yet: .*; last time that took [1-9]")

    def test_edited(self):
        """After an edit the machine is made again."""
        self.use()
        self.write("2")
        self.assertEqual(self.use(), "2")

    def test_edited_while_made(self):
        """If the source is edited during the build, the machine is made again, because the compiler
        may have read the old text.
        """
        self.during.append(lambda: self.write("2"))
        self.assertEqual(self.use(), "2")
        self.assertEqual(self.made, ["1", "2"])

    def test_objects_of_another_machine(self):
        """The other machine is made first. The first build begins with a copy of its objects. Later
        builds keep the machine's own objects."""
        other, odp = machines.load("next-um"), machines.load("next-odp")
        objects = {one.name: os.path.join(one.folder, "build", "objects") for one in (other, odp)}
        self.assertEqual(odp.objects_of, other.name)
        os.makedirs(os.path.dirname(objects[other.name]))
        with open(objects[other.name], "w", encoding="utf-8") as out:
            out.write("1")
        build.copy_objects(odp, os.path.dirname(objects[odp.name]))
        self.assertEqual((build.read(objects[odp.name]), self.made), ("1", ["1"]))
        os.unlink(objects[odp.name])
        build.copy_objects(odp, os.path.dirname(objects[odp.name]))
        self.assertEqual(build.read(objects[odp.name]), "")

    def test_failed(self):
        """A machine is not up to date after its build failed."""
        def fail():
            self.busy -= 1
            raise build.LabError("on purpose")
        self.use()
        self.write("2")
        self.during.append(fail)
        with self.assertRaises(build.LabError):
            self.use()
        self.write("1")
        self.assertEqual((self.use(), self.made), ("1", ["1", "2", "1"]))

    def test_version_known_late(self):
        """If the first build determines upstream's version, this does not count as a change."""
        def find():
            with open(os.path.join(self.folder, "linux.version"), "w", encoding="utf-8") as out:
                out.write("6.12.1")
        self.during.append(find)
        self.use()
        self.use()
        self.assertEqual(self.made, ["1"])

    def test_two_at_once(self):
        """Two parallel runs make the machine once, and both can use it."""
        found = []
        self.during.append(lambda: time.sleep(0.2))
        threads = [threading.Thread(target=lambda: found.append(self.use())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((found, self.made), (["1"] * 4, ["1"]))

    def test_guest_keeps_it(self):
        """The machine is made again only after its guest has ended."""
        found = []
        with build.ready(self.machine):
            self.write("2")
            thread = threading.Thread(target=lambda: found.append(self.use()))
            thread.start()
            thread.join(0.3)
            self.assertTrue(thread.is_alive())
            self.assertEqual((build.read(self.machine.kernel), self.made), ("1", ["1"]))
        thread.join()
        self.assertEqual((found, self.made), (["2"], ["1", "2"]))

    def test_interrupted(self):
        """An interrupted build leaves no incomplete files and no processes."""
        half = os.path.join(self.folder, "half")
        self.write("half:\n\techo $$$$ >$@; sleep 100\n")

        def stop(*_):
            raise InterruptedError

        def stop_it():
            while not (said := build.read(half)).endswith("\n"):
                time.sleep(0.01)
            pids.append(int(said))
            os.kill(os.getpid(), signal.SIGUSR1)
        pids = []
        before = signal.signal(signal.SIGUSR1, stop)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        threading.Thread(target=stop_it, daemon=True).start()    # waits forever if make fails
        with self.assertRaises(InterruptedError):
            build.run(["make", "-C", self.folder, "-f", self.source, "half"],
                      os.path.join(self.folder, "log"))
        self.assertFalse(os.path.exists(half))
        with self.assertRaises(ProcessLookupError):
            os.kill(pids[0], 0)

    def test_killed(self):
        """If the caller of a build is killed, the build ends, and holds the lock until its end."""
        half = os.path.join(self.folder, "half")
        with open(os.path.join(self.folder, "Makefile"), "w", encoding="utf-8") as out:
            out.write(MAKEFILE)
        lab = subprocess.Popen([sys.executable, "-B", "-c", MAKE, LAB, self.folder])
        while not (said := build.read(half)).endswith("\n") and lab.poll() is None:
            time.sleep(0.01)
        lab.kill()
        lab.wait()
        with open(os.path.join(self.machine.folder, ".lock"), "w", encoding="utf-8") as lock:
            with self.assertRaises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.kill(int(said), 0)
            with open(os.path.join(self.folder, "end"), "w", encoding="utf-8"):
                pass
            fcntl.flock(lock, fcntl.LOCK_EX)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(said), 0)
        self.assertFalse(os.path.exists(half))

    def test_prepared_emulator(self):
        """--prepare tries KVM, and fetches QEMU if the guests of the machine need it."""
        loader = importlib.machinery.SourceFileLoader("lab_run", os.path.join(LAB, "run"))
        run = importlib.util.module_from_spec(importlib.util.spec_from_loader("lab_run", loader))
        loader.exec_module(run)
        for kernel, accelerator, fetched in (("debian", "tcg", 1), ("debian", "kvm", 0),
                                             ("pvrdma", "tcg", 0), ("um", "tcg", 0)):
            with mock.patch.object(run.guest, "accelerator", return_value=accelerator), \
                    mock.patch.object(run.emulator, "program") as program, \
                    mock.patch.object(run.build, "ready"), \
                    mock.patch.object(run.um, "check_host"), \
                    mock.patch.object(sys, "argv", ["run", "--kernel", kernel, "--prepare"]):
                self.assertEqual(run.main(), 0)
                self.assertEqual(program.call_count, fetched, (kernel, accelerator))


if __name__ == "__main__":
    unittest.main()
