#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Test the guest runner, with the kernel that boots fastest.

The tests are skipped until this kernel is built (tests/lab/run --kernel um -- true), which takes
minutes.
"""
import fcntl
import glob
import os
import signal
import subprocess
import tempfile
import time
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN = os.path.join(REPO, "tests/lab/run")
KERNEL = os.environ.get("LAB_KERNEL", "um")


def processes_with(text):
    """Processes with this text on their command line or in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as content:
                    if int(pid) != os.getpid() and text.encode() in content.read():
                        found.append(pid)
            except OSError:
                pass  # the process has ended, or belongs to another user
    return found


def emulators_in(folder):
    """The QEMUs of guests with temporary files in this folder, except QEMUs that only try KVM."""
    found = []
    for pid in processes_with(folder):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as content:
                command = content.read()
        except OSError:
            continue    # the process has ended
        if (b"qemu-system" in command.split(b"\0")[0] and folder.encode() in command
                and b"lab_probe" not in command):
            found.append(int(pid))
    return found


@unittest.skipUnless(os.path.exists(os.path.join(REPO, "build/lab", KERNEL, "kernel")),
                     f"the {KERNEL} kernel is not built")
class Guests(unittest.TestCase):
    """Tests that run guests, each with its own temporary folder."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.temp = os.path.join(self.folder.name, "temp")
        os.mkdir(self.temp)

    def start(self, *arguments, **options):
        """Start the runner with its temporary files in the test's folder."""
        env = {**os.environ, "TMPDIR": self.temp, **options}
        return subprocess.Popen([RUN, "--kernel", KERNEL, *arguments], env=env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                cwd=self.folder.name)

    def run_guest(self, *arguments, **options):
        """Run to the end; return (status, output, errors). Check that nothing is left."""
        process = self.start(*arguments, **options)
        out, err = process.communicate()
        self.assert_nothing_left()
        return process.returncode, out, err

    def assert_nothing_left(self):
        """Wait until the processes of the guest and its folder are gone."""
        for _ in range(600):
            left = processes_with(self.temp + "/lab-") + os.listdir(self.temp)
            if not left:
                return
            time.sleep(0.1)
        self.fail(f"left behind: {left}")


class Run(Guests):
    """One guest."""

    def test_status_and_outputs(self):
        """The runner passes on the exit status, and each output separately, byte for byte."""
        path = os.path.join(self.folder.name, "bytes")
        content = os.urandom(500_000) + bytes(range(256))
        with open(path, "wb") as out:
            out.write(content)
        result = self.run_guest("--", "sh", "-c", "cat bytes; echo error >&2; exit 7")
        self.assertEqual(result, (7, content, b"error\n"))

    def test_surroundings(self):
        """A command gets its folder, identity, arguments, environment and RDMA devices."""
        status, out, err = self.run_guest(
            "--", "sh", "-c", 'pwd; id -u; echo "$1|$RDMAV_TEST|$OTHER"; ulimit -l; '
            'ls /sys/class/infiniband; cat /sys/class/infiniband/rxe0/ports/1/gids/1; '
            'command -v python3', "sh", "two words'", RDMAV_TEST="a b", OTHER="no")
        gid = "0000:0000:0000:0000:0000:ffff:0a00:0001"
        self.assertEqual(err, b"")
        self.assertEqual(out.decode().splitlines(),
                         [self.folder.name, "0", "two words'|a b|", "unlimited", "rxe0",
                          *(["siw0"] if KERNEL != "stock" else []), gid, "/usr/bin/python3"])
        self.assertEqual(status, 0)

    def test_not_found(self):
        """If the command does not exist, the status is 127, as in a shell."""
        self.assertEqual(self.run_guest("--", "no-such-program")[0], 127)

    def test_host_is_not_changed(self):
        """The guest sees its own writes. The host sees only the results."""
        path = os.path.join(self.folder.name, "file")
        with open(path, "w", encoding="utf-8") as out:
            out.write("host")
        results = os.path.join(self.folder.name, "results of it")
        status, out, _ = self.run_guest(
            "--results", results, "--", "sh", "-c",
            "echo guest >file; touch new; cat file; echo result >'results of it/r'")
        self.assertEqual((status, out), (0, b"guest\n"))
        with open(path, encoding="utf-8") as text:
            self.assertEqual(text.read(), "host")
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "new")))
        with open(os.path.join(results, "r"), encoding="utf-8") as text:
            self.assertEqual(text.read(), "result\n")

    @unittest.skipUnless(KERNEL in ("um", "debug"), "Debian's kernel has no LKDTM")
    def test_kernel_report_fails(self):
        """A WARNING is printed. The run fails even if the command succeeds."""
        status, out, err = self.run_guest(
            "--", "sh", "-c", "echo WARNING >/sys/kernel/debug/provoke-crash/DIRECT; echo done")
        self.assertEqual((status, out), (99, b"done\n"))
        self.assertIn(b"WARNING: CPU", err)
        self.assertIn(b"lkdtm", err)

    @unittest.skipUnless(KERNEL in ("um", "debug"), "Debian's kernel has no LKDTM")
    def test_stack_of_a_task_that_hangs(self):
        """The runner prints the stack, because the kernel does not print it by itself."""
        status, out, err = self.run_guest(
            "--timeout", "1200", "--", "sh", "-c",
            "echo 1 >/proc/sys/kernel/hung_task_timeout_secs; "
            "echo 1 >/proc/sys/kernel/hung_task_warnings; "
            "(exec >/dev/null 2>&1; echo HUNG_TASK >/sys/kernel/debug/provoke-crash/DIRECT) & "
            "until dmesg | grep -q 'blocked for more than'; do sleep 0.2; done; echo done")
        self.assertEqual((status, out), (99, b"done\n"))
        self.assertIn(b"INFO: task sh", err)
        self.assertIn(b"lkdtm_HUNG_TASK", err)

    def test_panic_fails(self):
        """A panic ends the guest without a status, and is printed."""
        status, _, err = self.run_guest("--", "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 9999")
        self.assertEqual(status, 99)
        self.assertIn(b"Kernel panic", err)

    def test_time_limit(self):
        """A guest that hangs is ended, and its output is kept."""
        for limit in (4, 16, 64, 256):
            status, out, _ = self.run_guest("--timeout", str(limit),
                                            "--", "sh", "-c", "echo begun; sleep 9999")
            self.assertEqual(status, 124)
            if out:
                break
        self.assertEqual(out, b"begun\n")

    def test_background_processes(self):
        """The run ends although a process of the command still runs."""
        status, out, _ = self.run_guest("--timeout", "300",
                                        "--", "sh", "-c", "sleep 9999 & echo done")
        self.assertEqual((status, out), (0, b"done\n"))

    def test_kernel_stays_while_it_runs(self):
        """The runner holds a lock until its end. A build of the kernel waits for this lock."""
        path = os.path.join(REPO, "build/lab", KERNEL, ".lock")
        process = self.start("--", "sh", "-c", "echo begun; sleep 9999")
        self.assertEqual(process.stdout.readline(), b"begun\n")
        with open(path, "w", encoding="utf-8") as lock:
            with self.assertRaises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)    # another guest may start
        process.terminate()
        process.communicate()
        self.assert_nothing_left()

    def check_signal(self, number, status):
        """Send a signal in the middle of a run."""
        process = self.start("--", "sh", "-c", "echo begun; sleep 9999")
        self.assertEqual(process.stdout.readline(), b"begun\n")
        self.assertTrue(processes_with(self.temp + "/lab-"))
        process.send_signal(number)
        process.communicate()
        self.assertEqual(process.returncode, status)
        self.assert_nothing_left()

    def test_interrupt(self):
        """Ctrl-C."""
        self.check_signal(signal.SIGINT, 128 + signal.SIGINT)

    def test_terminate(self):
        """SIGTERM."""
        self.check_signal(signal.SIGTERM, 128 + signal.SIGTERM)

    def test_killed(self):
        """SIGKILL."""
        self.check_signal(signal.SIGKILL, -signal.SIGKILL)


class Nodes(Guests):
    """Two guests, and the wires between them."""

    def run_nodes(self, script, *arguments):
        """Run a shell script on the first node."""
        status, out, err = self.run_guest("--nodes", "2", *arguments, "--", "sh", "-c", script)
        return status, out.decode(), err.decode()

    def test_status_and_outputs(self):
        """A command on the other node gets its input and folder, and returns its outputs and
        status.
        """
        path = os.path.join(self.folder.name, "bytes")
        content = os.urandom(500_000) + bytes(range(256))
        with open(path, "wb") as out:
            out.write(content)
        result = self.run_guest("--nodes", "2", "--", "sh", "-c", "lab-on 2 sh -c 'cat; "
                                "cat bytes; cat /proc/sys/kernel/hostname >/dev/stderr; exit 7'"
                                " <bytes")
        self.assertEqual(result, (7, content * 2, b"node2\n"))

    def test_commands_that_fail(self):
        """The command can't run or is killed, the node does not exist, or no command is given."""
        status, out, err = self.run_nodes(
            "lab-on 2 no-such-program; echo $?; lab-on 2 sh -c 'kill -9 $$'; echo $?; "
            "lab-on 3 true; echo $?; lab-on 2; echo $?; lab-node 2 paint; echo $?; "
            "lab-on 2 lab-node 2 kill; echo $?")
        self.assertEqual((status, out.split()), (0, ["127", "137", "255", "2", "2", "1"]), err)
        self.assertRegex(err, "no-such-program: No such file.*\nlab-on: node 3: .*\n"
                         "usage: lab-on .*\nusage: lab-node .*\nlab-node: only node 1 .*\n")

    def test_command_ends_with_its_caller(self):
        """After lab-on is killed, no process is left on the other node."""
        status, out, err = self.run_nodes(
            "lab-on 2 sh -c 'echo begun; exec sleep 9876' >said & "
            "until grep -q begun said; do sleep 0.1; done; kill -9 $!; "
            "while lab-on 2 grep -az 9876 /proc/[0-9]*/cmdline >/dev/null; do sleep 0.1; done; "
            "echo gone")
        self.assertEqual((status, out), (0, "gone\n"), err)

    def test_transfer(self):
        """A transfer over each device. Each end can change the wire."""
        # This wire has no loss. If the last response got lost, the client would wait for an ended
        # server.
        status, out, err = self.run_nodes(
            "set -e; command -v ibv_rc_pingpong rping >/dev/null; "
            "heard() { until lab-on 2 busybox netstat -ltn | grep -q :$1; do sleep 0.1; done; }; "
            "lab-on 2 ibv_rc_pingpong -d rxe0 -g 1 -n 100 >there & heard 18515; "
            "ibv_rc_pingpong -d rxe0 -g 1 -n 100 10.1.2.2; wait $!; cat there; "
            "lab-on 2 rping -s -a 10.1.1.2 -C 10 >/dev/null & heard 7174; "
            "rping -c -v -a 10.1.1.2 -C 10 | grep 'ping data'; "
            "tc qdisc show dev eth0; lab-on 2 tc qdisc show dev eth1; "
            "lab-node 2 wire delay 1ms loss 2% reorder 10%; "
            "tc qdisc show dev eth0; lab-on 2 tc qdisc show dev eth1",
            "--wire", "delay 1ms reorder 10%")
        self.assertEqual(status, 0, err)
        self.assertEqual(out.count("100 iters in"), 2, out)
        self.assertEqual(out.count("ping data"), 10, out)
        self.assertEqual(out.count("delay 1ms reorder 10%"), 2, out)
        self.assertEqual(out.count("delay 1ms loss 2% reorder 10%"), 2, out)

    def test_wire_is_cut(self):
        """Both directions are cut until the wire is repaired. Commands still work."""
        status, out, err = self.run_nodes(
            "ping='busybox ping -c 3 -W 1'; lab-node 2 cut; "
            "$ping 10.1.0.2 >&2; echo $?; lab-on 2 $ping 10.1.0.1 >&2; echo $?; lab-node 2 mend; "
            "until $ping 10.1.0.2 >&2; do :; done; until lab-on 2 $ping 10.1.0.1 >&2; do :; done; "
            "tc qdisc show dev eth0", "--wire", "delay 2ms")
        self.assertEqual((status, out.splitlines()[:2]), (0, ["1", "1"]), err)
        self.assertIn("delay 2ms", out)

    def test_node_is_killed(self):
        """A killed node ends without a message, and can be started again. The run does not fail."""
        status, out, err = self.run_nodes(
            "lab-on 2 touch /mark; lab-node 2 kill && lab-node 2 kill && "
            "{ lab-on 2 true; echo $?; lab-node 2 start && lab-on 2 test -e /mark; echo $?; }")
        self.assertEqual((status, out.split()), (0, ["255", "1"]), err)

    @unittest.skipUnless(KERNEL in ("um", "debug"), "Debian's kernel has no LKDTM")
    def test_kernel_report_fails(self):
        """A WARNING of the other kernel is printed. The run fails even if the command succeeds."""
        status, out, err = self.run_nodes(
            "lab-on 2 sh -c 'echo WARNING >/sys/kernel/debug/provoke-crash/DIRECT'; echo done")
        self.assertEqual((status, out), (99, "done\n"))
        self.assertIn("lkdtm", err)
        self.assertIn("the kernel of node2 reported: WARNING: CPU", err)

    def test_panic_fails(self):
        """A panic fails the run even if the node was started again."""
        for more in ("", "; lab-node 2 start"):
            status, _, err = self.run_nodes(
                "(echo c | timeout 20 lab-on 2 tee /proc/sysrq-trigger)" + more)
            self.assertEqual(status, 99)
            self.assertIn("Kernel panic", err)

    def test_time_limit(self):
        """Both nodes are ended."""
        status, _, err = self.run_guest("--nodes", "2", "--timeout", "4", "--", "sleep", "9999")
        self.assertEqual(status, 124)
        self.assertIn(b"of node2", err)

    def test_signals(self):
        """Both nodes end after SIGTERM and after SIGKILL of the runner."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            process = self.start("--nodes", "2", "--", "sh", "-c", "echo begun; sleep 9999")
            self.assertEqual(process.stdout.readline(), b"begun\n")
            process.send_signal(number)
            process.communicate()
            self.assert_nothing_left()


@unittest.skipUnless(os.path.exists(os.path.join(REPO, "build/lab/debian/kernel")),
                     "the debian kernel is not built")
class Emulated(unittest.TestCase):
    """Functions of QEMU only."""

    def test_clock_counts_instructions(self):
        """The kernel finds a CPU of 1 GHz, however fast this machine is."""
        done = subprocess.run([RUN, "--kernel", "debian", "--count-instructions", "--",
                               "grep", "MHz", "/proc/cpuinfo"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\A.*: (999|1000)\.\d+\n\Z")

    def start(self, temp, *command):
        """Start a guest with its temporary files in this folder."""
        return subprocess.Popen([RUN, "--kernel", "debian", "--", *command], text=True,
                                env={**os.environ, "TMPDIR": temp}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def crash_emulators(self, *signals):
        """Start a guest, send one signal to each of its first QEMUs; return (status, output,
        errors).
        """
        with tempfile.TemporaryDirectory() as temp:
            process = self.start(temp, "echo", "done")
            hit = []
            while len(hit) < len(signals) and process.poll() is None:
                for pid in emulators_in(temp):
                    if pid not in hit:
                        os.kill(pid, signals[len(hit)])
                        hit.append(pid)
                time.sleep(0.1)
            out, err = process.communicate()
            self.assertEqual(os.listdir(temp), [], "a guest's folder is left")
        self.assertEqual(len(hit), len(signals), err)
        return process.returncode, out, err

    def test_emulator_crashes_while_booting(self):
        """The guest starts again, and only the command's result counts."""
        status, out, err = self.crash_emulators(signal.SIGABRT, signal.SIGSEGV)
        self.assertEqual((status, out), (0, "done\n"), err)
        self.assertEqual(err.count("QEMU crashed"), 2, err)

    def test_emulator_always_crashes(self):
        """An emulator that always crashes is a failure."""
        status, out, _ = self.crash_emulators(*[signal.SIGABRT] * 3)
        self.assertEqual((status, out), (99, ""))

    def test_emulator_is_killed(self):
        """If a user or the OOM killer kills the emulator, the runner does not report a crash."""
        status, out, err = self.crash_emulators(signal.SIGKILL)
        self.assertEqual((status, out), (99, ""))
        self.assertNotIn("QEMU crashed", err)

    def test_emulator_crashes_after_a_report(self):
        """If the kernel reports a problem before the crash, the report is kept."""
        with tempfile.TemporaryDirectory() as temp:
            process = self.start(temp, "true")
            while not (found := emulators_in(temp)) and process.poll() is None:
                time.sleep(0.1)
            self.assertTrue(found, "the lab has ended before")
            os.kill(found[0], signal.SIGSTOP)
            console, = glob.glob(os.path.join(temp, "lab-*/console.log"))
            with open(console, "a", encoding="ascii") as text:
                text.write("\n[    0.000000] WARNING: CPU: 0 PID: 1 at here.c:1 of_a_test\n")
            os.kill(found[0], signal.SIGABRT)
            os.kill(found[0], signal.SIGCONT)
            _, err = process.communicate()
        self.assertEqual(process.returncode, 99, err)
        self.assertIn("of_a_test", err)

    def test_emulator_crashes_under_the_command(self):
        """The command is not run again, because its work would be done twice."""
        with tempfile.TemporaryDirectory() as temp:
            process = self.start(temp, "sh", "-c", "echo begun; sleep 9999")
            self.assertEqual(process.stdout.readline(), "begun\n")
            for pid in emulators_in(temp):
                os.kill(pid, signal.SIGABRT)
            _, err = process.communicate()
        self.assertEqual(process.returncode, 99, err)
        self.assertNotIn("QEMU crashed", err)

    def test_death_while_booting(self):
        """A kernel that dies before it starts a program is a failure."""
        done = subprocess.run([RUN, "--kernel", "debian", "--memory", "64M", "--", "true"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 99, done.stderr)
        self.assertIn("Kernel panic", done.stderr)


if __name__ == "__main__":
    unittest.main()
