# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Run guests with wires between them. A guest can be killed and started again while others run.

A wire is a pair of sockets, one for each node, without ports and paths. This process keeps both
sockets, so a wire outlives its nodes. Packets for a node that does not run are dropped. A node has
a port to this process. On this port the node sends "ready", "start N" or "kill N", and gets the
results.
"""
import dataclasses
import selectors
import socket
import time

# A wire for rxe0, a wire for siw0, and a wire without loss for tests/lab/commands.
WIRES = 3
FIRST = 1   # the node on which COMMAND runs
LARGEST = 1 << 16


@dataclasses.dataclass
class Place:
    """The place of a guest among the nodes."""
    node: int
    ends: list      # of the wires
    netem: str      # how the wires treat packets, or ""


@dataclasses.dataclass
class Life:
    """A guest, from its start to its end."""
    guest: object
    late: bool = False      # the time limit ended it
    killed: bool = False    # lab-node killed it
    crashed: bool = False   # the emulator crashed before the command


class Nodes:
    """Two nodes. The context closes the wires at its end."""

    def __init__(self, netem, make):
        """`make` makes a guest for a Place and starts it. The caller ends it."""
        self.make = make
        self.selector = selectors.DefaultSelector()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(WIRES)]
        self.places = {FIRST + i: Place(FIRST + i, list(ends), netem)
                       for i, ends in enumerate(zip(*pairs))}
        self.lives = []         # a Life for each start of a node, in order
        self.running = {}       # node: its current Life
        self.ready = set()
        self.waiting = []       # (node, the port to answer to when it is ready)
        self.said = {}          # port: its last output, without the end of the line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for place in self.places.values():
            for end in place.ends:
                end.close()
        self.selector.close()

    def pump(self, limit):
        """Start all nodes, and pass on their outputs until all have ended. Return the Lives."""
        deadline = time.monotonic() + limit
        for node, place in self.places.items():
            for end in place.ends:
                end.setblocking(False)
            self.start(node)
        while self.running and (left := deadline - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                if key.fileobj in self.selector.get_map():  # may have ended in this loop
                    key.data(key.fileobj)
        for life in self.running.values():
            life.late = True
        return self.lives

    def start(self, node):
        """Start a node."""
        for end in self.places[node].ends:
            if end in self.selector.get_map():
                self.selector.unregister(end)
        life = self.running[node] = Life(self.make(self.places[node]))
        self.lives.append(life)
        for stream in life.guest.streams:
            self.selector.register(stream, selectors.EVENT_READ,
                                   lambda one: self.output(node, one))
        self.said[life.guest.port] = b""
        self.selector.register(life.guest.port, selectors.EVENT_READ,
                               lambda port: self.heard(node, port))

    def output(self, node, stream):
        """Pass on the output of a node. When its outputs end, the node has ended."""
        life = self.running[node]
        life.guest.pass_on(stream, self.selector)
        if not any(one in self.selector.get_map() for one in life.guest.streams):
            life.guest.process.wait()
            # If a node was booted again, COMMAND had already begun.
            life.crashed = len(self.lives) == len(self.places) and life.guest.emulator_crashed()
            self.ended(node)

    def ended(self, node):
        """A node has ended."""
        port = self.running.pop(node).guest.port
        self.ready.discard(node)
        if port in self.selector.get_map():
            self.selector.unregister(port)
        for end in self.places[node].ends:
            self.selector.register(end, selectors.EVENT_READ, throw_away)
        self.answer(node, f"node {node} has ended")
        if node == FIRST:
            for other in self.running.values():
                say(other.guest.port, "end")

    def heard(self, node, port):
        """Execute a node's request."""
        try:
            content = port.recv(LARGEST)
        except ConnectionResetError:
            content = b""
        if not content:
            self.selector.unregister(port)
            return
        *lines, self.said[port] = (self.said[port] + content).split(b"\n")
        for line in lines:
            what, _, number = line.decode("ascii", "replace").strip().partition(" ")
            if what == "ready":
                self.ready.add(node)
                self.answer(node, "done")
            elif what in ("start", "kill"):
                self.change(what, number, port)

    def change(self, what, number, port):
        """Start or kill a node, and then answer the requesting node."""
        node = int(number) if number.isdigit() else 0
        if node not in self.places or node == FIRST:
            say(port, f"can't {what} node {number}")
        elif what == "kill":
            if node in self.running:
                self.kill(node)
            say(port, "done")
        else:
            if node not in self.running:
                self.start(node)
            self.waiting.append((node, port))
            if node in self.ready:
                self.answer(node, "done")

    def kill(self, node):
        """Pass on the output of a node, and end the node as a power cut does."""
        life = self.running[node]
        life.killed = True
        life.guest.stop()
        for stream in life.guest.streams:
            while stream in self.selector.get_map():
                life.guest.pass_on(stream, self.selector)
        self.ended(node)

    def answer(self, node, text):
        """Answer the nodes that wait for this node."""
        for port in [port for waited_for, port in self.waiting if waited_for == node]:
            say(port, text)
        self.waiting = [one for one in self.waiting if one[0] != node]


def say(port, text):
    """Send a line to a node, which may have ended."""
    try:
        port.send(text.encode() + b"\n")
    except OSError:
        pass


def throw_away(end):
    """Drop packets for a node that does not run."""
    try:
        end.recv(LARGEST)
    except OSError:
        pass
