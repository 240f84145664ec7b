# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Let QEMU move a virtual machine to another process over RDMA. The memory must arrive unchanged.

The virtual machine is stopped. Each process keeps the machine's memory in a file, so that the files
can be compared. Commands to QEMU are in QMP.
"""
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import tempfile
import threading
import time

RAM = 64 << 20      # bytes
RANDOM = 48 << 20   # bytes that are random; the rest is 0, and QEMU does not send it
QEMU = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel", "tcg", "-S",
        "-m", f"{RAM >> 20}M", "-machine", "pc,memory-backend=ram",
        "-mon", "chardev=told,mode=control"]


class Machine:
    """One QEMU process."""

    def __init__(self, path, said, env, *options):
        """@path: the file of the machine's memory; @said: the file for QEMU's output."""
        ours, its = socket.socketpair()
        with ours, its:
            self.told = ours.makefile("rw", encoding="utf-8")
            self.process = subprocess.Popen(
                [*QEMU, "-chardev", f"socket,id=told,fd={its.fileno()}", "-object",
                 f"memory-backend-file,id=ram,size={RAM},share=on,mem-path={path}", *options],
                env=env, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=said,
                stderr=said)

    def ask(self, command, **arguments):
        """Send a command; return the answer."""
        print(json.dumps({"execute": command, "arguments": arguments}), file=self.told, flush=True)
        for line in self.told:
            said = json.loads(line)
            if "error" in said:
                raise OSError(f"{command}: {said['error']}")
            if "return" in said:
                return said["return"]
        raise OSError(f"{command}: QEMU has ended")

    def status_after(self, command, *statuses):
        """Repeat the command until it returns another status than these; return that status."""
        while (status := self.ask(command).get("status")) in statuses:
            time.sleep(0.05)
        return status

    def quit(self):
        """End QEMU by a command; return the exit status."""
        self.ask("quit")
        return self.process.wait()

    def end(self):
        """Kill QEMU, if it has not ended."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # QEMU has not read all input
            self.told.close()


def migrate(source, target, uri, pinned):
    """Migrate; return the complaints. If @pinned is true, QEMU registers all memory first.
    Otherwise QEMU registers each MiB before sending it."""
    for machine in (source, target):
        machine.ask("qmp_capabilities")
        machine.ask("migrate-set-capabilities",
                    capabilities=[{"capability": "rdma-pin-all", "state": pinned}])
    target.ask("migrate-incoming", uri=uri)
    source.ask("migrate", uri=uri)
    sent = source.status_after("query-migrate", None, "setup", "active", "device")
    arrived = target.status_after("query-status", "inmigrate")
    ends = sent, arrived in ("prelaunch", "paused"), source.quit(), target.quit()
    return "" if ends == ("completed", True, 0, 0) else f"{sent}, {arrived}, {ends[2:]}\n"


def checksum(path):
    """The checksum of a file."""
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def run(folder, env, uri, pinned, limit):
    """Run both processes, at most @limit seconds; return (their output, the complaints)."""
    memory = [os.path.join(folder, name) for name in ("source", "target")]
    with open(memory[0], "wb") as out:
        out.write(os.urandom(RANDOM))
        out.truncate(RAM)
    before = checksum(memory[0])
    with contextlib.ExitStack() as kept:
        said = kept.enter_context(tempfile.TemporaryFile("w+"))

        def start(path, *options):
            machine = Machine(path, said, env, *options)
            kept.callback(machine.end)
            watch = threading.Timer(limit, machine.process.kill)
            kept.callback(watch.cancel)
            watch.start()
            return machine

        try:
            wrong = migrate(start(memory[0]), start(memory[1], "-incoming", "defer"), uri, pinned)
        except (OSError, ValueError) as error:
            wrong = f"{error}\n"
        said.seek(0)
        output = said.read()
    if not wrong and {before} != set(map(checksum, memory)):
        wrong = "the memory is not what it was\n"
    return output, wrong
