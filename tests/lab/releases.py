# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""Make roots of other releases of Debian from this machine's archive, and keep them.

Each root has two layers: a fresh system (mmdebstrap), and the packages that buildlib/setup installs
on it. A command runs on a temporary overlay of these layers. On the overlay this repository has its
usual path. The build folder there is the release's own, and is kept. The command uses the compiler
cache of this machine.
"""
import contextlib
import fcntl
import os
import re
import subprocess
import sys
import tempfile

import build
import machine as machines
import namespace
from machine import BUILD, REPO, LabError

sys.path.insert(0, os.path.join(REPO, "buildlib"))
import compiler_cache  # noqa: E402  pylint: disable=wrong-import-position
import fetch  # noqa: E402  pylint: disable=wrong-import-position
import private_apt  # noqa: E402  pylint: disable=wrong-import-position

PASSED_ON = re.compile("(RDMAV|IBV|FI|UCX|CATCH|RUN|MR_NOTIFY)_|(LINUX|RDMA_CORE)_SOURCE$|JOBS$"
                       "|(http|https|no)_proxy$")
NO_SERVICES = "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d\n" \
              "chmod 755 /usr/sbin/policy-rc.d\n"
VARIANT = "minbase"     # debootstrap's name for it
ACQUIRE = "apt-config dump | grep ^Acquire::"   # how this machine reaches its archive


def ask(*command):
    """The output of a command, "" if it fails."""
    done = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False)
    return done.stdout.strip() if not done.returncode else ""


def read(path):
    """The content of a file, "" if there is none."""
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="utf-8") as text:
            return text.read()
    return ""


class Release:
    """One release, by its code name."""

    def __init__(self, name):
        self.name = name
        self.place = os.path.join(BUILD, "releases", name)
        self.base = os.path.join(self.place, "base")
        self.setup = os.path.join(self.place, "setup")
        self.log = os.path.join(self.place, "log")
        self.cache = compiler_cache.folder()
        os.makedirs(self.place, exist_ok=True)

    def sources(self):
        """The lines of the release's apt sources, which name this machine's archives."""
        uri = private_apt.archive_uris()[0]
        pairs = [(uri, ""), (uri, "-updates"),
                 *((uri, "-security") for uri in private_apt.archive_uris(security=True)[:1])]
        return [f"deb [signed-by={private_apt.keyring()}] {uri} {self.name}{suite} main"
                for uri, suite in pairs]

    def run(self, place, lower, script, binds, **streams):
        """Run a script on layers, with the repository and the caches of this machine."""
        git = ask("git", "rev-parse", "--path-format=absolute", "--git-common-dir")
        common = [(os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf", "ro"),
                  (REPO, REPO, "ro")]
        if git and not git.startswith(REPO + "/"):
            common.append((git, git, "ro"))
        # The repository may be another user's.
        env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
               "GIT_CONFIG_VALUE_0": REPO, "TERM": "dumb",
               **{name: value for name, value in os.environ.items() if PASSED_ON.match(name)}}
        if self.cache:
            os.makedirs(self.cache, exist_ok=True)
            common.append((self.cache, self.cache, "rw"))
            env["CCACHE_DIR"] = self.cache
        return namespace.run(place, lower, script, env, [*common, *binds], **streams)

    def build_folder(self, place="", kernel=""):
        """The build folder in the root. Commands that use this machine's kernel have a separate
        build folder.
        """
        folder = os.path.join(place or self.place, "build-" + kernel if kernel else "build")
        os.makedirs(folder, exist_ok=True)
        return folder

    def make_base(self, log):
        """Make a fresh system. It is not synced to the disk, because it can be made again."""
        namespace.remove(self.base, self.setup)
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
            subprocess.run(ACQUIRE, shell=True, stdout=conf, check=True)
            command = ["mmdebstrap", "--mode=root", f"--variant={VARIANT}", f"--aptopt={conf.name}",
                       "--dpkgopt=force-unsafe-io", self.name, self.base, *self.sources()]
            return subprocess.run(namespace.as_root(command, {}), stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=subprocess.STDOUT, check=False).returncode

    def make_setup(self, log):
        """Run buildlib/setup on the existing layer. It installs only missing packages."""
        return self.run(self.setup, [self.base], f"{NO_SERVICES}{REPO}/buildlib/setup",
                        [(self.build_folder(), BUILD, "rw")], stdin=subprocess.DEVNULL,
                        stdout=log, stderr=subprocess.STDOUT)

    def layers(self, fresh):
        """[(name, the text from which the layer is made, the function that makes it)]."""
        base = "\n".join([VARIANT, *self.sources()])
        setup = base + read(os.path.join(REPO, "buildlib/packages"))
        return [("base", base, self.make_base),
                *([] if fresh else [("setup", setup, self.make_setup)])]

    def outdated(self, fresh):
        """The layers that are missing, or were made from another text."""
        return [(name, content, how) for name, content, how in self.layers(fresh)
                if read(os.path.join(self.place, name + ".made")) != content]

    def make(self, fresh):
        """Make the outdated layers. The caller holds the lock exclusively."""
        for name, content, how in self.outdated(fresh):
            with build.step(f"{self.name}: {name} (log: {self.log})"), \
                    open(self.log, "w", encoding="utf-8") as log:
                status = how(log)
            if status:
                raise LabError("".join(read(self.log).splitlines(True)[-20:])
                               + f"can't make a {self.name} root; the output is in {self.log}")
            with open(os.path.join(self.place, name + ".made"), "w", encoding="utf-8") as made:
                made.write(content)

    @contextlib.contextmanager
    def ready(self, fresh=False):
        """A context in which the root is up to date and does not change, because its users share a
        lock.

        The value is the layers, the uppermost first. With `fresh` it is only the fresh system.
        """
        with open(os.path.join(self.place, ".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            while self.outdated(fresh):
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.make(fresh)
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield [self.base] if fresh else [os.path.join(self.setup, "upper"), self.base]

    @contextlib.contextmanager
    def temporary(self):
        """A folder that is removed when a command has ended."""
        folder = tempfile.mkdtemp(prefix="run-", dir=self.place)
        try:
            yield folder
        finally:
            namespace.remove(folder)

    def command(self, script, fresh=False, kernel="", shared=()):
        """Run a script on the root; return its status. See tests/lab/on for the options."""
        with contextlib.ExitStack() as kept:
            lower = kept.enter_context(self.ready(fresh))
            place = kept.enter_context(self.temporary())
            binds = [(self.build_folder(place if fresh else "", kernel), BUILD, "rw"),
                     *((path, path, "rw") for path in shared)]
            if kernel:
                machine = machines.load(kernel)
                kept.enter_context(build.ready(machine))
                version = fetch.version_file(machine.linux, BUILD)
                binds += [(machine.folder, machine.folder, "rw"), (version, version, "ro")]
            return self.run(place, lower, script, binds)
