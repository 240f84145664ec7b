# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Start a guest, pass on the output of its command, and end the guest in any case.

A guest is one process group. It ends by itself, at a time limit, or after a signal to this process.
A keeper process waits for the end of this process. If this process is killed, the keeper ends the
guest, and removes the control folder. This folder is shared with the guest, and has the command and
its status.
"""
import dataclasses
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import child
import emulator
import machine as machines
from machine import BUILD, HERE, REPO, LabError

BOOT_ID = "/proc/sys/kernel/random/boot_id"
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)    # not the signals that end a process on request


def quote_config(values):
    """Shell assignments; the values are single-quoted."""
    return "".join(f"{name}='{quoted}'\n" for name, value in values.items()
                   for quoted in [str(value).replace("'", "'\\''")])


class Guest:
    """One run of one machine. The context removes all files and processes at its end."""

    def __init__(self, machine, memory, cpus, results="", layer="", place=None):
        self.machine = machine
        self.memory = memory
        self.cpus = cpus
        self.results = results
        self.layer = layer      # a folder that the guest sees over the host's root
        self.place = place      # its place among --nodes
        self.control = tempfile.mkdtemp(prefix="lab-")
        self.console = os.path.join(self.control, "console.log")
        self.process = None
        self.streams = {}
        self.port = None        # the port between a node and the lab
        self.keeper_pipe = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        for stream in (*self.streams, *([self.port] if self.port else [])):
            stream.close()
        shutil.rmtree(self.control, ignore_errors=True)
        if self.keeper_pipe is not None:
            os.close(self.keeper_pipe)

    def write(self, name, text):
        """Write a file of the control folder."""
        with open(os.path.join(self.control, name), "w", encoding="utf-8",
                  errors="surrogateescape") as out:
            out.write(text)

    def status(self):
        """The command's exit status, or None if the guest did not report it."""
        try:
            with open(os.path.join(self.control, "status"), encoding="ascii") as text:
                return int(text.read())
        except (FileNotFoundError, ValueError):
            return None

    def console_text(self):
        """The console so far."""
        try:
            with open(self.console, encoding="utf-8", errors="replace") as text:
                return text.read()
        except FileNotFoundError:
            return ""

    def config(self, outputs):
        """Write the settings for tests/lab/enter and tests/lab/init."""
        self.write("config", quote_config({
            "lab": HERE, "results": self.results, "layer": self.layer, "outputs": outputs,
            "modules": self.machine.guest_modules, "load": " ".join(self.machine.load),
            "rxe": "yes" if self.machine.rxe else "", "siw": "yes" if self.machine.siw else "",
            "scheduler": self.machine.scheduler,
            "node": self.place.node if self.place else "",
            "wire": self.place.netem if self.place else "",
            "hostname": f"node{self.place.node}" if self.place else socket.gethostname()}))

    def qemu(self, out, err, port, accelerator):
        """The QEMU command. The descriptors are for the outputs and for messages to the lab."""
        self.config("/dev/vport0p1 /dev/vport0p2 /dev/vport0p3")
        shares = [("root", "/", ",readonly=on"), ("control", self.control, "")]
        if self.results:
            shares.append(("results", self.results, ""))
        if self.layer:
            shares.append(("layer", self.layer, ",readonly=on"))
        program = emulator.SYSTEMS
        if accelerator == "tcg" and not self.machine.systems_emulator:
            program = emulator.program()
        command = [program, "-nodefaults", "-no-user-config", "-display", "none",
                   "-no-reboot", "-accel", accelerator,
                   "-cpu", "host" if accelerator == "kvm" else emulator.cpu(program),
                   "-smp", f"{self.cpus},sockets={self.cpus}", "-m", f"{self.memory >> 20}M",
                   "-kernel", self.machine.kernel, "-initrd", self.machine.initramfs,
                   "-append", self.kernel_arguments("console=ttyS0 lab_fs=9p"),
                   "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
                   "-device", "virtio-serial-pci,max_ports=4",
                   "-chardev", f"socket,id=out,fd={out}",
                   "-device", "virtserialport,chardev=out,nr=1",
                   "-chardev", f"socket,id=err,fd={err}",
                   "-device", "virtserialport,chardev=err,nr=2",
                   "-chardev", f"socket,id=port,fd={port}",
                   "-device", "virtserialport,chardev=port,nr=3", *self.machine.devices]
        for name, path, options in shares:
            command += ["-fsdev", f"local,id={name},path={path.replace(',', ',,')},"
                        f"security_model=none,multidevs=remap{options}",
                        "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
        for card, mac, fd in self.cards():
            command += ["-netdev", f"dgram,id=net{card},local.type=fd,local.str={fd}", "-device",
                        f"virtio-net-pci,netdev=net{card},mac={mac},romfile="]
        return command

    def uml(self, out, err, port):
        """The command of User Mode Linux, whose standard error is the console."""
        self.config("/dev/tty1 /dev/tty2 /dev/tty3")
        return [self.machine.kernel, f"mem={self.memory >> 20}M",
                f"initrd={self.machine.initramfs}", f"uml_dir={self.control}/uml/", "umid=lab",
                "con=null", "con0=null,fd:2", f"con1=null,fd:{out}", f"con2=null,fd:{err}",
                f"con3=fd:{port}", "console=tty0", "noreboot",
                *(f"vec{card}:transport=fd,fd={fd},mac={mac},mtu=1500"
                  for card, mac, fd in self.cards()),
                *self.kernel_arguments(f"lab_fs=hostfs lab_control={self.control}").split()]

    def cards(self):
        """The network cards of a node: number, address, descriptor of the wire's end."""
        return [(card, f"52:54:00:00:{card:02x}:{self.place.node:02x}", end.fileno())
                for card, end in enumerate(self.place.ends)] if self.place else []

    def kernel_arguments(self, more):
        """The kernel's command line. It has log level 5, because "quiet" would hide a WARNING."""
        return " ".join(["loglevel=5", "printk.time=1", *self.machine.cmdline,
                         *self.machine.checks, more])

    def start(self, accelerator="tcg", extra=""):
        """Start the guest. Afterwards `streams` has its outputs."""
        pairs = [socket.socketpair() for _ in range(3)]
        fds = [theirs.fileno() for _, theirs in pairs]
        if self.machine.engine == "uml":
            command = self.uml(*fds) + extra.split()
        else:
            command = self.qemu(*fds, accelerator)
            command[command.index("-append") + 1] += " " + extra
        self.keep()
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.control,
               "TMPDIR": self.memory_folder()}
        with open(self.console, "ab") as console:
            try:
                self.process = subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                    pass_fds=[*fds, *(fd for _, _, fd in self.cards())], start_new_session=True,
                    preexec_fn=child.dies_with_us(signal.SIGKILL))
            except FileNotFoundError as problem:
                raise LabError(f"{problem.filename} is missing: run buildlib/setup") from problem
        os.write(self.keeper_pipe, b"%d\n" % self.process.pid)
        for _, theirs in pairs:
            theirs.close()
        (out, _), (err, _), (self.port, _) = pairs
        self.streams = {out: 1, err: 2}

    def memory_folder(self):
        """The folder for User Mode Linux's memory file; a container's /dev/shm is small."""
        try:
            shm = os.statvfs("/dev/shm")
            if shm.f_bavail * shm.f_frsize >= self.memory and os.access("/dev/shm", os.W_OK):
                return "/dev/shm"
        except OSError:
            pass
        return self.control

    def keep(self):
        """Start the keeper, a process that cleans up when this process ends."""
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
            os.closerange(3, read)
            os.closerange(read + 1, 256)
            null = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(null, standard)
            groups = b""
            while chunk := os.read(read, 100):
                groups += chunk
            if os.path.isdir(self.control):  # our process did not remove it
                for group in groups.split():
                    kill_group(int(group))
                time.sleep(0.2)
                shutil.rmtree(self.control, ignore_errors=True)
            os._exit(0)
        os.close(read)
        self.keeper_pipe = write

    def pump(self, limit=None):
        """Pass on the outputs until the guest ends. If `limit` seconds are not enough, return
        False.
        """
        deadline = None if limit is None else time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            for stream in self.streams:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                for key, _ in selector.select(left):
                    self.pass_on(key.fileobj, selector)
        try:
            self.process.wait(None if deadline is None else max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            return False
        return True

    def pass_on(self, stream, selector):
        """Copy the new part of one output."""
        try:
            content = stream.recv(1 << 16)
        except ConnectionResetError:
            content = b""
        if not content:
            selector.unregister(stream)
        while content:
            try:
                content = content[os.write(self.streams[stream], content):]
            except BlockingIOError:  # another user of this output set O_NONBLOCK
                select.select([], [self.streams[stream]], [])

    def emulator_crashed(self):
        """Did QEMU crash before the command began? Call this after the end of the guest."""
        return (self.machine.engine == "qemu" and self.process.poll() in CRASHES
                and not os.path.exists(os.path.join(self.control, "begun")))

    def stop(self):
        """End the guest, if it did not end by itself."""
        if self.process is not None:
            kill_group(self.process.pid)
            self.process.wait()
            self.process = None


def kill_group(group):
    """Kill a process group, which may have ended already."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def accelerator(machine):
    """Choose KVM if a trial shows that KVM works. The trial runs once per boot of the host.

    Some implementations of KVM in software abort QEMU, or are slower than QEMU's emulation. The
    trial leaves out the machine's own devices, which may need more CPUs or memory. If the trial
    does not end in time, the host may be busy. Then the answer is not kept.
    """
    kept = os.path.join(BUILD, "lab", "accelerator")
    with open(BOOT_ID, encoding="ascii") as text:
        boot = text.read().strip()
    try:
        with open(kept, encoding="ascii") as text:
            known, answer = text.read().split()
        if known == boot:
            return answer
    except (FileNotFoundError, ValueError):
        pass
    answer, in_time = "tcg", True
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        bare = dataclasses.replace(machine, devices=[])
        with Guest(bare, machines.size("512M"), 1) as guest:
            guest.start("kvm", "lab_probe=1")
            in_time = guest.pump(limit=30)
            if in_time and "Restarting system" in guest.console_text():
                answer = "kvm"
    if in_time:
        with open(kept, "w", encoding="ascii") as out:
            out.write(f"{boot} {answer}\n")
    return answer


def paths(name, inherited):
    """The fork's folder with this name, followed by the caller's paths."""
    return ":".join([os.path.join(REPO, "build/rdma-core", name)] + ([inherited] if inherited
                                                                     else []))
